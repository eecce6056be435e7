import json

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler, OneHotEncoder, StandardScaler

from discernel import Preprocessing, TableSource, readers
from discernel.columns import Categorical, Numeric

numbers = st.floats(-1e6, 1e6, width=32).map(lambda x: round(x, 3))
maybe_numbers = st.one_of(numbers, st.just(float("nan")))
names = st.text(max_size=3)
COLOURS = pd.DataFrame({"size": [1.0, 3.0, 2.0], "colour": ["red", "blue", "red"]})


def columns(elements, least=1):
    return st.lists(elements, min_size=least, max_size=40)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    """Let a pass be of many batches, so that what is found of each is put together."""
    monkeypatch.setattr(readers, "ROWS", 4)


@pytest.mark.parametrize(
    ("scaling", "scaler"), [("unit", MinMaxScaler()), ("standard", StandardScaler()), ("none", "passthrough")]
)
@settings(deadline=None, max_examples=50)
@given(x=columns(numbers), new=columns(numbers))
def test_scaling_is_that_of_scikit_learn(scaling, scaler, x, new):
    expected = make_pipeline(scaler).fit(np.array(x)[:, None])
    found = Preprocessing.fit(pa.table({"x": x}), scaling=scaling)
    unit = 1 / found.columns[0].scale  # what is small beside the spread of the column
    for values in (x, new):
        theirs, ours = expected.transform(np.array(values)[:, None]), found.transform(pa.table({"x": values}))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-9 * max(1, np.abs(x).max() * unit))
        assert ours.dtype == np.float32


@settings(deadline=None, max_examples=50)
@given(x=columns(maybe_numbers), new=columns(maybe_numbers))
@pytest.mark.parametrize(("scaling", "scaler"), [("unit", MinMaxScaler()), ("standard", StandardScaler())])
def test_missing_numbers_are_imputed_as_by_scikit_learn(scaling, scaler, x, new):
    x = [0.5, *x]
    expected = make_pipeline(SimpleImputer(), scaler).fit(np.array(x)[:, None])
    found = Preprocessing.fit(pd.DataFrame({"x": x}), scaling=scaling, missing="impute")
    tolerance = 1e-9 * max(1, np.nanmax(np.abs(x)) / found.columns[0].scale)
    for values in (x, new):
        theirs, ours = expected.transform(np.array(values)[:, None]), found.transform(pd.DataFrame({"x": values}))
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=tolerance)


@settings(deadline=None, max_examples=50)
@given(x=columns(names), new=columns(names))
def test_categories_are_indicated_as_by_scikit_learn(x, new):
    encoder = OneHotEncoder(handle_unknown="ignore", sparse_output=False).fit(np.array(x, object)[:, None])
    found = Preprocessing.fit(pa.table({"x": x}))
    assert found.columns[0].categories == tuple(encoder.categories_[0])
    assert found.feature_names == list(encoder.get_feature_names_out(["x"]))
    for values in (x, new):
        theirs = encoder.transform(np.array(values, object)[:, None])
        np.testing.assert_array_equal(found.transform(pa.table({"x": values})), theirs)


@settings(deadline=None, max_examples=50)
@given(
    x=columns(st.one_of(st.sampled_from("abc"), st.none())), new=columns(st.one_of(st.sampled_from("abcd"), st.none()))
)
def test_missing_categories_are_imputed_as_by_scikit_learn(x, new):
    x = ["b", *x]
    imputer = SimpleImputer(strategy="most_frequent", missing_values=None)
    pipeline = make_pipeline(imputer, OneHotEncoder(handle_unknown="ignore", sparse_output=False))
    pipeline.fit(np.array(x, object)[:, None])
    found = Preprocessing.fit(pa.table({"x": pa.array(x, pa.string())}), missing="impute")
    for values in (x, new):
        ours = found.transform(pa.table({"x": pa.array(values, pa.string())}))
        np.testing.assert_array_equal(ours, pipeline.transform(np.array(values, object)[:, None]))


@settings(deadline=None, max_examples=30)
@given(a=columns(numbers, 3), b=columns(names, 3), missing=st.sampled_from(["error", "impute"]))
def test_json_gives_the_same_value(a, b, missing):
    n = min(len(a), len(b))
    table = pa.table({"a": a[:n], "b": b[:n], "c": [True, False, True][:n] + [False] * (n - 3), "d": list(range(n))})
    found = Preprocessing.fit(table, categorical=["c", "d"], missing=missing)
    again = Preprocessing.from_json(found.to_json())
    assert again == found
    assert again.feature_names == found.feature_names
    np.testing.assert_array_equal(again.transform(table), found.transform(table))


