"""The judging of claims, on tables whose truth is known."""

import numpy as np
import pandas as pd
import pytest

from experiments import page, views
from experiments.claims import ABOVE, BELOW, FAILS, HOLDS, NOT_RUN, SEEDS, Judge, at_least, judge, within
from experiments.jobs import INIT, RHO
from experiments.table import COLUMNS


def rows(data, name, criterion, seeds, components, train=0.5, test=0.6, accuracy=0.9, noise=0.001, **changes):
    """Return rows whose scores, a number or a function of J, have a little noise."""
    rng = np.random.default_rng([seeds, len(criterion), ord(criterion[0])])
    made = []
    for seed in range(seeds):
        for j in components:
            values = [value(j) if callable(value) else value for value in (train, test, accuracy)]
            train_, test_, accuracy_ = values + noise * rng.standard_normal(3)
            trained = criterion != "none"
            key = (data, name, criterion, INIT[name], j, seed, 1.0, RHO, "paper" if trained else "none")
            made.append((*key, 100, 10, 5 * trained, 1.0, 1.0, train_, test_, accuracy_ / 2, accuracy_, "discernel=0"))
    return pd.DataFrame(made, columns=COLUMNS).assign(**changes)


def one(judgements, words, data, name=None):
    found = [j for j in judgements if words in j.claim and j.data == data and name in (None, j.map)]
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize(
    ("differences", "region", "verdict"),
    [
        ([-1.0, -1.2, -0.9], BELOW, HOLDS),
        ([1.0, 1.2, 0.9], BELOW, FAILS),
        ([1.0, 1.2, 0.9], ABOVE, HOLDS),
        ([-1.0, 1.2, 0.1], BELOW, SEEDS),
        ([-1.0, 1.0] * 5, BELOW, FAILS),
        ([-1.0, -1.2], BELOW, SEEDS),
        ([], BELOW, NOT_RUN),
        ([0.1, -0.1, 0.0], within(1.0), HOLDS),
        ([2.1, 1.9, 2.0], within(1.0), FAILS),
        ([-2.1, -1.9, -2.0], within(1.0), FAILS),
        ([-0.1, -0.2, -0.15], at_least(0.5), HOLDS),
        ([-0.9, -0.8, -0.85], at_least(0.5), FAILS),
        ([0.0, 0.0, 0.0], within(1.0), HOLDS),
        ([0.0, 0.0, 0.0], BELOW, SEEDS),
    ],
)
def test_verdicts(differences, region, verdict):
    assert judge(differences, region)[0] == verdict


def test_the_p_value_is_that_of_the_paired_t_test():
    from scipy.stats import ttest_1samp

    d = [-0.3, -0.1, -0.4, 0.05]
    assert judge(d, BELOW)[1] == pytest.approx(ttest_1samp(d, 0, alternative="less").pvalue)
    assert judge(d, ABOVE)[1] == pytest.approx(ttest_1samp(d, 0, alternative="greater").pvalue)


@pytest.mark.parametrize(("ls", "verdict"), [(0.55, HOLDS), (0.45, FAILS)])
def test_the_lower_training_error_wins(ls, verdict):
    frame = pd.concat(
        [rows("letter", "nystroem", "di", 3, (25, 50)), rows("letter", "nystroem", "ls", 3, (25, 50), train=ls)]
    )
    found = one(Judge(frame).section_5_2(), "fits the training rows better", "letter")
    assert (found.verdict, found.n_seeds, found.components) == (verdict, 3, (25, 50))
    assert found.difference == pytest.approx(100 * (0.5 - ls) / ls, abs=0.5)
    assert one(Judge(frame).section_5_2(), "better than LS with Nyström", "mnist").verdict == NOT_RUN


def test_consistently_means_at_every_j():
    better_on_average = rows("letter", "nystroem", "ls", 5, (25, 50), train=lambda j: 0.8 if j == 25 else 0.48)
    frame = pd.concat([rows("letter", "nystroem", "di", 5, (25, 50)), better_on_average])
    found = one(Judge(frame).section_5_2(), "fits the training rows better", "letter")
    assert found.difference < -5
    assert found.verdict == FAILS


def test_a_j_with_one_seed_does_not_stop_the_others_from_being_judged():
    parts = [rows("mnist", "nystroem", c, 3, (50, 100), train=t) for c, t in (("di", 0.5), ("ls", 0.6))]
    parts += [rows("mnist", "nystroem", c, 1, (1000,), train=0.1) for c in ("di", "ls")]
    found = one(Judge(pd.concat(parts)).section_5_2(), "fits the training rows better", "mnist")
    assert (found.verdict, found.components) == (HOLDS, (50, 100))


