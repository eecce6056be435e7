"""Odd data and settings, and what a fit on them must be: right by a dense reference in float64, or refused by name."""

import re
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.exceptions import ConvergenceWarning

from discernel import DiscernelClassifier, DiscernelRegressor, LearnedFastfood, LearnedFourier, LearnedNystroem, Trainer
from discernel.run import DivergenceWarning

RESULTS = Path(__file__).parent / "results" / "torture.json"
COLUMNS = {
    "normal": lambda rng, n: rng.normal(size=n),
    "constant": lambda rng, n: np.full(n, 3.7),
    "zero": lambda rng, n: np.zeros(n),
    "tiny": lambda rng, n: rng.normal(size=n) * 1e-30,
    "huge": lambda rng, n: rng.normal(size=n) * 1e30,
    "large": lambda rng, n: rng.normal(size=n) * 1e6,
    "far away": lambda rng, n: 1e6 + rng.normal(size=n),
    "whole": lambda rng, n: rng.integers(-3, 4, n).astype(float),
    "indicator": lambda rng, n: (rng.integers(0, 3, n) == 0).astype(float),
    "outlier": lambda rng, n: np.where(np.arange(n) == 0, 1e8, rng.normal(size=n)),
    "sparse": lambda rng, n: rng.normal(size=n) * (rng.random(n) < 0.1),
    "cauchy": lambda rng, n: rng.standard_cauchy(n),
}
TARGETS = {
    "two classes": lambda rng, x: rng.integers(0, 2, len(x)),
    "separable": lambda rng, x: (x[:, 0] > np.median(x[:, 0])).astype(int),
    "one of a class": lambda rng, x: (np.arange(len(x)) == len(x) - 1).astype(int),
    "all different": lambda rng, x: np.arange(len(x)),
    "text": lambda rng, x: np.array(["a", "b", "<c>"])[np.arange(len(x)) % 3],
    "labels": lambda rng, x: rng.integers(0, 2, (len(x), 3)),
    "noise": lambda rng, x: rng.normal(size=len(x)),
    "constant values": lambda rng, x: np.full(len(x), 2.5),
    "huge values": lambda rng, x: rng.normal(size=len(x)) * 1e30,
    "tiny values": lambda rng, x: rng.normal(size=len(x)) * 1e-30,
    "two values": lambda rng, x: np.column_stack([np.arange(len(x)), rng.normal(size=len(x)) + 1e6]),
}
CLASSES = ("two classes", "separable", "one of a class", "all different", "text", "labels")
FORMS = {
    "float64": lambda x: x,
    "float32": lambda x: x.astype(np.float32),
    "float16": lambda x: np.clip(x, -6e4, 6e4).astype(np.float16),
    "integers": lambda x: np.clip(x, -1e6, 1e6).astype(np.int64),
    "booleans": lambda x: x > 0,
    "objects": lambda x: x.astype(object),
    "Fortran": lambda x: np.asfortranarray(x, np.float32),
    "backwards": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "every other": lambda x: np.repeat(x.astype(np.float32), 2, 1)[:, ::2],
    "read-only": lambda x: _read_only(x.astype(np.float32)),
    "memory map": lambda x: _mapped(x.astype(np.float32)),
    "big-endian": lambda x: x.astype(">f4"),
    "sparse": lambda x: sp.csr_array(x.astype(np.float32)),
    "sparse 64": lambda x: sp.csr_matrix(x),
    "list": lambda x: x.tolist(),
}
WEIGHTS = {
    "none": lambda rng, n: None,
    "random": lambda rng, n: rng.random(n),
    "some zero": lambda rng, n: rng.integers(0, 2, n).astype(float),
    "one": lambda rng, n: (np.arange(n) == 0).astype(float),
    "tiny": lambda rng, n: np.full(n, 1e-30),
    "huge": lambda rng, n: np.full(n, 1e30),
    "uneven": lambda rng, n: 10.0 ** rng.integers(-8, 9, n),
}
CHOICES = {
    "n_rows": (2, 3, 5, 8, 20, 40, 80),
    "n_columns": (1, 1, 2, 3, 6),
    "copies": (False, False, False, True),  # of the rows
    "form": tuple(FORMS),
    "targets": tuple(TARGETS),
    "weights": ("none", "none", "none", *WEIGHTS),
    "components": (1, 1, 2, 5, 12, 40),
    "gamma": ("learn", "scale", "median", 1.0, 1e-30, 1e-8, 1e8, 1e30),
    "rho": (1e-4, "auto", 1e-30, 1e-12, 1.0, 1e12, 1e30),
    "feature_map": ("nystroem", "nystroem", "fourier", "fastfood"),
    "kernel": ("rbf", "rbf", "laplacian", "matern", "cauchy", "polynomial", "linear"),
    "criterion": ("di", "di", "di", None, "ls", "ce"),
    "head": ("ridge", "ridge", "svm", "softmax"),
}
MAPS = {"nystroem": LearnedNystroem, "fourier": LearnedFourier, "fastfood": LearnedFastfood}
# What an error may say. It names what is wrong, and does not come from the depths of a library.
NAMED = (
    "rescale the features|rescale them",
    "too large for dtype",  # scikit-learn's: X does not fit into float64
    "at least two classes",
    "no features are left",
    "sample_weight|Sample weights must contain",
    'criterion="ce" is for classes',
    "must be shift-invariant",
    "need a radial kernel",
    "must be one of",
)


