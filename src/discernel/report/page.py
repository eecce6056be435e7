"""The page: its sections in the order in which they are read."""

import base64
import hashlib
import platform
import warnings
from importlib.resources import files
from typing import Any

import numpy as np
import sklearn
import torch
from sklearn.metrics import confusion_matrix

from discernel.data import Source
from discernel.estimators import DiscernelClassifier, DiscernelRegressor, feature_importance
from discernel.evaluation import Said, plane, rows_of, say, scores, worst_confusions
from discernel.report import charts
from discernel.report.baselines import compared
from discernel.report.markup import Markup, image, join, table, tag

DOTS = 800
LANDMARKS = 48
TOP = 20
LOWER_IS_BETTER = ("log_loss", "rmse", "mae")
CELLS = 40  # classes up to which the whole confusion matrix is shown


def make_report(
    model: DiscernelClassifier | DiscernelRegressor,
    source: Source,
    train: Source | None = None,
    *,
    made_by: str = "",
    data: str = "the given rows",
    names: list[str] | None = None,
    trained_on: bool = False,
    image: tuple[int, int] | None = None,
) -> str:
    """Return an HTML page about a fitted model: its scores beside baselines, its confusions, features and training.

    Parameters
    ----------
    model : DiscernelClassifier or DiscernelRegressor
        What it is about.
    source : Source
        Rows with targets that the model is scored on.
    train : Source, optional
        The rows it was trained on, on which baselines are then fitted; without them they are cross-validated on
        `source`, if it has rows enough.
    made_by : str
        The command, or the lines of code, that made the page.
    data : str
        What to call the rows of `source`.
    names : list of str, optional
        Of the input features; by default the model's.
    trained_on : bool
        Whether the model was trained on the rows of `source`, of which the page then warns.
    image : (int, int), optional
        Show landmarks as images of this shape.
    """
    if image is not None and (min(image) < 1 or image[0] * image[1] != model.n_features_in_):
        raise ValueError(f"images of {image[0]}x{image[1]} numbers do not make {model.n_features_in_} features")
    names = _names(model) if names is None else names
    said, (x, _) = say(model, source), rows_of(source, DOTS)
    shares = feature_importance(model, x)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # such as of a class with fewer rows than folds
        how, others = compared(model, source, train)
    sections = [
        _heading(model, source, data),
        _scores(model, said, others, how, trained_on),
        _confusions(model, said) if said.y.ndim == 1 and hasattr(model, "classes_") else _predictions(said),
        _plane(model, x, _some(said)),
        _importance(shares, names),
        _landmarks(model, shares, names, image),
        _training(model),
        _reproduce(model, made_by),
    ]
    return _page(f"{type(model).__name__} on {data}", join(sections))


def _page(title: str, body: Markup) -> str:
    style, script = (files("discernel.report").joinpath(name).read_text() for name in ("page.css", "page.js"))
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    head = [
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">',
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><link rel="icon" href="data:,">',
        tag("title", title),
        f"<style>{style}</style>",
    ]
    inner = f'<main>{body}</main><div id="note" role="status"></div><script>{script}</script>'
    return f'<!doctype html>\n<html lang="en"><head>{"".join(head)}</head><body>{inner}</body></html>\n'


def _names(model) -> list[str]:
    if hasattr(model, "preprocessing_"):
        return model.preprocessing_.feature_names
    return [str(name) for name in getattr(model, "feature_names_in_", [f"x{i}" for i in range(model.n_features_in_)])]


def _some(said: Said) -> Said:
    """Return the rows that the pictures show."""
    count = min(DOTS, len(said.y))
    index = np.arange(count) * len(said.y) // count
    return Said(said.y[index], said.predicted[index], None)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _section(title: str, *content: Any) -> Markup:
    return tag("section", tag("h2", title), *content)


def _facts(facts: dict[str, Any]) -> Markup:
    return tag("dl", *(join((tag("dt", name), tag("dd", value))) for name, value in facts.items()))


