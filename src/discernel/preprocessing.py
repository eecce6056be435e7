"""Preprocessing: the columns of a table as features, by numbers that the training data decided once.

Numeric columns are shifted and scaled, columns of categories become indicators. What was found is a frozen value that
goes into a model's file as JSON, and makes of any later table the same features.
"""

import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from typing import Any, Self

import numpy as np

from discernel import checks
from discernel.columns import UNSEEN, Categorical, Numeric, as_floats, count, few_enough, kind_of, missing_values
from discernel.distributed import gathered_json
from discernel.readers import Table, open_table

FORMAT = 1
SCALINGS = ("unit", "standard", "none")
MISSING = ("error", "impute")
MAX_CATEGORIES = 1000
LARGEST = 1e150  # number, so that its square is one too


@dataclass(frozen=True)
class Preprocessing:
    """What makes features of a table's columns; `fit` finds it in one pass over the data.

    Parameters
    ----------
    columns : tuple of Numeric and Categorical
        The columns that are used, in this order; others are left alone. A category that was not in the training data
        has zeros in all the features of its column. Nothing is clipped: a number outside of the training data's range
        is outside of [0, 1].

    Examples
    --------
    >>> import pandas as pd
    >>> table = pd.DataFrame({"size": [1.0, 3.0, 2.0], "colour": ["red", "blue", "red"]})
    >>> preprocessing = Preprocessing.fit(table)
    >>> preprocessing.feature_names
    ['size', 'colour_blue', 'colour_red']
    >>> preprocessing.transform(table)
    array([[0. , 0. , 1. ],
           [1. , 1. , 0. ],
           [0.5, 0. , 1. ]], dtype=float32)
    >>> Preprocessing.from_json(preprocessing.to_json()) == preprocessing
    True
    """

    columns: tuple[Numeric | Categorical, ...]

    @classmethod
    def fit(
        cls,
        data: Any,
        features: Sequence[str] | None = None,
        *,
        scaling: str = "unit",
        missing: str = "error",
        categorical: Iterable[str] = (),
    ) -> Self:
        """Find what the training data say, in one pass of bounded memory.

        Of a `Table` that processes share, each reads its part, and all find the same.

        Parameters
        ----------
        data : path, data frame or Arrow table
            As for `TableSource`.
        features : list of str, optional
            The columns to use; by default all.
        scaling : {"unit", "standard", "none"}
            Numeric columns to [0, 1], to mean zero and variance one, or left as they are. A column that does not vary
            is only shifted. The weights of rows play no part.
        missing : {"error", "impute"}
            Refuse missing values (null and NaN), or replace them by the mean of a numeric column and by the most
            frequent category of another, the first of several; the variance is of what is then there.
        categorical : list of str
            Columns of whole numbers or booleans that are categories. Text and dictionaries always are. At most 1000
            categories a column.
        """
        checks.one_of("scaling", scaling, SCALINGS)
        checks.one_of("missing", missing, MISSING)
        table = open_table(data)
        names = table.schema.names if features is None else list(features)
        found = _statistics(table, names, set(categorical))
        return cls(tuple(each.column(scaling, missing) for each in found))

    def __post_init__(self):
        _check_names([column.name for column in self.columns])

    @cached_property
    def feature_names(self) -> list[str]:
        """The name of each feature."""
        return [name for column in self.columns for name in column.feature_names]

    @property
    def types(self) -> dict[str, str]:
        """The Arrow types of the columns of text, which a CSV file with few rows does not tell."""
        texts = (each for each in self.columns if isinstance(each, Categorical) and isinstance(each.categories[0], str))
        return {each.name: "string" for each in texts}

    def wanted(self, schema: Any) -> Any:
        """Return the columns and types to read from a table with this schema, which must have them."""
        import pyarrow as pa

        absent = [column.name for column in self.columns if column.name not in schema.names]
        if absent:
            raise ValueError(f"the columns {absent} of the training data are missing; there are {schema.names}")
        return pa.schema([(column.name, column.wanted(schema.field(column.name).type)) for column in self.columns])

    def transform(self, table: Any) -> np.ndarray:
        """Return the features, n×d in float32, of a data frame, an Arrow table or the rows of a file."""
        opened = open_table(table, known=self.types)
        blocks = [self.encode(batch) for batch in opened.batches(self.wanted(opened.schema))]
        return self.expand(np.concatenate([np.empty((0, len(self.columns)), np.float32), *blocks]))

    def encode(self, batch: Any) -> np.ndarray:
        """Return a number for each column of a record batch: the feature, or the number of the category."""
        out = np.empty((batch.num_rows, len(self.columns)), np.float32)
        for place, column in enumerate(self.columns):
            out[:, place] = column.encoded(batch.column(column.name))
        return out

    def expand(self, encoded: np.ndarray) -> np.ndarray:
        """Return the features of what `encode` returned, which is itself returned if no column has categories."""
        if not self._places.blocks:
            return encoded
        out = np.zeros((len(encoded), len(self.feature_names)), np.float32)
        out[:, self._places.after] = encoded[:, self._places.before]
        for column, first in self._places.blocks:
            number = encoded[:, column].astype(np.int64)
            seen = np.flatnonzero(number != UNSEEN)
            out[seen, first + number[seen]] = 1
        return out

    @cached_property
    def _places(self) -> "_Places":
        places, first = _Places(), 0
        for place, column in enumerate(self.columns):
            if isinstance(column, Categorical):
                places.blocks.append((place, first))
            else:
                places.before.append(place)
                places.after.append(first)
            first += len(column.feature_names)
        return places

    def to_json(self) -> str:
        """Return this value as text, which `from_json` reads again."""
        columns = [{"kind": type(column).__name__.lower()} | asdict(column) for column in self.columns]
        return json.dumps({"format": FORMAT, "columns": columns})

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Return the value that `to_json` wrote."""
        try:
            content = json.loads(text)
            if content["format"] != FORMAT:
                raise ValueError(f"its format is {content['format']!r}, this version reads {FORMAT}")
            return cls(tuple(_column(entry) for entry in content["columns"]))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"this is not the JSON of a Preprocessing: {error!r}") from error


@dataclass
class _Places:
    """Where the columns go: numeric ones from `before` to `after`, categories from a column to a block of features."""

    before: list[int] = field(default_factory=list)
    after: list[int] = field(default_factory=list)
    blocks: list[tuple[int, int]] = field(default_factory=list)


class _Numbers:
    """What is known of a numeric column, by the pairwise update of mean and variance (Chan et al. 1979)."""

    def __init__(self, name: str, wanted: Any):
        self.name, self.wanted = name, wanted
        self.count, self.missing = 0, 0
        self.low, self.high, self.mean, self.squares = math.inf, -math.inf, 0.0, 0.0

    def add(self, column: Any) -> None:
        values = as_floats(column)
        here = values[~np.isnan(values)]
        self.missing += len(values) - len(here)
        if not len(here):
            return
        low, high, mean = float(here.min()), float(here.max()), float(here.mean())
        if max(-low, high) > LARGEST:
            raise ValueError(f"the column {self.name!r} has values that are infinite or too large")
        self.join([len(here), 0, low, high, mean, float(np.square(here - mean).sum())])

    def state(self) -> list:
        """Return what is known as JSON."""
        return [self.count, self.missing, self.low, self.high, self.mean, self.squares]

    def join(self, state: list) -> None:
        """Add what is known of other rows."""
        count, missing, low, high, mean, squares = state
        self.missing += missing
        if count:
            self.low, self.high = min(self.low, low), max(self.high, high)
            both, shift = self.count + count, mean - self.mean
            self.squares += squares + shift**2 * self.count * count / both
            self.mean += shift * count / both
            self.count = both

    def column(self, scaling: str, missing: str) -> Numeric:
        if self.missing and missing == "error":
            raise ValueError(missing_values(self.name, self.missing))
        if not self.count:
            raise ValueError(f"the column {self.name!r} has no values at all: leave it out of the features")
        mean = min(max(self.mean, self.low), self.high)  # whatever rounding did
        offset = {"unit": self.low, "standard": mean, "none": 0.0}[scaling]
        spread = {
            "unit": self.high - self.low,
            "standard": math.sqrt(self.squares / (self.count + self.missing)),
            "none": 1.0,
        }[scaling]
        varies = self.high > self.low and spread > 0
        return Numeric(self.name, offset, spread if varies else 1.0, mean if missing == "impute" else None)


class _Categories:
    """What is known of a column of categories."""

    def __init__(self, name: str, wanted: Any):
        self.name, self.wanted, self.missing = name, wanted, 0
        self.counts: Counter[Any] = Counter()

    def add(self, column: Any) -> None:
        self.missing += column.null_count
        count(column, self.counts, MAX_CATEGORIES, f"the column {self.name!r}", "leave it out of the features")

    def state(self) -> list:
        """Return what is known as JSON."""
        return [self.missing, list(self.counts.items())]

    def join(self, state: list) -> None:
        """Add what is known of other rows."""
        self.missing += state[0]
        self.counts.update(dict(state[1]))
        few_enough(self.counts, MAX_CATEGORIES, f"the column {self.name!r}", "leave it out of the features")

    def column(self, scaling: str, missing: str) -> Categorical:
        if self.missing and missing == "error":
            raise ValueError(missing_values(self.name, self.missing))
        if not self.counts:
            raise ValueError(f"the column {self.name!r} has no values at all: leave it out of the features")
        categories = tuple(sorted(self.counts))
        fill = max(categories, key=self.counts.__getitem__) if missing == "impute" else None
        return Categorical(self.name, categories, fill)


def _statistics(table: Table, names: list[str], categorical: set[str]) -> "list[_Numbers | _Categories]":
    """Return what is known of the columns after one pass over them."""
    import pyarrow as pa

    _check_names(names)
    absent = [name for name in [*names, *sorted(categorical)] if name not in table.schema.names]
    if absent:
        raise ValueError(f"there are no columns {absent}; there are {table.schema.names}")
    if others := sorted(categorical.difference(names)):
        raise ValueError(f"the columns {others} are said to be categorical, but are not among the features {names}")

    def nothing() -> "list[_Numbers | _Categories]":
        return [_start(name, table.schema.field(name).type, name in categorical) for name in names]

    found, rows = nothing(), 0
    for batch in table.batches(pa.schema([(each.name, each.wanted) for each in found])):
        rows += batch.num_rows
        for each in found:
            each.add(batch.column(each.name))
    if table.parts > 1:
        found, parts = nothing(), gathered_json([rows, [each.state() for each in found]])
        rows = sum(part[0] for part in parts)
        for part in parts:
            for each, state in zip(found, part[1], strict=True):
                each.join(state)
    if rows == 0:
        raise ValueError("the table has no rows")
    return found


def _start(name: str, given: Any, categorical: bool) -> "_Numbers | _Categories":
    import pyarrow as pa

    kind, coded = kind_of(given), pa.types.is_dictionary(given)
    categorical = categorical or coded or kind == "text"
    if kind == "other" or (categorical and kind == "number"):
        expected = "text, whole numbers or booleans" if categorical else "numbers, booleans or text"
        raise TypeError(f"the column {name!r} must hold {expected}, got {given}: convert it, or leave it out")
    if categorical:
        return _Categories(name, {"integer": pa.int64(), "boolean": pa.bool_()}.get(kind, pa.string()))
    return _Numbers(name, pa.bool_() if kind == "boolean" else pa.float64())


def _check_names(names: list[str]) -> None:
    if not names or len(set(names)) < len(names):
        raise ValueError(f"preprocessing needs one or more columns of different names, got {names}")


def _column(entry: dict[str, Any]) -> Numeric | Categorical:
    kind = entry.pop("kind")
    if kind == "numeric":
        return Numeric(**entry)
    if kind != "categorical":
        raise ValueError(f"unknown kind of column {kind!r}")
    return Categorical(entry.pop("name"), tuple(entry.pop("categories")), **entry)
