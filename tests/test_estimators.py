"""The estimators as scikit-learn's users meet them: its contract, and what its own checks leave out."""

import inspect

import joblib
import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from scipy import sparse
from sklearn.base import BaseEstimator, clone
from sklearn.datasets import load_diabetes, load_digits, load_iris, make_moons
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.kernel_approximation import Nystroem as RandomNystroem
from sklearn.kernel_approximation import RBFSampler
from sklearn.linear_model import LogisticRegression
from sklearn.linear_model import Ridge as SklearnRidge
from sklearn.metrics import log_loss
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils import estimator_html_repr
from sklearn.utils.estimator_checks import parametrize_with_checks
from torch import nn

import discernel.estimators
from discernel import (
    DI,
    RBF,
    ArraySource,
    DiscernelClassifier,
    DiscernelRegressor,
    KernelDCA,
    LearnedFastfood,
    LearnedFeatures,
    LearnedFourier,
    LearnedNystroem,
    Linear,
    Matern,
    Nystroem,
    Targets,
    Trainer,
    moments_over,
)
from discernel.bandwidth import median_gamma
from discernel.estimators.gamma import gamma_from_data
from discernel.estimators.learned import LearnedMap
from discernel.kernels import KERNELS

EPOCHS = 5
PUBLIC = [getattr(discernel.estimators, name) for name in discernel.estimators.__all__]
PUBLIC = [each for each in PUBLIC if inspect.isclass(each) and issubclass(each, BaseEstimator)]
LEARNED = [each for each in PUBLIC if "trainer" in inspect.signature(each).parameters]
MAPS = [each for each in LEARNED if issubclass(each, LearnedMap)]

X, Y = load_iris(return_X_y=True)
X = (X - X.mean(0)) / X.std(0)
Z = np.column_stack([np.sin(X[:, 0]) + X[:, 1], X[:, 2] * X[:, 3], Y])  # to be regressed on X
LABELS = np.column_stack([Y == 0, Y > 0, X[:, 0] > 0]).astype(int)
NAMES = ["sepal length", "sepal width", "petal length", "petal width"]


def short():
    return Trainer(max_epochs=EPOCHS)


def small(estimator, **params):
    """Return an instance that trains for a moment; of three components, where it has that many to choose."""
    known = inspect.signature(estimator).parameters
    if "trainer" in known:
        params = {"trainer": short(), "n_components": 3} | params
    return estimator(**{name: value for name, value in params.items() if name in known})


def seeded(estimator, **params):
    return small(estimator, random_state=0, **params)


each_public = pytest.mark.parametrize("estimator", PUBLIC, ids=lambda each: each.__name__)
each_learned = pytest.mark.parametrize("estimator", LEARNED, ids=lambda each: each.__name__)
each_map = pytest.mark.parametrize("estimator", MAPS, ids=lambda each: each.__name__)


@pytest.mark.parametrize("estimator", PUBLIC)
def test_what_is_not_fitted_says_so(estimator):
    model = small(estimator)
    for method in ("transform", "predict", "predict_proba", "decision_function"):
        if hasattr(model, method):
            with pytest.raises(NotFittedError, match=f"This {estimator.__name__} instance is not fitted yet"):
                getattr(model, method)(X)


@pytest.mark.parametrize("module", [nn.Identity(), nn.BatchNorm1d(4, affine=False)])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_modules_without_parameters_keep_the_precision(module, dtype):
    x = X.astype(dtype)
    features = LearnedFeatures(module, criterion=None).fit(x).transform(x)
    assert features.dtype == dtype
    np.testing.assert_allclose(features, x, rtol=1e-5 if module._buffers else 0)


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    return train_test_split((x / 16).astype(np.float32), y, random_state=0, stratify=y)


# scikit-learn's contract


@parametrize_with_checks(
    [
        *(small(each) for each in PUBLIC if each is not DiscernelRegressor),
        small(DiscernelRegressor, trainer=Trainer(max_epochs=20)),  # a check wants half of the variance explained
        small(LearnedNystroem, criterion=None),
        small(LearnedFourier, criterion=None),
        small(DiscernelClassifier, feature_map="fourier"),
        small(DiscernelClassifier, head=LogisticRegression()),
    ]
)
def test_scikit_learns_checks(estimator, check):
    np.random.seed(0)  # noqa: NPY002 - some checks leave random_state at None, which means this generator
    check(estimator)


def test_there_are_estimators_to_check():
    assert {"DiscernelClassifier", "DiscernelRegressor", "LearnedNystroem"} <= {each.__name__ for each in PUBLIC}
    assert len(LEARNED) >= 5


@pytest.mark.parametrize("head", ["svm", "softmax"])
def test_integer_weights_are_repeated_rows_to_iterative_heads(head):
    weight = np.random.default_rng(0).integers(0, 4, len(X))
    weighted = seeded(DiscernelClassifier, head=head).fit(X, Y, weight)
    repeated = seeded(DiscernelClassifier, head=head).fit(X.repeat(weight, 0), Y.repeat(weight))
    np.testing.assert_allclose(weighted.predict_proba(X), repeated.predict_proba(X), atol=2e-3)


# output and names