def _heading(model, source: Source, data: str) -> Markup:
    transformer = model.transformer_
    seconds = sum(record.seconds for record in model.history_)
    kind = type(transformer.feature_map_).__name__
    facts: dict[str, Any] = {"rows scored": f"{len(source):,}, of {data}"}
    if hasattr(model, "target_names_"):
        facts["target"] = ", ".join(map(str, model.target_names_))
    if hasattr(model, "classes_"):
        shown = ", ".join(map(str, model.classes_[:12]))
        facts["classes"] = f"{len(model.classes_)}: {shown}{', …' if len(model.classes_) > 12 else ''}"
    facts["features"] = f"{model.n_features_in_} in, {transformer._n_features_out} learned ({kind})"
    facts["training"] = f"{_counted(model.n_iter_, 'epoch')}, {seconds:.1f} s"
    return join((tag("h1", f"{type(model).__name__}"), _facts(facts)))


def _scores(model, said: Said, others: list[tuple[str, Said]], how: str, trained_on: bool) -> Markup:
    own = {"this model": scores(said, getattr(model, "classes_", None))}
    found = own | {name: scores(other, getattr(model, "classes_", None)) for name, other in others}
    columns = list(own["this model"])
    best = {c: _best(c, [values[c] for values in found.values() if c in values]) for c in columns}
    rows = []
    for name, values in found.items():
        cells = [
            tag("td", f"{values[c]:.4f}" if c in values else "–", class_="best" if values.get(c) == best[c] else None)
            for c in columns
        ]
        rows.append([name, *cells])
    notes = [tag("p", how, class_="soft")]
    if trained_on:
        warning = "These are the rows that the model was trained on: scores on new rows will be lower."
        notes.insert(0, tag("p", tag("strong", warning)))
    headings = ["", *(c.replace("_", " ") for c in columns)]
    return _section("Scores", table(headings, rows, class_="scores"), *notes)


def _best(name: str, values: list[float]) -> float:
    return min(values) if name in LOWER_IS_BETTER else max(values)


def _confusions(model, said: Said) -> Markup:
    classes = np.union1d(model.classes_, np.unique(said.y))
    counts = confusion_matrix(said.y, said.predicted, labels=classes)
    worst = worst_confusions(counts, [str(name) for name in classes])
    rows = [[f"{true} taken for {wrong}", count, f"{100 * share:.1f}%"] for true, wrong, count, share in worst]
    errors = (
        table(["the most frequent errors", "rows", "of the class"], rows) if rows else tag("p", "There are no errors.")
    )
    if len(classes) > CELLS:
        return _section("Confusions", errors)
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    body = [
        [str(name), *(_tinted(counts[i, j], shares[i, j], i != j) for j in range(len(classes)))]
        for i, name in enumerate(classes)
    ]
    caption = "a row for each true class, a column for each predicted one"
    matrix = table(["", *map(str, classes)], body, caption, "confusion")
    return _section("Confusions", matrix, errors)


def _tinted(count: int, share: float, wrong: bool) -> Markup:
    if not count:
        return tag("td", "")
    return tag("td", tag("span", count), class_="tint wrong" if wrong else "tint", style=f"--share:{share:.3f}")


def _predictions(said: Said) -> Markup:
    some = _some(said)
    if some.y.ndim > 1:
        return Markup("")
    notes = [f"true {a:.5g}, predicted {b:.5g}" for a, b in zip(some.y, some.predicted, strict=True)]
    points = np.c_[some.y, some.predicted]
    chart = charts.scatter(points, [0] * len(points), notes, "true", "predicted")
    words = f"{_counted(len(points), 'row')}; point at a dot to read it."
    return _section("Predictions", chart, tag("p", words, class_="soft"))


