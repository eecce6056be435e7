import gc
import threading

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch

from discernel import (
    DI,
    RBF,
    ArraySource,
    DiscernelClassifier,
    LearnedNystroem,
    Nystroem,
    Preprocessing,
    TableSource,
    Targets,
    Trainer,
    data,
    readers,
    tables,
)
from discernel.store import MatrixFile

ROWS = 400
RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "a": RNG.normal(size=ROWS).round(3),
        "b": RNG.integers(5, size=ROWS),
        "colour": RNG.choice(["red", "green", "blue"], ROWS),
        "flag": RNG.random(ROWS) < 0.3,
        "weight": RNG.integers(1, 4, ROWS).astype(float),
        "value": RNG.normal(size=ROWS),
        "kind": RNG.choice(["x", "y", "z"], ROWS),
    }
)
FEATURES = ["a", "b", "colour", "flag"]
ARROW = pa.Table.from_pandas(FRAME, preserve_index=False)


def parquet(folder):
    pq.write_table(ARROW, folder / "a.parquet", row_group_size=64)
    return folder / "a.parquet"


def parts(folder):
    for part in range(5):
        pq.write_table(ARROW.slice(80 * part, 80), folder / f"{part}.parquet")
    return folder


def partitioned(folder):
    for part in range(5):
        inner = folder / f"part={part}"
        inner.mkdir()
        pq.write_table(ARROW.slice(80 * part, 80), inner / "a.parquet")
    return folder


def csv(folder):
    pyarrow.csv.write_csv(ARROW, folder / "a.csv")
    return folder / "a.csv"


KINDS = {
    "pandas": lambda folder: FRAME,
    "polars": lambda folder: pl.from_pandas(FRAME),
    "arrow": lambda folder: ARROW,
    "Parquet": parquet,
    "many files": parts,
    "partitioned": partitioned,
    "CSV": csv,
}
each_kind = pytest.mark.parametrize("kind", KINDS)


@pytest.fixture
def small(monkeypatch):
    """Let files of 400 rows be larger than memory, and read in several loads."""
    for module, name, value in (
        (data, "LOAD", 600),  # 100 rows of 6 features
        (data, "BLOCKS", 10),
        (data, "MIN_ROWS", 1),
        (tables, "IN_MEMORY", 500),
        (readers, "ROWS", 32),
        (readers, "CSV_BLOCK", 4096),
    ):
        monkeypatch.setattr(module, name, value)


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def arrays(weighted=False):
    x = np.column_stack(
        [
            (FRAME.a - FRAME.a.min()) / (FRAME.a.max() - FRAME.a.min()),
            FRAME.b / 4,
            *(FRAME.colour == colour for colour in ("blue", "green", "red")),
            FRAME.flag,
        ]
    ).astype(np.float32)
    weight = torch.from_numpy(FRAME.weight.to_numpy(np.float32)) if weighted else None
    return ArraySource(x, Targets.classes(FRAME.kind.to_numpy()), weight)


def table_source(kind, folder, **options):
    return TableSource(KINDS[kind](folder), "kind", features=FEATURES, **options)


def same(batches, others):
    for batch, other in zip(batches, others, strict=True):
        torch.testing.assert_close(tuple(batch), tuple(other), rtol=0, atol=0)


@each_kind
@pytest.mark.parametrize("weighted", [False, True])
def test_all_kinds_of_table_give_the_batches_of_the_array(small, kind, weighted, tmp_path):
    source = table_source(kind, tmp_path, weight="weight" if weighted else None)
    assert source.streams == (kind not in ("pandas", "polars", "arrow"))
    assert source.preprocessing.feature_names == ["a", "b", "colour_blue", "colour_green", "colour_red", "flag"]
    expected = arrays(weighted)
    assert len(source) == ROWS
    assert source.fingerprint() == expected.fingerprint()
    for size, generator in ((7, None), (400, None), (7, seeded), (150, seeded)):
        drawn = [each.batches(size, generator and generator()) for each in (source, expected)]
        same(*drawn)
    same(source.batches(7, seeded(), skip=20), expected.batches(7, seeded(), skip=20))
    index = torch.tensor([399, 0, 17, 17])
    same([source.rows(index), source.rows(slice(3, 9))], [expected.rows(index), expected.rows(slice(3, 9))])


