"""The demonstration: every method of the paper on scikit-learn's digits, at the same small number of features."""

import csv
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC

from discernel.data import ArraySource
from discernel.estimators import DiscernelClassifier, LearnedFourier, LearnedNystroem, save
from discernel.run import moments_over
from discernel.targets import Targets
from discernel.training import Trainer

N_COMPONENTS = 20
GAMMA = 0.1  # of features in [0, 1]; close to 1/(d·Var X)
RHO = 1e-4
IMAGE = (8, 8)


class Row(NamedTuple):
    """A method and its results."""

    method: str
    group: str  # the map
    accuracy: float  # of a linear SVM on the features, on the test rows
    mse: float | None  # of ridge regression on the features, on the test rows
    seconds: float  # to learn the features and fit the SVM
    model: DiscernelClassifier | SVC


def methods() -> dict[str, tuple[str, DiscernelClassifier | SVC]]:
    """Return each method's map and estimator, by name."""
    trainer = Trainer(batch_size=400, max_epochs=40)

    def nystroem(criterion, init="uniform"):
        features = LearnedNystroem(
            N_COMPONENTS, gamma=GAMMA, rho=RHO, criterion=criterion, init=init, trainer=trainer, random_state=0
        )
        return "Nyström", DiscernelClassifier(feature_map=features, head="svm")

    def fourier(criterion):
        features = LearnedFourier(
            N_COMPONENTS, gamma=GAMMA, rho=RHO, criterion=criterion, trainer=trainer, random_state=0
        )
        return "Fourier", DiscernelClassifier(feature_map=features, head="svm")

    return {
        "Std Nyström": nystroem(None),
        "KM Nyström": nystroem(None, "kmeans"),
        "LS Nyström": nystroem("ls"),
        "CE Nyström": nystroem("ce"),
        "DI Nyström": nystroem("di"),
        "Std RF": fourier(None),
        "LS RF": fourier("ls"),
        "CE RF": fourier("ce"),
        "DI RF": fourier("di"),
        "SVC, exact": ("exact", SVC(gamma=GAMMA)),
    }


def run() -> Iterator[Row]:
    """Fit one method after the other, and yield its results."""
    x, y = load_digits(return_X_y=True)
    x = (x / 16).astype(np.float32)
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=1 / 3, random_state=0, stratify=y)
    train, test = (
        ArraySource(torch.from_numpy(a), Targets.classes(b)) for a, b in ((x_train, y_train), (x_test, y_test))
    )
    for method, (group, model) in methods().items():
        started = time.perf_counter()
        model.fit(x_train, y_train)
        seconds = time.perf_counter() - started
        mse = None
        if isinstance(model, DiscernelClassifier):
            feature_map = model.transformer_.feature_map_
            ridge = moments_over(train, feature_map).ridge(RHO, feature_map.gram())
            mse = moments_over(test, feature_map).mse(ridge)
        yield Row(method, group, model.score(x_test, y_test), mse, seconds, model)


def keep(rows: list[Row], directory: Path) -> list[Path]:
    """Save the best learned model, the table and, if matplotlib is there, the two figures; return the files."""
    directory.mkdir(parents=True, exist_ok=True)
    best = max((row for row in rows if isinstance(row.model, DiscernelClassifier)), key=lambda row: row.accuracy)
    paths = [directory / "model.safetensors", directory / "results.csv"]
    save(best.model, paths[0])
    with open(paths[1], "w", newline="") as file:
        table = csv.writer(file)
        table.writerow(Row._fields[:-1])
        table.writerows(row[:-1] for row in rows)
    try:
        import matplotlib as mpl
    except ImportError:
        return paths
    mpl.use("agg")
    import matplotlib.pyplot as plt

    from discernel import plots

    figure, ax = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
    plots.accuracies(ax, [row._asdict() for row in rows])
    ax.set_title(f"Digits, {N_COMPONENTS} features", loc="left")
    paths.append(directory / "accuracies.png")
    figure.savefig(paths[-1], dpi=150)
    learned = next(row.model.transformer_.components_ for row in rows if row.method == "DI Nyström")
    figure, axes = plt.subplots(2, 10, figsize=(6.4, 1.7), layout="constrained")
    plots.landmark_images(axes, learned, IMAGE)
    figure.suptitle("Landmarks learned by DI", x=0.01, ha="left")
    paths.append(directory / "landmarks.png")
    figure.savefig(paths[-1], dpi=150)
    plt.close("all")
    return paths
