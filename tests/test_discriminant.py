"""Discriminant analysis: its constraint and optimum, and what it becomes at its limits (LDA, PCA, Kernel PCA, KDCA)."""

import pickle

import numpy as np
import pytest
import scipy.linalg
import torch
from scipy import sparse
from sklearn.datasets import load_digits, load_iris, load_wine, make_moons
from sklearn.decomposition import PCA, KernelPCA
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.metrics.pairwise import rbf_kernel
from sklearn.neighbors import NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from discernel import (
    DCA,
    RBF,
    ArraySource,
    KernelDCA,
    KernelDiscriminantAnalysis,
    Moments,
    Nystroem,
    Polynomial,
    Targets,
    discriminant_information,
)
from discernel.discriminant import discriminant_components, principal_components, whitening, within_class
from discernel.estimators import discriminant, inputs

IRIS, SPECIES = load_iris(return_X_y=True)
WINE, CULTIVARS = load_wine(return_X_y=True)
WINE = (WINE - WINE.mean(0)) / WINE.std(0)
MULTILABEL = (np.random.default_rng(0).random((len(IRIS), 4)) < 0.3 + 0.1 * SPECIES[:, None]).astype(int)
VALUES = np.c_[np.sin(IRIS[:, 0]), 100 * IRIS[:, 1] ** 2]

ESTIMATORS = [
    DCA(),
    DCA(rho=0.0, scaling="indicator"),
    KernelDCA(),
    KernelDCA(n_landmarks=3, init="kmeans", random_state=0),
    KernelDiscriminantAnalysis(),
]
each_analysis = pytest.mark.parametrize("analysis", [DCA, KernelDCA, KernelDiscriminantAnalysis])
each_combination = pytest.mark.parametrize(
    ("estimator", "y"),
    [(kind(2), y) for kind in (DCA, KernelDCA) for y in (SPECIES, MULTILABEL, VALUES, None)]
    + [(KernelDiscriminantAnalysis(2), SPECIES)],
)
each_target = pytest.mark.parametrize(
    "y", [SPECIES, MULTILABEL, VALUES[:, 0], VALUES], ids=["classes", "labels", "value", "values"]
)


@parametrize_with_checks(ESTIMATORS)
def test_scikit_learns_contract(estimator, check):
    check(estimator)


def random_problem(seed=0, n=60, width=8, n_targets=3):
    generator = torch.Generator().manual_seed(seed)
    basis = torch.randn(n, width, generator=generator, dtype=torch.float64) + 5
    targets = basis[:, :n_targets] + torch.randn(n, n_targets, generator=generator, dtype=torch.float64)
    root = torch.randn(width, width, generator=generator, dtype=torch.float64)
    weight = torch.rand(n, generator=generator, dtype=torch.float64)
    return basis, targets, root.T @ root, weight


def same_up_to_sign(a, b, rtol=1e-6):
    """Say if two sets of columns agree but for their signs."""
    a, b = np.asarray(a), np.asarray(b)
    return a.shape == b.shape and np.allclose(a * np.sign((a * b).sum(0)), b, rtol=rtol, atol=rtol * np.abs(b).max())


def unit(columns):
    return columns / np.linalg.norm(columns, axis=0)


# --- the functional core


@pytest.mark.parametrize("penalised", [False, True])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("rho", [0.0, 1e-4, 10.0])
def test_components_meet_the_constraint_and_solve_the_eigenproblem(rho, weighted, penalised):
    basis, targets, gram, weight = random_problem()
    gram, weight = gram if penalised else None, weight if weighted else None
    moments = Moments.of(basis, targets, weight)
    a, information = discriminant_components(moments, rho, gram)
    metric = moments.scatter + rho * (torch.eye(8, dtype=torch.float64) if gram is None else gram)
    between = moments.cross @ moments.cross.T
    torch.testing.assert_close(a.T @ metric @ a, torch.eye(3, dtype=torch.float64))
    torch.testing.assert_close(a.T @ between @ a, information.diag())
    values, vectors = scipy.linalg.eigh(between.numpy(), metric.numpy())
    np.testing.assert_allclose(information, values[::-1][:3])
    assert same_up_to_sign(a, vectors[:, ::-1][:, :3])


