"""Other ways to train, beside the default: what each reaches with as many passes over the data.

Batches of other sizes, growing batches, the average of the last iterates at a constant rate, L-BFGS on the exact
gradient of all rows (a quasi-Newton method), Adam without Nesterov's momentum (at a rate of 0.1, of 0.2 with landmarks,
in place of 0.4; also for half as many passes again), frequencies that are not trained about the mean of the data, and
Adam along the principal axes of the data in place of the features. All start from the same features and, but for the
one said, see the same number of rows; the training MSE and the test accuracy of the ridge regression are of all of
them. Large sets are cut. Seconds are of the processor. Prints a table, writes it as JSON.

    python benchmarks/schedules.py
"""

import argparse
import copy
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch.optim.swa_utils import AveragedModel

sys.path.insert(0, str(Path(__file__).parents[1]))
from discernel import DI, RBF, ArraySource, FeatureMap, Nystroem, RandomFourier, Targets, Trainer, moments_over
from discernel.estimators.gamma import gamma_from_data
from experiments.datasets import LOADERS, load

RHO = 1e-4


def train(feature_map: FeatureMap, source: ArraySource, epochs: int, **settings) -> FeatureMap:
    for _ in Trainer(epochs, **settings).epochs(feature_map, DI(RHO), source, seed=0):
        pass
    return feature_map


def grown(feature_map, source, epochs, rows):
    """A third of the epochs each with batches of half, one and two times the size."""
    for factor in (0.5, 1, 2):
        rate = 0.4 / (2 * factor)  # smaller at every start, as a schedule over all would have it
        feature_map = train(feature_map, source, epochs // 3, batch_size=int(factor * rows), learning_rate=rate)
    return feature_map


def averaged(feature_map, source, epochs, rows):
    """A constant rate, and the mean of the maps after each epoch of the last quarter."""
    mean = AveragedModel(feature_map)
    trainer = Trainer(epochs, rows, learning_rate=0.1, schedule="plateau", patience=10**6)
    for record in trainer.epochs(feature_map, DI(RHO), source, seed=0):
        if record.epoch > 3 * epochs / 4:
            mean.update_parameters(feature_map)
    return mean.module


def lbfgs(feature_map, source, epochs, rows):
    """Limited-memory BFGS on all rows at once, an evaluation for each epoch."""
    batch, criterion = source.rows(slice(None)), DI(RHO)
    optimizer = torch.optim.LBFGS(
        feature_map.parameters(), max_iter=epochs, max_eval=epochs, history_size=20, line_search_fn="strong_wolfe",
        tolerance_grad=0, tolerance_change=0,
    )  # fmt: skip

    def closure():
        optimizer.zero_grad()
        loss = -criterion(feature_map.basis(batch.x), batch.targets, feature_map.gram()) / len(batch.x)
        loss.backward()
        return loss

    optimizer.step(closure)
    return feature_map


def plain(feature_map, source, epochs, rows):
    """Adam, at the rates that it bears."""
    rate = 0.1 if isinstance(feature_map, RandomFourier) else 0.2
    return train(feature_map, source, epochs, learning_rate=rate, nesterov=False)


class AsTheyLie(RandomFourier):
    """Frequencies of which every step also moves the phase at the mean of the data."""

    def affine(self):
        return None


def uncentred(feature_map, source, epochs, rows):
    """The default, but not about the mean of the data; landmarks are not anyway."""
    if isinstance(feature_map, RandomFourier):
        feature_map = AsTheyLie(feature_map.frequencies, feature_map.phases)
    return train(feature_map, source, epochs)


class Turned(FeatureMap):
    """A map of samples along other axes."""

    def __init__(self, feature_map: FeatureMap, axes: torch.Tensor):
        super().__init__()
        self.inner, self.axes = feature_map, axes

    def forward(self, x):
        return self.basis(x)

    def basis(self, x):
        return self.inner.basis(x @ self.axes)

    def gram(self):
        return self.inner.gram()


def turned(feature_map, source, epochs, rows):
    """The default, with every entry that Adam treats by itself along a principal axis of the data."""
    axes = torch.linalg.eigh(torch.cov(source.x.double().T)).eigenvectors.to(source.x)
    parameter = feature_map.frequencies.T if isinstance(feature_map, RandomFourier) else feature_map.landmarks
    with torch.no_grad():
        parameter.copy_(parameter @ axes)
    train(feature_map, ArraySource(source.x @ axes, source.targets), epochs)
    return Turned(feature_map, axes)


WAYS: dict[str, Callable] = {
    "default": lambda m, s, epochs, rows: train(m, s, epochs),
    "half batches": lambda m, s, epochs, rows: train(m, s, epochs, batch_size=rows // 2),
    "double batches": lambda m, s, epochs, rows: train(m, s, epochs, batch_size=2 * rows),
    "all rows": lambda m, s, epochs, rows: train(m, s, epochs, batch_size=len(s)),
    "growing batches": grown,
    "averaged": averaged,
    "L-BFGS": lbfgs,
    "plain Adam": plain,
    "plain Adam, x 1.5": lambda m, s, epochs, rows: plain(m, s, round(1.5 * epochs), rows),
    "not about the mean": uncentred,
    "principal axes": turned,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["digits", "letter", "mnist", "covtype"], choices=LOADERS)
    parser.add_argument("--components", type=int, default=100)
    parser.add_argument("--rows", type=int, default=15_000, help="of a data set at most")
    parser.add_argument("--out", default="benchmarks/results/schedules.json")
    options = parser.parse_args()
    rows = []
    print(f"{'data':8} {'map':9}" + "".join(f"{way:>19}" for way in WAYS) + "   (training MSE, test accuracy)")
    for name in options.data:
        data = load(name)
        x = torch.from_numpy(data.x_train[: options.rows])
        source = ArraySource(x, Targets.classes(data.y_train[: options.rows]))
        x_test, y_test = torch.from_numpy(data.x_test), torch.from_numpy(data.y_test)
        generator = torch.Generator().manual_seed(0)
        gamma = gamma_from_data("scale", x, None, None, generator)
        for kind in ("nystroem", "fourier"):
            line = f"{name:8} {kind:9}"
            start = RandomFourier.sample(RBF(gamma), x.shape[1], options.components, generator)
            if kind == "nystroem":
                kernel = RBF(torch.full((x.shape[1],), gamma), trainable=True)
                start = Nystroem(x[torch.randperm(len(x), generator=generator)[: options.components]], kernel)
            plan = Trainer().plan(len(x), options.components, DI(RHO))
            for way, run in WAYS.items():
                began = time.process_time()
                trained = run(copy.deepcopy(start), source, plan.epochs, plan.rows)
                seconds = time.process_time() - began
                gram = trained.gram()
                moments = moments_over(source, trained)
                ridge = moments.ridge(RHO, None if gram is None else gram.detach())
                with torch.no_grad():
                    found = torch.cat([ridge.predict(trained.basis(part)).argmax(1) for part in x_test.split(10_000)])
                row = {"data": name, "map": kind, "way": way, "mse": moments.mse(ridge)}
                rows.append(row | {"accuracy": (found == y_test).double().mean().item(), "seconds": seconds})
                line += f"{row['mse']:11.4f} {100 * rows[-1]['accuracy']:6.2f}%"
            print(line, flush=True)
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    record = {"torch": torch.__version__, "threads": torch.get_num_threads(), "components": options.components}
    Path(options.out).write_text(json.dumps(record | {"rows": rows}, indent=1))


if __name__ == "__main__":
    main()
