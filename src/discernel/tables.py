"""TableSource: a table on disk or in memory as batches of features, with named columns as targets."""

import os
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from discernel import checks
from discernel.columns import UNSEEN, as_floats, count, kind_of, numbers_of
from discernel.data import Source
from discernel.distributed import gathered, gathered_json, rank, size, total
from discernel.preprocessing import Preprocessing
from discernel.readers import Table, open_table
from discernel.store import IN_MEMORY, MatrixFile, keep
from discernel.targets import Targets

TASKS = ("auto", "classification", "regression")
MAX_CLASSES = 10_000


class TableSource(Source):
    """Rows of Parquet or CSV files, data frames or Arrow tables, of which memory need not hold all.

    Files are read twice: for the statistics of the columns, and to write their numbers, four bytes each, to a temporary
    file that every epoch then reads in shuffled blocks (see `discernel.data`). Data of up to 256 MiB so written, and
    tables that are in memory anyway, stay in memory instead. Targets stay there in any case: two bytes a row for
    classes, eight for each value, four for a weight.

    Parameters
    ----------
    data : path, list of paths, data frame or Arrow table
        Parquet files or CSV files with a header, folders of them, glob patterns; or a table in memory: pandas, polars,
        pyarrow. Files are in the order of their paths; folders named ``year=2024`` are a column `year`.
    target : str or list of str, optional
        The column, or columns, to predict. None where there is nothing to predict yet.
    features : list of str, optional
        The columns to predict from; by default all others.
    task : {"auto", "classification", "regression"}
        What the targets are. "auto" takes text, whole numbers and booleans for classes, and several boolean columns
        for labels; other numbers, and several columns of numbers, are regression targets. Several columns for
        "classification" are labels, of zeros and ones.
    weight : str, optional
        The column that says how often each row counts.
    scaling, missing, categorical
        As of `Preprocessing.fit`.
    preprocessing : Preprocessing, optional
        That of a fitted model, instead of one found in these data; it brings its own features, scaling and so on. What
        was text in training is read as text from CSV files, also where these rows look like numbers; and all rows may
        be of one class, as they may not where a model is to be fitted.
    types : dict of str, optional
        The Arrow types ("float64", "string", ...) of columns of CSV files, where the first 16 MiB mislead.
    cache : path, optional
        The folder of the temporary file; by default that of the system.
    shared : bool
        Whether several processes (see `discernel.distributed`) open this table together, and each reads and keeps its
        part of the rows alone: of Parquet files and tables in memory as many rows each, of CSV files as many bytes. All
        of them must open it, and ask it for the same rows by number; a single process reads all.
    progress : callable, optional
        Is told how many rows have been read, again and again, in both passes.
    device : torch.device or str
        Where batches are put.

    Attributes
    ----------
    preprocessing : Preprocessing
        What makes the features.
    types : dict of str
        The type of each column of the data, as it is in the file or was inferred.

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"size": [1.0, 3.0, 2.0], "colour": ["red", "blue", "red"], "kind": ["a", "b", "a"]})
    >>> source = TableSource(table, target="kind")
    >>> source.rows(slice(0, 2))
    Batch(x=tensor([[0., 0., 1.],
            [1., 1., 0.]]), targets=tensor([[1., 0.],
            [0., 1.]]), sample_weight=None)
    >>> source.types["size"]
    'double'
    """

    def __init__(
        self,
        data: Any,
        target: str | Sequence[str] | None = None,
        *,
        features: Sequence[str] | None = None,
        task: str = "auto",
        weight: str | None = None,
        scaling: str = "unit",
        missing: str = "error",
        categorical: Iterable[str] = (),
        preprocessing: Preprocessing | None = None,
        types: Mapping[str, str] | None = None,
        cache: str | os.PathLike | None = None,
        shared: bool = False,
        progress: Callable[[int], None] | None = None,
        device: torch.device | str = "cpu",
    ):
        checks.one_of("task", task, TASKS)
        if preprocessing is not None:
            checks.instance("preprocessing", preprocessing, Preprocessing)
        table = open_table(data, types, None if preprocessing is None else preprocessing.types)
        table.advance = progress or table.advance
        if checks.boolean("shared", shared) and size() > 1:
            table.part, table.parts = rank(), size()
        targets = [] if target is None else [target] if isinstance(target, str) else list(target)
        aside = _Aside(table, targets, task, weight)
        if preprocessing is None:
            names = _features(table.schema.names, features, aside.wanted.names)
            options = {"scaling": scaling, "missing": missing, "categorical": categorical}
            self.preprocessing = Preprocessing.fit(table, names, **options)
        else:
            self.preprocessing = preprocessing
            if features is not None:
                raise ValueError("preprocessing has its own features: give one or the other")
            _features([], [column.name for column in preprocessing.columns], aside.wanted.names)
        self.types = {field.name: str(field.type) for field in table.schema}
        self.device = device
        self.stored = keep(self._encoded(table, aside), cache, np.inf if table.in_memory else IN_MEMORY)
        self.streams, self.has_targets = isinstance(self.stored, MatrixFile) or table.parts > 1, bool(targets)
        self.n_rows = self.stop = len(self.stored)
        if table.parts > 1:
            self._share(table.part, table.parts)
        if self.n_rows == 0:
            raise ValueError("the table has no rows")
        made, sample_weight = aside.targets(self.n_rows, 2 if preprocessing is None else 1), aside.weights()
        self._keep(made, sample_weight, self.n_rows, self.features(slice(0, 1)))

    def _share(self, part: int, parts: int) -> None:
        """Find out which of all rows are those that have been read here."""
        counts = [len(each) for each in gathered(np.zeros(len(self.stored), np.int8))]
        self.rank, self.ranks, self.total = part, parts, total
        self.start, self.n_rows = sum(counts[:part]), sum(counts)
        self.stop = self.start + counts[part]

    def _encoded(self, table: Table, aside: "_Aside") -> Iterator[np.ndarray]:
        """Yield the numbers of the features' columns, while others are put aside."""
        import pyarrow as pa

        wanted = pa.schema([*self.preprocessing.wanted(table.schema), *aside.wanted])
        yield np.empty((0, len(self.preprocessing.columns)), np.float32)
        for batch in table.batches(wanted):
            if batch.num_rows:
                aside.add(batch)
                yield self.preprocessing.encode(batch)

    def features(self, index) -> Tensor:
        """Return the features of the rows at `index`, read from the file if they are there."""
        if self.ranks == 1:
            return self._unpacked(self._stored(index.cpu().numpy() if isinstance(index, Tensor) else index))
        rows = torch.arange(self.n_rows)[index]
        stored, here = torch.zeros(len(rows), len(self.preprocessing.columns)), self.reads(rows)
        stored[here] = torch.from_numpy(self._stored(rows[here].numpy()))
        return self._unpacked(self.total(stored).numpy())

    def _stored(self, index):
        if self.start == 0:
            return self.stored[index]
        whole = isinstance(index, slice)
        return self.stored[slice(index.start - self.start, index.stop - self.start) if whole else index - self.start]

    def _unpacked(self, stored):
        features = self.preprocessing.expand(stored)
        return torch.from_numpy(features.copy() if features is stored else features).to(self.device)

    def __repr__(self) -> str:
        columns, where = len(self.preprocessing.columns), "on disk" if self.streams else "in memory"
        return f"TableSource({len(self)} rows, {self.width} features of {columns} columns, {where})"


