import pytest
import torch

from discernel import RBF, ArraySource, Nystroem, PrivacyDI, RandomFourier, Targets, Trainer, discriminant_information


def data(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X = data(60, 3)
CODES = (X[:, 0] + 0.5 * data(60, seed=1) > 0).long() + (X[:, 1] > 0.5).long()
CLASSES = torch.nn.functional.one_hot(CODES, 3).double()
WEIGHT = torch.rand(60, generator=torch.Generator().manual_seed(2), dtype=torch.float64) + 0.1
BOTH = torch.cat([CLASSES, (X[:, 2:] > 0).double()], 1)


@pytest.mark.parametrize("weight", [None, WEIGHT], ids=["plain", "weighted"])
def test_privacy_is_a_difference_of_shares_of_information(weight):
    w = torch.ones(60).double() if weight is None else weight
    shares = []
    for part in (CLASSES, BOTH[:, 3:]):
        energy = w @ (part - w @ part / w.sum()).square().sum(1)
        shares.append(discriminant_information(X, part, 0.3, None, weight) / energy)
    criterion = PrivacyDI(n_utility=3, penalty=0.7, rho=0.3)
    torch.testing.assert_close(criterion(X, BOTH, None, weight), shares[0] + 0.7 * (1 - shares[1]))


def test_without_a_penalty_it_is_discriminant_information_and_between_the_bounds():
    energy = (CLASSES - CLASSES.mean(0)).square().sum()
    free = PrivacyDI(3, penalty=0.0, rho=0.3)(X, BOTH)
    torch.testing.assert_close(free, discriminant_information(X, CLASSES, 0.3) / energy)
    assert 0 <= free <= PrivacyDI(3, penalty=1.0, rho=0.3)(X, BOTH) <= 1 + free <= 2


def test_the_same_target_as_utility_and_secret_cancels():
    torch.testing.assert_close(PrivacyDI(3)(X, torch.cat([CLASSES, CLASSES], 1)), torch.ones(()).double())


def test_the_gradient_of_privacy_agrees_with_finite_differences():
    nystroem = Nystroem(X[:4], RBF(0.5)).double()
    inputs = nystroem.basis(X).detach().requires_grad_(), nystroem.gram().detach().requires_grad_()
    criterion = PrivacyDI(3, 0.7, rho=0.3)
    assert torch.autograd.gradcheck(lambda g, b: criterion(g, BOTH, (b + b.T) / 2), inputs)


def test_a_map_learns_to_hide():
    source = ArraySource(X, Targets.values(BOTH.numpy()))
    informations = torch.zeros(2, 2)  # sums over a few starts, of which one may happen to hide by itself
    for seed in range(4):
        for penalty in (0, 1):
            fourier = RandomFourier.sample(RBF(0.2), 3, 4, torch.Generator().manual_seed(seed), torch.float64)
            list(Trainer(max_epochs=60).epochs(fourier, PrivacyDI(3, float(penalty), rho=0.1), source))
            for what, targets in enumerate((CLASSES, BOTH[:, 3:])):
                informations[penalty, what] += discriminant_information(fourier(X).detach(), targets, 0.1)
    (told, leaked), (kept, hidden) = informations
    assert hidden < 0.5 * leaked
    assert kept > 0.7 * told


def test_privacy_wants_something_to_hide():
    with pytest.raises(ValueError, match="targets must have more columns than n_utility, 4; got 4"):
        PrivacyDI(4).prepare(X, BOTH)
    with pytest.raises(ValueError, match="penalty must not be negative"):
        PrivacyDI(1, penalty=-1)


@pytest.mark.parametrize("unit", [1e-6, 1e-2, 100.0])
def test_the_units_of_the_targets_do_not_matter(unit):
    criterion = PrivacyDI(3, 0.7, 0.3)
    torch.testing.assert_close(criterion(X, unit * BOTH), criterion(X, BOTH))


def test_what_does_not_vary_has_nothing_to_tell():
    constant = torch.full((60, 1), 3.0).double()
    utility = PrivacyDI(3, penalty=0.0, rho=0.3)(X, BOTH).item()
    assert PrivacyDI(3, 0.7, 0.3)(X, torch.cat([CLASSES, constant], 1)).item() == pytest.approx(utility + 0.7)
    assert PrivacyDI(1, 0.0, 0.3)(X, torch.cat([constant, CLASSES], 1)).item() == pytest.approx(0.0, abs=1e-12)


def test_a_penalty_of_zero_and_a_single_secret_are_allowed():
    PrivacyDI(3, penalty=0).prepare(X, BOTH)
