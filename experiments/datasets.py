"""The paper's data sets (Table 1): features scaled to [0, 1] by the training rows, and the paper's splits.

The files are looked for in a directory: the argument, else the environment variable ``DISCERNEL_DATA``, else
scikit-learn's data home. What is not there is downloaded into it and checked: ``letter/letter-recognition.data``,
``mnist/{train,t10k}-{images-idx3,labels-idx1}-ubyte.gz``, ``covtype/covtype.data.gz``. ``digits`` comes with
scikit-learn.
"""

import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn
from sklearn.datasets import fetch_file, get_data_home, load_digits

COVTYPE_SEED = 0


class Dataset(NamedTuple):
    """Training and test rows, float32 features in [0, 1] and integer classes from 0."""

    x_train: np.ndarray
    y_train: np.ndarray
    x_test: np.ndarray
    y_test: np.ndarray


class Remote(NamedTuple):
    """A file in its public home."""

    url: str
    sha256: str
    size: int  # bytes


_MNIST = "https://ossci-datasets.s3.amazonaws.com/mnist/"
FILES = {
    "letter/letter-recognition.data": Remote(
        "https://archive.ics.uci.edu/ml/machine-learning-databases/letter-recognition/letter-recognition.data",
        "2b89f3602cf768d3c8355267d2f13f2417809e101fc2b5ceee10db19a60de6e2",
        712_565,
    ),
    "mnist/train-images-idx3-ubyte.gz": Remote(
        _MNIST + "train-images-idx3-ubyte.gz",
        "440fcabf73cc546fa21475e81ea370265605f56be210a4024d2ca8f203523609",
        9_912_422,
    ),
    "mnist/train-labels-idx1-ubyte.gz": Remote(
        _MNIST + "train-labels-idx1-ubyte.gz",
        "3552534a0a558bbed6aed32b30c495cca23d567ec52cac8be1a0730e8010255c",
        28_881,
    ),
    "mnist/t10k-images-idx3-ubyte.gz": Remote(
        _MNIST + "t10k-images-idx3-ubyte.gz",
        "8d422c7b0a1c1c79245a5bcf07fe86e33eeafee792b84584aec276f5a2dbc4e6",
        1_648_877,
    ),
    "mnist/t10k-labels-idx1-ubyte.gz": Remote(
        _MNIST + "t10k-labels-idx1-ubyte.gz",
        "f7ae60f92e00ec6debd23a6088c31dbd2371eca3ffa0defaefb259924204aec6",
        4_542,
    ),
    "covtype/covtype.data.gz": Remote(  # where scikit-learn's fetch_covtype has it from, and its checksum
        "https://ndownloader.figshare.com/files/5976039",
        "614360d0257557dd1792834a85a1cdebfadc3c4f30b011d56afee7ffb5b15771",
        11_240_707,
    ),
}


def load(name: str, directory: str | os.PathLike | None = None) -> Dataset:
    """Return the data set of this name: "digits", "letter", "mnist" or "covtype"."""
    if name not in LOADERS:
        raise ValueError(f"there is no data set {name!r}; there are {', '.join(LOADERS)}")
    directory = directory or os.environ.get("DISCERNEL_DATA") or Path(get_data_home()) / "discernel"
    fetch(name, Path(directory))
    return LOADERS[name](Path(directory))


def fetch(name: str, directory: Path) -> None:
    """Download those files of a data set that are not in the directory yet, with a bar, and check what came."""
    missing = [path for path in FILES if path.startswith(f"{name}/") and not (directory / path).is_file()]
    if not missing:
        return
    columns = TextColumn(f"downloading {name}"), BarColumn(), DownloadColumn(), TimeElapsedColumn()
    try:
        with Progress(*columns) as progress:
            task = progress.add_task("", total=sum(FILES[path].size for path in missing))
            for path in missing:
                folder, file = (directory / path).parent, Path(path).name
                folder.mkdir(parents=True, exist_ok=True)
                fetch_file(FILES[path].url, folder, file, FILES[path].sha256)
                progress.advance(task, FILES[path].size)
    except OSError as error:  # no network, a wrong checksum, a directory that cannot be written to
        wanted = "\n".join(f"  {directory / path}  from  {FILES[path].url}" for path in missing)
        raise FileNotFoundError(
            f"{name} is not in {directory} and could not be downloaded ({error}). Put the files there yourself:\n"
            f"{wanted}\nor name the folder that has them, by --data or the environment variable DISCERNEL_DATA"
        ) from error


def _scaled(x: np.ndarray, y: np.ndarray, n_train: int) -> Dataset:
    low, high = x[:n_train].min(0), x[:n_train].max(0)
    x = ((x - low) / np.where(high > low, high - low, 1)).astype(np.float32)
    return Dataset(x[:n_train], y[:n_train], x[n_train:], y[n_train:])


def _rows(rows: np.ndarray, n_rows: int, path: Path) -> np.ndarray:
    if len(rows) != n_rows:
        raise ValueError(f"{path} has {len(rows)} rows, not {n_rows}: delete it, and it is downloaded again")
    return rows


def _digits(directory: Path) -> Dataset:
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order].astype(np.float32) / 16, y[order]
    return Dataset(x[:1200], y[:1200], x[1200:], y[1200:])


def _letter(directory: Path) -> Dataset:
    path = directory / "letter" / "letter-recognition.data"
    rows = _rows(np.loadtxt(path, delimiter=",", dtype=str), 20_000, path)
    _, y = np.unique(rows[:, 0], return_inverse=True)
    return _scaled(rows[:, 1:].astype(np.float64), y, 15000)


def _idx(path: Path) -> np.ndarray:
    content = gzip.decompress(path.read_bytes())
    shape = np.frombuffer(content, ">i4", count=content[3], offset=4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * len(shape)).reshape(shape)


def _mnist(directory: Path) -> Dataset:
    parts = []
    for part in ("train", "t10k"):
        images = _idx(directory / "mnist" / f"{part}-images-idx3-ubyte.gz")
        labels = _idx(directory / "mnist" / f"{part}-labels-idx1-ubyte.gz")
        parts += [images.reshape(len(images), -1).astype(np.float32) / 255, labels.astype(np.int64)]
    return Dataset(*parts)


def _covtype(directory: Path) -> Dataset:
    path = directory / "covtype" / "covtype.data.gz"
    text = gzip.decompress(path.read_bytes()).strip().replace(b"\n", b",")  # one long line: 15 times quicker to read
    rows = _rows(np.fromstring(text, np.int32, sep=",").reshape(-1, 55), 581_012, path)
    rows = rows[np.random.default_rng(COVTYPE_SEED).permutation(len(rows))]
    return _scaled(rows[:, :-1].astype(np.float32), rows[:, -1].astype(np.int64) - 1, 464810)


LOADERS: dict[str, Callable[[Path], Dataset]] = {
    "digits": _digits,
    "letter": _letter,
    "mnist": _mnist,
    "covtype": _covtype,
}
