"""Criteria profiled over the linear head: do cross-entropy and the SVM's loss get DI's advantage that way?

Joint CE trains map and softmax layer together by gradients. Profiled CE and SVM solve for the linear model on every
mini-batch, as DI does for the squared loss, and train the map by the exact gradient. All have the same maps, batches,
steps and schedule (`Trainer()`); the features are judged by ridge, softmax and SVM heads fitted afterwards. The penalty
ρ of a profiled criterion is the one of a few that is best for its own head on a tenth of the training rows held out;
then the map is trained on all of them. Seconds are of the processor: what else runs does not count. Prints a table,
writes it as JSON.

    OMP_NUM_THREADS=1 python benchmarks/profiled.py --data letter
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from discernel import LearnedFourier, LearnedNystroem, Moments, Targets, Trainer
from discernel.heads import LinearModel, fit_linear, sum_of_variances
from experiments.datasets import LOADERS, load

RHOS = {"none": [1e-4], "di": [1e-4], "ce": [1e-4], "profiled_ce": [1e-2, 1e-1, 1.0], "profiled_svm": [1e-2, 1.0]}
OWN_HEAD = {"profiled_ce": "softmax", "profiled_svm": "svm"}
HEADS = {"ridge": None, "softmax": 0.01, "svm": 0.1}  # 1/C in units of the features' variance, the library's defaults
KINDS = {"fourier": LearnedFourier, "nystroem": LearnedNystroem}


def head(name: str, features: torch.Tensor, targets: torch.Tensor) -> LinearModel:
    if name == "ridge":
        ridge = Moments.of(features, targets).ridge(1e-4)
        return LinearModel(ridge.weights, ridge.intercept)
    rows = [(features, targets, None)]
    return fit_linear(lambda: rows, name, C=1 / (HEADS[name] * sum_of_variances(rows)))


def accuracies(model, heads, x, y, x_test, y_test) -> dict[str, float]:
    phi, phi_test = (torch.from_numpy(model.transform(rows)) for rows in (x, x_test))
    targets, right = Targets.classes(y)[:], torch.from_numpy(y_test)
    return {n: (head(n, phi, targets).scores(phi_test).argmax(1) == right).double().mean().item() for n in heads}


def trained(kind: str, criterion: str, rho: float, options, seed: int, x, y):
    name = None if criterion == "none" else criterion
    trainer = Trainer(max_epochs=options.epochs) if options.epochs else None
    return KINDS[kind](options.components, criterion=name, rho=rho, trainer=trainer, random_state=seed).fit(x, y)


def best_rho(kind: str, criterion: str, options, x, y) -> float:
    if len(RHOS[criterion]) == 1:
        return RHOS[criterion][0]
    cut, own = len(x) * 9 // 10, OWN_HEAD[criterion]
    scores = {}
    for rho in RHOS[criterion]:
        model = trained(kind, criterion, rho, options, 0, x[:cut], y[:cut])
        scores[rho] = accuracies(model, [own], x[:cut], y[:cut], x[cut:], y[cut:])[own]
    return max(scores, key=scores.__getitem__)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["letter"], choices=LOADERS)
    parser.add_argument("--maps", nargs="+", default=list(KINDS), choices=KINDS)
    parser.add_argument("--components", type=int, default=100)
    parser.add_argument("--epochs", type=int, default=0, help="of each training; by default the trainer's own")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rows", type=int, default=0, help="cut the training rows to so many")
    parser.add_argument("--out", default="benchmarks/results/profiled.json")
    options = parser.parse_args()
    rows = []
    print(f"{'data':8} {'map':9} {'criterion':13} {'rho':>6}" + "".join(f"{name:>9}" for name in HEADS) + "  seconds")
    for name in options.data:
        data = load(name)
        x, y = (part[: options.rows or None] for part in (data.x_train, data.y_train))
        for kind in options.maps:
            for criterion in RHOS:
                rho = best_rho(kind, criterion, options, x, y)
                for seed in range(options.seeds):
                    started = time.process_time()
                    model = trained(kind, criterion, rho, options, seed, x, y)
                    seconds = time.process_time() - started
                    scores = accuracies(model, HEADS, x, y, data.x_test, data.y_test)
                    row = {"data": name, "rows": len(x), "map": kind, "criterion": criterion, "rho": rho, "seed": seed}
                    rows.append(row | {"components": options.components, "accuracy": scores, "seconds": seconds})
                    line = "".join(f"{100 * score:9.2f}" for score in scores.values())
                    print(f"{name:8} {kind:9} {criterion:13} {rho:6g}{line} {seconds:8.1f}", flush=True)
        Path(options.out).parent.mkdir(parents=True, exist_ok=True)
        Path(options.out).write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1))


if __name__ == "__main__":
    main()
