"""A step without a graph has the value and the gradients that it has with one."""

import copy

import pytest
import torch
from torch import nn

from discernel import (
    CE,
    DI,
    LS,
    RBF,
    Fastfood,
    Matern,
    ModuleMap,
    Moments,
    Nystroem,
    PrivacyDI,
    Profiled,
    RandomFourier,
)

MAPS = {
    "nystroem": lambda x: Nystroem(x[:9], RBF(0.3)),
    "nystroem, metric": lambda x: Nystroem(x[:9], RBF([0.3, 0.2, 0.1], trainable=True)),
    "nystroem, other kernel": lambda x: Nystroem(x[:9], Matern(0.3, trainable=True)),
    "nystroem, experts": lambda x: Nystroem(x[:9], RBF(0.3), experts=3),
    "fourier": lambda x: RandomFourier.sample(RBF(0.3), 3, 9, torch.Generator().manual_seed(0), x.dtype),
    "fastfood": lambda x: Fastfood.sample(RBF(0.3), 3, 9, torch.Generator().manual_seed(0), x.dtype),
    "module": lambda x: ModuleMap(nn.Linear(3, 9, dtype=x.dtype)),
}
CRITERIA = {
    "DI": DI,
    "LS": LS,
    "CE": CE,
    "PrivacyDI": lambda: PrivacyDI(1),
    "Profiled": Profiled,
}


def data(dtype=torch.float64):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 3, generator=generator, dtype=dtype)
    return x, nn.functional.one_hot(x.argmax(1)).to(dtype), torch.rand(60, generator=generator, dtype=dtype)


def with_a_graph(feature_map, criterion, x, targets, weight):
    value = criterion(feature_map.basis(x), targets, feature_map.gram(), weight)
    value.backward()
    return value.detach()


def without(feature_map, criterion, x, targets, weight):
    basis, gram, pull_back = feature_map.with_pull_back(x)
    value = criterion.backward(basis, targets, gram, weight)
    pull_back(basis.grad, None if gram is None else gram.grad)
    return value


def gradients(*modules):
    return {(i, name): p.grad for i, module in enumerate(modules) for name, p in module.named_parameters()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("criterion", CRITERIA.values(), ids=CRITERIA.keys())
@pytest.mark.parametrize("make", MAPS.values(), ids=MAPS.keys())
def test_a_step_without_a_graph_is_one_with_it(make, criterion, weighted, dtype):
    x, targets, weight = data(dtype)
    weight = weight if weighted else None
    torch.manual_seed(0)  # of the module
    first_map, first = make(x), criterion()
    gram = first_map.gram()
    with torch.no_grad():
        first.prepare(first_map.basis(x), targets)
        first.refresh(lambda: Moments.of(first_map.basis(x), targets, weight), gram)
    second_map, second = copy.deepcopy(first_map), copy.deepcopy(first)
    expected = with_a_graph(first_map, first, x, targets, weight)
    torch.testing.assert_close(without(second_map, second, x, targets, weight), expected)
    found, expected = gradients(second_map, second), gradients(first_map, first)
    assert any(gradient is not None for gradient in found.values())
    tolerance = {"rtol": 1e-9, "atol": 1e-9} if dtype == torch.float64 else {"rtol": 2e-3, "atol": 2e-3}
    for key, gradient in found.items():
        if gradient is None:
            assert expected[key] is None
        else:
            torch.testing.assert_close(gradient, expected[key], **tolerance)
            assert gradient.stride() == expected[key].stride()  # fused optimisers read it as it lies


@pytest.mark.parametrize("make", MAPS.values(), ids=MAPS.keys())
def test_gradients_add_up_as_those_of_a_graph_do(make):
    x, targets, _ = data()
    feature_map, criterion = make(x), DI()
    without(feature_map, criterion, x, targets, None)
    once = {
        name: gradient if gradient is None else gradient.clone() for name, gradient in gradients(feature_map).items()
    }
    without(feature_map, criterion, x, targets, None)
    for name, gradient in gradients(feature_map).items():
        if gradient is not None:
            torch.testing.assert_close(gradient, 2 * once[name])


@pytest.mark.parametrize("make", MAPS.values(), ids=MAPS.keys())
def test_what_is_not_trained_has_no_gradient(make):
    x, targets, _ = data()
    feature_map = make(x)
    fixed, *rest = feature_map.parameters()
    fixed.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in rest):
        assert not any(t.requires_grad for t in feature_map.with_pull_back(x)[:2] if t is not None)
        return
    without(feature_map, DI(), x, targets, None)
    assert fixed.grad is None