@dataclass(frozen=True)
class Case:
    """Everything that decides a fit."""

    seed: int
    columns: tuple[str, ...]
    choices: tuple  # of the values of CHOICES

    def __getitem__(self, name):
        return self.choices[list(CHOICES).index(name)]

    def __repr__(self):
        return f"Case({self.seed}, {self.columns}, {dict(zip(CHOICES, self.choices, strict=True))})"


def data(case):
    """Return the rows in the form that is asked for, the targets and the weights."""
    rng = np.random.default_rng(case.seed)
    n = case["n_rows"]
    x = np.column_stack([COLUMNS[name](rng, n) for name in case.columns])
    if case["copies"]:
        x = x[np.arange(n) % 2]
    y, weight = TARGETS[case["targets"]](rng, x), WEIGHTS[case["weights"]](rng, n)
    with np.errstate(over="ignore"):
        return FORMS[case["form"]](x), y, weight


def estimator(case):
    """Return the estimator, not fitted yet."""
    options = {"gamma": case["gamma"], "rho": case["rho"], "criterion": case["criterion"], "kernel": case["kernel"]}
    if case["feature_map"] != "nystroem" and case["gamma"] == "learn":
        options["gamma"] = "scale"
    feature_map = MAPS[case["feature_map"]](
        case["components"], **options, trainer=Trainer(max_epochs=2, batch_size=16), random_state=0
    )
    if case["targets"] in CLASSES:
        return DiscernelClassifier(feature_map=feature_map, head=case["head"], random_state=0)
    return DiscernelRegressor(feature_map=feature_map, random_state=0)


def check(case):
    """Return "refused" or "fitted"; raise AssertionError if a fit is neither right nor refused by name."""
    x, y, weight = data(case)
    model = estimator(case)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for known in (DivergenceWarning, ConvergenceWarning):
            warnings.simplefilter("ignore", known)
        warnings.filterwarnings("ignore", "n_components is")
        warnings.filterwarnings("ignore", "The number of unique classes")  # of scikit-learn: is it a regression?
        try:
            model.fit(x, y, weight)
        except (ValueError, TypeError, FloatingPointError) as error:
            _check_named(error)
            return "refused"
        _check_predictions(model, x)
        if case["head"] == "ridge" or case["targets"] not in CLASSES:
            _check_head(model, _dense(x), y, weight)
    return "fitted"


def _check_named(error):
    if not re.search("|".join(NAMED), str(error)):
        raise AssertionError("the error does not name the problem") from error


