"""The paper's two figures, and one that goes past it, from the table alone."""

from pathlib import Path

import pandas as pd

from experiments import views

# Told apart by the colour-blind (Okabe and Ito's colours), and in print by marker and line.
STYLES = {
    "DI": {"color": "#0072b2", "marker": "o"},
    "LS": {"color": "#d55e00", "marker": "s"},
    "CE": {"color": "#009e73", "marker": "^"},
    "KM Nys": {"color": "#7f3f98", "marker": "D", "linestyle": "--"},
    "Std Nys": {"color": "#595959", "marker": "x", "linestyle": ":"},
    "Std RF": {"color": "#595959", "marker": "x", "linestyle": ":"},
}


def draw(frame: pd.DataFrame, directory: Path) -> list[Path]:
    """Draw all figures into a directory and return their files."""
    import matplotlib as mpl

    mpl.use("agg")
    import matplotlib.pyplot as plt

    directory.mkdir(parents=True, exist_ok=True)
    paths = []
    for name, panel in (("mse", errors), ("accuracy", accuracies), ("beyond", beyond)):
        figure = _panels(plt, frame, panel)
        paths.append(directory / f"{name}.png")
        figure.savefig(paths[-1], dpi=150, metadata={"Software": None})
        plt.close(figure)
    return paths


def _panels(plt, frame: pd.DataFrame, panel):
    """Return a figure with a row for each data set and a column for each map."""
    names = views.datasets(frame)
    figure, axes = plt.subplots(
        len(names), 2, figsize=(7.6, 0.6 + 2.5 * len(names)), layout="constrained", squeeze=False
    )
    handles: dict = {}
    for row, data in zip(axes, names, strict=True):
        for ax, name in zip(row, views.MAPS, strict=True):
            panel(ax, frame, data, name)
            ax.set_title(f"{views.DATA[data]}, {views.MAPS[name]}", fontsize=10, loc="left")
            _dress(ax)
            handles |= dict(zip(*reversed(ax.get_legend_handles_labels()), strict=True))
    figure.legend(handles.values(), handles.keys(), loc="outside lower center", ncols=min(len(handles), 5), fontsize=9)
    return figure


def _dress(ax) -> None:
    ticks = sorted({j for line in ax.get_lines() if line.get_marker() != "None" for j in line.get_xdata()})
    ax.set_xscale("log")
    ax.set_xticks(ticks, [str(j) for j in ticks], fontsize=8)
    ax.set_xticks([], minor=True)
    ax.tick_params(axis="y", labelsize=8)
    ax.set_xlabel("features, J", fontsize=9)
    ax.grid(alpha=0.3)
    ax.spines[["top", "right"]].set_visible(False)


def _line(ax, curve: pd.DataFrame, scale: float = 1.0, **style) -> None:
    """Draw the means, with a band of one standard deviation."""
    if curve.empty:
        return
    mean, std = scale * curve["mean"], scale * curve["std"]
    ax.plot(curve.index, mean, **({"linewidth": 1.5, "markersize": 4.5} | style))
    ax.fill_between(curve.index, mean - std, mean + std, color=style["color"], alpha=0.15, linewidth=0)


def errors(ax, frame: pd.DataFrame, data: str, name: str) -> None:
    """Draw the train and test MSE of ridge regression after DI and LS training (the paper's first figure)."""
    for label in ("DI", "LS"):
        rows = views.method(frame, data, name, label)
        for part, look in (("train", {"linestyle": "--", "markerfacecolor": "white"}), ("test", {"linestyle": "-"})):
            _line(ax, views.curve(rows, f"{part}_mse"), label=f"{label}, {part}", **(STYLES[label] | look))
    ax.set_ylabel("MSE", fontsize=9)


def accuracies(ax, frame: pd.DataFrame, data: str, name: str) -> None:
    """Draw the test accuracy of the SVM after each method (the paper's second figure)."""
    for label in views.METHODS[name]:
        _line(
            ax, views.curve(views.method(frame, data, name, label), "test_accuracy"), 100, label=label, **STYLES[label]
        )
    ax.set_ylabel("accuracy, %", fontsize=9)


def beyond(ax, frame: pd.DataFrame, data: str, name: str) -> None:
    """Draw DI by both schedules, the untrained maps at their own best bandwidths, and two exact models."""
    for schedule, look in (("fast", {}), ("paper", {"linestyle": "--", "markerfacecolor": "white"})):
        rows = views.better_head(views.method(frame, data, name, "DI", schedule))
        _line(ax, views.curve(rows, "test_accuracy"), 100, label=f"DI, {schedule} schedule", **(STYLES["DI"] | look))
    for label in views.METHODS[name]:
        if label not in views.TRAINED:
            curve = views.curve(views.own_gamma(frame, data, name, label), "test_accuracy")
            _line(ax, curve, 100, label=f"{label}, own γ", **STYLES[label])
    exact = frame[(frame["data"] == data) & (frame["map"] == "exact")]
    for model, label, look in (("svc", "SVC", "-."), ("lightgbm", "LightGBM", (0, (1, 3)))):
        for accuracy in exact.loc[exact["criterion"] == model, "test_accuracy"]:
            ax.axhline(100 * accuracy, color="black", linestyle=look, linewidth=1, label=label)
    ax.set_ylabel("accuracy, %", fontsize=9)