@each_public
@pytest.mark.parametrize(("container", "frame"), [("pandas", pd.DataFrame), ("polars", pl.DataFrame)])
def test_set_output(estimator, container, frame):
    model = seeded(estimator).fit(X, Y)
    plain = model.transform(X)
    framed = model.set_output(transform=container).transform(X)
    assert isinstance(framed, frame)
    assert list(framed.columns) == list(model.get_feature_names_out())
    np.testing.assert_array_equal(framed.to_numpy(), plain)


@each_public
def test_feature_names_out_are_numbered(estimator):
    model = seeded(estimator).fit(X, Y)
    prefix, width = estimator.__name__.lower(), model.transform(X).shape[1]
    assert list(model.get_feature_names_out()) == [f"{prefix}{i}" for i in range(width)]


@each_public
def test_columns_have_to_keep_their_names(estimator):
    frame = pd.DataFrame(X, columns=NAMES)
    model = seeded(estimator).fit(frame, Y)
    assert list(model.feature_names_in_) == NAMES
    with pytest.raises(ValueError, match="feature names should match"):
        model.transform(frame[NAMES[::-1]])
    with pytest.raises(ValueError, match="feature names should match"):
        model.transform(frame.rename(columns={NAMES[0]: "another"}))
    with pytest.raises(ValueError, match="feature names should match"):
        model.transform(frame[NAMES[:3]])
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        model.transform(X)


def test_the_inner_transformer_knows_the_names():
    frame = pd.DataFrame(X, columns=NAMES)
    model = seeded(DiscernelClassifier).fit(frame, Y)
    np.testing.assert_array_equal(model.transformer_.transform(frame), model.transform(frame))


# what goes in


def containers(directory):
    np.save(directory / "x.npy", X)
    frame = pd.DataFrame(X, columns=NAMES)
    return {
        "columns together": np.asfortranarray(X),
        "backwards": X[::-1, ::-1].copy()[::-1, ::-1],
        "read-only file": np.load(directory / "x.npy", mmap_mode="r"),
        "list": X.tolist(),
        "pandas": frame,
        "polars": pl.DataFrame(X, schema=NAMES),
        "CSR array": sparse.csr_array(X),
        "CSR matrix": sparse.csr_matrix(X),
        "CSC array": sparse.csc_array(X),
    }


@each_learned
def test_the_container_does_not_matter(estimator, tmp_path):
    expected = seeded(estimator).fit(X, Y)
    for name, x in containers(tmp_path).items():
        model = seeded(estimator).fit(x, pd.Series(Y) if name == "pandas" else Y)
        np.testing.assert_allclose(model.transform(x), expected.transform(X), atol=1e-9, err_msg=name)
        if hasattr(expected, "predict"):
            np.testing.assert_allclose(model.predict(x), expected.predict(X), atol=1e-9, err_msg=name)


@each_learned
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_precision_is_kept(estimator, dtype):
    x = X.astype(dtype)
    model = seeded(estimator).fit(x, Y)
    for method in ("transform", "decision_function", "predict_proba"):
        if hasattr(model, method):
            assert getattr(model, method)(x).dtype == dtype
    inner = getattr(model, "transformer_", model).feature_map_
    assert {p.dtype for p in inner.parameters()} == {torch.from_numpy(x).dtype}
    other = np.float64 if dtype == np.float32 else np.float32
    assert model.transform(x.astype(other)).dtype == other
    np.testing.assert_allclose(model.transform(x.astype(other)), model.transform(x), atol=1e-4)


@each_learned
def test_integers_are_data(estimator):
    x = np.round(3 * X).astype(int)
    np.testing.assert_allclose(
        seeded(estimator).fit(x, Y).transform(x), seeded(estimator).fit(x.astype(float), Y).transform(x)
    )


