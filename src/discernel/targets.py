"""Targets: labels, multi-label indicators or regression targets as the matrix Y that criteria see."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from discernel import checks

SCALINGS = ("indicator", "unit")
CHUNK = 2**18  # rows whose classes are looked up at a time


@dataclass(frozen=True)
class Targets:
    """What is to be predicted, kept compactly; indexing with rows gives those rows of the target matrix Y.

    Make one with `Targets.classes`, `Targets.labels` or `Targets.values`.

    Examples
    --------
    >>> targets = Targets.classes(["b", "a", "b"])
    >>> targets[:]
    tensor([[0., 1.],
            [1., 0.],
            [0., 1.]])
    >>> targets.names
    array(['a', 'b'], dtype='<U1')
    """

    kind: str  # "classes", "labels" or "values"
    data: Tensor  # class codes (n,) of any integer type, or Y (n×L)
    n_targets: int
    names: np.ndarray | None = None  # the class of each column
    scale: Tensor | None = None  # what each column is multiplied by
    dtype: torch.dtype = torch.float32

    @classmethod
    def classes(
        cls, y: Any, scaling: str = "indicator", sample_weight: Any = None, names: np.ndarray | None = None
    ) -> "Targets":
        """Return the targets of one class per sample.

        The classes are those of `y`, or given in order as `names`: then `y` may lack some of them.
        With ``scaling="indicator"`` Y holds raw 0/1 indicators, as in the paper's experiments: large classes weigh
        more. With "unit" each column has unit norm, 1/√N_c: then ḠᵀYYᵀḠ is the between-class scatter of Fisher's
        discriminant analysis, and all classes weigh the same.
        """
        checks.one_of("scaling", scaling, SCALINGS)
        y, known = np.asarray(y), names
        if y.ndim != 1 or len(y) == 0:
            raise ValueError(f"y must be one-dimensional and not empty, got shape {y.shape}")
        try:
            names = np.unique(np.concatenate([np.unique(part) for part in _parts(y)]))
        except TypeError as error:
            kinds = ", ".join(sorted({type(label).__name__ for label in y}))
            raise TypeError(f"y must have a class for each sample, all of one sortable type; got {kinds}") from error
        if (names != names).any() or (names.dtype.kind == "f" and np.isinf(names).any()):
            raise ValueError("y has entries that are NaN or infinite; every sample needs a class")
        places = np.arange(len(names)) if known is None else _positions(names, known)
        codes, names = _codes(y, names, places), names if known is None else known
        if len(names) < 2:
            raise ValueError(f"y must have at least two classes to tell apart, got one: {names.tolist()[0]!r}")
        scale = None
        if scaling == "unit":
            weight = torch.ones(len(y)) if sample_weight is None else checks.numbers("sample_weight", sample_weight)
            counts = np.bincount(codes, checks.weights(weight, rows=len(y)).detach().cpu().double().numpy(), len(names))
            if not counts.all():
                raise ValueError(f"sample_weight must not be zero for a whole class, as for {names[counts == 0]}")
            scale = torch.from_numpy(counts).rsqrt()
        return cls("classes", torch.from_numpy(codes), len(names), names, scale)

    @classmethod
    def labels(cls, y: Any) -> "Targets":
        """Return the targets of any number of labels per sample, from an indicator matrix (n×L) of zeros and ones."""
        values = cls.values(y)
        if not bool(((values.data == 0) | (values.data == 1)).all()):
            raise ValueError("y must hold only zeros and ones, a column for each label")
        return replace(values, kind="labels")

    @classmethod
    def values(cls, y: Any) -> "Targets":
        """Return one or many regression targets per sample: (n,) or (n×L)."""
        y = np.asarray(y)
        if y.dtype.kind not in "fiub":
            raise TypeError(f"y must be numeric, got {y.dtype}; use Targets.classes for labels")
        data = torch.from_numpy(y.astype(np.float32 if y.dtype == np.float32 else np.float64))
        data = checks.matrix("y", data[:, None] if data.ndim == 1 else data)
        return cls("values", data, data.shape[1], dtype=data.dtype)

    def to(self, like: Tensor) -> "Targets":
        """Return the same targets on the device of `like`, giving matrices of its dtype."""
        scale = None if self.scale is None else self.scale.to(like)
        return replace(self, data=self.data.to(like.device), scale=scale, dtype=like.dtype)

    def take(self, rows: Tensor) -> "Targets":
        """Return the targets of some of the rows."""
        return replace(self, data=self.data[rows.to(self.data.device)])

    def among(self, known: np.ndarray) -> "Targets":
        """Return the same classes as columns of all the `known` ones, in their order."""
        names = np.asarray(self.names)
        if np.array_equal(names, known):
            return self
        places, scale = torch.from_numpy(_positions(names, known)).to(self.data.device), self.scale
        if scale is not None:
            scale = scale.new_ones(len(known)).index_copy(0, places, scale)
        return replace(self, data=places[self.data.long()], n_targets=len(known), names=known, scale=scale)

    def raw(self, rows: Any = slice(None)) -> np.ndarray:
        """Return y: the class of each row, the indicators of its labels, or its values, (n,) if it has one."""
        data = self.data[rows].cpu().numpy()
        if self.names is not None:
            return self.names[data]
        if self.kind == "labels":
            return data.astype(np.int64)
        return data[:, 0] if self.n_targets == 1 else data

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, rows) -> Tensor:
        data = self.data[rows]
        if self.kind == "classes":
            indicators = torch.zeros(*data.shape, self.n_targets, dtype=self.dtype, device=data.device)
            data = indicators.scatter_(-1, data.long()[..., None], 1)
        data = data.to(self.dtype)
        return data if self.scale is None else data * self.scale.to(data.dtype)


def _codes(y: np.ndarray, names: np.ndarray, places: np.ndarray) -> np.ndarray:
    """Return the place of each row's class."""
    dtype = np.int16 if places.max() < 2**15 else np.int64
    return np.concatenate([places[np.searchsorted(names, part)].astype(dtype) for part in _parts(y)])


def _parts(y: np.ndarray) -> list[np.ndarray]:
    """Return views of a few rows each, which are worked on in less memory than all together."""
    return [y[start : start + CHUNK] for start in range(0, len(y), CHUNK)]


def _positions(found: np.ndarray, known: np.ndarray) -> np.ndarray:
    """Return where the classes found are among the known ones."""
    places = {name: place for place, name in enumerate(known.tolist())}
    new = [name for name in found.tolist() if name not in places]
    if new:
        raise ValueError(f"y has the classes {new}, which are not among the known ones, {known.tolist()}")
    return np.array([places[name] for name in found.tolist()])
