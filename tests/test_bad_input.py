"""Whatever cannot be meant is refused at once, by an error that names the argument, what was expected and what came."""

import numpy as np
import pytest
import torch
from scipy import sparse
from torch import nn

from discernel import (
    CE,
    DI,
    LS,
    RBF,
    ArraySource,
    Linear,
    Matern,
    ModuleMap,
    Nystroem,
    Polynomial,
    RandomFourier,
    Targets,
    Trainer,
    choose_landmarks,
    discriminant_information,
    make_kernel,
)
from discernel.data import SparseSource

X, Y = torch.rand(12, 3, generator=torch.Generator().manual_seed(0)), [0, 1, 2] * 4
NAN, INF = float("nan"), float("inf")
BASIS, TARGETS = X, Targets.classes(Y)[:]


def spoiled(value, x=X):
    x = x.clone()
    x[1] = value
    return x


def nystroem(kernel=None, **options):
    return Nystroem(X[:4], kernel or RBF(1.0), **options)


def fourier(kernel=None, n_features=3, n_components=5):
    return RandomFourier.sample(kernel or RBF(1.0), n_features, n_components)


def source(x=X, targets=Targets.classes(Y), weight=None):  # noqa: B008
    return ArraySource(x, targets, weight)


def epochs(feature_map=None, criterion=None, data=None, seed=0):
    return Trainer(1).epochs(feature_map or nystroem(), criterion or DI(), data or source(), seed=seed)


def information(rho):
    return discriminant_information(X, TARGETS, rho)


def weights(**values):
    """Return a weight for each row, some of them given by number."""
    weight = torch.ones(12)
    for row, value in values.items():
        weight[int(row[1:])] = value
    return weight


