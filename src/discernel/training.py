"""Training: a settings object, and a generator of epochs that one reads top to bottom.

What happens between epochs (progress, plots, early stopping) is the body of the caller's `for`.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

from discernel import checks
from discernel.criteria import DI, Criterion
from discernel.data import Source
from discernel.feature_maps import FeatureMap
from discernel.run import EpochRecord, Run

SCHEDULES = ("cosine", "plateau")
AUTO_STEPS, MAX_EPOCHS = 600, 40


class Plan(NamedTuple):
    """How much there is to do."""

    rows: int  # of a mini-batch
    steps: int  # of an epoch
    epochs: int  # at most


@dataclass
class Trainer:
    """How a feature map is trained; `epochs` does it.

    Parameters
    ----------
    max_epochs : int or "auto"
        Passes over the data; "auto" takes about 600 steps in at most 40 epochs.
    batch_size : int, "auto" or "paper"
        Rows of a mini-batch, always more than J if there are as many. "auto" takes 10J, up to 20J of many rows (thirty
        steps an epoch), down to 2J of few (six steps), but at least 1000; "paper" takes 1000, or 2J for DI with
        J > 500.
        A batch may be as large as the data: if its features would take too much memory, they are computed in parts,
        with the same result.
    learning_rate : float
        Of Adam. If `relative`, in units of each parameter's own natural size (`FeatureMap.scales`), so that neither
        the units of the data nor the bandwidth matter, nor to random Fourier maps their origin, since the steps of
        these are about the mean of the data; else absolute.
    relative : bool
        See `learning_rate`.
    nesterov : bool
        Give Adam g + 0.9(g − g') in place of the gradient g, with g' that of the step before: Nesterov's momentum, as
        in Adan (Xie et al. 2022). It bears larger steps, and is in 600 about where Adam is in 900; what Adam divides
        by is about twice as large where gradients are mostly noise.
    schedule : {"cosine", "plateau"}
        "cosine" warms up over the first `warmup` of all steps and falls to zero in half a cosine. "plateau" multiplies
        by 0.1 when the epoch mean has saturated, and stops when it fails to improve after a decay.
    warmup : float
        The share of the steps that "cosine" warms up in.
    tol : float
        The relative improvement of the epoch mean below which "plateau" calls it saturated.
    patience : int
        For how many epochs it has to stay below.

    Examples
    --------
    >>> from discernel import DI, ArraySource, RandomFourier, RBF, Targets
    >>> import torch
    >>> _ = torch.manual_seed(0)
    >>> x = torch.rand(200, 2)
    >>> source = ArraySource(x, Targets.classes(x[:, 0] * x[:, 1] > 0.25))
    >>> fourier = RandomFourier.sample(RBF(1.0), n_features=2, n_components=10)
    >>> history = list(Trainer(max_epochs=5).epochs(fourier, DI(), source, seed=0))
    >>> history[-1].criterion > history[0].criterion
    True
    """

    max_epochs: int | str = "auto"
    batch_size: int | str = "auto"
    learning_rate: float = 0.4
    relative: bool = True
    nesterov: bool = True
    schedule: str = "cosine"
    warmup: float = 0.05
    tol: float = 1e-3
    patience: int = 5

    def __post_init__(self):
        for name, rules in (("max_epochs", ("auto",)), ("batch_size", ("auto", "paper"))):
            value = getattr(self, name)
            checked = checks.one_of(name, value, rules) if isinstance(value, str) else checks.positive_int(name, value)
            setattr(self, name, checked)
        self.learning_rate = checks.positive("learning_rate", self.learning_rate)
        checks.boolean("relative", self.relative)
        checks.boolean("nesterov", self.nesterov)
        checks.one_of("schedule", self.schedule, SCHEDULES)
        self.warmup = checks.number("warmup", self.warmup)
        if not 0 <= self.warmup < 1:
            raise ValueError(f"warmup must be a share of the steps, from 0 to below 1; got {self.warmup!r}")
        self.tol = checks.positive("tol", self.tol)
        self.patience = checks.positive_int("patience", self.patience)

    @classmethod
    def paper(cls, **settings) -> Self:
        """Return the paper's settings: Adam at 1e-3, times 0.1 on saturation, batches of 1000 or 2J."""
        paper = cls(1000, "paper", learning_rate=1e-3, relative=False, nesterov=False, schedule="plateau")
        return dataclasses.replace(paper, **settings)

    def __repr__(self) -> str:
        changed = (f for f in dataclasses.fields(self) if getattr(self, f.name) != f.default)
        return f"Trainer({', '.join(f'{f.name}={getattr(self, f.name)!r}' for f in changed)})"

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """Return the settings by name, as scikit-learn's `clone` and grid search ask for them."""
        return asdict(self)

    def set_params(self, **settings) -> Self:
        """Change settings by name and return self."""
        for name, value in asdict(dataclasses.replace(self, **settings)).items():
            setattr(self, name, value)
        return self

    def rows_per_batch(self, n_rows: int, n_components: int, criterion: Criterion) -> int:
        """Return the rows of a mini-batch; more than J where the data have them, never more than there are."""
        if self.batch_size == "paper":
            rows = 2 * n_components if isinstance(criterion, DI) and n_components > 500 else 1000
        elif self.batch_size == "auto":
            many = max(10 * n_components, min(20 * n_components, n_rows // 30))
            rows = max(1000, min(many, max(2 * n_components, n_rows // 6)))
            rows = n_rows // max(1, round(n_rows / rows))  # whole batches, so that hardly a row is left out
        else:
            rows = int(self.batch_size)
        return min(max(rows, n_components + 1), n_rows)

    def plan(self, n_rows: int, n_components: int, criterion: Criterion) -> Plan:
        """Return how `epochs` will train a map of J components on so many rows.

        Examples
        --------
        >>> Trainer().plan(60_000, 100, DI())
        Plan(rows=2000, steps=30, epochs=20)
        """
        rows = self.rows_per_batch(n_rows, n_components, criterion)
        steps, epochs = n_rows // rows, self.max_epochs
        if isinstance(epochs, str):
            epochs = min(MAX_EPOCHS, max(1, round(AUTO_STEPS / steps)))
        return Plan(rows, steps, epochs)

    def epochs(
        self,
        feature_map: FeatureMap,
        criterion: Criterion,
        source: Source,
        *,
        seed: int = 0,
        checkpoint: str | os.PathLike | None = None,
        validation: Callable[[FeatureMap], float] | None = None,
        n_iter_no_change: int | None = None,
    ) -> Iterator[EpochRecord]:
        """Train `feature_map` in place; yield a record after each epoch.

        Parameters
        ----------
        feature_map : FeatureMap
            What is trained.
        criterion : Criterion
            What for.
        source : Source
            The data.
        seed : int
            Decides the mini-batches. The same seed, data, settings and thread count give the same bits.
        checkpoint : path, optional
            A file to which the state is saved after each epoch, within long ones every minute, and when SIGINT or
            SIGTERM comes, which waits for that. If the file is there already, training goes on from it, after the
            records of the epochs it has are yielded again.
        validation : callable, optional
            Given the map after each epoch, returns the score that the record carries as `validation_score`.
        n_iter_no_change : int, optional
            Stop when the validation score has not improved for so many epochs, and in the end go back to the map with
            the best one; of equally good ones to the last, which has learned the most.
        """
        if n_iter_no_change is not None and validation is None:
            raise ValueError("n_iter_no_change is for a validation score: give validation too")
        run = Run(dataclasses.replace(self), feature_map, criterion, source, seed, checkpoint)
        return run.epochs(validation, n_iter_no_change)
