"""A training run: the loop of the paper's Algorithms 1 and 2, for any feature map and criterion, and its checkpoint."""

import copy
import dataclasses
import math
import os
import time
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import partial, reduce
from operator import add
from typing import Any

import torch
from torch import Tensor
from torch.optim.lr_scheduler import ReduceLROnPlateau

from discernel import checkpoint as files
from discernel import checks
from discernel.adam import Adam
from discernel.criteria import Criterion
from discernel.data import Batch, Source
from discernel.distributed import sharded
from discernel.feature_maps import FeatureMap, at_rest, rms, width
from discernel.interrupts import held_back
from discernel.moments import Moments, Total
from discernel.resources import Memory, kept, threads_for

SAVE_SECONDS = 60.0
AT_ONCE = 2**27  # numbers of the basis; a mini-batch with more is taken in parts
PASS = 4096  # rows at a time of a pass over the data: few enough for the cache, many enough for the products
MOMENTUM = 0.9  # Adam's first decay rate
PROBE = 64  # rows by which a collapse of the features is noticed
_PROGRESS = ("epoch", "step", "total", "best_at_decay", "stopped")


class _Diverged(Exception):
    """The run has become numerically meaningless; the message says how."""


class DivergenceWarning(UserWarning):
    """Training became numerically meaningless and was rolled back to the last good state."""


@dataclass(frozen=True)
class EpochRecord:
    """What is known after an epoch."""

    epoch: int  # from 1
    criterion: float  # the mean over the mini-batches, μ in the paper's algorithms
    learning_rate: float  # of the last step
    seconds: float  # of this epoch
    samples_per_second: float
    validation_score: float | None = None


_RECORD = EpochRecord(0, 0.0, 0.0, 0.0, 0.0)


