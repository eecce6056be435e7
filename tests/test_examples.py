"""The examples, as the facts that they rest on, and run as they are."""

import runpy
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn

from discernel import RBF, Nystroem, RandomFourier, discriminant_information

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("plot_*.py"))


def data(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X, Y = data(40, 5), data(40, 2, seed=1)


@pytest.mark.slow
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_draws(path, monkeypatch):
    plt = pytest.importorskip("matplotlib.pyplot")
    plt.switch_backend("agg")
    drawn = []
    monkeypatch.setattr(plt, "show", lambda: drawn.extend(plt.get_fignums()))
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        runpy.run_path(str(path), run_name="__main__")
    plt.close("all")
    assert drawn


def test_every_example_has_a_title():
    for path in EXAMPLES:
        _, title, line, *_ = path.read_text().splitlines()
        assert line == "=" * len(title), path.name


def test_a_kernel_in_a_learned_subspace_has_the_same_information_and_gradient_with_or_without_its_gram():
    """φ of a Nyström map is its basis up to B^(-1/2): a module that ends in one needs no gram of its own."""
    last = Nystroem(data(6, 2, seed=2), RBF(0.5))
    stack = nn.Sequential(nn.Linear(5, 2).double(), last)
    inner = stack[0](X)
    found = discriminant_information(stack(X), Y, 0.1)
    expected = discriminant_information(last.basis(inner), Y, 0.1, last.gram())
    weights = [*stack[0].parameters(), last.landmarks]
    torch.testing.assert_close(found, expected)
    for a, b in zip(torch.autograd.grad(found, weights), torch.autograd.grad(expected, weights), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def test_the_gradient_reaches_the_first_of_two_fourier_layers():
    generator = torch.Generator().manual_seed(0)
    second = RandomFourier.sample(RBF(0.5), 7, 4, generator, torch.float64)

    def information(frequencies, phases):
        first = torch.cos(X @ frequencies + phases)
        return discriminant_information(second(first), Y, 0.1)

    inputs = data(5, 7, seed=3).requires_grad_(), data(7, seed=4).requires_grad_()
    assert torch.autograd.gradcheck(information, inputs)


def test_a_gaussian_kernel_of_directions_is_that_of_a_convolutional_kernel_network():
    """With all patches as landmarks, pooled features have the mean of κ over pairs of pooled patches as products."""
    patches = data(2, 4, 9)  # two images of four patches each, which are pooled
    norms = patches.norm(dim=2, keepdim=True)
    units = patches / norms
    layer = Nystroem(units.view(-1, 9), RBF(1.5))
    pooled = (norms * layer(units.view(-1, 9)).view(2, 4, -1)).mean(1)
    kappa = norms[0] * norms[1].T * torch.exp(3.0 * (units[0] @ units[1].T - 1))
    torch.testing.assert_close(pooled[0] @ pooled[1], kappa.mean())


def test_a_loss_of_ones_own_loop_raises_discriminant_information():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(5, 8), nn.Tanh()).double()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    before = discriminant_information(net(X), Y, 0.1).item()
    for _ in range(20):
        loss = -discriminant_information(net(X), Y, 0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert -loss.item() > 1.2 * before


def test_discriminant_information_of_which_sample_becomes_the_maximum_mean_discrepancy():
    """For n rows of either sample and all of them as landmarks, ρ DI → n²/4 MMD² as ρ grows."""
    x, y, kernel, rho = data(15, 3), data(15, 3, seed=1) + 0.3, RBF(0.5), 1e7
    rows, which = torch.cat([x, y]), (torch.arange(30) < 15).double()[:, None]
    mmd = kernel(x, x).mean() + kernel(y, y).mean() - 2 * kernel(x, y).mean()
    found = rho * discriminant_information(kernel(rows, rows), which, rho, kernel(rows, rows))
    torch.testing.assert_close(found, 15**2 / 4 * mmd, rtol=1e-5, atol=0)