def _features(columns: list[str], features: Sequence[str] | None, others: list[str]) -> list[str]:
    """Return the columns to predict from, which targets and weights may not be among."""
    if features is None:
        if "" in columns:
            warnings.warn(
                "a column has no name, like the index that data frames are written with: it is taken for a feature; to "
                "leave it out, name the columns to predict from as `features`",
                stacklevel=3,
            )
        return [name for name in columns if name not in others]
    if isinstance(features, str):
        raise TypeError(f"features must be a list of columns, got the text {features!r}")
    leaks = [name for name in features if name in others]
    if leaks:
        raise ValueError(f"the columns {leaks} are targets or weights and features too: that is target leakage")
    return list(features)


class _Aside:
    """The targets and weights, gathered while the rows go by."""

    def __init__(self, table: Table, targets: list[str], task: str, weight: str | None):
        import pyarrow as pa

        names = [*targets, *([] if weight is None else [weight])]
        for name in names:
            if name not in table.schema.names:
                raise ValueError(f"there is no column {name!r}; there are {table.schema.names}")
            if kind_of(table.schema.field(name).type) == "other":
                raise TypeError(f"the column {name!r} cannot be a target or weight: {table.schema.field(name).type}")
        if len(set(names)) < len(names):
            raise ValueError(f"the targets and the weight must be different columns, got {names}")
        kinds = {name: kind_of(table.schema.field(name).type) for name in names}
        self.names, self.weight, self.kind = targets, weight, _kind(targets, kinds, task)
        self.shared = table.parts > 1
        types = {"text": pa.string(), "integer": pa.int64(), "boolean": pa.bool_()}
        self.wanted = pa.schema([(name, types.get(kinds[name], pa.float64())) for name in names])
        self.classes: Counter = Counter()
        self.parts: list[np.ndarray] = []
        self.weight_parts: list[np.ndarray] = []

    def add(self, batch: Any) -> None:
        """Take the targets and weights of a record batch."""
        if self.weight is not None:
            self.weight_parts.append(_complete(self.weight, batch).astype(np.float32))
        if self.kind == "classes":
            self.parts.append(self._codes(self.names[0], batch.column(self.names[0])))
        elif self.names:
            self.parts.append(np.stack([_complete(name, batch) for name in self.names], axis=1))

    def _codes(self, name: str, column: Any) -> np.ndarray:
        """Return the classes as numbers, in the order in which they have been seen."""
        import pyarrow.compute as pc

        if missing := column.is_null(nan_is_null=True).true_count:
            raise ValueError(f"the target {name!r} has {missing} missing values: remove those rows")
        if kind_of(column.type) == "number":
            column = pc.call_function("add", [column, 0.0])  # −0 is 0, which Arrow tells apart
        count(column, self.classes, MAX_CLASSES, f"the target {name!r}", 'for regression give task="regression"')
        codes = numbers_of(column, list(self.classes), UNSEEN)
        if lost := int((codes == UNSEEN).sum()):
            raise ValueError(f"the target {name!r} has {lost} values that equal none of its classes: give them as text")
        return codes.astype(np.int16)

    def targets(self, n_rows: int, n_classes: int) -> Targets:
        """Return the targets of all rows, which must be of so many classes if they have any."""
        if not self.names:
            return Targets("values", torch.zeros(1, 1).expand(n_rows, 1), 1)
        if self.kind != "classes":
            values = self._all(np.concatenate([np.empty((0, len(self.names))), *self.parts]))
            return Targets.labels(values) if self.kind == "labels" else Targets.values(values)
        classes = sorted({name for seen in self._lists(list(self.classes)) for name in seen})
        if len(classes) < n_classes:
            raise ValueError(f"the target {self.names[0]!r} must have two or more classes, got {classes}")
        place = {name: number for number, name in enumerate(classes)}
        places = np.array([place[name] for name in self.classes], np.int16)
        codes = self._all(places[np.concatenate([np.empty(0, np.int16), *self.parts])])
        return Targets("classes", torch.from_numpy(codes), len(classes), np.array(classes))

    def weights(self) -> Tensor | None:
        """Return the weights of all rows."""
        if self.weight is None:
            return None
        return torch.from_numpy(self._all(np.concatenate([np.empty(0, np.float32), *self.weight_parts])))

    def _all(self, part: np.ndarray) -> np.ndarray:
        """Return the numbers of all rows, of which those that have been read here are a part."""
        return np.concatenate(gathered(part)) if self.shared else part

    def _lists(self, part: list) -> list[list]:
        return gathered_json(part) if self.shared else [part]


def _kind(targets: list[str], kinds: Mapping[str, str], task: str) -> str:
    """Return the kind of `Targets` that the columns are."""
    found = {kinds[name] for name in targets}
    if task == "auto":
        one = len(targets) == 1 and found != {"number"}
        task = "classification" if one or found == {"boolean"} else "regression"
    if task == "classification" and len(targets) == 1:
        return "classes"
    if "text" in found:
        text = [name for name in targets if kinds[name] == "text"]
        raise TypeError(f"the targets {text} are text: regression needs numbers, and several labels zeros and ones")
    return "labels" if task == "classification" else "values"


def _complete(name: str, batch: Any) -> np.ndarray:
    values = as_floats(batch.column(name))
    if not np.isfinite(values).all():
        raise ValueError(f"the column {name!r} has values that are missing or infinite: remove those rows")
    return values
