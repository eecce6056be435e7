"""Are two samples from one distribution? The kernel Fisher discriminant test (Eric, Bach & Harchaoui 2008).

The Discriminant Information of which sample a row is from is a test statistic: with the indicator of the first sample
as the only target, D = DI/‖Ȳ‖² is the share of it that the features explain, and D/(1 − D) is the kernel Fisher
discriminant ratio, for any ρ (Sherman & Morrison). Permuting the rows changes neither the scatter nor its factor, so
all permutations together are one product. As ρ grows the test becomes that of the maximum mean discrepancy (MMD).
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from discernel import checks
from discernel.bandwidth import median_gamma
from discernel.criteria import DI, discriminant_information
from discernel.data import ArraySource
from discernel.feature_maps import FeatureMap, Nystroem
from discernel.kernels import Kernel, kernel_named, make_kernel
from discernel.landmarks import choose_landmarks, distinct_rows
from discernel.linalg import solve_psd, symmetric_product
from discernel.moments import regularised
from discernel.targets import Targets
from discernel.training import Trainer

MEDIAN_PAIRS = 2000
ENTRIES = 2**24  # of permutations that are kept at a time


@dataclass(frozen=True)
class TwoSampleTest:
    """What a two-sample test has found. Small p-values speak against one common distribution."""

    statistic: float  # the kernel Fisher discriminant ratio, n · D/(1 − D)
    p_value: float
    mmd: float  # ‖mean φ(x) − mean φ(y)‖², the squared maximum mean discrepancy of the same kernel
    mmd_p_value: float
    n_permutations: int
    counts: tuple[int, int]  # rows of X and Y that were tested on
    feature_map: Nystroem  # the features that were tested on


def two_sample_test(
    X: Any,
    Y: Any,
    kernel: str | Kernel = "rbf",
    learn: bool = True,
    *,
    n_components: int | None = None,
    rho: float = 1e-3,
    n_permutations: int = 999,
    trainer: Trainer | None = None,
    seed: int = 0,
) -> TwoSampleTest:
    """Test whether the rows of X and of Y come from one distribution.

    The p-value is exact: under the null hypothesis it is at most α with probability at most α, for any kernel, ρ and
    number of rows, since the permutations are of rows that the features have not been fitted to.

    Parameters
    ----------
    X, Y : array or Tensor (n, d) and (m, d)
        The samples. Bring the columns to comparable units first.
    kernel : str or Kernel
        Of the features. A name starts from the median heuristic, γ = 1/(the median squared distance), of the Laplacian
        kernel 1/(the median of ‖x − z‖₁); a `Kernel` brings its own gamma.
    learn : bool
        Learn landmarks, and by name also a bandwidth for each column, on a random half of the rows by maximal DI (of
        which a third is held out to see how long it helps), and test on the other half. Without it all rows are tested
        on, with random landmarks.
    n_components : int, optional
        The number of landmarks; by default a tenth of the rows, from 5 to 50. With as many as rows, untrained, the
        features are those of the kernel itself.
    rho : float
        The ridge penalty, relative to the number of rows that are learned from or tested on.
    n_permutations : int
        The least p-value is 1/(n_permutations + 1).
    trainer : Trainer, optional
        How the features are learned; by default for 100 epochs, at half the usual rate: rows are few here.
    seed : int
        Decides the halves, the landmarks and the permutations.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> x, y = rng.normal(size=(200, 2)), 1.5 * rng.normal(size=(200, 2))
    >>> two_sample_test(x, y).p_value  # equal means, but another spread
    0.001
    >>> two_sample_test(x[:100], x[100:]).p_value > 0.05
    True
    """
    x, y = _rows("X", X), _rows("Y", Y)
    if x.shape[1] != y.shape[1]:
        raise ValueError(f"X and Y must have the same columns, got {x.shape[1]} and {y.shape[1]}")
    checks.boolean("learn", learn)
    if n_components is not None:
        checks.positive_int("n_components", n_components)
    checks.positive_int("n_permutations", n_permutations)
    rho = checks.positive("rho", rho)
    generator = torch.Generator().manual_seed(checks.integer("seed", seed))
    if not learn:
        feature_map = _start(torch.cat([x, y]), kernel, n_components, False, generator)
        return _test(feature_map, x, y, rho, n_permutations, generator)
    (x_learn, x), (y_learn, y) = (_parts(rows, 2, generator) for rows in (x, y))
    feature_map = _start(torch.cat([x_learn, y_learn]), kernel, n_components, True, generator)
    trainer = (
        Trainer(max_epochs=100, learning_rate=0.2) if trainer is None else checks.instance("trainer", trainer, Trainer)
    )
    _learn(feature_map, x_learn, y_learn, rho, trainer, seed, generator)
    return _test(feature_map, x, y, rho, n_permutations, generator)


def _learn(
    feature_map: Nystroem, x: Tensor, y: Tensor, rho: float, trainer: Trainer, seed: int, generator: torch.Generator
) -> None:
    """Train the map on two thirds of the rows; keep it as it was after the epoch, or none, that the rest speak for."""
    (x_held, x), (y_held, y) = (_parts(rows, 3, generator) for rows in (x, y))
    rows, held_out = torch.cat([x, y]), torch.cat([x_held, y_held])
    which = (torch.arange(len(held_out)) < len(x_held)).to(rows)[:, None]

    def information(feature_map: FeatureMap) -> float:
        with torch.no_grad():
            basis, gram = feature_map.basis(held_out), feature_map.gram()
            return discriminant_information(basis, which, rho * len(held_out), gram).item()

    source = ArraySource(rows, Targets.classes(np.repeat([0, 1], [len(x), len(y)])))
    best, state = information(feature_map), copy.deepcopy(feature_map.state_dict())
    for record in trainer.epochs(feature_map, DI(rho * len(rows)), source, seed=seed, validation=information):
        if record.validation_score is not None and record.validation_score > best:
            best, state = record.validation_score, copy.deepcopy(feature_map.state_dict())
    feature_map.load_state_dict(state)


def _rows(name: str, value: Any) -> Tensor:
    value = value.detach().cpu() if isinstance(value, Tensor) else torch.from_numpy(np.asarray(value, dtype=np.float64))
    if len(checks.matrix(name, value)) < 8:
        raise ValueError(f"{name} must have at least 8 rows, got {len(value)}")
    return value.double()


def _parts(x: Tensor, share: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return one `share`-th of the rows, at random, and the others."""
    order = torch.randperm(len(x), generator=generator)
    return x[order[: len(x) // share]], x[order[len(x) // share :]]


def _start(
    rows: Tensor, kernel: str | Kernel, n_components: int | None, learn: bool, generator: torch.Generator
) -> Nystroem:
    """Return the map of random landmarks, and by name the median heuristic's kernel."""
    if isinstance(kernel, str):
        gamma = torch.full((rows.shape[1],) if learn else (), start_gamma(rows, generator, kernel), dtype=rows.dtype)
        kernel = make_kernel(kernel, gamma, trainable=learn)
    count = max(5, min(50, len(rows) // 10)) if n_components is None else n_components
    count = min(count, len(distinct_rows(rows)[0]))
    return Nystroem(choose_landmarks(rows, count, generator=generator), kernel)


def start_gamma(rows: Tensor, generator: torch.Generator | None = None, kernel: str = "rbf") -> float:
    """Return the γ that a test starts from: the median heuristic, of random pairs of different rows."""
    first = torch.randint(len(rows), (MEDIAN_PAIRS,), generator=generator)
    second = (first + torch.randint(1, len(rows), (MEDIAN_PAIRS,), generator=generator)) % len(rows)
    return median_gamma(rows, torch.cat([first, second]), power=kernel_named(kernel).power)


def _test(
    feature_map: Nystroem, x: Tensor, y: Tensor, rho: float, n_permutations: int, generator: torch.Generator
) -> TwoSampleTest:
    feature_map = feature_map.eval().requires_grad_(False)
    with torch.no_grad():
        features = feature_map(torch.cat([x, y]))
    features = features - features.mean(0)
    n, m = len(x), len(y)
    across = torch.cat([features.T @ some for some in _indicators(n, m, n_permutations, generator)], 1)  # J×(1 + P)
    explained = (across * solve_psd(regularised(symmetric_product(features), rho * (n + m)), across).x).sum(0)
    shares = explained / (n * m / (n + m))  # D, of ‖Ȳ‖²
    mmds = across.square().sum(0) * ((n + m) / (n * m)) ** 2
    return TwoSampleTest(
        ((n + m) * shares[0] / (1 - shares[0])).item(),
        _p_value(shares),
        mmds[0].item(),
        _p_value(mmds),
        n_permutations,
        (n, m),
        feature_map,
    )


def _indicators(n: int, m: int, n_permutations: int, generator: torch.Generator) -> Iterator[Tensor]:
    """Yield the centred indicator of the first sample, then permutations of it: (n + m)×(1 + P), some at a time."""
    most = max(1, ENTRIES // (n + m))
    for start in range(0, n_permutations, most):
        order = torch.rand(min(most, n_permutations - start), n + m, generator=generator).argsort(1)
        if start == 0:
            order = torch.cat([torch.arange(n + m)[None], order])  # as the rows came
        yield (order < n).T.double() - n / (n + m)


def _p_value(values: Tensor) -> float:
    """Return the share of all values, the first included, that are at least as large as the first."""
    return (values >= values[0] * (1 - 1e-12)).double().mean().item()
