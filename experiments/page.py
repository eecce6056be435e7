"""The page that judges the paper's claims and goes past them, written from the table alone."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pandas as pd

from experiments import views
from experiments.claims import FAILS, HOLDS, Judge, Judgement
from experiments.fits import HEAD_C, SVC_C
from experiments.jobs import RHO
from experiments.table import where


def write(frame: pd.DataFrame, path: Path, figures: str, gammas: Path) -> None:
    """Write the page; `figures` is the folder of the figures as seen from it."""
    judge = Judge(frame)
    sections = judge.section_5_2(), judge.section_5_3(), judge.robustness()
    parts = [
        "# The paper's experiments, run again",
        INTRODUCTION,
        "## What has been run",
        coverage(frame),
        protocol(frame, json.loads(gammas.read_text())),
        "## The figures",
        f"![Training and test MSE]({figures}/mse.png)",
        "Errors of ridge regression on the features: mean over the seeds, band of one standard deviation. MSE is "
        "summed over the classes' 0/1 targets.",
        f"![Test accuracy]({figures}/accuracy.png)",
        "Test accuracy of a linear SVM on the features.",
        "## The claims",
        summary([judgement for section in sections for judgement in section]),
        CLAIMS,
        "### Section 5.2: DI and least squares",
        claims(sections[0]),
        "### Section 5.3: classification",
        claims(sections[1]),
        "### Section 5.1: what is said not to matter",
        claims(sections[2]),
        sweep(frame),
        "### What was checked about claims that do not hold",
        CHECKED,
        claims([judgement for judgement in judge.by_ridge() if judgement.n_seeds]),
        stopping(frame),
        "## Beyond the paper",
        f"![Beyond the paper]({figures}/beyond.png)",
        BEYOND,
        savings(frame),
        schedules(frame),
        again(frame),
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n\n".join(part for part in parts if part) + "\n")


INTRODUCTION = """Made by `discernel reproduce` from the tables in `experiments/results/`; do not edit. A row of a table
is one fit, and the same command fits it again to the same numbers (on one thread, with the same versions)."""

CLAIMS = f"""Both methods of a comparison start from the same map of a seed and see the same mini-batches where these
are of one size. Their difference (of MSE in per cent of the second, of accuracy in points) is averaged over the J that
at least three seeds have; Student's t over the seeds tests whether it lies where the claim has it. "{HOLDS}": p < 0.05.
"{FAILS}": the contrary at the same level, or undecided after ten seeds, or the contrary at some J where the paper
says "consistently" (the first two claims). Otherwise there are not enough seeds: fewer than three, or too few to
decide."""

CHECKED = """- That both methods start from the same map, and that a row comes out again (`tests/test_experiments.py`).
- That the SVM has converged: its accuracy is that of scikit-learn's LinearSVC (in the same tests).
- What the rule for stopping does to errors: it looks at the relative change of the criterion, which is a different
  quantity for DI, LS and CE, so that they stop after different numbers of epochs (the table below). At the end of this
  page are the comparisons with the same number of steps for all of them and, as far as it has been run, with a tenth
  of the tolerance.
