"""`transform` beside the matrix products that it consists of.

A million rows of 54 features to 500 Nyström features: the products are those with the landmarks and with the
normalisation, of the same batches into the same kind of array. Also for Fourier features, which have one product, and
for the scores of a linear head. Memory is the growth of the peak beside the output. Prints a table, writes it as JSON.

    python benchmarks/transform.py
"""

import argparse
import json
import resource
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from discernel import DiscernelRegressor, LearnedFourier, LearnedNystroem
from discernel.estimators.inputs import CHUNK


def seconds_of(action: Callable[[], object], repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        began = time.perf_counter()
        action()
        times.append(time.perf_counter() - began)
    return min(times)


def products(x: np.ndarray, *matrices: torch.Tensor) -> Callable[[], np.ndarray]:
    """Return what multiplies the rows by one matrix after the other, in batches, into a new array."""
    rows = CHUNK // matrices[0].shape[1]

    def multiply() -> np.ndarray:
        out = np.empty((len(x), matrices[-1].shape[1]), dtype=np.float32)
        for start in range(0, len(x), rows):
            part = torch.from_numpy(x[start : start + rows])
            for matrix in matrices:
                part = part @ matrix
            out[start : start + rows] = part.numpy()
        return out

    return multiply


def peak() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--features", type=int, default=54)
    parser.add_argument("--components", type=int, default=500)
    parser.add_argument("--out", default="benchmarks/results/transform.json")
    options = parser.parse_args()
    rng = np.random.default_rng(0)
    x = rng.random((options.rows, options.features), dtype=np.float32)
    few, y = x[:5000], x[:5000, :7]
    d, j = options.features, options.components
    wide, square, thin = torch.rand(d, j), torch.rand(j, j), torch.rand(j, 7)
    settings = {"criterion": None, "random_state": 0}
    nystroem = LearnedNystroem(j, gamma="scale", **settings).fit(few)
    fourier = LearnedFourier(j, **settings).fit(few)
    model = DiscernelRegressor(feature_map=LearnedNystroem(j, gamma="scale", **settings)).fit(few, y)
    cases = {
        "transform, Nyström": (nystroem.transform, (wide, square), j),
        "transform, Fourier": (fourier.transform, (wide,), j),
        "predict, Nyström": (model.predict, (wide, thin), 7),
    }
    rows = []
    print(f"{'':20} {'seconds':>8} {'products':>9} {'ratio':>6} {'rows/s':>10} {'memory, MB':>11}")
    for name, (action, matrices, width) in cases.items():
        action(x[:20_000])
        before = peak()
        taken = seconds_of(lambda action=action: action(x))
        memory = max(0, peak() - before - 4 * width * len(x))
        alone = seconds_of(products(x, *matrices))
        rows.append({"case": name, "seconds": taken, "products": alone, "memory": memory})
        print(f"{name:20} {taken:8.2f} {alone:9.2f} {taken / alone:6.2f} {len(x) / taken:10.0f} {memory / 1e6:11.0f}")
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    record = {"torch": torch.__version__, "threads": torch.get_num_threads(), "n": len(x), "d": d, "J": j, "rows": rows}
    Path(options.out).write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