@each_learned
def test_the_same_seed_gives_the_same_bits_and_leaves_torchs_alone(estimator):
    before = torch.get_rng_state()
    first, second = (seeded(estimator).fit(X, Y).transform(X) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_transformer_without_a_seed_gets_that_of_the_classifier():
    maps = [
        DiscernelClassifier(feature_map=small(LearnedNystroem), random_state=seed).fit(X, Y).transformer_.components_
        for seed in (0, 0, 1)
    ]
    np.testing.assert_array_equal(maps[0], maps[1])
    assert not np.array_equal(maps[0], maps[2])


# parameters


BAD = [
    ({"gamma": "auto"}, ValueError, "gamma must be one of .*'auto'"),
    ({"gamma": -1.0}, ValueError, "gamma must be a positive number"),
    ({"gamma": None}, TypeError, "gamma must be made of numbers, got None"),
    ({"gamma": [1.0, 2.0]}, ValueError, "gamma has 2 values but the data have 4 features"),
    ({"kernel": "gauss"}, ValueError, "kernel must be one of .*'gauss'"),
    ({"kernel": 3}, ValueError, "kernel must be one of .*3"),
    ({"init": "random"}, ValueError, "init must be one of .*'random'"),
    ({"criterion": "mse"}, ValueError, "criterion must be one of .*'mse'"),
    ({"criterion": DI()}, ValueError, r"criterion must be one of .*DI\(\)"),
    ({"n_components": 0}, ValueError, "n_components must be at least 1"),
    ({"n_components": 2.5}, TypeError, "n_components must be a whole number"),
    ({"rho": 0}, ValueError, "rho must be positive"),
    ({"rho": "small"}, TypeError, "rho must be a positive number"),
    ({"trainer": "fast"}, TypeError, "trainer must be a discernel.Trainer, got str"),
    ({"trainer": Trainer}, TypeError, "trainer must be a discernel.Trainer, got the class"),
    ({"device": "abacus"}, ValueError, "device must be the name of a torch device, got 'abacus'"),
    ({"device": 1.5}, ValueError, "device must be the name of a torch device, got 1.5"),
    ({"module": 3}, TypeError, "module must be a torch.nn.Module, got int"),
    ({"head": "lda"}, ValueError, "head must be one of .*'lda'"),
    ({"head": 3}, TypeError, "head must be .*3"),
    ({"head": LinearSVC}, TypeError, "head must be .*LinearSVC"),
    ({"feature_map": "rff"}, ValueError, "feature_map must be one of .*'rff'"),
    ({"feature_map": 3}, TypeError, "feature_map must be .*int"),
    ({"feature_map": LearnedNystroem(rho=-1)}, ValueError, "rho must be positive"),
    ({"alpha": -1.0}, ValueError, "alpha must be positive"),
    ({"alpha": "cv", "head": "ridge"}, ValueError, "alpha must be one of 'gcv'; got 'cv'"),
    ({"alpha": True}, TypeError, "alpha must be a positive number, got True"),
    ({"early_stopping": "yes"}, TypeError, "early_stopping must be True or False"),
    ({"warm_start": 1}, TypeError, "warm_start must be True or False"),
    ({"validation_fraction": 1.0}, ValueError, "validation_fraction must be between 0 and 1, got 1.0"),
    ({"validation_fraction": "0.1"}, TypeError, "validation_fraction must be a number"),
    ({"n_iter_no_change": 0}, ValueError, "n_iter_no_change must be at least 1"),
]


@pytest.mark.parametrize(
    ("estimator", "params", "error", "message"),
    [
        pytest.param(each, *case, id=f"{each.__name__}-{case[0]}")
        for each in LEARNED
        for case in BAD
        if set(case[0]) <= set(inspect.signature(each).parameters)
    ],
)
def test_bad_parameters_are_refused_by_name(estimator, params, error, message):
    model = small(estimator, **params)  # not in the constructor, but in fit
    with pytest.raises(error, match=message):
        model.fit(X, Y)
    assert not hasattr(model, "history_")


@pytest.mark.parametrize(
    ("model", "y", "error", "message"),
    [
        (LearnedFourier(gamma="learn"), Y, ValueError, "gamma must be one of 'scale', 'median', 'cv'; got 'learn'"),
        (LearnedFastfood(kernel="laplacian"), Y, ValueError, "Fastfood features need a radial kernel"),
        (LearnedFourier(kernel="linear"), Y, ValueError, "kernel must be shift-invariant"),
        (LearnedFourier(kernel=Linear()), Y, ValueError, "kernel must be shift-invariant"),
        (LearnedNystroem(gamma="cv"), Z, ValueError, 'gamma="cv" needs a class for each row'),
        (LearnedNystroem(gamma="cv"), LABELS, ValueError, 'gamma="cv" needs a class for each row'),
        (DiscernelRegressor(gamma="cv"), Y, ValueError, 'gamma="cv" needs a class for each row'),
        (LearnedNystroem(criterion="ce"), Z, ValueError, 'criterion="ce" is for classes'),
        (LearnedNystroem(), None, ValueError, "requires y to be passed"),
        (LearnedNystroem(criterion=None, gamma="cv"), None, ValueError, "requires y to be passed"),
        (DiscernelClassifier(head="svm", alpha="gcv"), Y, TypeError, "alpha must be a positive number, got 'gcv'"),
        (DiscernelClassifier(), Z, ValueError, "Unknown label type: continuous"),
        (DiscernelClassifier(), np.column_stack([Y, Y]), ValueError, "y should be a 1d array"),
        (DiscernelClassifier(), np.zeros(len(X)), ValueError, "y must have at least two classes"),
        (DiscernelClassifier(class_weight="heavy"), Y, ValueError, "class_weight"),
        (DiscernelClassifier(early_stopping=True), Y[::-1] + np.eye(150)[0] * 9, ValueError, "validation_fraction=0.1"),
        (DiscernelRegressor(head="svm"), Y, ValueError, "head must be one of 'ridge'"),
        (
            DiscernelRegressor(head=LinearSVC()),
            Y,
            TypeError,
            r"head must be .* a scikit-learn regressor, got LinearSVC",
        ),
        (
            DiscernelClassifier(head=SklearnRidge()),
            Y,
            TypeError,
            r"head must be .* a scikit-learn classifier, got Ridge",
        ),
        (LearnedFeatures(nn.Identity()), Y, ValueError, "no trainable parameters"),
    ],
)
def test_what_does_not_go_together_is_refused(model, y, error, message):
    with pytest.raises(error, match=message):
        model.fit(X, y)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_missing_gpu_is_refused_in_fit_and_done_without_later():
    model = seeded(LearnedNystroem)
    with pytest.raises(ValueError, match="device is 'cuda', but torch finds no GPU"):
        clone(model).set_params(device="cuda").fit(X, Y)
    model.fit(X, Y)
    before = model.transform(X)
    np.testing.assert_array_equal(model.set_params(device="cuda").transform(X), before)


@pytest.mark.parametrize("weight", [np.zeros(150), -np.ones(150)], ids=["zero", "negative"])
@each_learned
def test_bad_weights_are_refused(estimator, weight):
    with pytest.raises(ValueError, match=r"[sS]ample.weight"):
        seeded(estimator).fit(X, Y, sample_weight=weight)


@each_learned
def test_too_many_components_are_reduced_with_a_warning(estimator):
    if estimator in (LearnedFourier, LearnedFastfood, LearnedFeatures):
        pytest.skip("has any number of features")
    with pytest.warns(UserWarning, match="n_components is 50, but there are 5 distinct rows"):
        model = seeded(estimator, n_components=50).fit(X[:5].repeat(3, 0), np.arange(5).repeat(3) % 2)
    assert model.n_components == 50
    assert model.transform(X).shape[1] <= 5


# tools


@each_public
def test_clones_and_joblib(estimator, tmp_path):
    model = seeded(estimator).fit(X, Y)
    fresh = clone(model)
    assert repr(fresh) == repr(model)
    assert not hasattr(fresh, "n_features_in_")
    joblib.dump(model, tmp_path / "model.joblib")
    again = joblib.load(tmp_path / "model.joblib")
    np.testing.assert_array_equal(again.transform(X), model.transform(X))
    if hasattr(model, "predict"):
        np.testing.assert_array_equal(again.predict(X), model.predict(X))


@each_public
def test_representations(estimator):
    assert repr(estimator()) == f"{estimator.__name__}()"
    assert len(repr(small(estimator))) < 700
    for model in (small(estimator), seeded(estimator).fit(X, Y)):
        assert estimator.__name__ in estimator_html_repr(model)


@each_learned
def test_parameters_are_left_as_they_are(estimator):
    given = {"trainer": Trainer(max_epochs=2), "kernel": RBF(0.3), "gamma": np.full(4, 0.3), "n_components": 4}
    if estimator is LearnedFeatures:
        given = {"trainer": Trainer(max_epochs=2), "module": nn.Linear(4, 3)}
    given = {name: value for name, value in given.items() if name in inspect.signature(estimator).parameters}
    model = estimator(**given, random_state=0)
    copies = joblib.hash(given)
    model.fit(X, Y)
    assert all(getattr(model, name) is value for name, value in given.items())
    assert joblib.hash(given) == copies


def test_grid_search_reaches_into_the_trainer():
    grid = {"trainer__max_epochs": [1, 3], "n_components": [2, 4]}
    search = GridSearchCV(small(DiscernelClassifier, random_state=0), grid, cv=2, error_score="raise").fit(X, Y)
    assert set(search.best_params_) == set(grid)
    assert search.best_estimator_.n_iter_ == search.best_params_["trainer__max_epochs"]


def test_pipelines_and_nested_parameters():
    pipeline = make_pipeline(StandardScaler(), seeded(LearnedNystroem), LogisticRegression())
    assert pipeline.fit(X, Y).score(X, Y) > 0.9
    model = DiscernelClassifier(feature_map=seeded(LearnedNystroem), head=LogisticRegression())
    model.set_params(feature_map__n_components=5, feature_map__trainer__max_epochs=2, head__C=10.0)
    assert model.fit(X, Y).transform(X).shape == (150, 5)
    assert model.head_.C == 10.0
    assert model.n_iter_ == 2


@each_learned
def test_verbose_shows_progress(estimator, capsys):
    seeded(estimator).fit(X, Y)
    assert capsys.readouterr() == ("", "")
    seeded(estimator, verbose=True, early_stopping=True).fit(X, Y)
    out, err = capsys.readouterr()
    assert "Learned" in out
    assert f"epoch {EPOCHS}/{EPOCHS} criterion" in out
    assert "left 00:00" in out
    with_head = "early_stopping" in inspect.signature(estimator).parameters
    assert ("score" in out) == ("fitting the head" in out) == with_head
    assert err == ""


# maps


def test_untrained_nystroem_features_are_scikit_learns():
    model = LearnedNystroem(10, criterion=None, gamma=0.3, random_state=0).fit(X)
    reference = RandomNystroem(gamma=0.3, n_components=10).fit(model.components_)
    assert model.n_iter_ == 0
    assert model.history_ == []
    assert {tuple(row) for row in model.components_} <= {tuple(row) for row in X}
    phi, expected = model.transform(X), reference.transform(X)
    np.testing.assert_allclose(phi @ phi.T, expected @ expected.T, atol=1e-9)
    np.testing.assert_allclose(phi, rbf_kernel(X, model.components_, 0.3) @ model.normalization_, atol=1e-9)


def test_untrained_fourier_features_are_scikit_learns():
    model = LearnedFourier(4000, criterion=None, gamma=0.3, random_state=0).fit(X)
    reference = RBFSampler(gamma=0.3, n_components=4000).fit(X)
    reference.random_weights_, reference.random_offset_ = model.random_weights_, model.random_offset_
    phi = model.transform(X)
    np.testing.assert_allclose(phi, reference.transform(X), atol=1e-9)
    np.testing.assert_allclose(phi @ phi.T, rbf_kernel(X, gamma=0.3), atol=0.1)


def test_without_a_criterion_targets_are_not_looked_at():
    model = LearnedNystroem(5, criterion=None, random_state=0)
    expected = model.fit(X).transform(X)
    np.testing.assert_array_equal(model.fit(X, np.full(150, np.nan)).transform(X), expected)


def test_kmeans_landmarks_are_closer_to_the_data():
    def error(init):
        model = LearnedNystroem(5, criterion=None, init=init, random_state=0).fit(X)
        return ((X[:, None] - model.components_) ** 2).sum(2).min(1).mean()

    assert error("kmeans") < error("uniform")


@pytest.mark.parametrize("criterion", ["di", "ls", "ce"])
@pytest.mark.parametrize("estimator", [LearnedNystroem, LearnedFourier])
def test_training_raises_the_discriminant_information(estimator, criterion):
    def information(**params):
        model = estimator(5, gamma=0.3, random_state=0, **params).fit(X, Y)
        source = ArraySource(torch.from_numpy(X), Targets.classes(Y))
        return moments_over(source, model.feature_map_).discriminant_information(1e-4, model.feature_map_.gram())

    trained = information(criterion=criterion, trainer=Trainer(max_epochs=30))
    assert trained > information(criterion=None) + 2


def test_gamma_rules():
    def gamma(rule, **params):
        return LearnedNystroem(5, gamma=rule, trainer=short(), random_state=0, **params).fit(X, Y).gamma_

    scale = 1 / (4 * X.var())
    assert gamma("scale") == pytest.approx(scale)
    distances = ((X[:, None] - X) ** 2).sum(2)
    assert gamma("median") == pytest.approx(1 / np.median(distances), rel=0.2)
    assert np.log2(gamma("cv") / scale) == pytest.approx(np.round(np.log2(gamma("cv") / scale)))
    assert gamma("cv") == gamma("cv", criterion=None)
    assert gamma(0.25) == pytest.approx(0.25)
    np.testing.assert_allclose(gamma([0.1, 0.2, 0.3, 0.4]), [0.1, 0.2, 0.3, 0.4])
    learned = gamma("learn")
    assert learned.shape == (4,)
    assert not np.allclose(learned, scale)
    assert isinstance(gamma("scale"), float)


def test_a_kernel_brings_its_own_gamma():
    fixed = LearnedNystroem(5, kernel=Matern(0.7, nu=2.5), trainer=short(), random_state=0).fit(X, Y)
    assert fixed.gamma_ == pytest.approx(0.7)
    learned = LearnedNystroem(5, kernel=RBF(0.7, trainable=True), trainer=short(), random_state=0).fit(X, Y)
    assert isinstance(learned.gamma_, float)
    assert learned.gamma_ != pytest.approx(0.7)


@pytest.mark.parametrize("rule", ["scale", "median"])
def test_gamma_knows_weights_as_repeated_rows(rule):
    weight = np.random.default_rng(0).integers(0, 4, 150)
    x = torch.from_numpy(X)
    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    weighted = gamma_from_data(rule, x, None, torch.from_numpy(weight).double(), generators[0])
    repeated = gamma_from_data(rule, torch.from_numpy(X.repeat(weight, 0)), None, None, generators[1])
    assert weighted == pytest.approx(repeated)


def test_gamma_of_data_that_do_not_vary():
    ones = torch.ones(20, 3)
    for rule in ("scale", "median"):
        assert gamma_from_data(rule, ones, None, None, torch.Generator()) == pytest.approx(1 / 3)


@pytest.mark.parametrize("rule", ["scale", "median", "cv"])
@pytest.mark.parametrize("kernel", KERNELS)
def test_rules_do_not_depend_on_the_units_of_the_data(kernel, rule):
    model = KernelDCA(kernel=kernel, gamma=rule, random_state=0)
    information = [model.fit(unit * X, Y).discriminant_information_ for unit in (1.0, 1e-3, 1e4)]
    assert information == pytest.approx([information[0]] * 3, rel=0.02 if rule == "median" else 1e-6)  # of other pairs


@pytest.mark.parametrize("kernel", KERNELS)
def test_learning_starts_from_the_same_kernel_in_all_units(kernel):
    untrained = LearnedNystroem(5, kernel=kernel, gamma="learn", criterion=None, random_state=0)
    one, other = (clone(untrained).fit(unit * X, Y).gamma_ for unit in (1.0, 1e4))
    np.testing.assert_allclose(other * 1e4 ** KERNELS[kernel].power, one)


def test_rules_for_the_laplacian_kernel_are_of_its_own_distances():
    x = torch.tensor([[0.0, 0.0], [3.0, 1.0]])
    assert median_gamma(x, torch.tensor([0, 1]), power=1) == 1 / 4
    scale = gamma_from_data("scale", x, None, None, torch.Generator(), "laplacian")
    assert scale == pytest.approx(1 / (2 * x.std(correction=0).item()))


def test_cross_validation_is_of_the_kernel_itself():
    found = {name: KernelDCA(kernel=name, gamma="cv", random_state=0).fit(X, Y).gamma_ for name in KERNELS}
    assert found["matern"] == found["cauchy"] == found["rbf"]  # for which gamma means the same
    assert len(set(found.values())) == 4


def test_cross_validated_gamma_prefers_what_separates():
    x, y = make_moons(150, noise=0.05, random_state=0)
    generator = torch.Generator().manual_seed(0)
    scale = gamma_from_data("scale", torch.from_numpy(x), y, None, generator)
    weight = torch.from_numpy(np.where(x[:, 0] > 0, 1.0, 2.0))
    for given in (None, weight):
        assert gamma_from_data("cv", torch.from_numpy(x), y, given, generator) >= scale / 2


@each_map
@pytest.mark.parametrize("y", [Y, Y.astype(str), LABELS, Z, Z[:, 0]], ids=["classes", "names", "labels", "many", "one"])
def test_all_kinds_of_targets_train_a_map(estimator, y):
    model = seeded(estimator).fit(X, y)
    assert np.isfinite(model.transform(X)).all()
    assert len(model.history_) == model.n_iter_ == EPOCHS
    assert model.history_[-1].criterion > model.history_[0].criterion


def test_modules_are_evaluated_as_modules_should_be():
    module = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 5), nn.Dropout(0.5), nn.Tanh())
    model = LearnedFeatures(module, trainer=short(), random_state=0).fit(X, Y)
    np.testing.assert_array_equal(model.transform(X), model.transform(X))
    np.testing.assert_allclose(model.transform(X[:1]), model.transform(X)[:1], atol=1e-6)
    assert module.training
    assert module[0].num_batches_tracked == 0
    assert DiscernelClassifier(feature_map=model, early_stopping=True).fit(X, Y).score(X, Y) > 0.5


