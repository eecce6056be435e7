import copy
import dataclasses
import math
from functools import partial

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.datasets import load_digits
from torch import nn
from torch.nn import functional as F

from discernel import (
    CE,
    DI,
    LS,
    RBF,
    ArraySource,
    Criterion,
    DivergenceWarning,
    ModuleMap,
    Nystroem,
    PrivacyDI,
    Profiled,
    RandomFourier,
    Targets,
    Trainer,
    moments_over,
)
from discernel.adam import Adam
from discernel.checkpoint import FileError
from discernel.data import Shard
from discernel.linalg import unchanged
from discernel.resources import threads_for
from discernel.run import _centre, cosine
from tests.ranks import together

N, J, GAMMA = 300, 12, 0.05
PIXELS, DIGITS = load_digits(return_X_y=True)
PIXELS, DIGITS = torch.tensor(PIXELS[:N] / 16), DIGITS[:N]
CRITERIA = {"DI": DI, "LS": LS, "CE": CE}


def nystroem(x=PIXELS, gamma=GAMMA, trainable=False):
    return Nystroem(x[:J], RBF(torch.tensor(gamma, dtype=torch.float64), trainable=trainable))


def fourier(x=PIXELS, gamma=GAMMA):
    kernel = RBF(torch.tensor(gamma, dtype=torch.float64))
    return RandomFourier.sample(kernel, x.shape[1], J, torch.Generator().manual_seed(0)).double()


MAPS = {"nystroem": nystroem, "fourier": fourier}
both_maps = pytest.mark.parametrize("make_map", MAPS.values(), ids=MAPS)
all_criteria = pytest.mark.parametrize("criterion", CRITERIA.values(), ids=CRITERIA)


def digits(x=PIXELS, dtype=torch.float64, weight=None):
    return ArraySource(x.to(dtype), Targets.classes(DIGITS), weight)


def train(feature_map, criterion, source=None, seed=0, validation=None, **settings):
    trainer = Trainer(**{"max_epochs": 3, "batch_size": 75} | settings)
    return list(trainer.epochs(feature_map, criterion, source or digits(), seed=seed, validation=validation))


def copied(feature_map):
    return {name: a.clone() for name, a in feature_map.state_dict().items()}


def assert_same_state(feature_map, state):
    assert all(torch.equal(a, state[name]) for name, a in feature_map.state_dict().items())


@both_maps
@all_criteria
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_training_improves_the_criterion_and_the_map(make_map, criterion, dtype):
    feature_map, source = make_map().to(dtype), digits(dtype=dtype)
    before = moments_over(source, feature_map).discriminant_information(1e-4, feature_map.gram())
    history = train(feature_map, criterion(), source, max_epochs=10)
    after = moments_over(source, feature_map).discriminant_information(1e-4, feature_map.gram())
    first, last = history[0].criterion, history[-1].criterion
    assert last > first if criterion.higher_is_better else last < first
    assert after > before


def test_papers_settings():
    paper = Trainer.paper()
    assert (paper.batch_size, paper.learning_rate, paper.relative, paper.schedule) == ("paper", 1e-3, False, "plateau")
    assert not paper.nesterov
    assert Trainer.paper(max_epochs=7) == dataclasses.replace(paper, max_epochs=7)


@pytest.mark.parametrize(
    ("criterion", "n_components", "rows"),
    [
        (DI(), 100, 1000),
        (DI(), 500, 1000),
        (DI(), 501, 1002),
        (DI(), 2000, 4000),
        (LS(), 100, 1000),
        (LS(), 900, 1000),
        (CE(), 100, 1000),
        (CE(), 900, 1000),
    ],
)
def test_papers_batches(criterion, n_components, rows):
    assert Trainer.paper().rows_per_batch(60_000, n_components, criterion) == rows


