"""How many random features a learned one replaces: test accuracy against the number of landmarks, with a ridge head.

The learned landmarks have their default settings. The random ones (training rows) have the bandwidth that is
best for each number of them **on the test rows**, of a grid about 1/(d·Var X), which flatters them. Prints a table,
writes it as JSON, and draws the figure of the README.

    OMP_NUM_THREADS=1 python benchmarks/features.py
"""

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from discernel import DiscernelClassifier, LearnedNystroem
from experiments.datasets import load

GRID = (0.25, 0.5, 1.0)  # times 1/(d·Var X)
LEARNED, RANDOM = [10, 20, 50, 100, 200], [10, 20, 50, 100, 200, 500, 1000]
BLUE, GREY = "#0072b2", "#595959"


def fit(data, j: int, gamma=None) -> tuple[float, DiscernelClassifier]:
    """Return the test accuracy and the model, of learned landmarks or of random ones."""
    random = None if gamma is None else LearnedNystroem(j, gamma=gamma, criterion=None, random_state=0)
    model = DiscernelClassifier(j, feature_map=random or "nystroem", head="ridge", random_state=0)
    model.fit(data.x_train, data.y_train)
    return model.score(data.x_test, data.y_test), model


def run(data) -> tuple[list[dict], np.ndarray]:
    """Return the rows of the table, and the learned landmarks of the figure."""
    rows, landmarks, scale = [], None, 1 / (data.x_train.shape[1] * data.x_train.var())
    for j in LEARNED:
        accuracy, model = fit(data, j)
        rows.append({"landmarks": "learned", "J": j, "accuracy": accuracy})
        landmarks = model.transformer_.components_ if j == LEARNED[1] else landmarks
        print(rows[-1], flush=True)
    for j in RANDOM:
        accuracy, factor = max((fit(data, j, factor * scale)[0], factor) for factor in GRID)
        rows.append({"landmarks": "random", "J": j, "accuracy": accuracy, "gamma_of_scale": factor})
        print(rows[-1], flush=True)
    return rows, landmarks


def draw(rows: list[dict], landmarks: np.ndarray, shape: tuple[int, int], title: str, out: str) -> None:
    """Draw both curves, and landmarks as images: red is more ink, blue is less."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    figure = plt.figure(figsize=(8.6, 3.5), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=[1.15, 1])
    ax = left.subplots()
    for kind, colour in (("learned", BLUE), ("random", GREY)):
        sizes, errors = zip(*((r["J"], 100 - 100 * r["accuracy"]) for r in rows if r["landmarks"] == kind), strict=True)
        ax.plot(sizes, errors, "o-", color=colour)
        ax.annotate(kind, (sizes[0], errors[0]), (8, 4), textcoords="offset points", color=colour)
    ax.set(xscale="log", yscale="log", xlabel="number of landmarks J", ylabel="test error, %")
    ax.set_xticks(RANDOM, RANDOM)
    ticks = [t for t in (1, 2, 5, 10, 20, 50) if min(errors) / 2 < t < 60]
    ax.set_yticks(ticks, ticks)
    ax.minorticks_off()
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)
    ax.set_title(title, loc="left", fontsize=10)
    bound = np.quantile(np.abs(landmarks), 0.995)
    for image, landmark in zip(np.ravel(right.subplots(4, 5)), landmarks, strict=False):
        image.imshow(landmark.reshape(shape), cmap="RdBu_r", vmin=-bound, vmax=bound)
        image.set_axis_off()
    right.suptitle(f"{len(landmarks)} landmarks after learning", fontsize=10)
    figure.savefig(out, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist", choices=["digits", "mnist"])
    parser.add_argument("--out", default="benchmarks/results/features.json")
    parser.add_argument("--figure", default="docs/images/features.png")
    options = parser.parse_args()
    data = load(options.data)
    rows, landmarks = run(data)
    side = round(landmarks.shape[1] ** 0.5)
    title = f"{options.data.upper() if options.data == 'mnist' else options.data}: the same ridge regression on both"
    draw(rows, landmarks, (side, side), title, options.figure)
    record = {"torch": torch.__version__, "threads": torch.get_num_threads(), "data": options.data, "rows": rows}
    Path(options.out).write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
