"""Mutated model files: each loads into a model that works, or gives one clean error, in bounded time and memory."""

import json
import resource

import numpy as np
import pytest
from sklearn.datasets import load_iris

from discernel import (
    DCA,
    DiscernelClassifier,
    DiscernelRegressor,
    KernelDCA,
    LearnedFastfood,
    LearnedFourier,
    Trainer,
    load,
    save,
)
from discernel.checkpoint import FileError

X, Y = load_iris(return_X_y=True)
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


@pytest.mark.parametrize("count", [300, pytest.param(10_000, marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore")  # of numbers that overflow
def test_a_mutated_file_loads_or_gives_one_clean_error(count, tmp_path):
    path, originals = tmp_path / "model.safetensors", []
    for model in MODELS:
        save(model, path)
        originals.append(path.read_bytes())
        load(path)
    rng, loaded, messages = np.random.default_rng(count), 0, []
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for attempt in range(count):
        mutate = MUTATIONS[attempt % len(MUTATIONS)]
        content = mutate(originals[rng.integers(len(originals))], rng)
        path.write_bytes(content)
        try:
            model = load(path)
        except FileError as error:
            messages.append(str(error))
        else:
            model.transform(X)
            loaded += 1
    assert max(map(len, messages)) < 2000
    assert 0.02 < loaded / count < 0.6
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEGABYTES * 1024


@pytest.mark.parametrize("depth", [10_000, 1_000_000])
def test_a_deep_header_is_refused(depth, tmp_path):
    path = tmp_path / "model.safetensors"
    ours = '{"format": 1, "kind": "model", "meta": ' + "[" * depth + "]" * depth + "}"
    path.write_bytes(joined({"__metadata__": {"discernel": ours}}, b""))
    with pytest.raises(FileError, match="header that cannot be read"):
        load(path)