class Flat(nn.Module):
    """A module that forgets to keep a row for each sample."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return (x * self.scale).sum(1)


CASES = {
    # the criterion
    "basis a list": (lambda: discriminant_information([[1.0]], TARGETS), TypeError, "basis .*torch.Tensor.* list"),
    "basis an array": (lambda: discriminant_information(X.numpy(), TARGETS), TypeError, "basis .*Tensor.* ndarray"),
    "basis of integers": (lambda: discriminant_information(X.long(), TARGETS), TypeError, "basis .*floating.*int64"),
    "basis NaN": (lambda: discriminant_information(spoiled(NAN), TARGETS), ValueError, "basis has 3 entries .*NaN"),
    "basis infinite": (lambda: discriminant_information(spoiled(INF), TARGETS), ValueError, "basis has 3 .*infinite"),
    "basis a vector": (lambda: discriminant_information(X[0], TARGETS), ValueError, r"basis .*two dim.*\(3,\)"),
    "basis empty": (lambda: discriminant_information(X[:0], TARGETS), ValueError, r"basis is empty.*\(0, 3\)"),
    "targets NaN": (lambda: discriminant_information(X, spoiled(NAN)), ValueError, "targets has 3 entries .*NaN"),
    "targets too few": (
        lambda: discriminant_information(X, TARGETS[:5]),
        ValueError,
        "targets must have 12 rows, got 5",
    ),
    "gram not square": (
        lambda: discriminant_information(X, TARGETS, gram=X),
        ValueError,
        "gram must have 3 rows, got 12",
    ),
    "weight negative in DI": (
        lambda: discriminant_information(X, TARGETS, sample_weight=weights(w3=-1)),
        ValueError,
        "sample_weight must be non-negative",
    ),
    **{
        f"rho {rho!r} in {make.__name__}": (lambda make=make, rho=rho: make(rho), error, f"rho must be .*got {rho!r}")
        for make in (DI, LS, information)
        for rho, error in ((0, ValueError), (-1e-4, ValueError), (NAN, ValueError), (INF, ValueError), ("a", TypeError))
    },
    "rho a bool": (lambda: DI(True), TypeError, "rho must be a positive number, got True"),
    "independent a string": (lambda: CE("yes"), TypeError, "independent .*'yes'"),
    # kernels
    **{
        f"gamma {gamma!r}": (lambda gamma=gamma: RBF(gamma), error, "gamma ")
        for gamma, error in (
            (0, ValueError),
            (-1.0, ValueError),
            (NAN, ValueError),
            (INF, ValueError),
            ([1.0, -1.0], ValueError),
            ([], ValueError),
            ([[1.0]], ValueError),
            (torch.tensor([1, 2]), TypeError),
            ("scale", (TypeError, ValueError)),
            (["a"], (TypeError, ValueError)),
            (None, (TypeError, ValueError)),
        )
    },
    "gamma for other features": (
        lambda: RBF([1.0, 2.0])(X, X),
        ValueError,
        "gamma has 2 values but the data have 3 features",
    ),
    "gamma for other features in a map": (
        lambda: nystroem(RBF([1.0, 2.0])),
        ValueError,
        "gamma has 2 values .* 3 features",
    ),
    "gamma for other features in Fourier": (
        lambda: fourier(RBF([1.0, 2.0])),
        ValueError,
        "gamma has 2 values .* 3 features",
    ),
    "gamma of one feature in Fourier": (lambda: fourier(RBF([1.0])), ValueError, "gamma has 1 values .* 3 features"),
    "other features in a kernel": (lambda: RBF(1.0)(X, X[:, :2]), ValueError, "x has 3 features but .* 2"),
    "z a vector in a kernel": (lambda: RBF(1.0)(X, X[0]), ValueError, r"z must have two dimensions.*\(3,\)"),
    "z an array in a kernel": (lambda: RBF(1.0)(X, X.numpy()), TypeError, "z must be a torch.Tensor, got ndarray"),
    "kernel unknown": (lambda: make_kernel("gauss"), ValueError, "kernel must be one of 'rbf', .*; got 'gauss'"),
    "kernel None": (lambda: make_kernel(None), ValueError, "kernel must be one of 'rbf', .*; got None"),
    "nu": (lambda: Matern(1.0, nu=1.0), ValueError, "nu must be 0.5, 1.5 or 2.5; got 1.0"),
    "degree a fraction": (lambda: Polynomial(1.0, 2.5), TypeError, "degree must be a whole number.*2.5"),
    "degree zero": (lambda: Polynomial(1.0, 0), ValueError, "degree must be at least 1, got 0"),
    "coef0 negative": (lambda: Polynomial(1.0, 2, -1.0), ValueError, "coef0 .*negative.*-1.0"),
    "coef0 NaN": (lambda: Polynomial(1.0, 2, NAN), ValueError, "coef0 .*nan"),
    "coef0 a string": (lambda: Polynomial(1.0, 2, "a"), TypeError, "coef0 .*'a'"),
    # feature maps
    "landmarks an array": (
        lambda: Nystroem(X.numpy(), RBF()),
        TypeError,
        "landmarks must be a torch.Tensor, got ndarray",
    ),
    "landmarks of integers": (lambda: Nystroem(X.long(), RBF()), TypeError, "landmarks must be floating point.*int64"),
    "landmarks a vector": (lambda: Nystroem(X[0], RBF()), ValueError, r"landmarks must have two dim.*\(3,\)"),
    "landmarks empty": (lambda: Nystroem(X[:0], RBF()), ValueError, "landmarks is empty"),
    "landmarks NaN": (lambda: Nystroem(spoiled(NAN), RBF()), ValueError, "landmarks has 3 entries"),
    "kernel a name": (lambda: nystroem("rbf"), (TypeError, ValueError), "kernel must be .*'?rbf|str"),
    "rank above the landmarks": (lambda: nystroem(rank=5), ValueError, "rank must be at most .* 4; got 5"),
    "rank zero": (lambda: nystroem(rank=0), ValueError, "rank must be at least 1, got 0"),
    "rank a fraction": (lambda: nystroem(rank=2.0), TypeError, r"rank must be a whole number.*2.0 \(float\)"),
    "rank a bool": (lambda: nystroem(rank=True), TypeError, r"rank must be a whole number.*True \(bool\)"),
    "frequencies a vector": (lambda: RandomFourier(X[0], X[0]), ValueError, "frequencies must have two dimensions"),
    "phases of another shape": (
        lambda: RandomFourier(X, torch.ones(4)),
        ValueError,
        r"phases must have shape \(3,\), got \(4,\)",
    ),
    "phases a column": (lambda: RandomFourier(X, torch.ones(3, 1)), ValueError, r"phases .*\(3,\), got \(3, 1\)"),
    "phases NaN": (lambda: RandomFourier(X, spoiled(NAN, X[0])), ValueError, "phases has 1 entries"),
    "kernel not stationary": (lambda: fourier(Linear()), ValueError, "kernel must be shift-invariant.* Linear is not"),
    "kernel a name for Fourier": (lambda: fourier("rbf"), (TypeError, ValueError), "kernel must be .*str"),
    "features zero": (lambda: fourier(n_features=0), ValueError, "n_features must be at least 1, got 0"),
    "features a fraction": (lambda: fourier(n_features=3.0), TypeError, "n_features must be a whole number"),
    "components a bool": (lambda: fourier(n_components=True), TypeError, "n_components must be a whole number.*True"),
    "module a function": (lambda: ModuleMap(len), TypeError, "module must be a torch.nn.Module, got builtin"),
    **{
        f"x {what} for {make.__name__}": (lambda make=make, x=x: make()(x), error, message)
        for make in (nystroem, fourier)
        for what, x, error, message in (
            ("of other features", X[:, :2], ValueError, "x has 2 features but .* 3"),
            ("a vector", X[0], ValueError, r"x must have two dimensions.*\(3,\)"),
            ("an array", X.numpy(), TypeError, "x must be a torch.Tensor.*ndarray"),
            ("of another precision", X.double(), (TypeError, ValueError), "x .*float32.*float64|x .*float64.*float32"),
            ("of integers", X.long(), TypeError, "x must be .*int64"),
        )
    },
    # landmarks
    "x a list": (lambda: choose_landmarks([[1.0]], 1), TypeError, "x must be a torch.Tensor, got list"),
    "x NaN": (lambda: choose_landmarks(spoiled(NAN), 2), ValueError, "x has 3 entries"),
    "more landmarks than rows": (
        lambda: choose_landmarks(X, 13),
        ValueError,
        "n_components must be at most .*12; got 13",
    ),
    "no landmarks": (lambda: choose_landmarks(X, 0), ValueError, "n_components must be at least 1, got 0"),
    "landmarks a fraction": (lambda: choose_landmarks(X, 2.0), TypeError, "n_components must be a whole number.*2.0"),
    "init unknown": (lambda: choose_landmarks(X, 2, "random"), ValueError, "init must be one of 'uniform'.*'random'"),
    "weight negative in landmarks": (
        lambda: choose_landmarks(X, 2, sample_weight=weights(w3=-1)),
        ValueError,
        "sample_weight must be non-negative",
    ),
    "weight too short in landmarks": (
        lambda: choose_landmarks(X, 2, sample_weight=torch.ones(5)),
        ValueError,
        r"sample_weight must have shape \(12,\).*\(5,\)",
    ),
    # targets
    "one class": (lambda: Targets.classes([7, 7]), ValueError, "y must have at least two classes.*7"),
    "no sample": (lambda: Targets.classes([]), ValueError, r"y must be .*not empty.*\(0,\)"),
    "class matrix": (lambda: Targets.classes(np.eye(2)), ValueError, r"y must be one-dimensional.*\(2, 2\)"),
    "class NaN": (lambda: Targets.classes([0.0, NAN]), ValueError, "y has entries that are NaN"),
    "class None": (lambda: Targets.classes(["a", None]), (TypeError, ValueError), "y .*None"),
    "class NaN among strings": (
        lambda: Targets.classes(np.array(["a", NAN, "b"], dtype=object)),
        (TypeError, ValueError),
        "y .*(NaN|float)",
    ),
    "class NaN among objects": (
        lambda: Targets.classes(np.array([1, NAN, 2], dtype=object)),
        ValueError,
        "y has entries that are NaN",
    ),
    "scaling unknown": (lambda: Targets.classes(Y, "fisher"), ValueError, "scaling must be one of .*'fisher'"),
    **{
        f"class weight {what}": (
            lambda weight=weight: Targets.classes(Y, "unit", sample_weight=weight),
            ValueError,
            f"sample_weight .*{message}",
        )
        for what, weight, message in (
            ("too short", np.ones(5), r"\(12,\).*\(5,\)"),
            ("negative", weights(w0=-1).double().numpy(), "non-negative"),
            ("zero", np.zeros(12), "positive"),
            ("NaN", weights(w0=NAN).numpy(), "NaN"),
            ("zero for a class", weights(w0=0, w3=0, w6=0, w9=0).numpy(), "class"),
        )
    },
    "labels of 0, 1, 2": (lambda: Targets.labels([[0, 1], [2, 0]]), ValueError, "y must hold only zeros and ones"),
    "values of strings": (lambda: Targets.values(["1", "2"]), TypeError, "y must be numeric, got <U1"),
    "values NaN": (lambda: Targets.values([1.0, NAN]), ValueError, "y has 1 entries that are NaN"),
    "values infinite": (lambda: Targets.values([1.0, INF]), ValueError, "y has 1 entries that are NaN or infinite"),
    "values empty": (lambda: Targets.values([]), (ValueError, TypeError), "y is empty"),
    "values of three dimensions": (lambda: Targets.values(np.zeros((2, 2, 2))), ValueError, "y must have two dim"),
    # data
    "x of lists": (lambda: source(X.tolist()), TypeError, "x must be a torch.Tensor, got list"),
    "x of integers": (lambda: source(X.long()), TypeError, "x must be floating point, got torch.int64"),
    "x a vector": (lambda: source(X[:, 0]), ValueError, r"x must have a row for each sample.*\(12,\)"),
    "x without columns": (lambda: source(X[:, :0]), ValueError, r"x must .*at least one feature.*\(12, 0\)"),
    "x infinite": (lambda: source(spoiled(INF)), ValueError, "x has 3 entries"),
    "too few targets": (lambda: source(X[:5]), ValueError, "targets must have 5 rows.*got 12"),
    "targets a tensor": (lambda: source(targets=TARGETS), TypeError, "targets must be .*Targets.*Tensor"),
    "targets an array": (lambda: source(targets=np.ones((12, 1))), TypeError, "targets must be .*Targets.*ndarray"),
    "weight negative": (lambda: source(weight=weights(w3=-1)), ValueError, "sample_weight must be non-negative"),
    "weight zero": (lambda: source(weight=torch.zeros(12)), ValueError, "sample_weight .*at least one positive"),
    "weight NaN": (lambda: source(weight=weights(w3=NAN)), ValueError, "sample_weight has 1 entries"),
    "weight too short": (lambda: source(weight=torch.ones(5)), ValueError, r"sample_weight .*\(12,\).*\(5,\)"),
    "weight a column": (lambda: source(weight=torch.ones(12, 1)), ValueError, r"sample_weight .*\(12,\).*\(12, 1\)"),
    "weight a list": (lambda: source(weight=[1.0] * 12), TypeError, "sample_weight must be a torch.Tensor, got list"),
    "weight of integers": (lambda: source(weight=torch.ones(12).long()), TypeError, "sample_weight .*floating point"),
    "batch of no rows": (lambda: next(source().batches(0)), ValueError, "size must be at least 1, got 0"),
    "batch of half a row": (lambda: next(source().batches(0.5)), TypeError, "size must be a whole number.*0.5"),
    "sparse too few targets": (
        lambda: SparseSource(sparse.eye_array(5).tocsr(), Targets.classes(Y)),
        ValueError,
        "targets must have 5 rows.*got 12",
    ),
    "sparse NaN": (
        lambda: SparseSource(sparse.csr_array(spoiled(NAN).numpy()), Targets.classes(Y)),
        ValueError,
        "x has 3 entries that are NaN",
    ),
    "sparse of integers": (
        lambda: SparseSource(sparse.csr_array(np.eye(12, dtype=int)), Targets.classes(Y)),
        TypeError,
        "x must be floating point.*int",
    ),
    "sparse but dense": (lambda: SparseSource(X.numpy(), Targets.classes(Y)), TypeError, "x must be .*sparse.*ndarray"),
    "sparse by columns": (
        lambda: SparseSource(sparse.csc_array(X.numpy()), Targets.classes(Y)),
        TypeError,
        "x must be a scipy.sparse CSR .*got csc_array",
    ),
    # settings
    **{
        f"{name} {value!r}": (lambda name=name, value=value: Trainer(**{name: value}), error, f"{name} must .*got ")
        for name, value, error in (
            ("max_epochs", 0, ValueError),
            ("max_epochs", 2.0, TypeError),
            ("max_epochs", True, TypeError),
            ("max_epochs", "paper", ValueError),
            ("max_epochs", None, TypeError),
            ("batch_size", 0, ValueError),
            ("batch_size", 10.0, TypeError),
            ("batch_size", True, TypeError),
            ("batch_size", "full", ValueError),
            ("learning_rate", 0, ValueError),
            ("learning_rate", -0.1, ValueError),
            ("learning_rate", NAN, ValueError),
            ("learning_rate", "0.1", TypeError),
            ("relative", "yes", TypeError),
            ("schedule", "step", ValueError),
            ("schedule", None, ValueError),
            ("warmup", -0.1, ValueError),
            ("warmup", 1, ValueError),
            ("warmup", NAN, ValueError),
            ("warmup", "0.1", TypeError),
            ("tol", 0, ValueError),
            ("tol", INF, ValueError),
            ("patience", 0, ValueError),
            ("patience", 1.5, TypeError),
        )
    },
    "setting unknown": (lambda: Trainer().set_params(momentum=0.9), (TypeError, ValueError), "momentum"),
    "setting unknown to the paper": (lambda: Trainer.paper(momentum=0.9), TypeError, "momentum"),
    # training
    "map a module": (lambda: epochs(nn.Linear(3, 2)), TypeError, "feature_map must be .*FeatureMap.*Linear"),
    "map without parameters": (lambda: epochs(ModuleMap(nn.Identity())), ValueError, "feature map has no trainable"),
    "map frozen": (lambda: epochs(nystroem().requires_grad_(False)), ValueError, "feature map has no trainable"),
    "map for other features": (lambda: epochs(fourier(n_features=2)), ValueError, "x has 3 features but .* 2"),
    "map of another precision": (lambda: epochs(nystroem().double()), (TypeError, ValueError), "float32|float64"),
    "map that returns no rows": (lambda: epochs(ModuleMap(Flat())), ValueError, "feature map's output .*two dim"),
    "criterion a class": (lambda: epochs(criterion=DI), TypeError, "criterion must be .*Criterion.*DI"),
    "criterion a name": (lambda: epochs(criterion="DI"), TypeError, "criterion must be .*Criterion.*(DI|str)"),
    "source a tensor": (lambda: Trainer(1).epochs(nystroem(), DI(), X), TypeError, "source must be .*Source.*"),
    "seed a string": (lambda: epochs(seed="one"), TypeError, "seed must be a whole number.*'one'"),
    "seed a fraction": (lambda: epochs(seed=1.5), TypeError, "seed must be a whole number.*1.5"),
}


@pytest.mark.parametrize("case", CASES)
def test_is_refused(case):
    call, error, message = CASES[case]
    with pytest.raises(error, match=message):
        call()


def test_a_refused_run_changes_neither_map_nor_criterion():
    feature_map, criterion = nystroem().requires_grad_(False), CE()
    before = feature_map.landmarks.clone()
    with pytest.raises(ValueError, match="no trainable parameters"):
        epochs(feature_map, criterion)
    assert torch.equal(feature_map.landmarks, before)
    assert list(criterion.parameters()) == []
