"""The table of results: a CSV file to which each fit adds one row, whole or not at all."""

import fcntl
import io
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from experiments.jobs import Job

RESULTS = Path(__file__).parent / "results"


class Result(NamedTuple):
    """What came of a fit. MSE is that of ridge regression on the features, summed over the targets."""

    n_train: int
    batch: int  # rows of a mini-batch
    epochs: int
    # Of training the map, or the whole of a model without features: of the processor; of the clock in rows of commits
    # before 212b0b3, and for the epochs before a fit was cut off.
    seconds: float
    wall_seconds: float  # of the clock: with both heads and their scores
    train_mse: float
    test_mse: float
    ridge_accuracy: float  # of the same ridge regression, on the test rows
    test_accuracy: float  # of a linear SVM on the features
    versions: str


KEY = list(Job._fields)
COLUMNS = KEY + list(Result._fields)
TYPES = Job.__annotations__ | Result.__annotations__
CONVERTERS = {c: (lambda text: float(text or "nan")) if kind is float else kind for c, kind in TYPES.items()}


def read(path: Path) -> pd.DataFrame:
    """Return the rows of a table, without the half of one that a killed run may have left at the end."""
    text = path.read_text() if path.is_file() else ""
    whole = text[: text.rfind("\n") + 1] or ",".join(COLUMNS) + "\n"
    frame = pd.read_csv(io.StringIO(whole), converters=CONVERTERS)
    if list(frame.columns) != COLUMNS:
        raise ValueError(f"{path} has other columns than this version writes: {', '.join(frame.columns)}")
    return frame.drop_duplicates(KEY)


def done(path: Path) -> set[Job]:
    """Return the jobs that have a row."""
    return {Job(*values) for values in read(path)[KEY].itertuples(index=False)}


def append(path: Path, job: Job, result: Result) -> None:
    """Add a row, in one write that is on the disk when this returns."""
    values = (*job, *result)
    line = ",".join("" if value != value else str(value) for value in values) + "\n"
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    with os.fdopen(descriptor, "r+b") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # another process may add one too
        content = file.read()
        end = content.rfind(b"\n") + 1  # what follows is half a row
        file.truncate(end)
        file.seek(end)
        file.write(((",".join(COLUMNS) + "\n" if end == 0 else "") + line).encode())
        file.flush()
        os.fsync(file.fileno())


def read_all(directory: Path) -> pd.DataFrame:
    """Return the rows of all tables of a directory."""
    frames = [read(path) for path in sorted(directory.glob("*.csv"))]
    frames = [frame for frame in frames if len(frame)]
    return pd.concat(frames, ignore_index=True) if frames else read(directory / "none.csv")


def where(frame: pd.DataFrame, conditions: Mapping[str, Any]) -> pd.DataFrame:
    """Return the rows with these values in these columns."""
    for column, value in conditions.items():
        frame = frame[frame[column] == value]
    return frame
