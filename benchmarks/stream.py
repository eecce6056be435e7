"""How well a stream is learned: `partial_fit` on the training rows in batches, beside `fit` on all of them.

Prints the test accuracy after a part of the batches, and writes it as JSON.

    python benchmarks/stream.py --data digits letter
"""

import argparse
import json
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
from discernel import DiscernelClassifier
from experiments.datasets import load

SETTINGS = {"digits": (50, 12), "letter": (100, 30), "mnist": (100, 60)}  # components, batches


def stream(data, model, n_batches: int, order: np.ndarray) -> list[float]:
    """Return the test accuracy after each batch."""
    accuracies, classes = [], np.unique(data.y_train)
    for batch in np.array_split(order, n_batches):
        model.partial_fit(data.x_train[batch], data.y_train[batch], classes=classes)
        accuracies.append(model.score(data.x_test, data.y_test))
    return accuracies


def measure(name: str, feature_map: str) -> dict:
    data, (components, n_batches) = load(name), SETTINGS[name]
    params = {"n_components": components, "feature_map": feature_map, "head": "ridge", "random_state": 0}
    started = time.perf_counter()
    whole = DiscernelClassifier(**params).fit(data.x_train, data.y_train).score(data.x_test, data.y_test)
    fitted = time.perf_counter()
    n_rows = len(data.y_train)
    shuffled = stream(data, DiscernelClassifier(**params), n_batches, np.random.default_rng(0).permutation(n_rows))
    streamed = time.perf_counter()
    by_class = stream(data, DiscernelClassifier(**params), n_batches, np.argsort(data.y_train, kind="stable"))
    return {
        "data": name,
        "map": feature_map,
        "components": components,
        "batches": n_batches,
        "fit": whole,
        "fit_seconds": fitted - started,
        "stream": shuffled,
        "stream_seconds": streamed - fitted,
        "stream_sorted_by_class": by_class,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["digits", "letter"], choices=SETTINGS)
    parser.add_argument("--out", default="benchmarks/results/stream.json")
    options = parser.parse_args()
    rows = []
    heading = f"{'data':7} {'map':9} {'batches':>7} | {'after one':>9} {'a third':>8} {'all':>8} | {'by class':>8}"
    print(f"{heading} | {'fit':>8} | {'stream s':>8} {'fit s':>6}")
    for name in options.data:
        for feature_map in ("nystroem", "fourier"):
            row = measure(name, feature_map)
            curve, n = row["stream"], row["batches"]
            print(
                f"{name:7} {feature_map:9} {n:7} | {curve[0]:9.4f} {curve[n // 3 - 1]:8.4f} {curve[-1]:8.4f}"
                f" | {row['stream_sorted_by_class'][-1]:8.4f} | {row['fit']:8.4f}"
                f" | {row['stream_seconds']:8.1f} {row['fit_seconds']:6.1f}",
                flush=True,
            )
            rows.append(row)
    Path(options.out).write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
