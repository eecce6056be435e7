"""Mutated files: each is read into something that works, or gives one clean error, in bounded time and memory."""

import contextlib
import json
import resource
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris

from discernel import (
    CE,
    DCA,
    DI,
    RBF,
    ArraySource,
    DiscernelClassifier,
    DiscernelRegressor,
    KernelDCA,
    LearnedFastfood,
    LearnedFourier,
    Nystroem,
    Preprocessing,
    TableSource,
    Targets,
    Trainer,
    load,
    save,
)
from discernel.checkpoint import FileError
from discernel.columns import Categorical, Numeric

X, Y = load_iris(return_X_y=True)
ROWS = torch.from_numpy(X).float()
SHORT = {"trainer": Trainer(max_epochs=1), "random_state": 0}
MODELS = [
    DiscernelClassifier(5, **SHORT).fit(X, np.array(["a", "b", "c"])[Y]),
    DiscernelClassifier(5, feature_map="fourier", head="svm", **SHORT).fit(X, np.column_stack([Y == 0, Y == 1])),
    DiscernelRegressor(5, alpha="gcv", **SHORT).fit(X, Y),
    LearnedFourier(5, **SHORT).fit(X, Y),
    LearnedFastfood(5, **SHORT).fit(X, Y),
    KernelDCA(n_landmarks=5, random_state=0).fit(X, Y),
    DCA().fit(X, Y),
]
HOSTILE = [
    *(None, True, -1, 0, 1, 10**9, 10**18, 10**400, 1e308, float("nan"), float("inf"), 0.5),
    *("", "x" * 1000, "__class__", "../../x", "torch.load", "<U1000000000", "O", "kernel.metric"),
    *([], {}, [[[[]]]], {"dict": [[[], 1]]}, {"estimator": "DiscernelClassifier", "params": {}}, [1e9] * 50),
]
MEGABYTES = 200
MANY = 10_000
RESULTS = Path(__file__).parent / "results" / "fuzz.json"


def split(content):
    size = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def joined(header, data):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def places(tree, found):
    """Collect where values are in a tree of dictionaries and lists."""
    for key in tree if isinstance(tree, dict) else range(len(tree)):
        found.append((tree, key))
        if isinstance(tree[key], dict | list):
            places(tree[key], found)
    return found


def one_byte(content, rng):
    damaged = bytearray(content)
    damaged[rng.integers(len(content))] = rng.integers(256)
    return bytes(damaged)


def header_byte(content, rng):
    damaged = bytearray(content)
    size = int.from_bytes(content[:8], "little")
    damaged[rng.integers(8 + size)] = rng.choice(list(b'0123456789"{}[],:.-e '))
    return bytes(damaged)


def cut(content, rng):
    return content[: rng.integers(len(content))]


def removed(content, rng):
    where = rng.integers(len(content))
    return content[:where] + content[where + rng.integers(1, 50) :]


def repeated(content, rng):
    where = rng.integers(len(content))
    return content[:where] + content[max(0, where - rng.integers(1, 50)) :]


def other_value(content, rng):
    """Put something else in the place of a value of our own header."""
    header, data = split(content)
    ours = json.loads(header["__metadata__"]["discernel"])
    tree, key = (found := places(ours, []))[rng.integers(len(found))]
    tree[key] = HOSTILE[rng.integers(len(HOSTILE))]
    header["__metadata__"]["discernel"] = json.dumps(ours)
    return joined(header, data)


def other_shape(content, rng):
    """Put something else in the place of a type, shape or offset of an array."""
    header, data = split(content)
    tree, key = (found := places(header, []))[rng.integers(len(found))]
    tree[key] = HOSTILE[rng.integers(len(HOSTILE))]
    return joined(header, data)


def lost(content, rng):
    """Remove a value, or an array."""
    header, data = split(content)
    ours = json.loads(header["__metadata__"]["discernel"])
    tree, key = (found := places(ours, []) + [(header, name) for name in header])[rng.integers(len(found))]
    del tree[key]
    if "discernel" in header.get("__metadata__", {}):
        header["__metadata__"]["discernel"] = json.dumps(ours)
    return joined(header, data)


def other_numbers(content, rng):
    header, data = split(content)
    damaged = np.frombuffer(data, np.float64).copy()
    damaged[rng.integers(len(damaged))] = rng.choice([np.nan, np.inf, -np.inf, 1e308, -1e300, 0.0, 5e-324])
    return joined(header, damaged.tobytes())


MUTATIONS = [one_byte, header_byte, cut, removed, repeated, other_value, other_value, other_shape, lost, other_numbers]


def huge(content, rng):
    """Put the largest numbers there are in the place of some bytes: a length, perhaps."""
    where = rng.integers(max(1, len(content) - 8))
    return content[:where] + rng.choice([b"\xff" * 8, b"\xff\xff\xff\x7f", b"\xff" * 4]) + content[where + 8 :]


def fuzzed(path, originals, mutations, count, use, errors=FileError, kind="model"):
    """Mutate files again and again; return how many were used without an error, and what was said of the others."""
    rng, used, messages = np.random.default_rng(count), 0, []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for attempt in range(count):
        path.write_bytes(mutations[attempt % len(mutations)](originals[rng.integers(len(originals))], rng))
        try:
            use(path)
        except errors as error:
            messages.append(str(error))
        else:
            used += 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEGABYTES * 1024
    assert max(map(len, messages)) < 2000
    if count == MANY:
        found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        found[kind] = {"files": count, "read": used, "refused": len(messages)}
        RESULTS.write_text(json.dumps(found, indent=2, sort_keys=True) + "\n")
    return used / count, messages


