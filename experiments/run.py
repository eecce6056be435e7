"""The loop: job after job until all have a row, or the time is up."""

import fcntl
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np

from experiments import datasets, table
from experiments.datasets import Dataset
from experiments.fits import fit, problem
from experiments.gammas import gamma_for
from experiments.jobs import PLANS, QUICK, STUDIES, Job, chosen, jobs

QUICK_ROWS = 2000  # of the training and of the test rows
QUICK_EPOCHS = 15
LONG = 400  # features: such a fit may take hours, and goes on where it was cut off
GAMMAS = table.RESULTS / "gamma.json"


class Settings(NamedTuple):
    """What of the plan is run, and how."""

    quick: bool = False
    seeds: int | None = None
    components: Sequence[int] = ()
    schedule: str = "paper"
    studies: Sequence[str] = ()
    criteria: Sequence[str] = ()  # all, if none is named
    hours: float | None = None
    directory: Path | None = None  # of the data sets


def run(name: str, out: Path, settings: Settings, tell: Callable[[str], None]) -> None:
    """Fit what is missing in ``out/NAME.csv``, adding a row a fit, and tell of each with the time left."""
    deadline = float("inf") if settings.hours is None else time.monotonic() + 3600 * settings.hours
    data = datasets.load(name, settings.directory)
    gamma = gamma_for(name, data, GAMMAS)
    data = quick_rows(data) if settings.quick else data
    plan = chosen(QUICK if settings.quick else PLANS[name], settings.components, settings.seeds)
    studies = settings.studies or STUDIES[settings.schedule]
    wanted = jobs(name, gamma, plan, settings.schedule, studies, len(data.x_train))
    wanted = [job for job in wanted if not settings.criteria or job.criterion in settings.criteria]
    out.mkdir(parents=True, exist_ok=True)
    path, sources = out / f"{name}.csv", problem(data)
    for job in wanted:
        lock, checkpoint = (out / f".{slug(job)}.{suffix}" for suffix in ("lock", "safetensors"))
        if job in table.done(path):
            checkpoint.unlink(missing_ok=True)  # of a run that was killed in between
            continue
        if time.monotonic() > deadline:
            tell("the time is up: the same command goes on from here")
            return
        with claimed(lock) as mine:
            if not mine:
                tell(f"another run is at {slug(job)}")
                continue
            if job in table.done(path):
                continue
            goes_on = checkpoint if job.n_components >= LONG else None
            result = fit(job, sources, QUICK_EPOCHS if settings.quick else None, goes_on)
            table.append(path, job, result)
            checkpoint.unlink(missing_ok=True)
        tell(f"{describe(job, result)}; {left(wanted, path)}")


@contextmanager
def claimed(lock: Path) -> Iterator[bool]:
    """Yield whether a job is this process's: so that several share the work. One that is killed gives its job up."""
    with open(lock, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
        lock.unlink(missing_ok=True)  # only after the row is there; another may have seen that, and taken it away


def slug(job: Job) -> str:
    """Return a name for a job that files can have.

    >>> slug(Job("letter", "nystroem", "di", "uniform", 25, 0, 4.0, 1e-4, "paper"))
    'letter-nystroem-di-uniform-25-0-4.0-0.0001-paper'
    """
    return "-".join(map(str, job))


def quick_rows(data: Dataset) -> Dataset:
    """Return the first rows of a data set."""
    return Dataset(*(part[:QUICK_ROWS] for part in data))


def describe(job: Job, result: table.Result) -> str:
    """Say in a line what came of a job."""
    what = f"{job.data} {job.map} {job.criterion} {job.init} J={job.n_components} seed={job.seed} γ={job.gamma:g}"
    scores = f"MSE {result.train_mse:.4f} {result.test_mse:.4f}, accuracy {100 * result.test_accuracy:.2f}%"
    return f"{what} ρ={job.rho:g} {job.schedule}: {scores}, {result.epochs} epochs, {result.wall_seconds:.0f} s"


def left(wanted: Sequence[Job], path: Path) -> str:
    """Say how much is left, by what like jobs have taken: those of the same method and nearest in J."""
    have = table.done(path)
    rest = [job for job in wanted if job not in have]
    by = ["map", "criterion", "schedule", "n_components"]
    times = table.read(path).groupby(by)["wall_seconds"].mean().to_dict()
    counts = Counter((job.map, job.criterion, job.schedule, job.n_components) for job in rest)
    seconds = sum(count * expected(times, *kind) for kind, count in counts.items())
    return f"{len(rest)} of {len(wanted)} left, about {duration(seconds)}"


def expected(times: dict[tuple, float], *kind) -> float:
    """Return the seconds that a job of this kind may take, in proportion to J where only a smaller one is known.

    >>> expected({("fourier", "di", "paper", 50): 10.0}, "fourier", "di", "paper", 100)
    20.0
    """
    known = {j: seconds for (*method, j), seconds in times.items() if method == list(kind[:-1])}
    known = known or {j: seconds for (*_, j), seconds in times.items()}
    near = min(known, key=lambda j: abs(j - kind[-1]))
    return known[near] * max(1.0, kind[-1] / max(near, 1))


def duration(seconds: float) -> str:
    """Return a time in words.

    >>> duration(5400)
    '1 h 30 min'
    """
    minutes = int(np.ceil(seconds / 60))
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{minutes} min"