@each_kind
def test_all_kinds_of_table_train_the_same_map(small, kind, tmp_path):
    trained = []
    for source in (arrays(), table_source(kind, tmp_path)):
        feature_map = Nystroem(source.rows(torch.arange(20)).x, RBF(1.0))
        records = list(Trainer(max_epochs=2, batch_size=50).epochs(feature_map, DI(), source, seed=3))
        trained.append((feature_map.landmarks.detach(), [record.criterion for record in records]))
    assert torch.equal(trained[0][0], trained[1][0])
    assert trained[0][1] == trained[1][1]


def test_small_files_stay_in_memory(tmp_path):
    source = table_source("Parquet", tmp_path)
    assert not source.streams
    same(source.batches(7, seeded()), arrays().batches(7, seeded()))


def test_files_larger_than_memory_are_kept_on_disk_as_a_number_for_each_column(small, tmp_path):
    source = table_source("Parquet", tmp_path)
    assert isinstance(source.stored, MatrixFile)
    assert (len(source.stored), source.stored.n_columns) == (ROWS, 4)
    assert "400 rows, 6 features of 4 columns, on disk" in repr(source)
    assert "in memory" in repr(table_source("pandas", tmp_path))
    file = source.stored._file
    del source
    gc.collect()
    assert file.closed


def test_the_temporary_file_is_where_it_is_asked_for(small, tmp_path):
    assert table_source("Parquet", tmp_path, cache=tmp_path).stored.folder == str(tmp_path)
    with pytest.raises(FileNotFoundError):
        table_source("Parquet", tmp_path, cache=tmp_path / "none")


def test_a_stream_that_is_left_early_leaves_no_thread(small, tmp_path):
    before = threading.active_count()
    next(batches := table_source("Parquet", tmp_path).batches(7))
    assert threading.active_count() == before + 1
    batches.close()
    assert threading.active_count() == before


def test_batches_do_not_share_memory(small, tmp_path):
    source = TableSource(parquet(tmp_path), features=["a", "b"])
    first, *_ = source.batches(7)
    kept = first.x.clone()
    first.x.zero_()
    assert torch.equal(next(iter(source.batches(7))).x, kept)
    assert torch.equal(source.rows(slice(0, 7)).x, kept)


def test_the_preprocessing_of_a_model_is_applied_to_other_rows(tmp_path):
    source = table_source("Parquet", tmp_path)
    new = FRAME[:10].assign(a=[5.0] * 10, colour=["pink"] * 10)
    again = TableSource(new, "kind", preprocessing=source.preprocessing)
    assert again.preprocessing is source.preprocessing
    np.testing.assert_array_equal(again.rows(slice(None)).x, source.preprocessing.transform(new))
    assert not again.rows(slice(None)).x[:, 2:5].any()


def test_rows_of_one_class_are_for_scoring_alone(tmp_path):
    source = table_source("Parquet", tmp_path)
    one = TableSource(FRAME[FRAME["kind"] == "y"], "kind", preprocessing=source.preprocessing)
    model = DiscernelClassifier(5, trainer=Trainer(max_epochs=2), random_state=0).fit(source)
    assert model.score(one) == np.mean(model.predict(one) == "y")
    for estimator in (DiscernelClassifier(5), LearnedNystroem(5)):
        with pytest.raises(ValueError, match=r"two .*classes to tell apart"):
            estimator.fit(one)


def target(column, **options):
    frame = FRAME.assign(target=column) if column is not None else FRAME
    return TableSource(frame, "target", features=["a"], **options).targets


@pytest.mark.parametrize(
    ("column", "names"),
    [
        (FRAME.kind, ["x", "y", "z"]),
        (FRAME.kind.astype("category"), ["x", "y", "z"]),
        (FRAME.b.astype("int8") - 2, [-2, -1, 0, 1, 2]),
        (FRAME.flag, [False, True]),
    ],
    ids=["text", "category", "whole", "boolean"],
)
def test_classes(column, names):
    targets = target(column)
    assert targets.kind == "classes"
    np.testing.assert_array_equal(targets.names, names)
    assert targets.names.dtype == np.array(names).dtype
    assert torch.equal(targets[:], Targets.classes(column.to_numpy())[:])
    assert targets.data.element_size() == 2


