"""What goes on between epochs and after them: a progress bar, a validation score, early stopping."""

import copy
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TimeElapsedColumn, TimeRemainingColumn

from discernel.feature_maps import FeatureMap
from discernel.run import EpochRecord

Follow = Callable[[Iterable[EpochRecord], FeatureMap], Iterable[EpochRecord]]


def tracked(epochs: Iterable[EpochRecord], label: str, total: int | None) -> Iterator[EpochRecord]:
    """Yield the records while showing them in the terminal, with the time left if the number of epochs is known."""
    times = [TimeElapsedColumn()] if total is None else [TimeElapsedColumn(), "left", TimeRemainingColumn(compact=True)]
    with Progress("{task.description}", BarColumn(5), "{task.fields[state]}", *times) as progress:
        task = progress.add_task(label, total=total, state="")
        for record in epochs:
            state = f"epoch {record.epoch}{'' if total is None else f'/{total}'} criterion {record.criterion:.4g}"
            if record.validation_score is not None:
                state += f" score {record.validation_score:.4g}"
            progress.update(task, advance=1, state=state)
            yield record


@contextmanager
def spinning(label: str, shown: bool, console: Console | None = None, transient: bool = False) -> Iterator[None]:
    """Show, if it is to be shown, that something goes on whose end is not known, and for how long it has."""
    if not shown:  # rich's own switch prints an empty line in some versions
        yield
        return
    columns = SpinnerColumn(), "{task.description}", TimeElapsedColumn()
    with Progress(*columns, console=console, transient=transient) as progress:
        progress.add_task(label, total=None)
        yield


def scored(
    epochs: Iterable[EpochRecord], feature_map: FeatureMap, score: Callable[[FeatureMap], float]
) -> Iterator[EpochRecord]:
    """Yield the records with the score of the map after each epoch."""
    for record in epochs:
        yield replace(record, validation_score=float(score(feature_map)))


def until_stale(epochs: Iterable[EpochRecord], feature_map: FeatureMap, patience: int) -> Iterator[EpochRecord]:
    """Yield records until the validation score has not improved for `patience` epochs; then restore the best map.

    Of equally good ones that is the last: it has learned the most.
    """
    best, state, stale = float("-inf"), None, 0
    for record in epochs:
        yield record
        score: Any = record.validation_score
        stale = 0 if score > best else stale + 1
        if score >= best:
            best, state = score, copy.deepcopy(feature_map.state_dict())
        if stale == patience:
            break
    if state is not None:
        feature_map.load_state_dict(state)
