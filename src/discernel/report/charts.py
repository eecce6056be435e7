"""Charts as SVG that follows the page: its colours, its width, light and dark."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from discernel.report.markup import Markup, join, tag

WIDTH, HEIGHT = 420, 260
LEFT, RIGHT, TOP, BOTTOM = 62, 10, 12, 40
COLOURS = 10  # that the page's style has for classes


class Frame:
    """The area of a chart: what numbers are where."""

    def __init__(self, x: np.ndarray, y: np.ndarray, height: int = HEIGHT):
        self.height = height
        self.x_low, self.x_high = _range(x)
        self.y_low, self.y_high = _range(y)

    def x(self, value: float) -> float:
        """Return where a number is on the horizontal axis."""
        share = (value - self.x_low) / (self.x_high - self.x_low)
        return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)

    def y(self, value: float) -> float:
        """Return where a number is on the vertical axis."""
        share = (value - self.y_low) / (self.y_high - self.y_low)
        return round(self.height - BOTTOM - share * (self.height - TOP - BOTTOM), 1)

    def axes(self, x_label: str, y_label: str) -> Markup:
        """Return the axes with their ticks and labels."""
        base = self.height - BOTTOM
        parts = [_text(f"{v:g}", self.x(v), base + 16, "middle") for v in ticks(self.x_low, self.x_high)]
        for value in ticks(self.y_low, self.y_high):
            y = self.y(value)
            parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=y, y2=y, class_="grid"))
            parts.append(_text(f"{value:g}", LEFT - 6, y + 4, "end"))
        parts.append(tag("line", x1=LEFT, x2=WIDTH - RIGHT, y1=base, y2=base, class_="axis"))
        parts.append(_text(x_label, (LEFT + WIDTH - RIGHT) / 2, self.height - 6, "middle"))
        middle = (TOP + base) / 2
        parts.append(_text(y_label, 11, middle, "middle", transform=f"rotate(-90 11 {middle})"))
        return join(parts)


def line(x: Sequence[float], y: Sequence[float], x_label: str, y_label: str) -> Markup:
    """Return a curve."""
    frame = Frame(np.asarray(x), np.asarray(y))
    points = " ".join(f"{frame.x(a)},{frame.y(b)}" for a, b in zip(x, y, strict=True))
    curve = tag("polyline", points=points, class_="curve")
    dots = [tag("circle", cx=frame.x(x[0]), cy=frame.y(y[0]), r=3, class_="k0")] if len(x) == 1 else []
    return _svg(frame.height, f"{y_label} against {x_label}", frame.axes(x_label, y_label), curve, *dots)


def scatter(points: np.ndarray, kinds: Sequence[int], notes: Sequence[str], x_label: str, y_label: str) -> Markup:
    """Return dots, each of a kind that gives its colour, with a note that is shown when it is pointed at."""
    frame = Frame(points[:, 0], points[:, 1], 340)
    dots = [
        tag("circle", cx=frame.x(a), cy=frame.y(b), r=3.5, class_=f"k{kind % COLOURS}", data_note=note)
        for (a, b), kind, note in zip(points, kinds, notes, strict=True)
    ]
    return _svg(
        frame.height, f"{y_label} against {x_label}", frame.axes(x_label, y_label), tag("g", *dots, class_="dots")
    )


def bars(names: Sequence[str], shares: Sequence[float]) -> Markup:
    """Return horizontal bars with their names and percentages; in HTML, so that long names wrap."""
    largest = max(shares, default=0.0) or 1.0
    rows = [
        tag(
            "li",
            tag("span", name, class_="name"),
            tag("span", tag("i", style=f"width:{100 * share / largest:.1f}%"), class_="track"),
            tag("span", f"{100 * share:.1f}%", class_="value"),
        )
        for name, share in zip(names, shares, strict=True)
    ]
    return tag("ol", *rows, class_="bars")


def heat_map(values: np.ndarray, names: Sequence[str]) -> Markup:
    """Return a matrix as coloured cells, blue below zero and red above, saturated at three; a name for each column."""
    rows, columns = values.shape
    shown = [name if len(name) <= 13 else name[:12] + "…" for name in names]
    names_height = 20 + 6.5 * max(map(len, shown))
    margin = 8 + 3.6 * max(map(len, shown))  # for the first name, which leans out
    cell, tall = (WIDTH - margin) / columns, max(6.0, min(18.0, 260 / rows))
    height = round(rows * tall + names_height)
    cells = [
        tag(
            "rect",
            x=round(margin + j * cell, 2),
            y=round(i * tall, 2),
            width=round(cell + 0.3, 2),
            height=round(tall + 0.3, 2),
            class_="hot" if value > 0 else "cold",
            fill_opacity=f"{min(1.0, abs(value) / 3):.2f}",
            data_note=f"{names[j]}: {value:+.1f} standard deviations",
        )
        for (i, j), value in np.ndenumerate(values)
    ]
    labels = []
    for j, name in enumerate(shown):
        x, y = round(margin + (j + 0.5) * cell, 1), round(rows * tall + 10, 1)
        labels.append(_text(name, x, y, "end", transform=f"rotate(-60 {x} {y})"))
    return _svg(height, "landmarks by features", tag("g", *cells, class_="cells"), *labels)


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Return round numbers within a range.

    Examples
    --------
    >>> ticks(0.0, 23.0)
    [0.0, 5.0, 10.0, 15.0, 20.0]
    """
    rough = (high - low) / about
    size = 10.0 ** math.floor(math.log10(rough))
    step = next(size * factor for factor in (1, 2, 2.5, 5, 10) if size * factor >= rough * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(k * step, 12) for k in range(first, math.floor(high / step + 1e-9) + 1)]


def _range(values: np.ndarray) -> tuple[float, float]:
    low, high = float(np.min(values)), float(np.max(values))
    margin = 0.04 * (high - low) or max(1e-6, abs(high) * 0.1)
    return low - margin, high + margin


def _text(content: Any, x: float, y: float, anchor: str, transform: str | None = None) -> Markup:
    return tag("text", content, x=round(x, 1), y=round(y, 1), text_anchor=anchor, transform=transform)


def _svg(height: int, label: str, *content: Markup) -> Markup:
    return tag("svg", *content, viewBox=f"0 0 {WIDTH} {height}", role="img", aria_label=label)
