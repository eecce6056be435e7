import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC

from discernel import (
    RBF,
    ArraySource,
    LearnedFourier,
    LearnedNystroem,
    Nystroem,
    Profiled,
    RandomFourier,
    Targets,
    Trainer,
    discriminant_information,
)


def data(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X = data(60, 3)
CODES = (X[:, 0] + 0.5 * data(60, seed=1) > 0).long() + (X[:, 1] > 0.5).long()
CLASSES = torch.nn.functional.one_hot(CODES, 3).double()
WEIGHT = torch.rand(60, generator=torch.Generator().manual_seed(2), dtype=torch.float64) + 0.1
LOSSES = ["softmax", "logistic", "svm", "squares"]


def exact(loss, rho=0.1):
    return Profiled(loss, rho, tol=1e-15, max_iter=5000)


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
@pytest.mark.parametrize("gram", [False, True])
def test_the_profiled_squares_are_what_discriminant_information_leaves(gram, weight):
    nystroem = Nystroem(X[:6], RBF(0.5)).double()
    basis, b = nystroem.basis(X), nystroem.gram() if gram else None
    w = torch.ones(60).double() if weight is None else weight
    centred = CLASSES - w @ CLASSES / w.sum()
    left = w @ centred.square().sum(1) - discriminant_information(basis, CLASSES, 0.1, b, weight)
    torch.testing.assert_close(exact("squares")(basis, CLASSES, b, weight), left / w.sum(), rtol=1e-9, atol=1e-9)


def test_the_profiled_softmax_is_the_loss_of_logistic_regression():
    criterion = exact("softmax", rho=0.05)
    value = criterion(X, CLASSES).item()
    model = LogisticRegression(C=10.0, tol=1e-10, max_iter=10_000).fit(X.numpy(), CODES.numpy())  # 1/(2ρ)
    likelihood = model.predict_log_proba(X.numpy())[np.arange(60), CODES].sum()
    assert value == pytest.approx((-likelihood + 0.05 * np.square(model.coef_).sum()) / 60, rel=1e-8)


def test_the_profiled_hinge_is_the_loss_of_linear_svms():
    value = exact("svm", rho=0.05)(X, CLASSES).item()
    model = LinearSVC(C=10.0, dual=False, tol=1e-10, max_iter=10_000, intercept_scaling=1e4).fit(X.numpy(), CODES)
    signs = 2 * CLASSES.numpy() - 1
    losses = np.square(np.maximum(0, 1 - signs * model.decision_function(X.numpy()))).sum()
    assert value == pytest.approx((losses + 0.05 * np.square(model.coef_).sum()) / 60, rel=1e-6)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_gradient_is_that_of_the_profiled_value(loss):
    """Finite differences of the value, the model solved for anew at each point."""

    def value(basis, gram, weight):
        return exact(loss)(basis, CLASSES, gram, weight)

    nystroem = Nystroem(X[:4], RBF(0.5)).double()
    point = nystroem.basis(X).detach(), nystroem.gram().detach(), WEIGHT.clone()
    directions = [data(*part.shape, seed=3) * scale for part, scale in zip(point, (1.0, 0.1, 0.1), strict=True)]
    directions[1] = directions[1] + directions[1].T
    leaves = [part.clone().requires_grad_() for part in point]
    value(*leaves).backward()
    for leaf, direction, place in zip(leaves, directions, range(3), strict=True):
        ends = [
            value(*(part + step * direction if i == place else part for i, part in enumerate(point)))
            for step in (1e-5, -1e-5)
        ]
        torch.testing.assert_close((leaf.grad * direction).sum(), (ends[0] - ends[1]) / 2e-5, rtol=1e-5, atol=1e-8)


def test_a_looser_tolerance_errs_in_the_gradient_by_its_root_or_less():
    gradients = []
    for tol in (1e-15, 1e-7):
        basis = X.clone().requires_grad_()
        Profiled("softmax", 0.1, tol, max_iter=5000)(basis, CLASSES).backward()
        gradients.append(basis.grad)
    assert (gradients[0] - gradients[1]).norm() < 1e-2 * gradients[0].norm()


def test_equal_features_do_not_matter():
    value = exact("softmax")(X, CLASSES)
    twice = exact("softmax", rho=0.1)(torch.cat([X, X], 1) / 2**0.5, CLASSES)
    torch.testing.assert_close(twice, value, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("loss", ["softmax", "svm"])
def test_training_lowers_it(loss):
    source = ArraySource(X, Targets.classes(CODES.numpy()))
    fourier = RandomFourier.sample(RBF(0.5), 3, 6, torch.Generator().manual_seed(0), torch.float64)
    history = list(Trainer(max_epochs=15).epochs(fourier, Profiled(loss, 0.01), source))
    assert history[-1].criterion < 0.9 * history[0].criterion


@pytest.mark.parametrize("estimator", [LearnedFourier, LearnedNystroem])
@pytest.mark.parametrize("criterion", ["profiled_ce", "profiled_svm"])
@pytest.mark.parametrize("y", [CODES.numpy(), CLASSES.numpy().astype(int)[:, :2]], ids=["classes", "labels"])
def test_estimators_have_it_as_a_criterion(estimator, criterion, y):
    model = estimator(5, criterion=criterion, rho=0.01, trainer=Trainer(max_epochs=4), random_state=0).fit(X, y)
    assert model.history_[-1].criterion < model.history_[0].criterion


def test_regression_targets_are_refused():
    with pytest.raises(ValueError, match='criterion="profiled_ce" is for classes and labels'):
        LearnedFourier(5, criterion="profiled_ce").fit(X, X[:, 0])


@pytest.mark.parametrize("arguments", [("hinge",), ("softmax", 0.0), ("softmax", 1.0, -1.0), ("svm", 1.0, 1e-5, 0)])
def test_bad_settings_are_refused(arguments):
    with pytest.raises(ValueError, match="must be"):
        Profiled(*arguments)