def test_a_criterion_that_inherits_from_di_and_changes_it_is_not_taken_for_it():
    class Half(DI):
        def forward(self, *args):
            return super().forward(*args) / 2

    x, targets, _ = data()
    whole, half = (Nystroem(x[:9], RBF(0.3)) for _ in range(2))
    value = without(whole, DI(), x, targets, None)
    torch.testing.assert_close(without(half, Half(), x, targets, None), value / 2)
    torch.testing.assert_close(half.landmarks.grad, whole.landmarks.grad / 2)


def test_a_map_that_inherits_from_another_and_changes_it_is_not_taken_for_it():
    class Shifted(RandomFourier):
        def forward(self, x):
            return super().forward(x) + x[:, :1]

    x, _, _ = data()
    fourier = RandomFourier.sample(RBF(0.3), 3, 9, torch.Generator().manual_seed(0), x.dtype)
    shifted = Shifted(fourier.frequencies, fourier.phases)
    torch.testing.assert_close(shifted.with_pull_back(x)[0], fourier(x) + x[:, :1])


@pytest.mark.parametrize("kind", ["forward_hook", "forward_pre_hook", "full_backward_hook"])
def test_hooks_of_a_criterion_are_called(kind):
    x, targets, _ = data()
    criterion, seen = DI(), []
    getattr(criterion, f"register_{kind}")(lambda *_: seen.append(kind))
    without(Nystroem(x[:9], RBF(0.3)), criterion, x, targets, None)
    assert seen == [kind]


def test_hooks_of_a_map_are_called():
    x, _, _ = data()
    fourier = RandomFourier.sample(RBF(0.3), 3, 9, torch.Generator().manual_seed(0), x.dtype)
    expected = 2 * fourier(x)
    fourier.register_forward_hook(lambda *args: 2 * args[-1])
    torch.testing.assert_close(fourier.with_pull_back(x)[0], expected)


@pytest.mark.parametrize("make", MAPS.values(), ids=MAPS.keys())
def test_hooks_of_a_parameter_are_called(make):
    x, targets, _ = data()
    feature_map = make(x)
    parameters = [parameter for parameter in feature_map.parameters() if parameter.requires_grad]
    for parameter in parameters:
        parameter.register_hook(torch.zeros_like)
    without(feature_map, DI(), x, targets, None)
    assert not any(parameter.grad.any() for parameter in parameters)


def test_arguments_may_share_a_graph():
    x, targets, _ = data()

    def arguments():
        weights = x[:9].clone().requires_grad_()
        root = weights.exp()
        return weights, (x @ root.T).tanh(), root @ root.T + torch.eye(9, dtype=x.dtype)

    first, basis, gram = arguments()
    DI()(basis, targets, gram).backward()
    second, basis, gram = arguments()
    DI().backward(basis, targets, gram)
    torch.testing.assert_close(second.grad, first.grad)


def test_the_gradient_of_what_is_frozen_is_left_alone():
    x, targets, _ = data()
    fourier = RandomFourier.sample(RBF(0.3), 3, 9, torch.Generator().manual_seed(0), x.dtype)
    fourier.phases.requires_grad_(False).grad = torch.ones_like(fourier.phases)
    without(fourier, DI(), x, targets, None)
    assert (fourier.phases.grad == 1).all()
