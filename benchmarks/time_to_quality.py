"""How soon the default schedule reaches what the paper's ends at.

For each data set, number of features and map, both schedules train the same start by DI; after every epoch the training
MSE of a ridge head is taken, outside the clock. Prints a table, writes it as JSON.

    python benchmarks/time_to_quality.py --data letter --components 100
"""

import argparse
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from discernel import DI, RBF, ArraySource, Nystroem, RandomFourier, Targets, Trainer, choose_landmarks
from discernel.run import moments_over
from experiments.datasets import load

GAMMA = {"digits": 0.1, "letter": 4.0, "mnist": 0.02, "covtype": 10.0}
RHO = 1e-4


def ridge_of(feature_map, source):
    gram = feature_map.gram()
    return moments_over(source, feature_map).ridge(RHO, None if gram is None else gram.detach())


def train_mse(feature_map, source) -> float:
    return moments_over(source, feature_map).mse(ridge_of(feature_map, source))


def accuracy(feature_map, train, test) -> float:
    ridge, right = ridge_of(feature_map, train), 0
    with torch.no_grad():
        for batch in test.batches(10_000):
            guess = ridge.predict(feature_map.basis(batch.x)).argmax(1)
            right += (guess == batch.targets.argmax(1)).sum().item()
    return right / len(test)


def start(kind: str, x: torch.Tensor, n_components: int, gamma: float):
    generator = torch.Generator().manual_seed(0)
    if kind == "nystroem":
        return Nystroem(choose_landmarks(x, n_components, generator=generator), RBF(gamma))
    return RandomFourier.sample(RBF(gamma), x.shape[1], n_components, generator)


def measure(name: str, kind: str, n_components: int, trainer: Trainer, train, test) -> dict:
    feature_map = start(kind, train.x, n_components, GAMMA[name])
    curve, seconds = [], 0.0
    for record in trainer.epochs(feature_map, DI(RHO), train, validation=lambda m: train_mse(m, train)):
        seconds += record.seconds
        curve.append((seconds, record.validation_score))
    return {"curve": curve, "train_mse": curve[-1][1], "accuracy": accuracy(feature_map, train, test)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["letter"], choices=GAMMA)
    parser.add_argument("--components", nargs="+", type=int, default=[100])
    parser.add_argument("--out", default="benchmarks/results/time_to_quality.json")
    options = parser.parse_args()
    rows = []
    heading = f"{'data':8} {'map':9} {'J':>5} | {'paper: epochs':>13} {'s':>7} {'MSE':>6} {'acc':>6}"
    print(heading + f" | {'default: epochs':>15} {'s':>7} {'MSE':>6} {'acc':>6} | time to the paper's MSE, share")
    for name in options.data:
        data = load(name)
        train = ArraySource(torch.from_numpy(data.x_train), Targets.classes(data.y_train))
        test = ArraySource(torch.from_numpy(data.x_test), Targets.classes(data.y_test))
        for n_components in options.components:
            for kind in ("nystroem", "fourier"):
                paper = measure(name, kind, n_components, Trainer.paper(), train, test)
                fast = measure(name, kind, n_components, Trainer(), train, test)
                arrival = next((s for s, mse in fast["curve"] if mse <= paper["train_mse"]), None)
                share = None if arrival is None else arrival / paper["curve"][-1][0]
                rows.append(
                    {"data": name, "map": kind, "J": n_components, "paper": paper, "default": fast, "share": share}
                )
                p, f = paper["curve"], fast["curve"]
                line = f"{name:8} {kind:9} {n_components:5}"
                line += f" | {len(p):13} {p[-1][0]:7.1f} {p[-1][1]:6.4f} {paper['accuracy']:6.4f}"
                line += f" | {len(f):15} {f[-1][0]:7.1f} {f[-1][1]:6.4f} {fast['accuracy']:6.4f} | "
                print(line + ("never" if share is None else f"{share:.3f}"), flush=True)
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    Path(options.out).write_text(
        json.dumps({"torch": torch.__version__, "threads": torch.get_num_threads(), "rows": rows})
    )


if __name__ == "__main__":
    main()