def _plane(model, x: np.ndarray, said: Said) -> Markup:
    """Return the two most discriminant components of the learned features."""
    classes = np.unique(said.y)
    if not hasattr(model, "classes_") or said.y.ndim > 1 or len(classes) < 2:
        return Markup("")
    points = plane(model.transform(x), said.y) * np.sqrt(len(x))
    kinds = np.searchsorted(classes, said.y)
    notes = [
        f"row {row}: {true}" if true == guess else f"row {row}: {true}, taken for {guess}"
        for row, (true, guess) in enumerate(zip(said.y, said.predicted, strict=True), 1)
    ]
    chart = charts.scatter(points, kinds.tolist(), notes, "first component", "second component")
    which = "the two directions of the learned features that tell the classes apart best"
    if len(classes) == 2:
        which = (
            "the direction of the learned features that tells the classes apart best, and that of most other variance"
        )
    words = f"{len(x)} rows in {which}; point at a dot."
    return _section("Discriminant plane", _legend(classes), chart, tag("p", words, class_="soft"))


def _legend(classes: np.ndarray) -> Markup:
    def chip(number: int) -> Markup:
        return tag("svg", tag("circle", cx=5, cy=5, r=5, class_=f"k{number % charts.COLOURS}"), viewBox="0 0 10 10")

    return tag("ul", *(tag("li", chip(i), str(name)) for i, name in enumerate(classes)), class_="legend")


def _importance(shares: np.ndarray, names: list[str]) -> Markup:
    largest = np.argsort(shares, kind="stable")[::-1][:TOP]
    chart = charts.bars([names[i] for i in largest], [float(shares[i]) for i in largest])
    words = "How far the scores move, by their gradients, when a feature moves by its spread; as a share of all."
    more = f" The {TOP} most important of {len(names)} features." if len(names) > TOP else ""
    return _section("Importance of features", chart, tag("p", words + more, class_="soft"))


def _landmarks(model, shares: np.ndarray, names: list[str], shape: tuple[int, int] | None) -> Markup:
    landmarks = getattr(model.transformer_, "components_", None)
    if landmarks is None:
        return Markup("")
    shown = landmarks[:LANDMARKS]
    if shape is not None:
        bound = float(np.abs(landmarks).max())
        pictures = [image(each.reshape(shape), -bound, bound, f"landmark {i}") for i, each in enumerate(shown, 1)]
        return _section("Landmarks", tag("div", *pictures, class_="images"), _count(landmarks))
    spread = landmarks.std(0)
    standard = (landmarks - landmarks.mean(0)) / np.where(spread > 0, spread, 1.0)
    columns = np.sort(np.argsort(shares, kind="stable")[::-1][:TOP])
    order = np.linalg.svd(standard[:LANDMARKS][:, columns], full_matrices=False)[0][:, 0].argsort()
    chart = charts.heat_map(standard[:LANDMARKS][order][:, columns], [names[i] for i in columns])
    words = "A row for each landmark, red where it is above the mean of the landmarks and blue where it is below."
    return _section("Landmarks", chart, tag("p", words, class_="soft"), _count(landmarks))


def _count(landmarks: np.ndarray) -> Markup:
    if len(landmarks) <= LANDMARKS:
        return Markup("")
    return tag("p", f"The first {LANDMARKS} of {len(landmarks)}.", class_="soft")


def _training(model) -> Markup:
    if not model.history_:
        return _section("Training", tag("p", "The features were not trained."))
    epochs = [record.epoch for record in model.history_]
    parts = [charts.line(epochs, [record.criterion for record in model.history_], "epoch", "criterion")]
    validation = [record.validation_score for record in model.history_]
    if all(score is not None for score in validation):
        parts.append(charts.line(epochs, validation, "epoch", "score of held-out rows"))
    return _section("Training", *parts)


def _reproduce(model, made_by: str) -> Markup:
    from discernel import __version__

    command = [tag("pre", made_by)] if made_by else []
    libraries = f"discernel {__version__}, Python {platform.python_version()}, torch {torch.__version__}, "
    libraries += f"scikit-learn {sklearn.__version__}, NumPy {np.__version__}"
    return _section("How to reproduce", *command, _facts({"estimator": repr(model), "made with": libraries}))