@pytest.mark.parametrize("rho", [1e-4, 1.0])
@pytest.mark.parametrize("penalised", [False, True])
def test_information_sums_to_discriminant_information(rho, penalised):
    basis, targets, gram, weight = random_problem(1)
    gram = gram if penalised else None
    information = discriminant_components(Moments.of(basis, targets, weight), rho, gram).information.sum()
    torch.testing.assert_close(information, discriminant_information(basis, targets, rho, gram, weight))


def test_no_other_components_that_meet_the_constraint_are_better():
    basis, targets, _, _ = random_problem(2)
    moments = Moments.of(basis, targets)
    best = discriminant_components(moments, 1.0).information
    root = whitening(moments.scatter + torch.eye(8, dtype=torch.float64))
    for seed in range(20):
        turn = torch.linalg.qr(torch.randn(8, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)).Q
        between = (root @ turn).T @ moments.cross
        assert between.square().sum() < best.sum()
        assert between.square().sum(1).max() < best[0]


@pytest.mark.parametrize("scaling", ["unit", "indicator"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_classes_have_one_component_less_than_there_are(scaling, dtype):
    basis, targets = torch.tensor(IRIS, dtype=dtype), Targets.classes(SPECIES, scaling)[:]
    assert len(discriminant_components(Moments.of(basis, targets), 1e-4).information) == 2


@pytest.mark.parametrize("rho", [0.0, 1e-12])
def test_a_repeated_column_changes_nothing(rho):
    basis, targets, _, _ = random_problem(3)
    twice = torch.cat([basis, basis], 1)
    once, again = (discriminant_components(Moments.of(b, targets), rho) for b in (basis, twice))
    torch.testing.assert_close(once.information, again.information)
    assert same_up_to_sign(twice @ again.scalings, basis @ once.scalings)


def test_a_small_target_is_found_beside_a_large_one():
    basis, targets, _, _ = random_problem(4, n_targets=2)
    _, information = discriminant_components(Moments.of(basis, targets * torch.tensor([1e6, 1.0])), 1e-4)
    assert len(information) == 2
    assert information[1] < 1e-8 * information[0]


def test_nothing_to_find_is_no_components():
    basis, targets, _, _ = random_problem()
    assert discriminant_components(Moments.of(basis * 0 + 3, targets), 0.0).scalings.shape == (8, 0)
    assert discriminant_components(Moments.of(basis * 0 + 3, targets), 1.0).scalings.shape == (8, 0)
    assert discriminant_components(Moments.of(basis, targets * 0 + 3), 1.0).scalings.shape == (8, 0)
    assert principal_components(Moments.of(basis * 0 + 3, targets), 1.0).scalings.shape == (8, 0)


def test_principal_components_are_those_of_every_sample_its_own_class():
    basis, *_ = random_problem(n=30)
    moments = Moments.of(basis, torch.eye(30))
    for rho in (1.0, 30.0):
        own, principal = discriminant_components(moments, rho), principal_components(moments, rho)
        torch.testing.assert_close(own.information, principal.information)
        assert same_up_to_sign(own.scalings, principal.scalings)


def test_within_class_components_meet_the_constraint_of_lda():
    basis, targets = torch.tensor(IRIS), Targets.classes(SPECIES, "unit")[:].double()
    moments = Moments.of(basis, targets)
    within = moments.scatter - moments.cross @ moments.cross.T
    a = within_class(discriminant_components(moments, 0.5))
    torch.testing.assert_close(a.T @ (within + 0.5 * torch.eye(4)) @ a, torch.eye(2, dtype=torch.float64))


@pytest.mark.parametrize("rank", [5, 3])
def test_whitening_is_a_root_of_the_pseudo_inverse(rank):
    half = torch.randn(rank, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    a = half.T @ half
    root = whitening(a)
    assert root.shape == (5, rank)
    torch.testing.assert_close(root @ root.T, torch.linalg.pinv(a, hermitian=True))
    torch.testing.assert_close(root.T @ a @ root, torch.eye(rank, dtype=torch.float64))


def test_moments_that_overflow_are_refused():
    basis, targets, _, _ = random_problem()
    for find in (discriminant_components, principal_components):
        with pytest.raises(FloatingPointError, match="overflowed: rescale"):
            find(Moments.of(basis * 1e200, targets), 1.0)


# --- DCA and its limits


@each_target
@pytest.mark.parametrize("scaling", ["unit", "indicator"])
def test_explained_information_sums_to_discriminant_information(y, scaling):
    dca = DCA(rho=0.3, scaling=scaling).fit(IRIS, y)
    targets = Targets.classes(y, scaling)[:].numpy() if y is SPECIES else np.asarray(y, float).reshape(len(y), -1)
    if y is MULTILABEL and scaling == "unit":
        targets = unit(targets)
    expected = discriminant_information(torch.tensor(IRIS), torch.tensor(targets), 0.3).item()
    assert dca.explained_discriminant_information_.sum() == pytest.approx(expected)
    assert dca.discriminant_information_ == pytest.approx(expected)
    assert DCA(1, rho=0.3, scaling=scaling).fit(IRIS, y).discriminant_information_ == pytest.approx(expected)
    assert (np.diff(dca.explained_discriminant_information_) <= 0).all()


@pytest.mark.parametrize(("X", "y"), [(IRIS, SPECIES), (WINE, CULTIVARS)], ids=["iris", "wine"])
@pytest.mark.parametrize("rho", [0.0, 1e-9])
def test_without_a_ridge_the_components_are_ldas(X, y, rho):
    lda = LinearDiscriminantAnalysis().fit(X, y)
    dca = DCA(rho=rho).fit(X, y)
    assert same_up_to_sign(unit(dca.scalings_), unit(lda.scalings_))
    ratio = dca.explained_discriminant_information_ / (1 - dca.explained_discriminant_information_)
    np.testing.assert_allclose(ratio / ratio.sum(), lda.explained_variance_ratio_)


@pytest.mark.parametrize("shape", [(40, 6), (12, 30)], ids=["tall", "wide"])
@pytest.mark.parametrize("rho", [0.0, 1e-8, 3.0])
def test_every_sample_its_own_class_is_pca(shape, rho):
    X = np.random.default_rng(0).normal(size=shape) * np.linspace(1, 3, shape[1]) + 100
    pca, dca = PCA(min(shape[0] - 1, shape[1])).fit(X), DCA(rho=rho).fit(X)
    assert same_up_to_sign(unit(dca.scalings_), pca.components_.T)
    assert same_up_to_sign(unit(dca.transform(X)), unit(pca.transform(X)))
    np.testing.assert_allclose(dca.mean_, X.mean(0))
    scatter = pca.explained_variance_ * (len(X) - 1)
    np.testing.assert_allclose(dca.explained_discriminant_information_, scatter / (scatter + rho))


@each_target
@pytest.mark.parametrize("weighted", [False, True])
def test_wide_data_are_solved_in_the_span_of_the_rows(y, weighted):
    rows = slice(0, 150, 5)
    weight = np.random.default_rng(0).random(30) + 0.1 if weighted else None
    wide = np.hstack([IRIS, np.zeros((150, 46))])
    one = DCA(rho=0.3).fit(IRIS[rows], y[rows], weight)
    other = DCA(rho=0.3).fit(wide[rows], y[rows], weight)
    np.testing.assert_allclose(other.mean_[:4], one.mean_)
    np.testing.assert_allclose(other.scalings_[:4], one.scalings_, rtol=1e-6, atol=1e-8)
    np.testing.assert_allclose(other.transform(wide), one.transform(IRIS), rtol=1e-6, atol=1e-8)


@each_analysis
def test_the_transform_is_centred_on_the_training_rows(analysis):
    components = analysis().fit_transform(IRIS + 1000, SPECIES)
    np.testing.assert_allclose(components.mean(0), 0, atol=1e-9)
    np.testing.assert_allclose(components, analysis().fit_transform(IRIS, SPECIES), atol=1e-6)


# --- kernels


@pytest.mark.parametrize("rho", [1e-3, 1.0])
@each_target
def test_exact_kernel_dca_solves_the_papers_equation(y, rho):
    """Eq. (KDCA), of the centred kernel matrix: tr(AᵀK_B A) under Aᵀ(K̄² + ρK̄)A = I."""
    model = KernelDCA(gamma=0.5, rho=rho, scaling="indicator").fit(IRIS, y)
    centring = np.eye(150) - 1 / 150
    kernel = centring @ rbf_kernel(IRIS, gamma=0.5) @ centring
    values, vectors = np.linalg.eigh(kernel)
    values, vectors = values[values > 1e-12], vectors[:, values > 1e-12]
    targets = Targets.classes(y)[:].numpy() if y is SPECIES else np.asarray(y, float).reshape(150, -1)
    # In the eigenvectors of K̄ the constraint is diagonal, λ² + ρλ.
    left, s, _ = np.linalg.svd(np.sqrt(values / (values + rho))[:, None] * (vectors.T @ targets), full_matrices=False)
    k = len(model.explained_discriminant_information_)
    np.testing.assert_allclose(model.explained_discriminant_information_, s[:k] ** 2, rtol=1e-8)
    scores = kernel @ vectors @ (left[:, :k] / np.sqrt(values**2 + rho * values)[:, None])
    assert same_up_to_sign(model.transform(IRIS), scores)


@pytest.mark.parametrize("n_landmarks", [None, 20])
@pytest.mark.parametrize("kernel", ["rbf", "laplacian", "matern", "linear"])
def test_kernel_dca_is_the_optimum_of_kernel_discriminant_information(kernel, n_landmarks):
    model = KernelDCA(kernel=kernel, gamma=0.5, n_landmarks=n_landmarks, random_state=0).fit(IRIS, SPECIES)
    basis, gram = (t.detach() for t in (model.feature_map_.basis(torch.tensor(IRIS)), model.feature_map_.gram()))
    targets = Targets.classes(SPECIES, "unit")[:].double()
    expected = discriminant_information(basis, targets, 0.1, gram).item()
    assert model.discriminant_information_ == pytest.approx(expected, rel=1e-5)
    centred = (basis - basis.mean(0)).numpy()
    np.testing.assert_allclose(model.mean_, basis.mean(0), rtol=1e-6)
    constraint = model.scalings_.T @ (centred.T @ centred + 0.1 * gram.numpy()) @ model.scalings_
    np.testing.assert_allclose(constraint, np.eye(2), atol=1e-6)
    between = model.scalings_.T @ centred.T @ targets.numpy()
    np.testing.assert_allclose(
        between @ between.T, np.diag(model.explained_discriminant_information_), rtol=1e-6, atol=1e-6
    )


@pytest.mark.parametrize(
    "kernel", [RBF(0.1), RBF(10.0), Polynomial(2.0, degree=5)], ids=["smooth", "rough", "polynomial"]
)
@pytest.mark.parametrize("rho", [1e-6, 1e-4])
def test_ill_conditioned_kernels_and_small_ridges_keep_their_digits(kernel, rho):
    """Where the scatter relative to the gram loses some per cent of the information."""
    X, y = make_moons(300, noise=0.2, random_state=0)
    centring, targets = np.eye(300) - 1 / 300, Targets.classes(y, "unit")[:].double().numpy()
    centred = centring @ kernel(torch.tensor(X), torch.tensor(X)).detach().numpy() @ centring
    expected = (targets * (centred @ np.linalg.solve(centred + rho * np.eye(300), centring @ targets))).sum()
    assert KernelDCA(kernel=kernel, rho=rho).fit(X, y).discriminant_information_ == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("rho", [0.0, 1e-4, 1.0])
def test_every_sample_its_own_class_is_kernel_pca(rho):
    pca = KernelPCA(6, kernel="rbf", gamma=0.5).fit(IRIS)
    model = KernelDCA(6, gamma=0.5, rho=rho).fit(IRIS)
    assert same_up_to_sign(unit(model.transform(IRIS)), unit(pca.transform(IRIS)))
    new = IRIS + 0.1
    assert same_up_to_sign(unit(model.transform(new)), unit(pca.transform(new)))
    expected = pca.eigenvalues_ / (pca.eigenvalues_ + rho)
    np.testing.assert_allclose(model.explained_discriminant_information_, expected)


@pytest.mark.parametrize("y", [SPECIES, VALUES, None], ids=["classes", "values", "none"])
def test_as_many_landmarks_as_rows_are_exact(y):
    n_distinct = len(np.unique(IRIS, axis=0))
    exact = KernelDCA(3 if y is None else 2).fit(IRIS, y)
    nystroem = KernelDCA(3 if y is None else 2, n_landmarks=n_distinct, random_state=0).fit(IRIS, y)
    assert len(exact.landmarks_) == n_distinct
    np.testing.assert_allclose(
        nystroem.explained_discriminant_information_, exact.explained_discriminant_information_, rtol=1e-9
    )
    assert same_up_to_sign(nystroem.transform(IRIS), exact.transform(IRIS))


def test_dca_of_nystroem_features_is_kernel_dca_in_their_span():
    model = KernelDCA(n_landmarks=30, gamma=0.5, rho=0.01, random_state=0).fit(IRIS, SPECIES)
    phi = Nystroem(torch.from_numpy(model.landmarks_), RBF(0.5))(torch.tensor(IRIS)).detach().numpy()
    dca = DCA(rho=0.01)
    assert same_up_to_sign(dca.fit_transform(phi, SPECIES), model.transform(IRIS))
    assert dca.discriminant_information_ == pytest.approx(model.discriminant_information_)


def test_more_landmarks_have_more_information_and_all_rows_the_most():
    X, y = load_digits(return_X_y=True)
    X, y = X[:400], y[:400]
    models = [KernelDCA(n_landmarks=n, rho=0.1, random_state=0).fit(X, y) for n in (10, 50, 200, None)]
    information = [model.discriminant_information_ for model in models]
    assert information == sorted(information)
    assert information[-1] < 9


def test_a_large_sample_is_told_to_choose_landmarks(monkeypatch):
    monkeypatch.setattr(discriminant, "EXACT_ROWS", 100)
    with pytest.raises(ValueError, match=r"X has 150 rows, and exact .* at most 100; set n_landmarks"):
        KernelDCA().fit(IRIS, SPECIES)
    KernelDCA(n_landmarks=20).fit(IRIS, SPECIES)


# --- KDA


@pytest.mark.parametrize(("X", "y"), [(IRIS, SPECIES), (WINE, CULTIVARS)], ids=["iris", "wine"])
def test_kernel_discriminant_analysis_with_a_linear_kernel_is_lda(X, y):
    lda = LinearDiscriminantAnalysis(solver="eigen").fit(X, y)  # whose within-class covariance is S_W/n
    kda = KernelDiscriminantAnalysis(kernel="linear", gamma=1.0, rho=1e-9).fit(X, y)
    expected = X @ lda.scalings_[:, :2]
    assert same_up_to_sign(kda.transform(X), expected - expected.mean(0), rtol=1e-5)
    nearest = make_pipeline(kda, NearestCentroid()).fit(X, y)
    lda = LinearDiscriminantAnalysis(priors=np.full(3, 1 / 3)).fit(X, y)
    np.testing.assert_array_equal(nearest.predict(X), lda.predict(X))


def test_kernel_discriminant_analysis_is_kernel_dca_but_for_the_scale():
    dca = KernelDCA().fit(WINE, CULTIVARS)
    kda = KernelDiscriminantAnalysis().fit(WINE, CULTIVARS)
    np.testing.assert_allclose(kda.explained_discriminant_information_, dca.explained_discriminant_information_)
    scale = np.sqrt(len(WINE) / (1 - dca.explained_discriminant_information_))
    np.testing.assert_allclose(kda.scalings_, dca.scalings_ * scale)


def test_without_a_ridge_a_class_is_a_point():
    scores = KernelDiscriminantAnalysis(gamma=0.5, rho=0.0).fit(WINE, CULTIVARS).transform(WINE)
    means = np.array([scores[c == CULTIVARS].mean(0) for c in range(3)])
    assert np.isfinite(scores).all()
    assert np.abs(scores - means[CULTIVARS]).max() < 1e-4 * np.abs(means).max()


def test_kernel_discriminant_analysis_tells_digits_apart():
    X, y = load_digits(return_X_y=True)
    model = make_pipeline(KernelDiscriminantAnalysis(n_landmarks=300, random_state=0), NearestCentroid())
    assert model.fit(X[:1200], y[:1200]).score(X[1200:], y[1200:]) > 0.95


# --- what all of them take and give


@each_combination
def test_a_weight_is_a_number_of_rows(estimator, y):
    counts = np.arange(150) % 4
    one = estimator.fit(IRIS, y, sample_weight=counts).transform(IRIS)
    other = estimator.fit(IRIS.repeat(counts, 0), None if y is None else y.repeat(counts, 0)).transform(IRIS)
    np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-9)


def test_only_classes_have_classes():
    dca = DCA().fit(IRIS, SPECIES)
    assert dca.classes_.tolist() == [0, 1, 2]
    assert not hasattr(dca.fit(IRIS, VALUES), "classes_")


def test_a_class_without_weight_is_not_there():
    dca = DCA().fit(IRIS, SPECIES, sample_weight=(SPECIES > 0).astype(float))
    assert dca.classes_.tolist() == [1, 2]
    np.testing.assert_allclose(dca.scalings_, DCA().fit(IRIS[50:], SPECIES[50:]).scalings_)


@each_combination
def test_float32_is_kept_and_costs_only_its_own_digits(estimator, y):
    single = estimator.fit_transform(IRIS.astype(np.float32), y)
    double = estimator.fit_transform(IRIS, y)
    assert single.dtype == np.float32
    assert double.dtype == np.float64
    np.testing.assert_allclose(single, double, atol=1e-4 * np.abs(double).max())


@each_analysis
def test_sparse_rows_are_the_same_rows(analysis):
    estimator = analysis()
    X = np.where(IRIS > 2, IRIS, 0)
    expected = estimator.fit_transform(X, SPECIES)
    for make in (sparse.csr_matrix, sparse.csr_array):
        np.testing.assert_allclose(estimator.fit(make(X), SPECIES).transform(make(X)), expected, atol=1e-10)


def test_labels_may_be_sparse():
    expected = DCA().fit(IRIS, MULTILABEL).scalings_
    np.testing.assert_allclose(DCA().fit(IRIS, sparse.csr_matrix(MULTILABEL)).scalings_, expected)


def test_a_label_that_nobody_has_is_left_out_of_account():
    labels = np.c_[MULTILABEL, np.zeros(150, int)]
    np.testing.assert_allclose(DCA().fit(IRIS, labels).scalings_, DCA().fit(IRIS, MULTILABEL).scalings_)


@each_analysis
def test_classes_may_have_names_and_order_does_not_matter(analysis):
    estimator = analysis()
    names = np.array(["setosa", "versicolor", "virginica"])
    order = np.random.default_rng(0).permutation(150)
    expected = estimator.fit_transform(IRIS, SPECIES)
    found = estimator.fit(IRIS[order], names[SPECIES][order]).transform(IRIS)
    assert estimator.classes_.tolist() == names.tolist()
    np.testing.assert_allclose(found, expected, atol=1e-8 * np.abs(expected).max())


@each_analysis
@pytest.mark.parametrize("frame", ["pandas", "polars"])
def test_data_frames_in_and_out(analysis, frame):
    estimator = analysis()
    library = pytest.importorskip(frame)
    X = library.DataFrame(IRIS, **{"columns" if frame == "pandas" else "schema": list("abcd")})
    out = estimator.set_output(transform=frame).fit_transform(X, SPECIES)
    prefix = type(estimator).__name__.lower()
    assert isinstance(out, library.DataFrame)
    assert list(out.columns) == list(estimator.get_feature_names_out()) == [f"{prefix}0", f"{prefix}1"]
    estimator.set_output(transform="default")
    np.testing.assert_array_equal(estimator.transform(X), out.to_numpy())


@each_analysis
def test_fewer_components_are_the_first_ones(analysis):
    every, first = analysis().fit(IRIS, SPECIES), analysis(1).fit(IRIS, SPECIES)
    np.testing.assert_allclose(first.scalings_, every.scalings_[:, :1], rtol=1e-9)
    with pytest.warns(UserWarning, match="n_components is 5, but there are 2: using those"):
        assert analysis(5).fit(IRIS, SPECIES).transform(IRIS).shape == (150, 2)


def test_a_fitted_model_can_be_pickled_and_many_rows_go_through_in_batches(monkeypatch):
    model = KernelDCA(n_landmarks=30, random_state=0).fit(IRIS, SPECIES)
    expected = model.transform(IRIS)
    monkeypatch.setattr(inputs, "CHUNK", 300)
    np.testing.assert_allclose(pickle.loads(pickle.dumps(model)).transform(IRIS), expected, atol=1e-12)


def test_more_landmarks_than_distinct_rows_are_those():
    X = np.repeat(IRIS[::10], 2, 0)
    with pytest.warns(UserWarning, match="n_landmarks is 20, but there are 15 distinct rows"):
        model = KernelDCA(n_landmarks=20).fit(X, np.repeat(SPECIES[::10], 2))
    assert model.landmarks_.shape == (15, 4)


def test_gamma_by_rule_or_by_feature():
    assert KernelDCA().fit(IRIS, SPECIES).gamma_ == pytest.approx(1 / (4 * IRIS.var()))
    assert KernelDCA(gamma="median", random_state=0).fit(IRIS, SPECIES).gamma_ > 0
    assert KernelDCA(gamma=[1.0, 2.0, 3.0, 4.0]).fit(IRIS, SPECIES).gamma_.tolist() == pytest.approx([1, 2, 3, 4])
    kernel = RBF(0.5)
    assert KernelDCA(kernel=kernel).fit(IRIS, SPECIES).gamma_ == pytest.approx(0.5)
    assert kernel.metric.dtype == torch.float64


@pytest.mark.parametrize(
    ("estimator", "error", "message"),
    [
        (DCA(rho=-1.0), ValueError, "rho must not be negative, got -1.0"),
        (DCA(rho="small"), TypeError, "rho must be a number, got 'small'"),
        (DCA(rho=float("nan")), ValueError, "rho must be finite"),
        (DCA(0), ValueError, "n_components must be at least 1, got 0"),
        (DCA(1.5), TypeError, "n_components must be a whole number, got 1.5"),
        (DCA(scaling="fisher"), ValueError, "scaling must be one of 'indicator', 'unit'; got 'fisher'"),
        (KernelDCA(n_landmarks=0), ValueError, "n_landmarks must be at least 1, got 0"),
        (KernelDCA(init="first"), ValueError, "init must be one of 'uniform', 'kmeans', 'leverage'; got 'first'"),
        (KernelDCA(gamma="learn"), ValueError, "gamma must be one of 'scale', 'median', 'cv'; got 'learn'"),
        (KernelDCA(gamma=-1.0), ValueError, "gamma must be a positive number"),
        (KernelDCA(kernel="gauss"), ValueError, "kernel must be one of 'rbf'"),
    ],
)
def test_bad_parameters_are_refused_by_name(estimator, error, message):
    with pytest.raises(error, match=message):
        estimator.fit(IRIS, SPECIES)
    assert not hasattr(estimator, "scalings_")


@pytest.mark.parametrize(
    ("estimator", "X", "y", "message"),
    [
        (DCA(), IRIS, np.zeros(150, int), "y must have at least two classes to tell apart, got one: .*0"),
        (DCA(), IRIS, SPECIES[:-1], "inconsistent numbers of samples"),
        (DCA(), np.ones((150, 3)), SPECIES, "nothing in common .* constant"),
        (DCA(rho=0.0), np.ones((150, 3)), SPECIES, "nothing in common .* constant"),
        (DCA(), np.ones((150, 200)), SPECIES, "nothing in common .* constant"),
        (DCA(), np.ones((150, 3)), None, "nothing in common .* constant"),
        (DCA(), IRIS, np.full(150, 0.5), "nothing in common .* constant"),
        (KernelDCA(), np.ones((150, 3)), SPECIES, "nothing in common .* constant"),
        (KernelDCA(kernel="linear"), np.zeros((150, 3)), SPECIES, "nothing in common .* constant"),
        (KernelDCA(gamma="cv"), IRIS, None, "needs .*class"),
        (KernelDiscriminantAnalysis(), IRIS, None, "requires y to be passed"),
        (KernelDiscriminantAnalysis(), IRIS, VALUES[:, 0], "Unknown label type: continuous"),
        (
            KernelDiscriminantAnalysis(),
            IRIS,
            MULTILABEL,
            "y must have one class for each row, .* KernelDCA takes labels",
        ),
    ],
)
def test_bad_data_are_refused_with_what_is_wrong(estimator, X, y, message):
    with pytest.raises(ValueError, match=message):
        estimator.fit(X, y)


@pytest.mark.parametrize(
    ("model", "changed", "y", "message"),
    [
        (DCA(), {}, np.zeros(150, int), "two classes"),
        (DCA(), {}, np.full(150, 0.5), "nothing in common"),
        (KernelDCA(), {"kernel": "gauss"}, SPECIES, "kernel must be one of"),
        (KernelDiscriminantAnalysis(), {"gamma": [1.0]}, SPECIES, "gamma has 1 values"),
    ],
)
def test_a_refused_fit_leaves_the_model_as_it_was(model, changed, y, message):
    before = model.fit(IRIS, SPECIES).transform(IRIS)
    with pytest.raises(ValueError, match=message):
        model.set_params(**changed).fit(IRIS[:, :2], y)
    np.testing.assert_array_equal(model.transform(IRIS), before)


@each_analysis
def test_a_source_is_refused_by_name(analysis):
    source = ArraySource(torch.from_numpy(IRIS), Targets.classes(SPECIES))
    with pytest.raises(TypeError, match=f"{analysis.__name__} takes arrays: .* a learned map"):
        analysis().fit(source)


def test_weights_must_not_all_be_zero_or_any_negative():
    with pytest.raises(ValueError, match=r"at least one (positive weight|non-zero)"):
        DCA().fit(IRIS, SPECIES, sample_weight=np.zeros(150))
    with pytest.raises(ValueError, match=r"[Nn]egative"):
        DCA().fit(IRIS, SPECIES, sample_weight=-np.ones(150))