def test_large_offsets_keep_their_small_differences():
    seconds = 1.7e9 + np.arange(10.0)
    standard = Preprocessing.fit(pa.table({"x": seconds}), scaling="standard").transform(pa.table({"x": seconds}))
    np.testing.assert_allclose(standard[:, 0], StandardScaler().fit_transform(seconds[:, None])[:, 0], rtol=1e-5)
    unit = Preprocessing.fit(pa.table({"x": seconds})).transform(pa.table({"x": seconds}))
    np.testing.assert_array_equal(unit[:, 0], (np.arange(10) / 9).astype(np.float32))


def test_a_column_that_does_not_vary_is_only_shifted():
    table = pa.table({"x": [5.0, 5.0]})
    assert Preprocessing.fit(table).columns == (Numeric("x", 5.0, 1.0),)
    assert Preprocessing.fit(table, scaling="standard").columns == (Numeric("x", 5.0, 1.0),)
    assert Preprocessing.fit(table, scaling="none").columns == (Numeric("x", 0.0, 1.0),)


def test_features_are_in_the_order_of_the_columns_asked_for():
    found = Preprocessing.fit(COLOURS, ["colour", "size"])
    assert found.feature_names == ["colour_blue", "colour_red", "size"]
    np.testing.assert_array_equal(found.transform(COLOURS), [[0, 1, 0], [1, 0, 1], [0, 1, 0.5]])
    other = COLOURS.assign(extra=1)[["extra", "size", "colour"]]
    np.testing.assert_array_equal(found.transform(other), found.transform(COLOURS))


def test_what_training_has_not_seen_is_zero_or_outside():
    new = pd.DataFrame({"size": [5.0], "colour": ["green"]})
    np.testing.assert_array_equal(Preprocessing.fit(COLOURS).transform(new), [[2, 0, 0]])


@pytest.mark.parametrize(
    ("column", "categorical"),
    [
        (pa.array([3, 1, 3], pa.int8()), True),
        (pa.array([True, False, True]), True),
        (pa.array(["b", "a", "b"], pa.large_string()), False),
        (pa.array(["b", "a", "b"], pa.string_view()), False),
        (pa.array(["b", "a", "b"]).dictionary_encode(), False),
        (pa.array([3, 1, 3]).dictionary_encode(), False),
    ],
    ids=lambda value: str(getattr(value, "type", value)),
)
def test_types_of_categories(column, categorical):
    table = pa.table({"x": column})
    found = Preprocessing.fit(table, categorical=["x"] if categorical else [])
    assert found.columns[0].categories == tuple(sorted(set(column.to_pylist())))
    np.testing.assert_array_equal(found.transform(table), [[0, 1], [1, 0], [0, 1]])


@pytest.mark.parametrize(
    "column",
    [
        pa.array([0, 1, 1], pa.uint8()),
        pa.array([0, 1, 1], pa.int64()),
        pa.array([0.0, 1.0, 1.0], pa.float32()),
        pa.array([False, True, True]),
        pa.array([0, 1, 1], pa.decimal128(10)),
    ],
    ids=lambda column: str(column.type),
)
def test_types_of_numbers(column):
    table = pa.table({"x": column})
    np.testing.assert_array_equal(Preprocessing.fit(table).transform(table), [[0], [1], [1]])
    trained = Preprocessing.fit(pa.table({"x": [0.0, 1.0]}))
    np.testing.assert_array_equal(trained.transform(table), [[0], [1], [1]])  # a file may have another type of number


def test_whole_numbers_beyond_float64_are_rounded():
    table = pa.table({"x": pa.array([0, 2**62 + 1])})
    np.testing.assert_array_equal(Preprocessing.fit(table).transform(table), [[0], [1]])