def test_a_module_does_not_learn_from_the_rows_that_the_penalty_is_chosen_by():
    def statistics(rho):
        module = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 5))
        return LearnedFeatures(module, rho=rho, trainer=short(), random_state=0).fit(X, Z).feature_map_.state_dict()

    given, chosen = statistics(1e-3), statistics("auto")
    names = [name for name in given if name.endswith(("running_mean", "running_var", "num_batches_tracked"))]
    assert len(names) == 3
    assert all(torch.equal(given[name], chosen[name]) for name in names)


@pytest.mark.parametrize("criterion", ["di", "ls"])
def test_a_module_learns_from_its_mini_batches_alone(criterion):
    module = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh())
    trainer = Trainer(max_epochs=3, batch_size=50)
    model = LearnedFeatures(module, criterion=criterion, trainer=trainer, random_state=0).fit(X, Y)
    assert model.feature_map_.module[1].num_batches_tracked == 9


def test_a_module_without_parameters_only_transforms():
    model = LearnedFeatures(nn.Tanh(), criterion=None).fit(X)
    np.testing.assert_allclose(model.transform(X), np.tanh(X), atol=1e-6)


# classifier


def test_digits(digits):
    x_train, x_test, y_train, y_test = digits
    model = DiscernelClassifier(n_components=50, head="ridge", random_state=0).fit(x_train, y_train)
    assert model.score(x_test, y_test) > 0.95
    assert model.n_iter_ == len(model.history_) > 1
    random = LearnedNystroem(50, criterion=None, random_state=0)
    untrained = DiscernelClassifier(feature_map=random, head="ridge").fit(x_train, y_train)
    assert model.score(x_test, y_test) > untrained.score(x_test, y_test)


