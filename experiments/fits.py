"""One fit: a job and its data in, a row's results out. The same job gives the same results again."""

import subprocess
import time
from collections.abc import Callable
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from threadpoolctl import threadpool_limits

from discernel import (
    CE,
    DI,
    LS,
    RBF,
    ArraySource,
    FeatureMap,
    Nystroem,
    RandomFourier,
    Targets,
    Trainer,
    choose_landmarks,
    moments_over,
)
from discernel import checkpoint as files
from discernel.heads import fit_linear
from experiments.datasets import Dataset
from experiments.jobs import Job
from experiments.table import Result

TRAINERS = {"paper": Trainer.paper(), "patient": Trainer.paper(tol=1e-4), "fast": Trainer()}
CRITERIA = {"di": DI, "ls": LS, "ce": lambda rho: CE()}
SVC_C = 10.0
HEAD_C, HEAD_TOL = 1.0, 1e-7  # at 1e-5 accuracies on Letter are 0.2 points off; at 1e-7 they are LinearSVC's
ROWS = 50_000  # of features computed at a time
PACKAGES = ("discernel", "torch", "numpy", "scikit-learn")


class Problem(NamedTuple):
    """A data set as the trainer takes it."""

    train: ArraySource
    test: ArraySource


def problem(data: Dataset) -> Problem:
    """Return the sources of a data set."""
    train, test = (Targets.classes(y) for y in (data.y_train, data.y_test))
    return Problem(ArraySource(torch.from_numpy(data.x_train), train), ArraySource(torch.from_numpy(data.x_test), test))


def fit(job: Job, data: Problem, max_epochs: int | None = None, checkpoint: Path | None = None) -> Result:
    """Return what comes of a job, on one thread: so it does not depend on how many cores there are.

    With a `checkpoint`, training goes on from there if it was cut off.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with threadpool_limits(1):
            return _model(job, data) if job.map == "exact" else _features(job, data, max_epochs, checkpoint)
    finally:
        torch.set_num_threads(threads)


def start(job: Job, x: torch.Tensor) -> FeatureMap:
    """Return the map before training; that of a seed is the same for all criteria."""
    generator = torch.Generator().manual_seed(job.seed)
    if job.map == "nystroem":
        return Nystroem(choose_landmarks(x, job.n_components, job.init, generator), RBF(job.gamma))
    return RandomFourier.sample(RBF(job.gamma), x.shape[1], job.n_components, generator)


def _features(job: Job, data: Problem, max_epochs: int | None, checkpoint: Path | None) -> Result:
    started, busy = time.perf_counter(), time.process_time()
    feature_map, batch, epochs = start(job, data.train.x), 0, 0
    before = 0.0  # the seconds of epochs that the checkpoint has
    if job.criterion != "none":
        trainer, criterion = TRAINERS[job.schedule], CRITERIA[job.criterion](job.rho)
        if max_epochs is not None:
            trainer = Trainer(**(trainer.get_params() | {"max_epochs": max_epochs}))
        batch = trainer.rows_per_batch(len(data.train), job.n_components, criterion)
        known = epochs_of(checkpoint)
        for record in trainer.epochs(feature_map, criterion, data.train, seed=job.seed, checkpoint=checkpoint):
            epochs = record.epoch
            before += record.seconds if record.epoch <= known else 0.0
    seconds = before + time.process_time() - busy
    scores = *ridge_scores(feature_map, data, job.rho), svm_accuracy(feature_map, data)
    wall = round(before + time.perf_counter() - started, 2)
    return Result(len(data.train), batch, epochs, round(seconds, 2), wall, *scores, versions())


def epochs_of(checkpoint: Path | None) -> int:
    """Return how many epochs a checkpoint has; none if it is not there."""
    there = checkpoint is not None and checkpoint.exists()
    return files.read(checkpoint, "checkpoint")[1]["progress"]["epoch"] if there else 0


def ridge_scores(feature_map: FeatureMap, data: Problem, rho: float) -> tuple[float, float, float]:
    """Return the training and test MSE of ridge regression on the features, and its test accuracy."""
    with torch.no_grad():
        moments = moments_over(data.train, feature_map)
        ridge = moments.ridge(rho, feature_map.gram())
        errors = moments.mse(ridge), moments_over(data.test, feature_map).mse(ridge)
        return *errors, accuracy(lambda x: ridge.predict(feature_map.basis(x)), data.test)


def svm_accuracy(feature_map: FeatureMap, data: Problem) -> float:
    """Return the test accuracy of the linear SVM with squared hinge loss and C = 1 on the features."""
    with torch.no_grad():
        batches = [(feature_map(b.x), b.targets, None) for b in data.train.batches(ROWS)]
    head = fit_linear(lambda: batches, "svm", HEAD_C, HEAD_TOL)
    with torch.no_grad():
        return accuracy(lambda x: head.scores(feature_map(x)), data.test)


def accuracy(scores: Callable[[torch.Tensor], torch.Tensor], test: ArraySource) -> float:
    """Return the share of the rows whose class has the highest score."""
    guesses = torch.cat([scores(b.x).argmax(1) for b in test.batches(ROWS)])
    return (guesses == test.targets.data).double().mean().item()


def _model(job: Job, data: Problem) -> Result:
    from sklearn.svm import SVC

    if job.criterion == "svc":
        model = SVC(C=SVC_C, gamma=job.gamma)
    else:
        from lightgbm import LGBMClassifier

        model = LGBMClassifier(random_state=job.seed, n_jobs=1, deterministic=True, force_row_wise=True, verbose=-1)
    started, busy = time.perf_counter(), time.process_time()
    model.fit(data.train.x.numpy(), data.train.targets.data.numpy())
    seconds = round(time.process_time() - busy, 2)
    right = float(np.mean(model.predict(data.test.x.numpy()) == data.test.targets.data.numpy()))
    wall, none = round(time.perf_counter() - started, 2), float("nan")
    return Result(len(data.train), 0, 0, seconds, wall, none, none, none, right, versions())


@cache
def versions() -> str:
    """Return the versions of what computes, and the last commit that changed the library."""
    command = ["git", "-C", str(Path(__file__).parents[1]), "log", "-1", "--format=%h", "--", "src/discernel"]
    git = subprocess.run(command, capture_output=True, text=True)
    found = [f"{name}={version(name)}" for name in PACKAGES]
    return " ".join([*found, f"commit={git.stdout.strip() or 'unknown'}"])