@pytest.mark.parametrize(("data", "verdict"), [("letter", FAILS), ("mnist", HOLDS)])
def test_similar_errors_on_mnist_are_those_of_few_features(data, verdict):
    components = (50, 400, 500)
    di = rows(data, "fourier", "di", 3, components, noise=1e-4)
    ls = rows(data, "fourier", "ls", 3, components, train=lambda j: 0.1 if j == 500 else 0.5, noise=1e-4)
    found = [j for j in Judge(pd.concat([di, ls])).section_5_2() if "train" in j.compared]
    train = one(found, "similar", data)
    assert train.components == (components if data == "letter" else (50, 400))
    assert train.verdict == verdict


def test_two_seeds_are_not_enough():
    parts = [rows("covtype", "fourier", c, 2, (50,), train=t) for c, t in (("di", 0.5), ("ls", 0.6))]
    assert one(Judge(pd.concat(parts)).section_5_2(), "on CovType", "covtype").verdict == SEEDS


def test_overfitting_less_and_later():
    components = (50, 100, 200, 500)
    di = rows("mnist", "fourier", "di", 4, components, train=0.1, test=lambda j: 0.3 - 0.0002 * j, noise=1e-4)
    ls = rows("mnist", "fourier", "ls", 4, components, train=0.1, test=lambda j: 0.3 + abs(j - 100) * 0.001, noise=1e-4)
    less, later = Judge(pd.concat([di, ls])).overfitting("mnist")
    assert (less.verdict, less.components) == (HOLDS, (500,))
    assert later.verdict == HOLDS
    assert later.difference == pytest.approx(np.log2(5))
    _, never = Judge(pd.concat([di, di.assign(criterion="ls")])).overfitting("mnist")
    assert "LS does not overfit" in never.verdict
    begun = di[di["n_components"] == 50].assign(seed=9)[:1]  # a seed that is not whole yet
    some = pd.concat([di, begun, di.assign(criterion="ls"), begun.assign(criterion="ls")])
    assert Judge(some).overfitting("mnist")[1].verdict == never.verdict


def test_the_strongest_rival_decides_who_is_the_best():
    accuracy = {"di": 0.9, "ls": 0.8, "ce": 0.91, "none": 0.5}
    frame = pd.concat([rows("letter", "nystroem", c, 3, (25,), accuracy=a) for c, a in accuracy.items()])
    found = Judge(frame).best("letter")
    assert found.compared.startswith("DI − CE")
    assert found.verdict == FAILS
    frame.loc[frame["criterion"] == "ce", "test_accuracy"] -= 0.1
    assert Judge(frame).best("letter").verdict == NOT_RUN  # against k-means
    frame = pd.concat([frame, frame[frame["criterion"] == "none"].assign(init="kmeans")])
    found = Judge(frame).best("letter")
    assert found.compared.startswith("DI − CE")
    assert found.verdict == HOLDS
    assert found.difference == pytest.approx(9, abs=0.3)


def test_ridge_regression_is_the_second_opinion():
    frame = pd.concat([rows("letter", "nystroem", c, 3, (25,), accuracy=a) for c, a in (("di", 0.9), ("ls", 0.8))])
    found = one([j for j in Judge(frame).by_ridge() if "LS" in j.compared], "ridge", "letter", "nystroem")
    assert found.verdict == HOLDS
    assert found.left == pytest.approx(45, abs=0.5)  # half of the SVM's, in these rows


def test_rho_and_initialisation():
    base = rows("letter", "nystroem", "di", 3, (100,))
    parts = [base, base.assign(init="kmeans"), *(base.assign(rho=rho) for rho in (1e-6, 1e-5, 1e-1))]
    parts.append(rows("letter", "nystroem", "di", 3, (100,), accuracy=0.85, rho=1e-3))
    judgements = Judge(pd.concat(parts)).robustness()
    rho = one(judgements, "robust to ρ", "letter", "nystroem")
    assert rho.compared.startswith("ρ=0.001")
    assert rho.verdict == FAILS
    assert one(judgements, "k-means", "letter").verdict == HOLDS


def test_untrained_rows_of_another_bandwidth_are_not_of_the_curve_but_of_the_fair_one():
    own = rows("letter", "nystroem", "none", 1, (25,), accuracy=0.6)
    other = rows("letter", "nystroem", "none", 1, (25,), accuracy=0.7, gamma=2.0)
    frame = pd.concat([rows("letter", "nystroem", "di", 1, (25,)), own, other], ignore_index=True)
    assert len(views.method(frame, "letter", "nystroem", "Std Nys")) == 1
    assert views.method(frame, "letter", "nystroem", "Std Nys")["test_accuracy"].item() == pytest.approx(0.6, abs=0.01)
    assert views.own_gamma(frame, "letter", "nystroem", "Std Nys")["gamma"].item() == 2.0


def test_the_factor_in_j_is_interpolated_or_bounded():
    untrained = pd.Series([0.5, 0.7, 0.9], index=[10, 40, 160])
    assert page._factor(untrained, 10, 0.7) == "4"
    assert page._factor(untrained, 10, 0.8) == "8"
    assert page._factor(untrained, 10, 0.95) == "> 16"
    assert page._factor(untrained, 40, 0.4) == "< 0.25"