def test_classes_are_discovered_wherever_they_first_are(small):
    column = np.array(["m"] * 200 + ["z"] * 100 + ["a"] * 99 + ["b"])
    targets = target(column)
    assert targets.names.tolist() == ["a", "b", "m", "z"]
    assert torch.equal(targets[:], Targets.classes(column)[:])


def test_zero_is_one_class_whatever_its_sign():
    column = [0.0, 1.0, -0.0, 1.0, 2.0, -0.0]
    for y in (column, column[::-1]):
        targets = TableSource(pd.DataFrame({"a": range(6), "y": y}), "y", task="classification").targets
        assert targets.raw().tolist() == y
        assert not np.signbit(targets.names).any()


def test_a_value_without_a_class_is_not_taken_for_another(monkeypatch):
    monkeypatch.setattr(tables, "count", lambda column, counts, *rest: counts.update(["x", "y"]))
    with pytest.raises(ValueError, match=f"'target' has {(FRAME.kind == 'z').sum()} values that equal none of"):
        target(FRAME.kind)


def test_values():
    assert target(FRAME.value).kind == "values"
    np.testing.assert_array_equal(target(FRAME.value).data[:, 0], FRAME.value)
    np.testing.assert_array_equal(target(FRAME.b, task="regression")[:][:, 0], FRAME.b)
    assert target(FRAME.b / 2, task="classification").names.tolist() == [0, 0.5, 1, 1.5, 2]


def test_several_targets():
    both = TableSource(FRAME, ["value", "b"], features=["a"]).targets
    np.testing.assert_array_equal(both.data, FRAME[["value", "b"]])
    flags = FRAME.assign(second=~FRAME.flag, third=FRAME.flag.astype(int))
    labels = TableSource(flags, ["flag", "second"], features=["a"]).targets
    assert labels.kind == "labels"
    np.testing.assert_array_equal(labels[:], flags[["flag", "second"]])
    assert TableSource(flags, ["flag", "third"], features=["a"]).targets.kind == "values"
    assert TableSource(flags, ["flag", "third"], features=["a"], task="classification").targets.kind == "labels"


def test_features_are_all_that_is_not_a_target_or_weight():
    source = TableSource(FRAME, ["kind"], weight="weight")
    assert [column.name for column in source.preprocessing.columns] == ["a", "b", "colour", "flag", "value"]
    np.testing.assert_array_equal(source.sample_weight, FRAME.weight)
    assert source.types["b"] == "int64"
    assert source.types["value"] == "double"


def test_nothing_to_predict():
    source = TableSource(FRAME)
    assert len(source.preprocessing.columns) == 7
    assert len(source) == len(source.targets) == ROWS
    assert [len(batch.x) for batch in source.batches(150)] == [150, 150, 100]


def test_options_reach_the_preprocessing():
    frame = FRAME.assign(a=FRAME.a.where(FRAME.a > 0))
    options = {"scaling": "standard", "missing": "impute", "categorical": ["b"]}
    source = TableSource(frame, "kind", features=FEATURES, **options)
    assert source.preprocessing == Preprocessing.fit(frame, FEATURES, **options)
    np.testing.assert_array_equal(source.rows(slice(None)).x, source.preprocessing.transform(frame))


def test_types_reach_the_reader(tmp_path):
    source = TableSource(csv(tmp_path), "kind", types={"b": "string"})
    assert source.types["b"] == "string"
    assert "b_4" in source.preprocessing.feature_names


def make(columns=None, target="kind", **options):
    return lambda: TableSource(FRAME.assign(**(columns or {})), target, **options)