@pytest.mark.parametrize("batch_size", [1, 30, "auto", "paper"])
@pytest.mark.parametrize("criterion", [DI(), LS(), CE()], ids=CRITERIA)
@pytest.mark.parametrize("n_components", [10, 999, 1000, 3000])
@pytest.mark.parametrize("n_rows", [5, 1700, 100_000])
def test_batches_have_more_rows_than_the_map_has_features_where_the_data_do(
    batch_size, criterion, n_components, n_rows
):
    rows = Trainer(batch_size=batch_size).rows_per_batch(n_rows, n_components, criterion)
    assert min(n_rows, n_components + 1) <= rows <= n_rows


@pytest.mark.parametrize("n_rows", [999, 1499, 1501, 12_345, 60_000])
@pytest.mark.parametrize("n_components", [20, 300])
def test_automatic_batches_leave_hardly_a_row_out(n_rows, n_components):
    rows = Trainer().rows_per_batch(n_rows, n_components, DI())
    assert n_rows % rows < n_rows // rows


@pytest.mark.parametrize(
    ("n_rows", "n_components", "rows"),
    [
        (10_000_000, 500, 10_000),  # 20J of many rows
        (240_000, 500, 8000),  # thirty steps
        (60_000, 500, 5000),  # 10J
        (18_000, 500, 3000),  # six steps
        (4000, 500, 1000),  # 2J of few rows
        (12_000, 10, 1000),  # never fewer than a thousand
        (300, 10, 300),  # all there are
    ],
)
def test_automatic_batches_are_as_large_as_the_docstring_says(n_rows, n_components, rows):
    assert Trainer().rows_per_batch(n_rows, n_components, DI()) == rows


@pytest.mark.parametrize(("batch_size", "steps"), [(60, 5), (70, 4), (151, 1), (1000, 1)])
def test_an_epoch_has_as_many_steps_as_there_are_whole_batches(batch_size, steps):
    seen = []
    criterion = DI()
    criterion.register_forward_hook(lambda _, inputs, output: seen.append(len(inputs[0])))
    train(nystroem(), criterion, batch_size=batch_size, max_epochs=2)
    assert seen == [min(batch_size, N)] * (2 * steps)


@pytest.mark.parametrize(("steps", "epochs"), [(1, 40), (14, 40), (20, 30), (70, 9), (2500, 1)])
def test_automatic_epochs_make_about_600_steps_in_at_most_40_epochs(steps, epochs):
    source = ArraySource(torch.arange(2.0 * steps)[:, None], Targets.values(np.arange(2.0 * steps)))
    run = Trainer(batch_size=2).epochs(RandomFourier(torch.ones(1, 1), torch.ones(1)), LS(), source)
    assert next(run).learning_rate == pytest.approx(0.4 * cosine(steps - 1, steps * epochs, 0.05))
    assert Trainer(batch_size=2).plan(2 * steps, 1, LS()) == (2, steps, epochs)


class Scripted(Criterion):
    """A criterion whose values are given, one an epoch, and whose gradient is zero."""

    higher_is_better = True

    def __init__(self, values):
        super().__init__()
        self.values = iter(values)

    def forward(self, basis, targets, gram=None, sample_weight=None):
        return 0 * basis.sum() + next(self.values)


class Falling(Scripted):
    higher_is_better = False


@pytest.mark.parametrize(
    ("values", "decays"),
    [
        ([1, 2, 3, 3, 3, 3, 3], [0, 0, 0, 0, 0, 1, 1]),
        ([1, 1, 1, 2, 2, 2, 2, 2], [0, 0, 0, 1, 1, 1, 2, 2]),
        ([1, 1.0005, 1.0009, 1.0009, 1.0009], [0, 0, 0, 1, 1]),
        ([1, 1.0005, 1.002, 1.002, 1.002, 1.002, 1.002], [0, 0, 0, 0, 0, 1, 1]),
    ],
    ids=["improves first", "improves after a decay", "improves too little", "improves a little at a time"],
)
@pytest.mark.parametrize("criterion", [Scripted, Falling])
def test_plateau_decays_on_saturation_and_stops_when_a_decay_does_not_help(criterion, values, decays):
    values = (
        values
        if criterion.higher_is_better
        else [4 - v for v in values]
        if max(values) > 2
        else [1 / v for v in values]
    )
    trainer = Trainer(50, learning_rate=0.1, schedule="plateau", patience=2, tol=1e-3)
    history = list(trainer.epochs(nystroem(), criterion([*values, *[values[-1]] * 50]), digits()))
    assert [record.learning_rate for record in history] == pytest.approx([0.1 * 0.1**n for n in decays])