@pytest.mark.parametrize("head", ["ridge", "svm", "softmax"])
def test_probabilities_are_calibrated(head, digits):
    x_train, x_test, y_train, y_test = digits
    model = DiscernelClassifier(50, head=head, trainer=Trainer(max_epochs=20), random_state=0).fit(x_train, y_train)
    probabilities = model.predict_proba(x_test)
    np.testing.assert_allclose(probabilities.sum(1), 1, atol=1e-5)
    np.testing.assert_array_equal(probabilities.argmax(1), model.decision_function(x_test).argmax(1))
    raw = torch.from_numpy(model.decision_function(x_test)).softmax(1).numpy()
    assert log_loss(y_test, probabilities) < 0.15
    assert log_loss(y_test, probabilities) <= log_loss(y_test, raw) + 1e-6


@pytest.mark.parametrize("head", ["ridge", "svm", "softmax", LogisticRegression()])
@pytest.mark.parametrize("feature_map", ["nystroem", "fourier"])
def test_shapes_and_scores_of_two_and_three_classes(head, feature_map):
    for names, shape in (("ab", (150,)), ("abc", (150, 3))):
        y = np.array(list(names))[np.minimum(Y, len(names) - 1)]
        model = DiscernelClassifier(10, head=head, feature_map=feature_map, trainer=short(), random_state=0).fit(X, y)
        assert list(model.classes_) == list(names)
        assert model.decision_function(X).shape == shape
        assert model.predict_proba(X).shape == (150, len(names))
        assert set(model.predict(X)) == set(names)
        assert model.score(X, y) > 0.9
    with pytest.raises(ValueError, match="expecting 4 features"):
        model.predict(X[:, :2])


