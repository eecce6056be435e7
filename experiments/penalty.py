"""What the C of the SVM has to do with who wins: DI and LS maps, and SVMs of larger and larger C on them.

    python -m experiments.penalty

C is the weight of the loss against ½‖W‖², so it is in units of the features. Training changes these: it moves landmarks
away from the data, where the features vary less, and a fixed C then means a stronger penalty. Writes
``experiments/results/penalty.txt``, of which the page makes a table.
"""

import csv
import sys
from collections.abc import Iterator

import torch

from discernel.heads import fit_linear
from experiments import datasets
from experiments.fits import CRITERIA, HEAD_TOL, TRAINERS, Problem, accuracy, problem, start
from experiments.gammas import gamma_for
from experiments.jobs import INIT, RHO, Job
from experiments.run import GAMMAS
from experiments.table import RESULTS

PATH = RESULTS / "penalty.txt"  # comma-separated, but no table of fits
COLUMNS = ("data", "map", "criterion", "n_components", "seed", "variance", "C", "test_accuracy")
CS = (1.0, 10.0, 100.0)


def measure(job: Job, data: Problem) -> Iterator[tuple]:
    """Train a map and yield the accuracy of an SVM on it for every C."""
    feature_map = start(job, data.train.x)
    list(TRAINERS[job.schedule].epochs(feature_map, CRITERIA[job.criterion](job.rho), data.train, seed=job.seed))
    with torch.no_grad():
        features, targets = feature_map(data.train.x), data.train.targets[:]
    variance = features.var(0).sum().item()
    for c in CS:
        head = fit_linear(lambda: [(features, targets, None)], "svm", c, HEAD_TOL, 5000)
        with torch.no_grad():
            score = accuracy(lambda x, head=head: head.scores(feature_map(x)), data.test)
        yield job.data, job.map, job.criterion, job.n_components, job.seed, variance, c, score


def main(name: str = "letter", n_components: int = 50, seeds: int = 3) -> None:
    """Measure both criteria with Nyström maps, and write the file."""
    torch.set_num_threads(1)
    data = datasets.load(name)
    gamma, sources = gamma_for(name, data, GAMMAS), problem(data)
    with open(PATH, "w", newline="") as file:
        rows = csv.writer(file, lineterminator="\n")
        rows.writerow(COLUMNS)
        for seed in range(seeds):
            for criterion in ("di", "ls"):
                job = Job(name, "nystroem", criterion, INIT["nystroem"], n_components, seed, gamma, RHO, "paper")
                for row in measure(job, sources):
                    rows.writerow(row)
                    print(*row, file=sys.stderr)


if __name__ == "__main__":
    main()
