"""Figures: pure functions that draw on matplotlib axes and return them. Needs ``pip install 'discernel[plots]'``."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

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