def test_plateau_runs_to_the_last_epoch_while_it_improves():
    history = list(Trainer(9, schedule="plateau", patience=1).epochs(nystroem(), Scripted(range(1, 99)), digits()))
    assert len(history) == 9


@pytest.mark.parametrize(
    ("step", "steps", "warmup", "factor"),
    [
        (0, 100, 0.0, 1.0),
        (50, 100, 0.0, 0.5),
        (75, 100, 0.0, (1 - math.sqrt(0.5)) / 2),
        (0, 1000, 0.05, 1 / 51),
        (49, 1000, 0.05, 50 / 51 * (1 + math.cos(0.049 * math.pi)) / 2),
        (50, 1000, 0.05, (1 + math.cos(0.05 * math.pi)) / 2),
        (0, 100, 0.05, 1 / 11),  # of ten steps at least
        (10, 100, 0.05, (1 + math.cos(0.1 * math.pi)) / 2),
        (0, 1, 0.0, 1.0),
    ],
)
def test_cosine(step, steps, warmup, factor):
    assert cosine(step, steps, warmup) == pytest.approx(factor)


def test_cosine_warms_up_then_falls_and_is_never_zero():
    factors = [cosine(step, 200, 0.1) for step in range(200)]
    top = factors.index(max(factors))
    assert factors[: top + 1] == sorted(factors[: top + 1])
    assert factors[top:] == sorted(factors[top:], reverse=True)
    assert 0 < factors[-1] < 1e-3


@pytest.mark.parametrize("maximize", [False, True])
@pytest.mark.parametrize("first", [1, 2])
def test_adam_steps_as_that_of_torch(first, maximize):
    """To the bit: also where a parameter has no gradient at first, or none for some steps, or not its group's dtype."""
    generator = torch.Generator().manual_seed(0)
    starts = [torch.randn(30, 4, generator=generator), torch.randn(7, generator=generator)]
    starts.append(torch.randn(3, generator=generator, dtype=torch.float64))
    found, expected = ([torch.nn.Parameter(start.clone()) for start in starts] for _ in range(2))
    ours, torchs = (
        make([{"params": ps[:first], "lr": 0.1}, {"params": ps[first:], "lr": 0.2, "eps": 1e-3}], maximize=maximize)
        for make, ps in ((Adam, found), (partial(torch.optim.Adam, fused=True), expected))
    )
    for step, has in enumerate([(1, 1, 0), (1, 0, 0), (1, 1, 1), (0, 1, 1), (0, 0, 0), (1, 1, 1)]):
        for group in (*ours.param_groups, *torchs.param_groups):
            group["lr"] = group["lr"] / (1 + step)
        for a, b, there in zip(found, expected, has, strict=True):
            gradient = torch.randn(a.shape, generator=generator, dtype=a.dtype) if there else None
            a.grad, b.grad = gradient, None if gradient is None else gradient.clone()
        ours.advance()
        torchs.step()
        assert all(map(torch.equal, found, expected))
    states = [optimizer.state_dict()["state"] for optimizer in (ours, torchs)]
    assert states[0].keys() == states[1].keys()
    assert all(torch.equal(states[0][i][key], array) for i in states[1] for key, array in states[1][i].items())


def test_records_tell_of_each_epoch():
    history = train(nystroem(), DI(), validation=lambda feature_map: 0.5, learning_rate=0.02)
    assert [record.epoch for record in history] == [1, 2, 3]
    assert [r.learning_rate for r in history] == pytest.approx([0.02 * cosine(s, 12, 0.05) for s in (3, 7, 11)])
    assert [record.validation_score for record in history] == [0.5] * 3
    for record in history:
        assert math.isfinite(record.criterion)
        assert record.samples_per_second == pytest.approx(300 / record.seconds)
    assert train(nystroem(), DI())[0].validation_score is None