def _check_predictions(model, x):
    """No NaN comes out of finite rows; those far from the rows of training may be refused."""
    floats = _dense(x)
    for number, rows in enumerate((x, np.zeros_like(floats[:1]), floats[:3] * 2 + 1, -floats[:2])):
        for method in ("transform", "predict", "predict_proba", "decision_function"):
            if not hasattr(model, method):
                continue
            try:
                found = getattr(model, method)(rows)
            except (ValueError, FloatingPointError) as error:
                if number < 2:
                    raise
                _check_named(error)
            else:
                assert np.asarray(found).dtype.kind not in "f" or np.isfinite(found).all(), f"{method} returns {found}"


def _check_head(model, x, y, weight):
    """The ridge head is as good as the dense solution of the same problem in float64, from the same basis."""
    w = np.ones(len(y)) if weight is None else weight.astype(x.dtype).astype(float)
    x, y, w = x[w > 0], y[w > 0], w[w > 0]
    feature_map = model.transformer_.feature_map_
    with torch.no_grad():
        like = next(feature_map.parameters())
        basis = feature_map.basis(torch.from_numpy(x).to(like)).double().numpy()
        gram = feature_map.gram()
    gram = np.eye(basis.shape[1]) if gram is None else gram.double().numpy()
    targets = y[:, None] == model.classes_ if hasattr(model, "classes_") and y.ndim == 1 else y.reshape(len(y), -1)
    targets = targets.astype(float)
    scale = 1.0
    if not hasattr(model, "classes_"):  # the regressor's penalty is for targets of unit variance
        centre = np.average(targets, axis=0, weights=w)
        scale = np.sqrt(np.average((targets - centre) ** 2, axis=0, weights=w))
        scale = np.where(scale > 0, scale, 1.0)
        targets = (targets - centre) / scale
        intercept = (model.head_.intercept.double().numpy() - centre) / scale
    else:
        intercept = model.head_.intercept.double().numpy()
    weights = model.head_.weights.double().numpy() / scale
    rho = model.alpha_
    found = objective(basis, targets, w, rho, gram, weights, intercept)
    best, energy = reference(basis, targets, w, rho, gram)
    if energy < 1e-25 * w.sum():  # the targets do not vary
        same = np.allclose if y.dtype.kind == "f" else np.array_equal
        assert same(model.predict(x), y)
        return
    assert found <= best + 1e-3 * energy + 1e-20 * w.sum(), f"the objective is {found}, could be {best} of {energy}"


def objective(basis, targets, w, rho, gram, weights, intercept):
    """Return ‖GW + b − Y‖² + ρ tr WᵀBW."""
    residual = np.sqrt(w)[:, None] * (basis @ weights + intercept - targets)
    return (residual**2).sum() + rho * np.einsum("il,ij,jl->", weights, gram, weights)


def reference(basis, targets, w, rho, gram):
    """Return the value of the objective at a pseudo-inverse that keeps somewhat less than the library's, and ‖Ȳ‖².

    Neither of them makes anything of what varies by a few hundred times the rounding of the basis.
    """
    root = np.sqrt(w)[:, None]
    mean = np.average(basis, axis=0, weights=w)
    g = root * (basis - mean)
    y = root * (targets - np.average(targets, axis=0, weights=w))
    rounding = np.diag(w.sum() * (500 * np.finfo(float).eps * mean) ** 2)
    values, vectors = np.linalg.eigh(g.T @ g + rho * (gram + gram.T) / 2 + rounding)
    keep = values > 100 * len(values) * np.finfo(float).eps * values.max()
    solution = vectors[:, keep] @ ((vectors[:, keep].T @ (g.T @ y)) / values[keep, None])
    return ((g @ solution - y) ** 2).sum() + rho * np.einsum("il,ij,jl->", solution, gram, solution), (y**2).sum()


def _dense(x):
    x = x.toarray() if sp.issparse(x) else np.asarray(x)
    return x.astype(np.float32 if x.dtype in (np.float32, np.dtype(">f4")) else np.float64)


def _read_only(x):
    x.flags.writeable = False
    return x


def _mapped(x):
    with tempfile.TemporaryDirectory() as folder:
        np.save(Path(folder) / "x.npy", x)
        return np.load(Path(folder) / "x.npy", mmap_mode="r")  # the file lives as long as the map