HALF = [1.0, np.nan] * 200
BAD = {
    "leakage": (make(features=["a", "kind"]), ValueError, r"\['kind'\] are targets or weights.*target leakage"),
    "weight leaks": (make(features=["weight"], weight="weight"), ValueError, "target leakage"),
    "old features leak": (make(preprocessing=Preprocessing.fit(FRAME)), ValueError, r"\['kind'\].*target leakage"),
    "features twice": (
        make(features=["a"], preprocessing=Preprocessing.fit(FRAME, ["a"])),
        ValueError,
        "preprocessing has its own features",
    ),
    "no preprocessing": (make(preprocessing="unit"), TypeError, "must be a discernel.Preprocessing, got str"),
    "features as text": (make(features="a"), TypeError, "features must be a list of columns"),
    "no such target": (make(target="what"), ValueError, "no column 'what'; there are.*'kind'"),
    "no such weight": (make(weight="what"), ValueError, "no column 'what'"),
    "target twice": (make(target=["kind", "kind"]), ValueError, "must be different columns"),
    "target as weight": (make(weight="kind"), ValueError, "must be different columns"),
    "no class": (make({"kind": None}), ValueError, "'kind' has 400 missing values: remove"),
    "missing class": (make({"kind": ["x", None] * 200}), ValueError, "'kind' has 200 missing values: remove"),
    "class NaN": (make({"kind": HALF}, task="classification"), ValueError, "'kind' has 200 missing values"),
    "missing value": (make({"value": HALF}, "value"), ValueError, "'value' has values that are missing"),
    "missing weight": (make({"weight": HALF}, weight="weight"), ValueError, "'weight' has values that are missing"),
    "negative weight": (make({"weight": -1.0}, weight="weight"), ValueError, "sample_weight must be non-negative"),
    "one class": (make({"kind": "x"}), ValueError, r"'kind' must have two or more classes, got \['x'\]"),
    "many classes": (
        lambda: TableSource(pd.DataFrame({"a": 1.0, "y": range(10_001)}), "y"),
        ValueError,
        'more than 10000 different.*task="regression"',
    ),
    "text to regress": (make(task="regression"), TypeError, r"\['kind'\] are text"),
    "labels of text": (make(target=["kind", "flag"], task="classification"), TypeError, r"\['kind'\] are text"),
    "labels of numbers": (make(target=["b", "flag"], task="classification"), ValueError, "zeros and ones"),
    "target a date": (make({"kind": pd.Timestamp(0)}), TypeError, "'kind' cannot be a target.*timestamp"),
    "unknown task": (make(task="ranking"), ValueError, "task must be one of"),
    "no rows": (lambda: TableSource(FRAME[:0], "kind"), ValueError, "the table has no rows"),
    "no rows to predict": (
        lambda: TableSource(FRAME[:0], preprocessing=Preprocessing.fit(FRAME)),
        ValueError,
        "the table has no rows",
    ),
    "no features": (lambda: TableSource(FRAME[["kind"]], "kind"), ValueError, "one or more columns"),
    "missing feature": (make({"a": HALF}), ValueError, "'a' has 200 missing values.*impute"),
}


@pytest.mark.parametrize("case", BAD)
def test_is_refused(case):
    fail, error, match = BAD[case]
    with pytest.raises(error, match=match):
        fail()


def test_progress_is_told_of_the_rows_of_both_passes(tmp_path):
    pd.DataFrame({"x": range(100), "y": range(100)}).to_csv(tmp_path / "a.csv", index=False)
    told = []
    source = TableSource(tmp_path / "a.csv", "y", task="regression", progress=told.append)
    assert sum(told) == 2 * len(source) == 200
    TableSource(tmp_path / "a.csv", preprocessing=source.preprocessing, progress=told.append)
    assert sum(told) == 300


def test_one_process_shares_with_nobody(tmp_path):
    frame = pd.DataFrame({"x": [0.0, 1.0, 2.0], "y": ["a", "b", "a"]})
    shared, alone = (TableSource(frame, "y", shared=shared) for shared in (True, False))
    assert (shared.ranks, shared.streams) == (1, False)
    torch.testing.assert_close(shared.rows(slice(None)).x, alone.rows(slice(None)).x)


def test_an_index_that_was_written_too_is_told_of(tmp_path):
    frame = pd.DataFrame({"a": [0.0, 1.0, 2.0, 3.0], "y": ["b", "c", "b", "c"]})
    frame.to_csv(tmp_path / "t.csv")
    with pytest.warns(UserWarning, match="a column has no name, like the index"):
        source = TableSource(tmp_path / "t.csv", "y")
    assert source.preprocessing.feature_names == ["", "a"]
    assert TableSource(tmp_path / "t.csv", "y", features=["a"]).preprocessing.feature_names == ["a"]