def test_integers_that_pandas_made_floats_of_are_still_categories(tmp_path):
    found = Preprocessing.fit(pa.table({"x": [1, 2, 2]}), categorical=["x"], missing="impute")
    frame, path = pd.DataFrame({"x": [1.0, np.nan], "y": [0, 0]}), tmp_path / "a.csv"
    frame.to_csv(path, index=False)
    assert path.read_text().splitlines()[1:] == ["1.0,0", ",0"]
    for data in (frame, path):
        np.testing.assert_array_equal(found.transform(data), [[1, 0], [0, 1]])
    path.write_text("x\n1.0\n1.5\n")
    with pytest.raises(ValueError, match="'x' cannot be read as int64"):
        found.transform(path)


def test_a_column_without_any_value_is_imputed_whatever_its_type():
    nothing = pa.table({"size": pa.nulls(2), "colour": pa.nulls(2)})
    np.testing.assert_array_equal(Preprocessing.fit(COLOURS, missing="impute").transform(nothing), [[0.5, 0, 1]] * 2)


@pytest.mark.parametrize(
    ("cell", "expected"),
    [("", "red"), ("7", "7"), ("true", "true"), ("2024-01-01", "2024-01-01"), ("07", None), ("0.5", None)],
)
def test_a_csv_file_is_typed_by_the_training_data(cell, expected, tmp_path):
    colours = ["red", "red", "7", "true", "2024-01-01"]
    frame = pd.DataFrame({"size": [0.0, 1.0, 0.5, 0.5, 0.5], "colour": colours})
    preprocessing = Preprocessing.fit(frame, missing="impute")
    assert preprocessing.types == {"colour": "string"}
    (tmp_path / "a.csv").write_text(f"size,colour\n0.5,{cell}\n")
    wanted = [0.5, *(float(each == expected) for each in sorted(set(colours)))]
    assert preprocessing.transform(tmp_path / "a.csv").tolist() == [wanted]
    assert TableSource(tmp_path / "a.csv", preprocessing=preprocessing).features([0]).tolist() == [wanted]


def test_a_category_that_is_missing_from_a_whole_csv_file_is_imputed(tmp_path):
    frame = pd.DataFrame({"flag": [True, True, False], "count": [1, 2, 2]})
    preprocessing = Preprocessing.fit(frame, missing="impute", categorical=["flag", "count"])
    (tmp_path / "a.csv").write_text("flag,count\n,\n")
    assert preprocessing.transform(tmp_path / "a.csv").tolist() == [[0, 1, 0, 1]]


def test_the_types_of_parquet_and_frames_are_their_own(tmp_path):
    preprocessing = Preprocessing.fit(pd.DataFrame({"colour": ["red", "7"]}))
    new = pd.DataFrame({"colour": [7]})
    new.to_parquet(tmp_path / "a.parquet")
    for data in (new, tmp_path / "a.parquet"):
        with pytest.raises(TypeError, match="the column 'colour' must be string as in training, got int64"):
            preprocessing.transform(data)


def test_no_rows_have_no_features():
    assert Preprocessing.fit(COLOURS).transform(COLOURS[:0]).shape == (0, 3)


def fit(options=None, **columns):
    return Preprocessing.fit(pa.table(columns), **(options or {}))