def reference_loss(name, phi, y, ridge, head):
    """Return the criterion of one mini-batch with penalty B = I, straight from its definition."""
    if name == "DI":
        g, centred = phi - phi.mean(0), y - y.mean(0)
        a = g.T @ g + 1e-4 * torch.eye(J).double()
        return (g.T @ centred * torch.linalg.solve(a, g.T @ centred)).sum()
    if name == "LS":
        w, b = ridge
        return (phi @ w + b - y).square().sum() / len(y) + 1e-4 / N * w.square().sum()
    return F.cross_entropy(phi @ head[0] + head[1], y.argmax(1))


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("name", CRITERIA)
def test_training_is_what_the_paper_says_step_by_step(name, nesterov):
    """Two epochs of plain Adam on plain formulas give the same epoch means and the same map."""
    y, twin = torch.eye(10).double()[DIGITS], fourier()
    head = [torch.zeros(J, 10).double().requires_grad_(), torch.zeros(10).double().requires_grad_()]
    adam = torch.optim.Adam([*twin.parameters(), *head], lr=1e-2, maximize=name == "DI")
    generator, means, before = torch.Generator().manual_seed(3), [], []
    for _ in range(2):
        phi = twin(PIXELS).detach()
        g = phi - phi.mean(0)
        w = torch.linalg.solve(g.T @ g + 1e-4 * torch.eye(J).double(), g.T @ y)
        values = []
        for rows in torch.randperm(N, generator=generator).split(70)[:4]:
            adam.zero_grad()
            value = reference_loss(name, twin(PIXELS[rows]), y[rows], (w, y.mean(0) - phi.mean(0) @ w), head)
            value.backward()
            if nesterov:
                trained = [p for p in adam.param_groups[0]["params"] if p.grad is not None]
                now = [p.grad.clone() for p in trained]
                for parameter, g, last in zip(trained, now, before or now, strict=True):
                    parameter.grad = g + 0.9 * (g - last)
                before = now
            adam.step()
            values.append(value.item())
        means.append(sum(values) / 4)

    feature_map = fourier()
    settings = {"max_epochs": 2, "batch_size": 70, "learning_rate": 1e-2, "relative": False, "schedule": "plateau"}
    history = train(feature_map, CRITERIA[name](), seed=3, nesterov=nesterov, **settings)
    assert [record.criterion for record in history] == pytest.approx(means, rel=1e-7)
    torch.testing.assert_close(feature_map(PIXELS), twin(PIXELS), rtol=1e-6, atol=1e-6)


@both_maps
@all_criteria
def test_the_units_of_the_data_do_not_matter(make_map, criterion):
    plain, scaled = make_map(), make_map(1000 * PIXELS, 1e-6 * GAMMA)
    first, second = train(plain, criterion()), train(scaled, criterion(), digits(1000 * PIXELS))
    assert [r.criterion for r in second] == pytest.approx([r.criterion for r in first], rel=1e-6)
    torch.testing.assert_close(scaled(1000 * PIXELS), plain(PIXELS), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("factor", "shift"), [(1000, 0), (1, 50), (1e-3, -3)])
