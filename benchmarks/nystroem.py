"""Ways to a Nyström map of J features: error of the kernel matrix, accuracy of a ridge head, and seconds.

- uniform, k-means, leverage: J landmarks chosen by `choose_landmarks`;
- ensembles: J uniform landmarks in five parts, whose approximations are averaged, or 5J (Kumar et al. 2009);
- 4J landmarks of which the J largest eigenvalues are kept, exactly and by randomised SVD (Li et al. 2015);
- DI: J landmarks (and the metric) learned, which gives up the kernel for the classes: no error is told.

The error is ‖K − ΦΦᵀ‖_F/‖K‖_F on test rows that no landmark is from. γ is scikit-learn's "scale". Means over seeds;
seconds are of the processor, for landmarks, decomposition and the features of all training rows. Prints a table,
writes it as JSON.

    OMP_NUM_THREADS=1 python benchmarks/nystroem.py --data digits letter
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from discernel import RBF, LearnedNystroem, Moments, Nystroem, Targets, choose_landmarks
from experiments.datasets import LOADERS, load

EXPERTS, OVER = 5, 4
METHODS = (
    "uniform",
    "kmeans",
    "leverage",
    "ensemble 5×J/5",
    "ensemble 5×J",
    "4J, rank J",
    "4J, rank J, randomised",
    "DI",
)


def made(method: str, x: torch.Tensor, y: np.ndarray, size: int, kernel: RBF, seed: int) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(seed)
    if method == "DI":
        return LearnedNystroem(size, random_state=seed).fit(x.numpy(), y).feature_map_
    if method in ("uniform", "kmeans", "leverage"):
        return Nystroem(choose_landmarks(x, size, method, generator, kernel=kernel), kernel)
    if method.startswith("ensemble"):
        count = size if method.endswith("/5") else EXPERTS * size
        return Nystroem(choose_landmarks(x, count, generator=generator), kernel, experts=EXPERTS)
    landmarks = choose_landmarks(x, OVER * size, generator=generator)
    return Nystroem(landmarks, kernel, rank=size, randomized=method.endswith("randomised"))


def measured(method: str, data, size: int, seed: int) -> dict[str, float]:
    x, x_test = torch.from_numpy(data.x_train), torch.from_numpy(data.x_test)
    kernel = RBF(1 / (x.shape[1] * x.var(correction=0).item()))
    started = time.process_time()
    feature_map = made(method, x, data.y_train, size, kernel, seed)
    with torch.no_grad():
        phi = feature_map(x)
        seconds = time.process_time() - started
        test = feature_map(x_test)
        some = test[:2000].double()
        exact = kernel(x_test[:2000].double(), x_test[:2000].double())
    ridge = Moments.of(phi, Targets.classes(data.y_train)[:]).ridge(1e-4)
    accuracy = (ridge.predict(test).argmax(1).numpy() == data.y_test).mean().item()
    error = ((exact - some @ some.T).norm() / exact.norm()).item()
    return {"accuracy": accuracy, "seconds": seconds} | ({} if method == "DI" else {"error": error})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["digits", "letter"], choices=LOADERS)
    parser.add_argument("--components", nargs="+", type=int, default=[50, 200])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", default="benchmarks/results/nystroem.json")
    options = parser.parse_args()
    rows = []
    print(f"{'data':8} {'J':>4} {'method':24} {'error':>8} {'accuracy, %':>12} {'seconds':>8}")
    for name in options.data:
        data = load(name)
        for size in options.components:
            for method in METHODS:
                runs = [measured(method, data, size, seed) for seed in range(options.seeds)]
                mean = {key: float(np.mean([run[key] for run in runs])) for key in runs[0]}
                rows.append({"data": name, "J": size, "method": method} | mean)
                error = f"{mean['error']:8.4f}" if "error" in mean else f"{'':8}"
                line = f"{error} {100 * mean['accuracy']:12.2f} {mean['seconds']:8.2f}"
                print(f"{name:8} {size:4} {method:24} {line}", flush=True)
        Path(options.out).parent.mkdir(parents=True, exist_ok=True)
        record = {"torch": torch.__version__, "threads": torch.get_num_threads(), "seeds": options.seeds, "rows": rows}
        Path(options.out).write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