@pytest.mark.parametrize("head", ["ridge", "svm", "softmax"])
def test_labels(head):
    model = DiscernelClassifier(10, head=head, trainer=short(), random_state=0).fit(X, LABELS)
    assert model.predict(X).shape == model.decision_function(X).shape == LABELS.shape
    assert (model.predict(X) == LABELS).mean() > 0.95
    probabilities = model.predict_proba(X)
    assert ((probabilities > 0) & (probabilities < 1)).all()
    np.testing.assert_array_equal(probabilities > 0.5, model.predict(X) == 1)
    again = clone(model).fit(X, sparse.csr_array(LABELS))
    np.testing.assert_array_equal(again.predict_proba(X), probabilities)


def test_any_classifier_is_a_head():
    forest = seeded(DiscernelClassifier, head=RandomForestClassifier(10, random_state=0)).fit(X, Y)
    assert forest.score(X, Y) > 0.9
    np.testing.assert_allclose(forest.predict_proba(X).sum(1), 1)
    np.testing.assert_array_equal(forest.predict(X), forest.head_.predict(forest.transform(X)))
    assert not hasattr(forest, "decision_function")
    assert not hasattr(DiscernelClassifier(head=LinearSVC()), "predict_proba")
    assert hasattr(DiscernelClassifier(), "predict_proba")