def test_units_and_origin_do_not_matter_with_a_learned_metric(factor, shift):
    x = factor * PIXELS + shift
    plain, moved = nystroem(trainable=True), nystroem(x, GAMMA / factor**2, trainable=True)
    train(plain, DI())
    train(moved, DI(), digits(x))
    torch.testing.assert_close(moved.basis(x), plain.basis(PIXELS), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(moved.kernel.gamma * factor**2, plain.kernel.gamma, rtol=1e-5, atol=0)


@all_criteria
@pytest.mark.parametrize("weight", [None, torch.arange(N).double() % 3], ids=["plain", "weighted"])
def test_the_origin_of_the_data_does_not_matter_to_frequencies(criterion, weight):
    x = PIXELS[:, (PIXELS > 0).double().mean(0) > 0.5]
    plain, moved, shift = fourier(x), fourier(x), torch.linspace(-5, 5, x.shape[1]).double()
    with torch.no_grad():
        moved.phases -= shift @ moved.frequencies
    first = train(plain, criterion(), digits(x, weight=weight))
    second = train(moved, criterion(), digits(x + shift, weight=weight))
    assert [r.criterion for r in second] == pytest.approx([r.criterion for r in first], rel=1e-6)
    torch.testing.assert_close(moved(x + shift), plain(x), rtol=1e-5, atol=1e-5)


def test_the_centre_is_the_mean_of_what_varies():
    """Of what does not vary the gradient about the mean would be rounding, and Adam makes steps of that."""
    x = PIXELS.clone()
    x[:, 0] = 0.7
    batch = digits(x).rows(slice(0, 100))
    varies = (batch.x != batch.x[0]).any(0)
    assert not varies[0]
    centre = _centre(batch, unchanged)
    torch.testing.assert_close(centre[varies], batch.x.mean(0)[varies])
    assert (centre[~varies] == 0).all()


def test_a_map_whose_phases_are_fixed_is_trained_as_it_stands():
    feature_map = fourier()
    feature_map.phases.requires_grad_(False)
    before = copied(feature_map)
    train(feature_map, DI())
    assert torch.equal(feature_map.phases, before["phases"])
    assert not torch.equal(feature_map.frequencies, before["frequencies"])


@both_maps
@all_criteria
def test_the_seed_decides_every_bit(make_map, criterion):
    first, same, other = make_map(), make_map(), make_map()
    histories = [train(m, criterion(), seed=seed) for m, seed in ((first, 1), (same, 1), (other, 2))]
    assert [r.criterion for r in histories[0]] == [r.criterion for r in histories[1]]
    assert_same_state(same, copied(first))
    assert not torch.equal(first(PIXELS), other(PIXELS))


def test_training_leaves_the_global_generators_alone():
    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    train(nystroem(), CE())
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert np.array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002


@pytest.mark.parametrize(
    "trainer", [Trainer(), Trainer.paper(), Trainer(np.int64(3), learning_rate=np.float64(0.2))], ids=str
)
def test_scikit_learn_can_clone_a_trainer(trainer):
    twin = clone(trainer)
    assert twin == trainer
    assert twin is not trainer
    assert twin.get_params() == trainer.get_params() == dataclasses.asdict(trainer)


def test_a_trainer_shows_the_settings_that_were_changed():
    assert repr(Trainer()) == "Trainer()"
    assert repr(Trainer(7, relative=False)) == "Trainer(max_epochs=7, relative=False)"


def test_settings_change_by_name():
    trainer = Trainer()
    assert trainer.set_params(max_epochs=4, schedule="plateau") is trainer
    assert trainer == Trainer(max_epochs=4, schedule="plateau")


@pytest.mark.parametrize("bad", [{"schedule": "step"}, {"patience": 0}, {"tol": -1.0}, {"momentum": 0.9}], ids=str)
def test_a_bad_setting_leaves_the_others_unchanged(bad):
    trainer = Trainer()
    with pytest.raises((ValueError, TypeError), match=next(iter(bad))):
        trainer.set_params(max_epochs=4, **bad)
    assert trainer == Trainer()


def test_changing_the_trainer_does_not_change_a_run_under_way():
    trainer = Trainer(max_epochs=3)
    run = trainer.epochs(nystroem(), DI(), digits())
    next(run)
    trainer.set_params(max_epochs=9)
    assert len(list(run)) == 2


@both_maps
@all_criteria
def test_whole_weights_are_repeated_rows(make_map, criterion):
    counts = torch.arange(N) % 4
    repeated = ArraySource(PIXELS.repeat_interleave(counts, 0), Targets.classes(np.repeat(DIGITS, counts.numpy())))
    settings = {"batch_size": 10_000, "max_epochs": 5}
    weighted, twin = make_map(), make_map()
    first = train(weighted, criterion(), digits(weight=counts.double()), **settings)
    second = train(twin, criterion(), repeated, **settings)
    assert [r.criterion for r in first] == pytest.approx([r.criterion for r in second], rel=1e-8)
    torch.testing.assert_close(weighted(PIXELS), twin(PIXELS), rtol=1e-6, atol=1e-6)


class Faulty(nn.Module):
    """A linear layer that returns NaN after some training steps."""

    def __init__(self, good_steps):
        super().__init__()
        self.layer = nn.Linear(64, 4)
        self.steps, self.good_steps = 0, good_steps

    def forward(self, x):
        self.steps += torch.is_grad_enabled()
        return self.layer(x) * (1.0 if self.steps <= self.good_steps else math.nan)


@all_criteria
@pytest.mark.parametrize("good_epochs", [0, 2])
def test_a_map_that_turns_to_nan_is_rolled_back_to_the_last_good_epoch(criterion, good_epochs):
    feature_map = ModuleMap(Faulty(good_steps=4 * good_epochs + 2))
    run = Trainer(5, 75).epochs(feature_map, criterion(), digits(dtype=torch.float32))
    for _ in range(good_epochs):
        next(run)
    good = copied(feature_map)
    with pytest.warns(DivergenceWarning, match=f"diverged in epoch {good_epochs + 1}.*lower learning_rate"):
        assert list(run) == []
    assert all(a.isfinite().all() for a in good.values())
    assert_same_state(feature_map, good)


@all_criteria
@pytest.mark.parametrize("learning_rate", [1e2, 1e30])
def test_an_absurd_learning_rate_leaves_the_map_as_it_was(criterion, learning_rate):
    """At 1e30 numbers overflow; at 1e2 they stay finite, but the landmarks leave the data and all features are zero."""
    feature_map = nystroem().float()
    before = copied(feature_map)
    reason = ": the features have become constant" if learning_rate == 1e2 else "learning_rate"
    with pytest.warns(DivergenceWarning, match=reason):
        train(feature_map, criterion(), digits(dtype=torch.float32), learning_rate=learning_rate, relative=False)
    assert_same_state(feature_map, before)


@pytest.mark.parametrize(
    ("criterion", "values", "diverges"),
    [
        (Scripted, [10.0, 1.0], False),
        (Scripted, [10.0, 0.99], True),
        (Scripted, [10.0, 100.0, 0.99], True),  # what counts is the first epoch
        (Falling, [1.0, 10.0], False),
        (Falling, [1.0, 10.1], True),
        (Falling, [1.0, 0.01], False),
        (Falling, [-70.0, -96.0], False),  # of values below zero, the sizes count
        (Falling, [-1.0, 8.1], True),
        (Scripted, [-10.0, -99.0], False),
        (Scripted, [-10.0, -101.0], True),
    ],
)
def test_a_criterion_ten_times_worse_than_at_first_has_diverged(criterion, values, diverges):
    run = Trainer(len(values)).epochs(nystroem(), criterion(values), digits())
    for _ in values[1:]:
        next(run)
    if diverges:
        with pytest.warns(DivergenceWarning, match=f"from {values[0]:g} at first to {values[-1]:g}"):
            assert list(run) == []
    else:
        assert [record.criterion for record in run] == values[-1:]


def test_features_that_never_varied_are_no_divergence():
    constant = RandomFourier(torch.zeros(64, 2).double(), torch.zeros(2).double())
    assert len(train(constant, CE())) == 3


def test_a_small_learning_rate_decays_too():
    values = [1.0] * 50
    history = list(
        Trainer(50, learning_rate=1e-12, relative=False, schedule="plateau", patience=1).epochs(
            nystroem(), Scripted(values), digits()
        )
    )
    assert history[1].learning_rate == pytest.approx(1e-12)
    assert history[-1].learning_rate == pytest.approx(1e-13)
    assert len(history) < 50


def test_the_validation_score_is_that_of_the_map_as_it_is():
    def score(feature_map):
        with torch.no_grad():
            return feature_map(PIXELS).square().mean().item()

    feature_map = nystroem()
    for record in Trainer(3, 75).epochs(feature_map, DI(), digits(), validation=score):
        fresh = Nystroem(feature_map.landmarks, copy.deepcopy(feature_map.kernel))
        assert record.validation_score == pytest.approx(score(fresh))


@pytest.mark.parametrize("trainable", [False, True])
def test_only_a_trainable_metric_is_trained(trainable):
    feature_map = Nystroem(PIXELS[:J], RBF(torch.full((64,), GAMMA).double(), trainable=trainable))
    plain = nystroem()
    gain = train(feature_map, DI(), max_epochs=10)[-1].criterion - train(plain, DI(), max_epochs=10)[-1].criterion
    moved = (feature_map.kernel.gamma - GAMMA).abs().max().item()
    assert (moved > 0.01 and gain > 0) if trainable else (moved < 1e-8 and abs(gain) < 1e-3)


SQUARES = (PIXELS.numpy() @ np.random.default_rng(0).normal(size=(64, 3))) ** 2


@pytest.mark.parametrize(
    ("targets", "criterion"),
    [
        (Targets.values(SQUARES), DI()),
        (Targets.values(SQUARES[:, 0]), LS()),
        (Targets.labels(SQUARES > 1), CE(independent=True)),
        (Targets.classes(DIGITS, "unit"), DI()),
    ],
    ids=["values", "one value", "labels", "unit columns"],
)
def test_any_targets_can_be_trained_for(targets, criterion):
    history = train(nystroem(), criterion, ArraySource(PIXELS, targets), max_epochs=8)
    assert (history[-1].criterion > history[0].criterion) == criterion.higher_is_better


def test_frozen_parameters_stay():
    feature_map = fourier()
    feature_map.phases.requires_grad_(False)
    phases, frequencies = feature_map.phases.clone(), feature_map.frequencies.detach().clone()
    train(feature_map, DI())
    assert torch.equal(feature_map.phases, phases)
    assert not torch.equal(feature_map.frequencies, frequencies)


class InPieces(ArraySource):
    """Data that come in small batches, whatever size is asked for."""

    def batches(self, size, generator=None, skip=0):
        return super().batches(70, generator, skip)


@pytest.mark.parametrize("weight", [None, torch.arange(N).double()], ids=["plain", "weighted"])
def test_moments_over_batches_are_those_of_all_rows(weight):
    source = InPieces(PIXELS, Targets.classes(DIGITS), weight)
    moments = moments_over(source, fourier())
    g, w = fourier()(PIXELS).detach(), torch.ones(N).double() if weight is None else weight
    g = g - w @ g / w.sum()
    assert moments.count == w.sum()
    torch.testing.assert_close(moments.scatter, g.T * w @ g)


@pytest.mark.parametrize(("work", "threads"), [(1e6, 1), (1e12, 2)])
def test_small_steps_use_one_thread_and_the_setting_is_restored(work, threads):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with threads_for(work):
            seen = torch.get_num_threads()
        assert (seen, torch.get_num_threads()) == (threads, 2)
    finally:
        torch.set_num_threads(before)


def test_the_callers_threads_are_its_own_between_epochs():
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        for _ in Trainer(2, 75).epochs(nystroem(), DI(), digits()):
            assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


# A batch in parts


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("criterion", [DI(), DI(0.1), LS(), CE()], ids=lambda c: type(c).__name__)
@pytest.mark.parametrize("kind", ["nystroem", "fourier"])
def test_a_batch_in_parts_has_the_value_and_the_gradients_of_the_batch(kind, criterion, weighted, monkeypatch):
    x = torch.rand(90, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    weight = x[:, 2] + 0.1 if weighted else None
    source = ArraySource(x, Targets.classes((x[:, 0] * 3).long()), weight)
    start = Nystroem(x[:10], RBF(1.0)) if kind == "nystroem" else RandomFourier.sample(RBF(1.0), 3, 10, dtype=x.dtype)
    maps = []
    for numbers in (2**27, 10 * 32, 10 * 45):
        monkeypatch.setattr("discernel.run.AT_ONCE", numbers)
        maps.append(copy.deepcopy(start))
        maps[-1].history = list(Trainer(3, batch_size=90).epochs(maps[-1], copy.deepcopy(criterion), source, seed=0))
    whole, *others = maps
    for parts in others:
        for a, b in zip(whole.history, parts.history, strict=True):
            assert b.criterion == pytest.approx(a.criterion, rel=1e-9)
        for a, b in zip(whole.parameters(), parts.parameters(), strict=True):
            torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-7)


def test_a_criterion_that_needs_the_whole_batch_says_so(monkeypatch):
    monkeypatch.setattr("discernel.run.AT_ONCE", 10)
    x = torch.rand(40, 2)
    source = ArraySource(x, Targets.classes(x[:, 0] > 0.5))
    with pytest.raises(NotImplementedError, match="lower batch_size"):
        list(Trainer(1).epochs(RandomFourier.sample(RBF(1.0), 2, 5), Profiled(), source))


# Several ranks


def of_ranks(ranks, source, criterion, checkpoint=None, kind="nystroem", **settings):
    """Return the map and the history of each of so many ranks that train together."""

    def work(rank, total):
        feature_map = nystroem(trainable=True) if kind == "nystroem" else fourier()
        path = None if checkpoint is None else checkpoint / str(rank)
        shard = Shard(source, rank, ranks, total) if ranks > 1 else source
        trainer = Trainer(**{"max_epochs": 3, "batch_size": 75} | settings)
        return feature_map, list(trainer.epochs(feature_map, criterion(), shard, seed=5, checkpoint=path))

    return together(ranks, work)


@all_criteria
@pytest.mark.parametrize("weight", [None, torch.arange(N).double() % 3], ids=["plain", "weighted"])
@pytest.mark.parametrize("at_once", [2**27, J * 20], ids=["whole", "in parts"])
@pytest.mark.parametrize("kind", MAPS)
def test_ranks_train_what_one_does(kind, criterion, weight, at_once, monkeypatch):
    monkeypatch.setattr("discernel.run.AT_ONCE", at_once)
    source = digits(weight=weight)
    ((alone, history),) = of_ranks(1, source, criterion, kind=kind)
    several = of_ranks(3, source, criterion, kind=kind)
    for feature_map, records in several:
        assert [r.criterion for r in records] == pytest.approx([r.criterion for r in history], rel=1e-6)
        torch.testing.assert_close(feature_map(PIXELS), alone(PIXELS), rtol=1e-5, atol=1e-6)
        assert_same_state(feature_map, copied(several[0][0]))


@pytest.mark.parametrize("fits", [True, False])
def test_a_batch_is_taken_in_parts_only_where_the_share_of_a_rank_is_too_large(fits, monkeypatch):
    """What PrivacyDI needs is the whole batch; a rank has 37 or 38 of its 75 rows."""
    monkeypatch.setattr("discernel.run.AT_ONCE", J * (38 if fits else 37))
    if fits:
        assert len(of_ranks(2, digits(), lambda: PrivacyDI(5))) == 2
    else:
        with pytest.raises(NotImplementedError, match="PrivacyDI needs the whole of a batch"):
            of_ranks(2, digits(), lambda: PrivacyDI(5))


def test_the_first_rank_saves_and_the_others_do_not(tmp_path):
    of_ranks(2, digits(), DI, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["0"]


def test_ranks_that_have_different_checkpoints_are_refused(tmp_path):
    of_ranks(2, digits(), DI, tmp_path)
    with pytest.raises(FileError, match=r"the processes have different checkpoints.*must be one file for all of them"):
        of_ranks(2, digits(), DI, tmp_path)
    (tmp_path / "1").write_bytes((tmp_path / "0").read_bytes())
    assert len(of_ranks(2, digits(), DI, tmp_path)[1][1]) == 3
