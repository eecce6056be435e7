"""Figures: pure functions that draw on matplotlib axes and return them. Needs ``pip install 'discernel[plots]'``."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from discernel.run import EpochRecord

CLASSES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8c564b", "#595959", "#b3a100", "#000000")
MARKERS = ("o", "^", "s", "D", "v", "P", "X")  # for more classes than colours
GROUPS = {"Nyström": "#0072b2", "Fourier": "#d55e00", "exact": "#595959"}  # told apart by the colour-blind and in print


def accuracies(ax: Any, rows: Sequence[Mapping[str, Any]]) -> Any:
    """Draw the test accuracy of methods as dots, best on top, coloured by their map.

    Parameters
    ----------
    ax : matplotlib Axes
        Where to draw.
    rows : sequence of mappings
        Each with "method", "group" (a key of `GROUPS`) and "accuracy" (a share).
    """
    rows = sorted(rows, key=lambda row: row["accuracy"])
    for height, row in enumerate(rows):
        colour, percent = GROUPS[row["group"]], 100 * row["accuracy"]
        ax.plot([percent], [height], "o", color=colour, markersize=8)
        ax.annotate(f"{percent:.1f}", (percent, height), (8, 0), textcoords="offset points", va="center", fontsize=9)
    ax.set_yticks(range(len(rows)), [row["method"] for row in rows])
    for label, row in zip(ax.get_yticklabels(), rows, strict=True):
        label.set_color(GROUPS[row["group"]])
    ax.set_xlabel("test accuracy, %")
    ax.margins(x=0.12)
    ax.grid(axis="x", alpha=0.3)
    ax.spines[["top", "right", "left"]].set_visible(False)
    return ax


def landmark_images(axes: Any, landmarks: np.ndarray, shape: tuple[int, int]) -> Any:
    """Draw landmarks (J×d) as grey images of a shape, one on each of the axes, and return the axes.

    Zero is mid-grey and the scale is common to all, since trained landmarks leave the range of the data.
    """
    bound = np.abs(landmarks).max()
    for ax, landmark in zip(np.ravel(axes), landmarks, strict=False):
        ax.imshow(landmark.reshape(shape), cmap="gray", vmin=-bound, vmax=bound)
    for ax in np.ravel(axes):
        ax.set_axis_off()
    return axes


def training_curve(ax: Any, history: Sequence[EpochRecord]) -> Any:
    """Draw the criterion of each epoch, and the validation score, if there is one, on an axis of its own at the right.

    Parameters
    ----------
    ax : matplotlib Axes
        Where to draw.
    history : sequence of EpochRecord
        The `history_` of an estimator.
    """
    epochs = [record.epoch for record in history]
    colours = [CLASSES[0], CLASSES[1]]
    ax.plot(epochs, [record.criterion for record in history], color=colours[0])
    ax.set_xlabel("epoch")
    ax.set_ylabel("criterion", color=colours[0])
    ax.xaxis.get_major_locator().set_params(integer=True)
    _plain(ax)
    if any(record.validation_score is not None for record in history):
        right = ax.twinx()
        right.plot(epochs, [record.validation_score for record in history], color=colours[1])
        right.set_ylabel("validation score", color=colours[1])
        right.spines[["top", "left"]].set_visible(False)
    return ax


def landmark_profiles(ax: Any, landmarks: np.ndarray, names: Sequence[str] | None = None) -> Any:
    """Draw landmarks (J×d) as rows of colours, a column for each feature, similar landmarks beside each other.

    Each feature is standardised over the landmarks; the names are written where there is room for them.
    """
    spread = landmarks.std(0)
    standard = (landmarks - landmarks.mean(0)) / np.where(spread > 0, spread, 1.0)
    order = np.linalg.svd(standard, full_matrices=False)[0][:, 0].argsort()
    image = ax.imshow(standard[order], cmap="RdBu_r", vmin=-3, vmax=3, aspect="auto", interpolation="nearest")
    ax.figure.colorbar(image, ax=ax, label="standard deviations", fraction=0.05)
    ax.set_ylabel("landmarks")
    ax.set_yticks([])
    if names is None or len(names) > 40:
        ax.set_xlabel("features")
    else:
        shown = [_short(name, 16) for name in names]
        upright = len(names) >= 12
        ax.set_xticks(range(len(names)), shown, rotation=90 if upright else 45, ha="center" if upright else "right")
    return ax


def importance(ax: Any, shares: np.ndarray, names: Sequence[str] | None = None, top: int = 20) -> Any:
    """Draw the importance of the input features (`feature_importance`) as bars, the most important on top."""
    names = [f"x{i}" for i in range(len(shares))] if names is None else names
    largest = np.argsort(shares, kind="stable")[::-1][:top]
    heights = np.arange(len(largest))[::-1]
    ax.barh(heights, 100 * shares[largest], color=CLASSES[0])
    ax.set_yticks(heights, [_short(names[i]) for i in largest])
    ax.set_xlabel("importance, %")
    ax.margins(y=0.02)
    _plain(ax, "x")
    return ax


def components(ax: Any, points: np.ndarray, y: np.ndarray) -> Any:
    """Draw two discriminant components (n×2) of rows as dots: classes in colours and shapes, numbers on a scale.

    Numbers are on a scale if they are not whole or more than can be told apart by colour and shape; all else are
    classes.
    """
    y = np.asarray(y)
    names = np.unique(y)
    many = len(names) > len(CLASSES) * len(MARKERS)
    if (y.dtype.kind == "f" and (y != y.round()).any()) or (y.dtype.kind in "iuf" and many):
        image = ax.scatter(*points[:, :2].T, c=y, s=12, cmap="viridis")
        ax.figure.colorbar(image, ax=ax, label="target")
    else:
        for number, name in enumerate(names):
            colour, marker = CLASSES[number % len(CLASSES)], MARKERS[number // len(CLASSES) % len(MARKERS)]
            own = points[y == name]
            ax.scatter(*own[:, :2].T, color=colour, marker=marker, s=12, alpha=0.7, linewidths=0)
        looks, where = ax.collections[-len(names) :], {"bbox_to_anchor": (1, 1), "loc": "upper left"}
        columns = 1 if len(names) <= 20 else 2
        legend = ax.legend(
            looks, ["?"] * len(names), **where, frameon=False, ncols=columns, markerscale=1.6, fontsize=9
        )
        for text, name in zip(legend.get_texts(), names, strict=True):
            text.set_text(_short(name))  # and not a label: those that begin with an underscore would be left out
    ax.set_xlabel("first component")
    ax.set_ylabel("second component")
    _plain(ax, "both")
    return ax


def confusion_matrix(ax: Any, counts: np.ndarray, classes: Sequence[Any]) -> Any:
    """Draw how often each class (a row) was taken for which (a column), shaded by the share of the row.

    `counts` is what scikit-learn's `confusion_matrix` returns; they are written in the cells of up to 20 classes.
    """
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    ax.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    names = [_short(name, 12) for name in classes]
    ax.set_xticks(range(len(names)), names, rotation=90 if max(map(len, names)) > 2 else 0)
    ax.set_yticks(range(len(names)), names)
    ax.set_xlabel("predicted")
    ax.set_ylabel("true")
    if len(names) <= 20:
        size = 10 if len(names) <= 10 else 7
        for (i, j), count in np.ndenumerate(counts):
            if count:
                colour = "white" if shares[i, j] > 0.5 else "black"
                ax.text(j, i, str(count), ha="center", va="center", color=colour, fontsize=size)
    return ax


def accuracy_against_size(ax: Any, rows: Sequence[Mapping[str, Any]]) -> Any:
    """Draw the accuracy of methods against the number of features J, each a line.

    Parameters
    ----------
    ax : matplotlib Axes
        Where to draw.
    rows : sequence of mappings
        Each with "method", "n_components" and "accuracy" (a share); several with the same method and number are
        averaged.
    """
    methods = list(dict.fromkeys(row["method"] for row in rows))
    for number, method in enumerate(methods):
        own = [row for row in rows if row["method"] == method]
        sizes = sorted({row["n_components"] for row in own})
        means = [100 * np.mean([r["accuracy"] for r in own if r["n_components"] == size]) for size in sizes]
        colour, marker = CLASSES[number % len(CLASSES)], MARKERS[number % len(MARKERS)]
        ax.plot(sizes, means, marker=marker, color=colour, label=method)
    sizes = sorted({row["n_components"] for row in rows})
    ax.set_xscale("log")
    ax.set_xticks(sizes, [str(size) for size in sizes])
    ax.minorticks_off()
    ax.set_xlabel("number of features J")
    ax.set_ylabel("test accuracy, %")
    ax.legend(frameon=False)
    _plain(ax, "both")
    return ax


def _plain(ax: Any, grid: str = "y") -> None:
    ax.grid(axis=grid, alpha=0.3)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)


def _short(name: Any, length: int = 24) -> str:
    """Return a name as text that matplotlib does not take for a formula, cut where it is too long."""
    text = str(name)
    return (text if len(text) <= length else text[: length - 1] + "…").replace("$", r"\$")