TRAINED = Preprocessing.fit(COLOURS)
NULL = pa.array([None, None], pa.float64())
BAD = {
    "missing number": (lambda: fit(x=[1.0, None]), ValueError, "'x' has 1 missing values.*impute"),
    "NaN": (lambda: fit(x=[1.0, np.nan, np.nan]), ValueError, "'x' has 2 missing values"),
    "missing category": (lambda: fit(x=["a", None]), ValueError, "'x' has 1 missing values"),
    "nothing at all": (lambda: fit({"missing": "impute"}, x=NULL), ValueError, "'x' has no values at all"),
    "untyped": (lambda: fit({"missing": "impute"}, x=pa.nulls(2)), ValueError, "'x' has no values at all"),
    "untyped category": (
        lambda: fit({"missing": "impute", "categorical": ["x"]}, x=pa.nulls(2)),
        ValueError,
        "'x' has no values at all",
    ),
    "no category": (
        lambda: fit({"missing": "impute"}, x=NULL.cast(pa.string())),
        ValueError,
        "'x' has no values at all",
    ),
    "infinity": (lambda: fit(x=[1.0, np.inf]), ValueError, "'x' has values that are infinite"),
    "too wide": (lambda: fit(x=[-1e308, 1e308]), ValueError, "'x' has values that are infinite or too large"),
    "too large": (
        lambda: fit({"scaling": "none"}, x=[1e100]).transform(pa.table({"x": [1e100]})),
        ValueError,
        "too large for float32",
    ),
    "no rows": (lambda: fit(x=pa.array([], pa.float64())), ValueError, "no rows"),
    "no columns": (lambda: Preprocessing(()), ValueError, "one or more columns"),
    "same column twice": (lambda: Preprocessing.fit(COLOURS, ["size", "size"]), ValueError, "different names"),
    "dates": (lambda: fit(x=pa.array([0], pa.timestamp("s"))), TypeError, "'x' must hold numbers.*timestamp"),
    "floating categories": (lambda: fit({"categorical": ["x"]}, x=[0.5]), TypeError, "'x' must hold text, whole"),
    "identifiers": (lambda: fit(x=[str(i) for i in range(1001)]), ValueError, "'x' has more than 1000 different"),
    "unknown feature": (lambda: Preprocessing.fit(COLOURS, ["weight"]), ValueError, r"no columns \['weight'\].*'size'"),
    "unknown categorical": (lambda: fit({"categorical": ["y"]}, x=[1]), ValueError, r"no columns \['y'\]"),
    "categorical, but no feature": (
        lambda: Preprocessing.fit(COLOURS, ["size"], categorical=["colour"]),
        ValueError,
        r"\['colour'\] are said to be categorical, but are not among the features \['size'\]",
    ),
    "unknown scaling": (lambda: fit({"scaling": "max"}, x=[1]), ValueError, "scaling must be one of"),
    "unknown rule": (lambda: fit({"missing": "zero"}, x=[1]), ValueError, "missing must be one of"),
    "array": (lambda: Preprocessing.fit(np.zeros((2, 2))), TypeError, "data must be a path.*ArraySource"),
    "column gone": (lambda: TRAINED.transform(COLOURS[["size"]]), ValueError, r"\['colour'\] of the training data are"),
    "now missing": (lambda: TRAINED.transform(COLOURS.assign(size=np.nan)), ValueError, "'size' has 3 missing"),
    "now no category": (lambda: TRAINED.transform(COLOURS.assign(colour=[None, "red", None])), ValueError, "2 missing"),
    "now infinite": (lambda: TRAINED.transform(COLOURS.assign(size=np.inf)), ValueError, "'size'.*infinite"),
    "now text": (
        lambda: TRAINED.transform(COLOURS.assign(size="big")),
        TypeError,
        "'size' must be numeric as in train",
    ),
    "now numbers": (lambda: TRAINED.transform(COLOURS.assign(colour=1)), TypeError, "'colour' must be string as in"),
    "no JSON": (lambda: Preprocessing.from_json("{"), ValueError, "not the JSON of a Preprocessing"),
    "other JSON": (lambda: Preprocessing.from_json("[1]"), ValueError, "not the JSON of a Preprocessing"),
}


@pytest.mark.parametrize("case", BAD)
def test_is_refused(case):
    make, error, match = BAD[case]
    with pytest.raises(error, match=match):
        make()


@pytest.mark.parametrize(
    "change",
    [
        {"format": 2},
        {"columns": []},
        {"columns": [{"kind": "date", "name": "x"}]},
        {"columns": [{"kind": "numeric", "name": "x", "scale": 0}]},
        {"columns": [{"kind": "numeric", "name": "x", "offset": "1"}]},
        {"columns": [{"kind": "numeric", "name": "x", "fill": float("nan")}]},
        {"columns": [{"kind": "numeric", "name": "x", "speed": 1}]},
        {"columns": [{"kind": "categorical", "name": "x", "categories": []}]},
        {"columns": [{"kind": "categorical", "name": "x", "categories": ["a", 1]}]},
        {"columns": [{"kind": "categorical", "name": "x", "categories": ["a"], "fill": "b"}]},
    ],
    ids=str,
)
def test_json_that_was_changed_is_refused(change):
    content = json.loads(TRAINED.to_json()) | change
    with pytest.raises(ValueError, match="not the JSON of a Preprocessing"):
        Preprocessing.from_json(json.dumps(content))


def test_the_value_is_frozen():
    with pytest.raises(AttributeError):
        TRAINED.columns = ()
    assert hash(Categorical("x", ("a", "b"))) == hash(Categorical("x", ("a", "b")))