def test_a_head_without_weights_is_refused_them():
    model = seeded(DiscernelClassifier, head=KNeighborsClassifier())
    assert model.fit(X, Y).score(X, Y) > 0.9
    with pytest.raises(TypeError, match="KNeighborsClassifier takes no sample_weight"):
        model.fit(X, Y, sample_weight=np.ones(150))
    with pytest.raises(TypeError, match="KNeighborsClassifier takes no sample_weight"):
        model.set_params(class_weight="balanced").fit(X, Y)


@pytest.mark.parametrize("head", ["ridge", LogisticRegression()])
def test_class_weights_are_sample_weights(head):
    by_class = {0: 1.0, 1: 3.0, 2: 0.5}
    weight = np.array([by_class[label] for label in Y])
    expected = seeded(DiscernelClassifier, head=head).fit(X, Y, weight).decision_function(X)
    model = seeded(DiscernelClassifier, head=head, class_weight=by_class).fit(X, Y)
    np.testing.assert_allclose(model.decision_function(X), expected)
    x, y = X[20:], Y[20:]
    balanced = seeded(DiscernelClassifier, head=head, class_weight="balanced").fit(x, y).decision_function(x)
    weight = (130 / 3 / np.bincount(y))[y]
    np.testing.assert_allclose(seeded(DiscernelClassifier, head=head).fit(x, y, weight).decision_function(x), balanced)
    both = seeded(DiscernelClassifier, head=head, class_weight="balanced").fit(x, y, weight).decision_function(x)
    np.testing.assert_allclose(seeded(DiscernelClassifier, head=head).fit(x, y, weight**2).decision_function(x), both)


def test_weights_change_what_is_learned():
    plain = seeded(DiscernelClassifier).fit(X, Y)
    weighted = seeded(DiscernelClassifier).fit(X, Y, np.where(Y == 2, 10.0, 1.0))
    assert (weighted.predict(X) == 2).sum() > (plain.predict(X) == 2).sum()
    assert not np.allclose(plain.transformer_.components_, weighted.transformer_.components_)


def test_large_data_are_sampled_and_small_memory_is_enough(monkeypatch, digits):
    x, y = digits[0], digits[2]
    params = {"n_components": 20, "gamma": 0.1, "head": "svm", "trainer": short(), "random_state": 0}
    expected = DiscernelClassifier(**params).fit(x, y).predict(x)
    monkeypatch.setattr(discernel.estimators.classifier, "CACHE_BYTES", 0)
    monkeypatch.setattr(discernel.estimators.inputs, "CHUNK", 1000)
    np.testing.assert_array_equal(DiscernelClassifier(**params).fit(x, y).predict(x), expected)
    monkeypatch.setattr(discernel.estimators.inputs, "SAMPLE", 100)
    monkeypatch.setattr(discernel.estimators.classifier, "CALIBRATION_ROWS", 100)
    model = DiscernelClassifier(**params | {"gamma": "cv"}).fit(x, y)
    assert model.score(x, y) > 0.9
    assert log_loss(y, model.predict_proba(x)) < 0.5


def test_a_class_of_weight_zero_is_never_predicted():
    model = seeded(DiscernelClassifier).fit(X, Y, sample_weight=(Y != 1).astype(float))
    assert list(model.classes_) == [0, 1, 2]
    assert set(model.predict(X)) == {0, 2}
    with pytest.raises(ValueError, match="sample_weight must have at least one positive weight"):
        seeded(DiscernelClassifier, class_weight={0: 0.0, 1: 0.0, 2: 0.0}).fit(X, Y)


# regressor


@pytest.mark.parametrize("feature_map", ["nystroem", "fourier"])
def test_a_smooth_function_is_learned(feature_map):
    x = np.random.default_rng(0).uniform(-2, 2, (500, 2))
    y = np.sin(2 * x[:, 0]) * np.cos(x[:, 1])
    model = DiscernelRegressor(50, feature_map=feature_map, trainer=Trainer(max_epochs=30), random_state=0)
    assert model.fit(x[:400], y[:400]).score(x[400:], y[400:]) > 0.99
    assert model.predict(x).shape == (500,)


def test_many_targets_in_units_of_their_own():
    model = seeded(DiscernelRegressor, n_components=20).fit(X, Z)
    assert model.predict(X).shape == Z.shape
    assert model.score(X, Z) > 0.9
    units = np.array([1e-6, 1e6, 1.0])
    scaled = clone(model).fit(X, Z * units + 1000 * units)
    np.testing.assert_allclose(scaled.predict(X) / units - 1000, model.predict(X), atol=1e-6)