- What C = 1 does to accuracies: it is in units of the features, which training changes. Below are the comparisons of
  accuracy by ridge regression on the same features."""

BEYOND = f"""DI with the library's own schedule (`--schedule fast`) beside the paper's; the untrained maps at the
bandwidth that is best for each J, picked **by the test rows**, which flatters them (one seed); each by the better of
two heads, the paper's SVM and ridge regression (ρ = {RHO:g}): C = {HEAD_C:g} is small for features that vary little, as
those of landmarks do which training has moved away from the data. Exact SVC (C = {SVC_C:g}, the protocol's γ) and
LightGBM (its defaults) are lines."""


PATIENT = "patient: the paper's schedule with a tenth of its tolerance, 0.01%"
SCHEDULES = {
    "fast": "the library's schedule, the same number of steps for all criteria",
    "patient": "the paper's schedule and a tenth of its tolerance",
}


def markdown(headings: Sequence[str], rows: Iterable[Sequence]) -> str:
    """Return a table."""
    lines = ["| " + " | ".join(headings) + " |", "|" + "---|" * len(headings)]
    return "\n".join(lines + ["| " + " | ".join(str(cell) for cell in row) + " |" for row in rows])


def coverage(frame: pd.DataFrame) -> str:
    """Return how many seeds are there by data set, schedule and J: of the method that has the fewest."""
    rows = []
    for data in views.datasets(frame):
        for schedule in ("paper", "patient", "fast"):
            counts = pd.DataFrame(
                {
                    (name, label): views.curve(views.method(frame, data, name, label, schedule), "test_accuracy")[
                        "count"
                    ]
                    for name in views.MAPS
                    for label in views.TRAINED
                }
            )
            seeds = counts.fillna(0).min(axis=1).astype(int)
            done = where(frame, {"data": data, "schedule": schedule})
            if len(done):
                listed = ", ".join(f"{j}: {n}" for j, n in seeds.items())
                hours = done["wall_seconds"].sum() / 3600
                rows.append((views.DATA[data], schedule, listed, len(done), f"{hours:.1f}"))
    return markdown(("data", "schedule", "J: whole seeds (DI, LS and CE, both maps)", "trained rows", "hours"), rows)


def protocol(frame: pd.DataFrame, gammas: dict) -> str:
    """Say how the bandwidths were found and what the settings are."""
    rows = []
    for data in views.datasets(frame):
        if data in gammas:
            found = gammas[data]
            tried = ", ".join(f"{float(g):g}: {100 * a:.1f}%" for g, a in found["accuracy"].items())
            rows.append((views.DATA[data], f"{found['gamma']:g}", found["rows"], tried))
    words = (
        "γ is chosen by 3-fold cross-validation of a linear SVM on 1000 standard Nyström features, on at most 10000 "
        "training rows drawn at random (the paper does not say how many it used). "
        f"Elsewhere ρ = {RHO:g}; Adam at 1e-3, times 0.1 when the epoch mean has not improved by 0.1% for five epochs, "
        "until it does not improve after a decay (at most 1000 epochs); batches of 1000, for DI with J > 500 of 2J; "
        f"landmarks start as random training rows. The SVM has the squared hinge loss and C = {HEAD_C:g}."
    )
    return markdown(("data", "γ", "rows", "γ tried: accuracy"), rows) + "\n\n" + words


def summary(judgements: Sequence[Judgement]) -> str:
    """Say how many comparisons came out how."""
    counts = pd.Series([judgement.verdict for judgement in judgements]).value_counts()
    return "Of the comparisons below: " + ", ".join(f"{n} {verdict}" for verdict, n in counts.items()) + "."


def claims(judgements: Sequence[Judgement]) -> str:
    """Return the table of judgements."""
    headings = ("claim", "data, map", "compared", "means", "difference", "holds if", "p", "seeds; J", "verdict")
    return markdown(headings, [_cells(judgement) for judgement in judgements])


def again(frame: pd.DataFrame) -> str:
    """Return the comparisons with the other schedules, where they have been run."""
    parts = []
    for schedule, words in SCHEDULES.items():
        judge = Judge(frame, schedule)
        found = [j for j in judge.section_5_2() + judge.section_5_3() if j.n_seeds]
        if found:
            parts += [f"### The same comparisons with {words}", claims(found)]
    return "\n\n".join(parts)


def _cells(j: Judgement) -> tuple:
    where_ = f"{views.DATA[j.data]}, {views.MAPS[j.map]}"
    if not j.n_seeds:
        return j.claim, where_, j.compared, "", "", j.region, "", "0", j.verdict
    unit = "%" if j.compared.endswith(" mse") else ""
    digits = 2 if "accuracy" in j.compared else 4
    means = f"{j.left:.{digits}f}, {j.right:.{digits}f}"
    places = 2 if unit else digits
    error = "" if np.isnan(j.error) else f" ± {j.error:.{places}f}"
    p = "" if np.isnan(j.p) else f"{j.p:.1g}" if j.p >= 1e-4 else "< 0.0001"
    components = ", ".join(map(str, j.components)) if j.components != (0,) else "all"
    seeds = f"{j.n_seeds}; {components}"
    verdict = f"**{j.verdict}**" if j.verdict in (HOLDS, FAILS) else j.verdict
    return j.claim, where_, j.compared, means, f"{j.difference:+.{places}f}{unit}{error}", j.region, p, seeds, verdict


def _percent(values: Iterable[float]) -> Iterable[str]:
    return ("" if np.isnan(value) else f"{value:.2f}" for value in values)


def sweep(frame: pd.DataFrame) -> str:
    """Return the accuracy by rho."""
    rows = frame[(frame["criterion"] == "di") & (frame["schedule"] == "paper") & (frame["init"] != "kmeans")]
    swept = rows[rows["rho"] != RHO]
    if swept.empty:
        return ""
    keys = swept[["data", "map", "n_components", "seed"]].drop_duplicates()
    rows = rows.merge(keys, on=list(keys.columns))
    means = 100 * rows.pivot_table("test_accuracy", ["data", "map", "n_components"], "rho")
    table = [
        (views.DATA[d], views.MAPS[m], j, *_percent(values))
        for (d, m, j), values in zip(means.index, means.to_numpy(), strict=True)
    ]
    headings = ("data", "map", "J", *(f"ρ = {rho:g}" for rho in means.columns))
    return "Accuracy in per cent by ρ, DI:\n\n" + markdown(headings, table)


def stopping(frame: pd.DataFrame) -> str:
    """Return after how many epochs the rule has stopped each criterion."""
    rows = []
    for data in views.datasets(frame):
        for name in views.MAPS:
            epochs = {
                (schedule, label): views.curve(views.method(frame, data, name, label, schedule), "epochs")["mean"]
                for schedule in ("paper", "patient")
                for label in views.TRAINED
            }
            for j, means in pd.DataFrame(epochs).iterrows():
                cells = ("" if np.isnan(mean) else f"{mean:.0f}" for mean in means)
                rows.append((views.DATA[data], views.MAPS[name], j, *cells))
    if not rows:
        return ""
    headings = [f"{label}, {schedule}" for schedule in ("paper", "patient") for label in views.TRAINED]
    return f"Epochs until the rule stops, means over the seeds ({PATIENT}):\n\n" + markdown(
        ("data", "map", "J", *headings), rows
    )


def savings(frame: pd.DataFrame) -> str:
    """Return how many untrained features it takes to be as accurate as learned ones."""
    rows = []
    for data in views.datasets(frame):
        for name in views.MAPS:
            labels = [label for label in views.METHODS[name] if label not in views.TRAINED]
            curves = {
                label: views.curve(views.own_gamma(frame, data, name, label), "test_accuracy") for label in labels
            }
            for schedule in ("paper", "fast"):
                rows_ = views.better_head(views.method(frame, data, name, "DI", schedule))
                learned = views.curve(rows_, "test_accuracy")
                for j, accuracy in learned["mean"].items():
                    factors = (_factor(curve["mean"], j, accuracy) for curve in curves.values())
                    rows.append(
                        (views.DATA[data], views.MAPS[name], schedule, j, f"{100 * accuracy:.2f}", *factors)
                        + ("",) * (2 - len(curves))
                    )
    if not rows:
        return ""
    words = "How many times as many untrained features give the accuracy of learned ones (interpolated in log J):"
    headings = ("data", "map", "schedule of DI", "J", "accuracy, %", "random, own γ", "k-means, own γ")
    order = [(*row[:5], row[-1], row[-2]) if row[1] == "Nyström" else row for row in rows]
    return words + "\n\n" + markdown(headings, order)


def _factor(untrained: pd.Series, j: int, accuracy: float) -> str:
    """Return the factor, or a bound where the untrained curve does not reach so far."""
    if untrained.empty:
        return ""
    best = untrained.cummax()
    if accuracy > best.iloc[-1]:
        return f"> {best.index[-1] / j:.3g}"
    if accuracy <= best.iloc[0]:
        return f"< {best.index[0] / j:.3g}"
    keep = ~best.duplicated()
    needed = np.exp2(np.interp(accuracy, best[keep].to_numpy(), np.log2(best.index[keep].to_numpy(dtype=float))))
    return f"{needed / j:.2g}"


def schedules(frame: pd.DataFrame) -> str:
    """Return DI by the two schedules, over what both have."""
    rows = []
    for data in views.datasets(frame):
        for name in views.MAPS:
            paper, fast = (views.method(frame, data, name, "DI", schedule) for schedule in ("paper", "fast"))
            both = paper.merge(fast, on=["seed", "n_components"], suffixes=("_paper", "_fast"))
            for j, group in both.groupby("n_components"):
                mean = group.mean(numeric_only=True)
                cells = [_scores(mean, schedule) for schedule in ("paper", "fast")]
                middle = group.median(numeric_only=True)  # the machine had other work at times
                seconds = [f"{middle[f'seconds_{s}']:.0f}" for s in ("paper", "fast")]
                rows.append((views.DATA[data], views.MAPS[name], j, len(group), *cells, *seconds))
    if not rows:
        return ""
    scores = "train / test MSE, SVM / ridge accuracy"
    headings = ("data", "map", "J", "seeds", f"paper: {scores}", "fast: the same", "paper, s", "fast, s")
    words = (
        "DI by the paper's schedule and by the library's own, with the median of the seconds of training (of the clock "
        "where a row is of a commit before 212b0b3 or was cut off, and then too long; else of the processor):"
    )
    return words + "\n\n" + markdown(headings, rows)


def _scores(mean: pd.Series, schedule: str) -> str:
    train, test = mean[f"train_mse_{schedule}"], mean[f"test_mse_{schedule}"]
    svm, ridge = 100 * mean[f"test_accuracy_{schedule}"], 100 * mean[f"ridge_accuracy_{schedule}"]
    return f"{train:.4f} / {test:.4f}, {svm:.2f} / {ridge:.2f}"