BYTES = [one_byte, cut, removed, repeated, huge]
how_many = pytest.mark.parametrize("count", [300, pytest.param(MANY, marks=pytest.mark.torture)])


@how_many
@pytest.mark.filterwarnings("ignore")  # of numbers that overflow
def test_a_mutated_model_loads_or_gives_one_clean_error(count, tmp_path):
    path, originals = tmp_path / "model.safetensors", []
    for model in MODELS:
        save(model, path)
        originals.append(path.read_bytes())
        load(path)

    def use(path):
        model = load(path)
        with contextlib.suppress(ValueError):  # numbers that overflow
            model.transform(X)

    used, messages = fuzzed(path, originals, MUTATIONS, count, use)
    assert 0.02 < used < 0.6
    assert all(str(path) in message for message in messages)


def trained(path, criterion=DI, schedule="cosine"):
    feature_map = Nystroem(ROWS[:4], RBF(1.0, trainable=True))
    source = ArraySource(ROWS, Targets.classes(Y))
    return Trainer(max_epochs=2, batch_size=50, schedule=schedule).epochs(
        feature_map, criterion(), source, checkpoint=path
    )


@how_many
@pytest.mark.filterwarnings("ignore")  # of numbers that overflow
@pytest.mark.parametrize(("criterion", "schedule"), [(DI, "cosine"), (CE, "plateau")])
def test_a_mutated_checkpoint_is_resumed_or_gives_one_clean_error(count, criterion, schedule, tmp_path):
    path = tmp_path / "run"
    next(trained(path, criterion, schedule))
    original = path.read_bytes()

    def use(path):
        for _ in trained(path, criterion, schedule):
            break

    mutations = [mutation for mutation in MUTATIONS if mutation is not other_numbers]
    kind = f"checkpoint of {criterion.__name__}"
    used, messages = fuzzed(path, [original], mutations, count, use, kind=kind)
    assert 0.02 < used < 0.8
    assert all(str(path) in message for message in messages)


@pytest.fixture(scope="module")
def tables():
    """The same rows in Parquet, compressed and encoded in every way, and in CSV."""
    pa = pytest.importorskip("pyarrow")
    from pyarrow import csv, parquet

    rows = {f"x{place}": column for place, column in enumerate(X.T)}
    table = pa.table(rows | {"colour": np.array(["red", "blue"])[Y % 2], "kind": np.array(["a", "b", "ü"])[Y]})
    found: dict[str, list[bytes]] = {"parquet": [], "csv": []}
    for compression in ("none", "snappy", "gzip", "zstd"):
        for version in ("1.0", "2.0"):
            sink = pa.BufferOutputStream()
            options = {"data_page_version": version, "use_dictionary": version == "1.0"}
            parquet.write_table(table, sink, compression=compression, **options)
            found["parquet"].append(sink.getvalue().to_pybytes())
    sink = pa.BufferOutputStream()
    csv.write_csv(table, sink)
    found["csv"].append(sink.getvalue().to_pybytes())
    return found


@how_many
@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_a_mutated_table_is_read_or_gives_one_clean_error(count, kind, tables, tmp_path):
    def use(path):
        TableSource(path, target="kind").rows(slice(0, 5))

    errors = ValueError, TypeError
    used, messages = fuzzed(tmp_path / f"table.{kind}", tables[kind], BYTES, count, use, errors, kind)
    assert 0.02 < used < 0.8
    assert any(f"table.{kind}" in message for message in messages)


def test_a_page_that_claims_two_gigabytes_is_refused_without_taking_them(tables, tmp_path):
    import pyarrow as pa

    sizes = b"\x15\xb0\x04\x15\xb0\x04"  # of the first page: 280 bytes, and 280 of them compressed
    content = tables["parquet"][0]
    assert sizes in content[:16]
    path = tmp_path / "table.parquet"
    path.write_bytes(content.replace(sizes, sizes[:4] + b"\xfe\xff\xff\xff\x0f", 1))
    pool = pa.default_memory_pool()
    before = pool.max_memory()
    with pytest.raises(ValueError, match=r"table.parquet is damaged: .*Page was smaller"):
        TableSource(path, target="kind")
    assert pool.max_memory() - before < MEGABYTES * 2**20


@how_many
def test_mutated_preprocessing_is_read_or_gives_one_clean_error(count, tmp_path):
    columns = (Numeric("size", 1.0, 2.0, 0.5), Categorical("colour", ("blue", "red"), "red"))
    original = Preprocessing(columns).to_json().encode()

    def use(path):
        Preprocessing.from_json(path.read_text(errors="replace"))

    fuzzed(tmp_path / "columns.json", [original], BYTES, count, use, ValueError, "columns")


@pytest.mark.parametrize("depth", [10_000, 1_000_000])
def test_a_deep_header_is_refused(depth, tmp_path):
    path = tmp_path / "model.safetensors"
    ours = '{"format": 1, "kind": "model", "meta": ' + "[" * depth + "]" * depth + "}"
    path.write_bytes(joined({"__metadata__": {"discernel": ours}}, b""))
    with pytest.raises(FileError, match="header that cannot be read"):
        load(path)