def test_a_far_offset_of_the_targets_costs_nothing_in_float32():
    x = X.astype(np.float32)
    model = seeded(DiscernelRegressor, n_components=20).fit(x, Z[:, 0] + 1e4)
    assert model.predict(x).dtype == np.float32
    assert model.score(x, Z[:, 0] + 1e4) > 0.9


def test_constant_targets():
    model = seeded(DiscernelRegressor).fit(X, np.full(150, 7.0))
    np.testing.assert_allclose(model.predict(X), 7.0)


def test_any_regressor_is_a_head():
    exact = seeded(DiscernelRegressor, alpha=0.1).fit(X, Z)
    model = seeded(DiscernelRegressor, head=SklearnRidge(alpha=0.1)).fit(X, Z)
    np.testing.assert_allclose(model.predict(X), exact.predict(X), atol=1e-6)
    weight = np.arange(150) % 3 + 1.0
    model.fit(X, Z[:, 0], sample_weight=weight)
    np.testing.assert_allclose(model.predict(X), exact.fit(X, Z[:, 0], sample_weight=weight).predict(X), atol=1e-6)


# warm starts


@pytest.mark.parametrize("feature_map", ["nystroem", "fourier", small(LearnedFeatures)], ids=lambda m: str(m)[:9])
def test_a_warm_start_goes_on(feature_map):
    model = seeded(DiscernelClassifier, feature_map=feature_map, warm_start=True).fit(X, Y)
    source = ArraySource(torch.from_numpy(X), Targets.classes(Y))
    inner = model.transformer_.feature_map_
    reached = moments_over(source, inner).discriminant_information(1e-4, inner.gram())
    model.fit(X, Y)
    assert [record.epoch for record in model.history_] == list(range(1, 11))
    assert model.n_iter_ == 10
    assert model.history_[5].criterion == pytest.approx(reached)  # all rows are one batch
    assert model.history_[-1].criterion > reached
    assert model.transformer_.n_iter_ == EPOCHS


def test_a_warm_start_takes_a_new_penalty():
    model = seeded(DiscernelClassifier, head="ridge", warm_start=True).fit(X, Y)
    model.set_params(rho=10.0).fit(X, Y)
    assert model.transformer_.rho_ == model.alpha_ == 10.0


def test_a_warm_start_trains_what_was_trained():
    fixed = seeded(DiscernelClassifier, gamma=0.3, warm_start=True).fit(X, Y).fit(X, Y)
    assert fixed.transformer_.gamma_ == pytest.approx(0.3)
    learned = seeded(DiscernelClassifier, warm_start=True).fit(X, Y)
    before = learned.transformer_.gamma_.copy()
    assert not np.allclose(learned.fit(X, Y).transformer_.gamma_, before)


def test_a_warm_start_may_have_other_classes_but_no_other_map():
    model = seeded(DiscernelClassifier, warm_start=True).fit(X, Y)
    assert list(model.fit(X, Y.astype(str)).classes_) == ["0", "1", "2"]
    with pytest.raises(ValueError, match="X has 2 features, but DiscernelClassifier is expecting 4"):
        model.fit(X[:, :2], Y)
    with pytest.raises(ValueError, match="whose n_components is 3, but now it is 5"):
        model.set_params(n_components=5).fit(X, Y)
    assert set(model.predict(X)) == {"0", "1", "2"}  # a fit that is refused changes nothing
    with pytest.raises(ValueError, match="whose feature map is LearnedNystroem, but now it is LearnedFourier"):
        model.set_params(n_components=3, feature_map="fourier").fit(X, Y)
    assert model.set_params(warm_start=False).fit(X, Y).n_iter_ == EPOCHS


def test_attributes_are_those_of_the_map():
    model = seeded(LearnedNystroem).fit(X, Y)
    assert isinstance(model.feature_map_, Nystroem)
    np.testing.assert_array_equal(model.components_, model.feature_map_.landmarks.numpy())
    assert model.components_.shape == (3, 4)
    fourier = seeded(LearnedFourier).fit(X, Y)
    assert fourier.random_weights_.shape == (4, 3)
    assert fourier.random_offset_.shape == (3,)
    assert isinstance(fourier.gamma_, float)


def test_auto_rho_keeps_a_regressor_from_learning_the_noise():
    x, y = load_diabetes(return_X_y=True)
    x_train, x_test, y_train, y_test = train_test_split(x / x.std(0), y, random_state=0)
    auto, tiny = (DiscernelRegressor(20, rho=rho, random_state=0).fit(x_train, y_train) for rho in ("auto", 1e-4))
    assert auto.score(x_test, y_test) > max(0.25, tiny.score(x_test, y_test) + 0.1)
    assert auto.transformer_.rho_ == auto.alpha_ >= 0.1


def test_auto_rho_is_that_of_generalised_cross_validation_where_training_starts():
    x, y = load_iris(return_X_y=True)
    fitted = LearnedNystroem(10, rho="auto", gamma="scale", trainer=Trainer(max_epochs=1), random_state=0).fit(x, y)
    start = LearnedNystroem(10, criterion=None, gamma="scale", random_state=0).fit(x).feature_map_
    moments = moments_over(ArraySource(torch.from_numpy(x), Targets.classes(y)), start)
    assert fitted.rho_ == moments.best_rho(start.gram())
