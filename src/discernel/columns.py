"""Columns of a table: numbers, and categories, as what they become for a model."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from discernel import checks

UNSEEN = -1


@dataclass(frozen=True)
class Numeric:
    """A column of numbers, of which the feature is (x − offset)/scale."""

    name: str
    offset: float = 0.0
    scale: float = 1.0
    fill: float | None = None  # what a missing value counts as; None refuses it

    def __post_init__(self):
        checks.number(f"offset of {self.name!r}", self.offset)
        checks.positive(f"scale of {self.name!r}", self.scale)
        if self.fill is not None:
            checks.number(f"fill of {self.name!r}", self.fill)

    @property
    def feature_names(self) -> list[str]:
        """The column's name."""
        return [self.name]

    def wanted(self, given: Any) -> Any:
        """Return the type to read a column of type `given` as."""
        import pyarrow as pa

        if kind_of(given) not in ("number", "integer", "boolean", "nothing"):
            raise TypeError(f"the column {self.name!r} must be numeric as in training, got {given}")
        return pa.bool_() if pa.types.is_boolean(given) else pa.float64()

    def encoded(self, column: Any) -> np.ndarray:
        """Return the feature."""
        values = as_floats(column)
        missing = np.isnan(values)
        if missing.any():
            if self.fill is None:
                raise ValueError(missing_values(self.name, int(missing.sum())))
            values = np.where(missing, self.fill, values)
        with np.errstate(over="ignore", invalid="ignore"):
            out = ((values - self.offset) / self.scale).astype(np.float32)
        if not np.isfinite(out).all():
            raise ValueError(f"the column {self.name!r} has values that are infinite or too large for float32")
        return out


@dataclass(frozen=True)
class Categorical:
    """A column of categories: a feature for each, one where the row is of it and zero elsewhere."""

    name: str
    categories: tuple[Any, ...]  # sorted; all text, all whole numbers, or booleans
    fill: Any = None  # the category that a missing value counts as; None refuses it

    def __post_init__(self):
        if {type(each) for each in self.categories} not in ({str}, {int}, {bool}):
            raise ValueError(
                f"the categories of {self.name!r} must be one or more, all text, whole numbers or booleans"
            )
        if self.fill is not None and self.fill not in self.categories:
            raise ValueError(f"the fill of {self.name!r} must be one of its categories, got {self.fill!r}")

    @property
    def feature_names(self) -> list[str]:
        """The column's name with each category's, as scikit-learn's OneHotEncoder has them."""
        return [f"{self.name}_{each}" for each in self.categories]

    def wanted(self, given: Any) -> Any:
        """Return the type to read a column of type `given` as."""
        import pyarrow as pa

        own = pa.array(self.categories[:1]).type
        whole = kind_of(own) == "integer" and kind_of(given) == "number"  # as pandas has integers with missing ones
        if kind_of(given) not in (kind_of(own), "nothing") and not whole:
            raise TypeError(f"the column {self.name!r} must be {own} as in training, got {given}")
        return own

    def encoded(self, column: Any) -> np.ndarray:
        """Return the number of each row's category, or −1 for one that training has not seen."""
        import pyarrow.compute as pc

        if column.null_count:
            if self.fill is None:
                raise ValueError(missing_values(self.name, column.null_count))
            column = pc.fill_null(column, self.fill)
        return numbers_of(column, self.categories, UNSEEN).astype(np.float32)


def kind_of(given: Any) -> str:
    """Return what an Arrow type holds: "text", "integer", "number", "boolean", "nothing" (all missing) or "other"."""
    import pyarrow.types as pt

    given = given.value_type if pt.is_dictionary(given) else given
    tests = {
        "text": (pt.is_string, pt.is_large_string, pt.is_string_view),
        "integer": (pt.is_integer,),
        "number": (pt.is_floating, pt.is_decimal),
        "boolean": (pt.is_boolean,),
        "nothing": (pt.is_null,),
    }
    return next((kind for kind, are in tests.items() if any(test(given) for test in are)), "other")


def as_floats(column: Any) -> np.ndarray:
    """Return numbers or booleans in float64, with NaN where there is none."""
    return column.cast("float64").to_numpy(zero_copy_only=False)


def count(column: Any, counts: Counter, limit: int, what: str, advice: str) -> None:
    """Add how often each value is in a column to `counts`, which may get no more than `limit` of them."""
    values = column.drop_null().value_counts()
    counts.update(dict(zip(values.field("values").to_pylist(), values.field("counts").to_pylist(), strict=True)))
    few_enough(counts, limit, what, advice)


def few_enough(counts: Counter, limit: int, what: str, advice: str) -> None:
    """Raise an error if there are more than `limit` different values."""
    if len(counts) > limit:
        some = ", ".join(map(repr, list(counts)[:3]))
        raise ValueError(f"{what} has more than {limit} different values ({some}, ...): {advice}")


def numbers_of(column: Any, values: Sequence[Any], unseen: int) -> np.ndarray:
    """Return which of the values each entry of a column is."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.call_function("index_in", [column], pc.SetLookupOptions(pa.array(values, column.type)))
    return pc.fill_null(found, unseen).to_numpy(zero_copy_only=False)


def missing_values(name: str, count: int) -> str:
    """Return the message about them."""
    return f'the column {name!r} has {count} missing values: remove those rows, or fit with missing="impute"'
