"""The paper's data sets (Table 1): features scaled to [0, 1] by the training rows, and the paper's splits.

The files are looked for in a directory named by the environment variable ``DISCERNEL_DATA``:
``letter/letter-recognition.data``, ``mnist/{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz``,
``covtype/covtype.data.gz``. ``digits`` comes with scikit-learn.
"""

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sklearn.datasets import load_digits

COVTYPE_SEED = 0


class Dataset(NamedTuple):
    """Training and test rows, float32 features in [0, 1] and integer classes from 0."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


def load(name: str, directory: str | os.PathLike | None = None) -> Dataset:
    """Return the data set of this name: "digits", "letter", "mnist" or "covtype"."""
    if name not in LOADERS:
        raise ValueError(f"there is no data set {name!r}; there are {', '.join(LOADERS)}")
    return LOADERS[name](Path(directory or os.environ.get("DISCERNEL_DATA") or "data"))


def _file(directory: Path, *parts: str) -> Path:
    path = directory.joinpath(*parts)
    if not path.is_file():
        raise FileNotFoundError(f"there is no {path}; put it there, or set DISCERNEL_DATA to the folder that has it")
    return path


def _scaled(x: np.ndarray, y: np.ndarray, n_train: int) -> Dataset:
    low, high = x[:n_train].min(0), x[:n_train].max(0)
    x = ((x - low) / np.where(high > low, high - low, 1)).astype(np.float32)
    return Dataset(x[:n_train], y[:n_train], x[n_train:], y[n_train:])


def _digits(directory: Path) -> Dataset:
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order].astype(np.float32) / 16, y[order]
    return Dataset(x[:1200], y[:1200], x[1200:], y[1200:])


def _letter(directory: Path) -> Dataset:
    rows = np.loadtxt(_file(directory, "letter", "letter-recognition.data"), delimiter=",", dtype=str)
    _, y = np.unique(rows[:, 0], return_inverse=True)
    return _scaled(rows[:, 1:].astype(np.float64), y, 15000)


def _idx(path: Path) -> np.ndarray:
    content = gzip.decompress(path.read_bytes())
    shape = np.frombuffer(content, ">i4", count=content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def _mnist(directory: Path) -> Dataset:
    parts = []
    for part in ("train", "t10k"):
        images = _idx(_file(directory, "mnist", f"{part}-images-idx3-ubyte.gz"))
        labels = _idx(_file(directory, "mnist", f"{part}-labels-idx1-ubyte.gz"))
        parts += [images.reshape(len(images), -1).astype(np.float32) / 255, labels.astype(np.int64)]
    return Dataset(*parts)


def _covtype(directory: Path) -> Dataset:
    with gzip.open(_file(directory, "covtype", "covtype.data.gz"), "rt") as file:
        rows = np.loadtxt(file, delimiter=",", dtype=np.int32)
    rows = rows[np.random.default_rng(COVTYPE_SEED).permutation(len(rows))]
    return _scaled(rows[:, :-1].astype(np.float32), rows[:, -1].astype(np.int64) - 1, 464810)


LOADERS: dict[str, Callable[[Path], Dataset]] = {
    "digits": _digits,
    "letter": _letter,
    "mnist": _mnist,
    "covtype": _covtype,
}
