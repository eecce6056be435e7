"""What goes on between epochs: a progress bar, and early stopping."""

import copy
from collections.abc import Callable, Iterable, Iterator

import torch
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from discernel.data import Source
from discernel.feature_maps import FeatureMap
from discernel.training import EpochRecord, moments_over


def tracked(epochs: Iterable[EpochRecord], label: str) -> Iterator[EpochRecord]:
    """Yield the records while showing them in the terminal."""
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"), TimeElapsedColumn()
    with Progress(*columns) as progress:
        task = progress.add_task(label, total=None, state="")
        for record in epochs:
            state = f"epoch {record.epoch}, criterion {record.criterion:.5g}, {record.samples_per_second:,.0f} rows/s"
            if record.validation_score is not None:
                state += f", validation {record.validation_score:.5g}"
            progress.update(task, advance=1, state=state)
            yield record


def until_stale(epochs: Iterable[EpochRecord], feature_map: FeatureMap, patience: int) -> Iterator[EpochRecord]:
    """Yield records until the validation score has not improved for `patience` epochs; then restore the best map."""
    best, state, stale = float("-inf"), None, 0
    for record in epochs:
        yield record
        score, stale = record.validation_score, stale + 1
        if score is not None and score > best:
            best, state, stale = score, copy.deepcopy(feature_map.state_dict()), 0
        if stale == patience:
            break
    if state is not None:
        feature_map.load_state_dict(state)


def score_on(held_out: Source, train: Source, rho: float) -> Callable[[FeatureMap], float]:
    """Return the score of a map: the share R² of held-out targets that a ridge head of the training rows explains."""

    def score(feature_map: FeatureMap) -> float:
        mode = feature_map.training
        with torch.no_grad():
            feature_map.eval()
            ridge = moments_over(train, feature_map).ridge(rho, feature_map.gram())
            there = moments_over(held_out, feature_map)
            feature_map.train(mode)
        return 1 - there.mse(ridge) * there.count / (there.energy or 1.0)

    return score