class Run:
    """A training run: the loop, and everything that a checkpoint has to hold."""

    path: Any  # of the checkpoint, or None

    def __init__(self, settings, feature_map, criterion, source, seed, path):
        checks.instance("feature_map", feature_map, FeatureMap)
        checks.instance("criterion", criterion, Criterion)
        checks.instance("source", source, Source)
        if path is not None:
            files.place(path)
        source = sharded(source)
        criterion.total, criterion.ranks = source.total, source.ranks
        self.settings, self.map, self.criterion, self.source, self.path = settings, feature_map, criterion, source, path
        self.generator = torch.Generator().manual_seed(checks.integer("seed", seed))
        batch = source.rows(slice(0, PROBE))
        for name, parameter in feature_map.named_parameters():
            if parameter.dtype != batch.x.dtype:
                raise TypeError(f"the data are {batch.x.dtype}, but the feature map's {name} is {parameter.dtype}")
        if not any(parameter.requires_grad for parameter in feature_map.parameters()):
            raise ValueError("the feature map has no trainable parameters")
        self.probe = batch.x
        with at_rest(feature_map):
            basis = feature_map.basis(self.probe)
            checks.matrix("the feature map's output", basis, rows=len(batch.x), advice=checks.RESCALE)
        self.varied = _varies(basis)
        criterion.prepare(basis, batch.targets)
        self.size, self.steps, self.max_epochs = settings.plan(len(source), basis.shape[1], criterion)
        self.at_once = max(1, AT_ONCE // basis.shape[1])
        self.work = self.size * basis.shape[1] * (basis.shape[1] + batch.x[0].numel())
        self.affine = feature_map.affine() if settings.relative else None
        if self.affine is not None and not all(parameter.requires_grad for parameter in self.affine):
            self.affine = None
        self.centre: Tensor | None = None  # of the data, by the first mini-batch
        self.gradients: dict[int, Tensor] = {}  # of the step before, by the number of the parameter
        self.memory: Memory = {}
        self.optimizer = Adam(self._groups(), maximize=criterion.higher_is_better)
        self.parameters = [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
        self.plateau = self._plateau()
        self.order = self.generator.get_state()  # from which the present epoch draws its mini-batches
        self.epoch = 0  # epochs completed
        self.step = 0  # steps done in the present one
        self.total = 0.0  # the sum of their criterion values
        self.best_at_decay: float | None = None
        self.stopped = False
        self.history: list[EpochRecord] = []
        self.best: dict[str, Tensor] = {}  # the map with the best validation score, if there are any
        self.identity = {
            "settings": asdict(settings),
            "feature map": _describe(feature_map),
            "criterion": _describe(criterion),
            "seed": int(seed),
            "data": f"{len(source)} rows with checksum {source.fingerprint()}",
        }
        if path is not None and os.path.exists(path):
            self._load()
        done = torch.tensor(self.epoch * self.steps + self.step)
        if source.total(done) != source.ranks * done:
            raise files.FileError(f"the processes have different checkpoints: {path} must be one file for all of them")

    def _groups(self) -> list[dict]:
        """One group for each learning rate: that, and Adam's epsilon, are in units of a parameter's own size."""
        parameters = {f"map.{name}": p for name, p in self.map.named_parameters() if p.requires_grad}
        scales = {f"map.{name}": scale for name, scale in self.map.scales().items()}
        for name, p in self.criterion.named_parameters():
            parameters[f"criterion.{name}"], scales[f"criterion.{name}"] = p, rms(p)
        units = {name: scales[name] if self.settings.relative else 1.0 for name in parameters}
        groups: dict[float, list] = {}
        for name, p in parameters.items():
            groups.setdefault(units[name], []).append(p)
        rates = {unit: self.settings.learning_rate * unit for unit in groups}
        return [
            {"params": group, "lr": rates[unit], "initial_lr": rates[unit], "eps": 1e-8 / unit}
            for unit, group in groups.items()
        ]

    def _plateau(self) -> ReduceLROnPlateau | None:
        if self.settings.schedule != "plateau":
            return None
        mode = "max" if self.criterion.higher_is_better else "min"
        return ReduceLROnPlateau(self.optimizer, mode, 0.1, self.settings.patience - 1, self.settings.tol, eps=0)

    def epochs(self, validation, n_iter_no_change) -> Iterator[EpochRecord]:
        """Yield a record after each epoch, those of a checkpoint first."""
        yield from self.history
        while self.epoch < self.max_epochs and not self.stopped and not self._stale(n_iter_no_change):
            good = self._state()
            try:
                with threads_for(self.work), kept(self.memory):
                    record = self._epoch()
            except (_Diverged, FloatingPointError) as problem:
                self._restore(*good)
                warnings.warn(
                    f"training diverged in epoch {self.epoch + 1}: {problem}. The map is back in its state before that "
                    f"epoch; lower learning_rate (now {self.settings.learning_rate:g}) or raise rho",
                    DivergenceWarning,
                )
                break
            if validation is not None:
                record = dataclasses.replace(record, validation_score=float(validation(self.map)))
            self.history.append(record)
            if n_iter_no_change is not None and record.validation_score == max(self._scores()):
                self.best = {name: array.clone() for name, array in self.map.state_dict().items()}
            if self.path is not None:
                self._save()
            yield record
        if self.best and n_iter_no_change is not None:
            self.map.load_state_dict(self.best)

    def _scores(self) -> list[float]:
        return [record.validation_score for record in self.history if record.validation_score is not None]

    def _stale(self, patience: int | None) -> bool:
        """Return whether the validation score has not improved for so many epochs."""
        scores = self._scores()
        return patience is not None and bool(scores) and len(scores) - 1 - scores.index(max(scores)) >= patience

    def _epoch(self) -> EpochRecord:
        started, first = time.perf_counter(), self.step
        saved = started
        if self.step == 0:
            with torch.no_grad():
                self.criterion.refresh(lambda: moments_over(self.source, self.map), self.map.gram())
        with held_back(self.path is not None and self.source.ranks == 1) as held:
            for batch in self.source.batches(self.size, self.generator, skip=self.step):
                self.update(batch)
                if held.waiting or (self.path is not None and time.perf_counter() - saved > SAVE_SECONDS):
                    self._save()
                    saved = time.perf_counter()
                    held.let_go()
            if held.waiting:
                self._save()
        seconds = time.perf_counter() - started
        mean, learning_rate = self.total / self.steps, self._learning_rate()
        self._check(mean)
        self.order = self.generator.get_state()
        self.epoch, self.step, self.total = self.epoch + 1, 0, 0.0
        if self.plateau is not None:
            self._watch(self.plateau, mean)
        return EpochRecord(self.epoch, mean, learning_rate, seconds, (self.steps - first) * self.size / seconds)

    def update(self, batch: Batch) -> None:
        """Take one step by a mini-batch."""
        if self.plateau is None:
            factor = cosine(self.epoch * self.steps + self.step, self.max_epochs * self.steps, self.settings.warmup)
            for group in self.optimizer.param_groups:
                group["lr"] = group["initial_lr"] * factor
        for parameter in self.parameters:
            parameter.grad = None
        value = self._complete(self._backward(batch))
        self._step(batch)
        self.step += 1
        self.total += value.item()
        if not math.isfinite(self.total):
            raise _Diverged(f"the criterion became {value.item()} at step {self.step}")

    def _backward(self, batch: Batch) -> Tensor:
        """Return this process's share of the criterion of a mini-batch, having added up its gradients."""
        criterion, parts = self.criterion, [batch]
        if self.size > self.at_once * self.source.ranks:
            parts = batch.split(self.at_once)
            weight = (
                batch.targets.new_tensor(len(batch.x)) if batch.sample_weight is None else batch.sample_weight.sum()
            )
            with torch.no_grad():
                moments = partial(_moments, parts, self.map, self.source)
                criterion = criterion.of_parts(len(parts), self.source.total(weight), moments, self.map.gram())
        return reduce(add, (self._of_part(part, criterion) for part in parts))

    def _of_part(self, part: Batch, criterion: Criterion) -> Tensor:
        basis, gram, pull_back = self.map.with_pull_back(part.x)
        value = criterion.backward(basis, part.targets, gram, part.sample_weight)
        pull_back(basis.grad, None if gram is None else gram.grad)
        return value

    def _complete(self, value: Tensor) -> Tensor:
        """Return the criterion of the whole batch, having made the gradients those of the whole batch too."""
        if self.source.ranks == 1:
            return value
        parts = [value.flatten(), *(p.grad.flatten() for p in self.parameters)]
        value, *gradients = self.source.total(torch.cat(parts)).split([len(part) for part in parts])
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad.copy_(gradient.view_as(parameter))
        return value

    def _step(self, batch: Batch) -> None:
        """Take Adam's step; where the map sees xW + b, by W and c of (x − m)W + c.

        About the mean m of the data these two do not interfere, while a change of W and not of b moves all the samples.
        """
        if self.affine is None:
            self._look_ahead()
            self.optimizer.advance()
            return
        if self.centre is None:
            self.centre = _centre(batch, self.source.total)
        linear, offset = self.affine
        with torch.no_grad():
            linear.grad.addr_(self.centre, offset.grad, alpha=-1)
            self._look_ahead()
            before = linear.clone()
            self.optimizer.advance()
            offset -= self.centre @ (linear - before)

    def _look_ahead(self) -> None:
        """Put g + 0.9(g − g') for each gradient g, if Nesterov's momentum is wanted; g' is that of the step before."""
        if not self.settings.nesterov:
            return
        for index, parameter in enumerate(self.parameters):
            if parameter.grad is None:  # it takes no part
                continue
            before, self.gradients[index] = self.gradients.get(index), parameter.grad
            if before is not None:
                parameter.grad = before.lerp_(parameter.grad, 1 + MOMENTUM)

    def _check(self, mean: float) -> None:
        for name, parameter in self.map.named_parameters():
            if not bool(torch.isfinite(parameter).all()):
                raise _Diverged(f"the parameter {name} holds NaN or infinite values")
        with at_rest(self.map):
            if self.varied and not _varies(self.map.basis(self.probe)):
                raise _Diverged("the features have become constant, as if all parameters had left the data")
        if self.history:
            first = self.history[0].criterion
            rises = self.criterion.higher_is_better
            worse, tenfold = first - mean if rises else mean - first, 0.9 if rises and first > 0 else 9
            if worse > tenfold * abs(first):
                raise _Diverged(f"the epoch mean of the criterion went from {first:g} at first to {mean:g}")

    def _watch(self, plateau: ReduceLROnPlateau, mean: float) -> None:
        """Decay the learning rate if the mean has saturated; stop if it has not improved since the last decay."""
        before = self._learning_rate()
        plateau.step(mean)
        if self._learning_rate() != before:
            self.stopped = self.best_at_decay == plateau.best
            self.best_at_decay = plateau.best

    def _learning_rate(self) -> float:
        group = self.optimizer.param_groups[0]
        return self.settings.learning_rate * group["lr"] / group["initial_lr"]

    def _state(self) -> tuple[dict, dict]:
        """Return the arrays and the rest of the run as it now is."""
        optimizer = self.optimizer.state_dict()
        arrays = files.flatten("map", self.map.state_dict()) | files.flatten("criterion", self.criterion.state_dict())
        arrays |= files.flatten("optimizer", optimizer["state"]) | {"order": self.order}
        arrays |= {} if self.centre is None else {"centre": self.centre}
        arrays |= files.flatten("gradient", self.gradients)
        meta = {
            "identity": self.identity,
            "groups": optimizer["param_groups"],
            "plateau": None if self.plateau is None else self.plateau.state_dict(),
            "progress": {name: getattr(self, name) for name in _PROGRESS},
        }
        meta = copy.deepcopy(meta) | {"history": list(self.history)}
        return {name: array.clone() for name, array in arrays.items()}, meta

    def _restore(self, arrays: dict, meta: dict) -> None:
        self.map.load_state_dict(files.branch("map", arrays))
        self.criterion.load_state_dict(files.branch("criterion", arrays))
        state: dict[int, dict] = {}
        for name, array in files.branch("optimizer", arrays).items():
            index, key = name.split(".")
            state.setdefault(int(index), {})[key] = array
        self.optimizer.load_state_dict({"state": state, "param_groups": meta["groups"]})
        for parameter, moments in self.optimizer.state.items():  # fused, it takes them to be laid out alike
            for key in ("exp_avg", "exp_avg_sq"):
                moments[key] = _like(parameter, moments[key], "a moment of Adam's")
        if self.plateau is not None:
            self.plateau.load_state_dict(meta["plateau"])
        self.centre = _like(self.probe[0], arrays["centre"], "the centre") if "centre" in arrays else None
        self.gradients = {
            int(index): _like(self.parameters[int(index)], gradient, "a gradient")
            for index, gradient in files.branch("gradient", arrays).items()
        }
        self.order = arrays["order"]
        self.generator.set_state(self.order)
        for name in _PROGRESS:
            setattr(self, name, meta["progress"][name])
        self.history = list(meta["history"])

    def _save(self) -> None:
        if self.source.rank > 0:  # all processes are in the same state
            return
        arrays, meta = self._state()
        arrays |= files.flatten("best", self.best)
        files.write(self.path, "checkpoint", arrays, meta | {"history": [asdict(record) for record in self.history]})

    def _load(self) -> None:
        arrays, meta = files.read(self.path, "checkpoint")
        identity = meta.get("identity")
        identity = _flat(identity if isinstance(identity, dict) else {})
        for name, here in _flat(self.identity).items():
            if identity.get(name) != here:
                raise files.FileError(
                    f"{self.path} is the checkpoint of another run: its {name} is {identity.get(name)!r}, here it is "
                    f"{here!r}; give another checkpoint path, or delete the file to start afresh"
                )
        before = self._state()
        try:
            history = [asdict(_RECORD)] * min(meta["progress"]["epoch"], self.max_epochs)
            files.check_alike(meta, before[1] | {"identity": meta["identity"], "history": history})
            self._restore(arrays, meta | {"history": [EpochRecord(**record) for record in meta["history"]]})
            if not 0 <= self.step <= self.steps or self.epoch > self.max_epochs:
                raise ValueError(f"step {self.step} of epoch {self.epoch} is none of this run")
            self.best = files.branch("best", arrays)
            if self.best:
                copy.deepcopy(self.map).load_state_dict(self.best)
        except Exception as error:  # whatever is wrong, it is wrong with the file
            self._restore(*before)
            raise files.FileError(f"{self.path} is damaged: {error!r}") from error


def _like(tensor: Tensor, array: Tensor, what: str) -> Tensor:
    """Return what a file has, in the precision and the layout of the tensor whose shape it must have."""
    if array.shape != tensor.shape:
        raise ValueError(f"{what} must have the shape {tuple(tensor.shape)}, got {tuple(array.shape)}")
    return torch.empty_like(tensor).copy_(array)


def _flat(identity: dict) -> dict:
    """Return what a run is known by, with each of its settings by its own name."""
    settings = identity.get("settings")
    return (settings if isinstance(settings, dict) else {}) | {k: v for k, v in identity.items() if k != "settings"}


def cosine(step: int, steps: int, warmup: float) -> float:
    """Return the factor of the learning rate: a linear warm-up over a share of the steps, half a cosine to zero.

    A warm-up takes at least as many steps as Adam averages over: until then all of its steps are full ones.
    """
    warm = max(warmup * steps, 1 / (1 - MOMENTUM)) if warmup else 0
    return min(1.0, (step + 1) / (warm + 1)) * 0.5 * (1 + math.cos(math.pi * step / steps))


def moments_over(source: Source, feature_map: FeatureMap) -> Moments:
    """Return the moments of a map's basis and the targets over all rows of a source, in one pass of bounded memory.

    Examples
    --------
    >>> from discernel import ArraySource, ModuleMap, Targets
    >>> x = torch.tensor([[0.0], [1.0], [2.0], [3.0]])
    >>> moments = moments_over(ArraySource(x, Targets.values(x[:, 0].numpy())), ModuleMap(torch.nn.Identity()))
    >>> moments.mse(moments.ridge(1e-9))
    0.0
    """
    with at_rest(feature_map):
        rows = max(256, min(PASS, 2**22 // width(feature_map, source.rows(slice(0, 1)).x)))
        return _moments(source.batches(rows), feature_map, source)


def _moments(batches: Iterable[Batch], feature_map: FeatureMap, source: Source) -> Moments:
    here = reduce(add, (Moments.of(feature_map.basis(b.x), b.targets, b.sample_weight) for b in batches))
    return here if source.ranks == 1 else here.reduce(source.total)


def _centre(batch: Batch, total: Total) -> Tensor:
    """Return the mean of the rows of a batch; zero of features that do not vary, whose gradients would be rounding."""
    sums = reduce(add, (_powers(part.x.double(), part.sample_weight) for part in batch.split(PASS)))
    count, first, second = total(sums)
    mean = first / count
    return torch.where(second / count - mean.square() > 1e-12 * mean.square(), mean, 0.0).to(batch.x.dtype)


def _powers(x: Tensor, weight: Tensor | None) -> Tensor:
    """Return the sums over the rows of their powers 0, 1 and 2."""
    weight = x.new_ones(len(x)) if weight is None else weight.double()
    return torch.stack([weight.sum().expand(x.shape[1]), weight @ x, weight @ x.square()])


def _varies(basis: Tensor) -> bool:
    return bool((basis != basis[0]).any())


def _describe(module: torch.nn.Module) -> str:
    """Say what a module is made of: its parts with their plain attributes, and the shapes of its parameters."""
    parts = [f"{name} {tuple(p.shape)}" for name, p in module.named_parameters()]
    for name, part in module.named_modules():
        plain = {k: v for k, v in vars(part).items() if isinstance(v, bool | int | float | str) and k != "training"}
        parts.append(f"{name} {type(part).__name__} {plain}")
    return "; ".join(parts)
