"""`estimate`: what a fit will take, told before it."""

import warnings

import numpy as np
import pytest
from sklearn.linear_model import RidgeClassifier

from discernel import (
    ArraySource,
    DiscernelClassifier,
    DiscernelRegressor,
    LearnedFourier,
    LearnedNystroem,
    Targets,
    Trainer,
)
from discernel.estimators.cost import Cost, bytes_of_training, seconds_of_training
from discernel.run import EpochRecord
from discernel.training import Plan

RNG = np.random.default_rng(0)
X = RNG.random((300, 4), dtype=np.float32)
Y = (X[:, 0] > X[:, 1]).astype(int)
SMALL = Trainer(max_epochs=7, batch_size=60)


@pytest.mark.parametrize(
    "model",
    [
        DiscernelClassifier(10, head="ridge"),
        DiscernelClassifier(10, head="svm", feature_map="fourier"),
        DiscernelClassifier(10, head="softmax", early_stopping=True),
        DiscernelClassifier(10, head=RidgeClassifier()),
        DiscernelClassifier(10, feature_map=LearnedFourier(12, criterion="ls", trainer=SMALL)),
        DiscernelRegressor(10),
        LearnedNystroem(10),
        LearnedFourier(10, criterion="ce"),
    ],
    ids=repr,
)
def test_the_plan_is_that_of_the_fit(model):
    model.set_params(trainer=SMALL, random_state=0)
    before = dict(vars(model))
    cost = model.estimate(X, Y)
    assert cost.plan == Plan(60, 5, 7)
    assert cost.seconds > 0
    assert cost.memory > 4 * 60 * 10
    assert vars(model) == before, "the estimate has left something behind"
    assert len(model.fit(X, Y).history_) <= cost.plan.epochs


def test_nothing_is_trained_without_a_criterion():
    assert LearnedNystroem(10, criterion=None).estimate(X).plan is None


def test_a_source_has_the_estimate_of_its_array():
    model = DiscernelClassifier(10, trainer=SMALL, random_state=0)
    there, here = model.estimate(ArraySource(X, Targets.classes(Y))), model.estimate(X, Y)
    assert there[1:] == here[1:]


def test_bad_input_is_refused_as_by_fit():
    with pytest.raises(ValueError, match="n_components must be"):
        DiscernelClassifier(0).estimate(X, Y)


def test_it_is_quiet(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        DiscernelClassifier(10, trainer=SMALL, verbose=True).estimate(X, Y)
    assert capsys.readouterr() == ("", "")


def test_seconds_are_the_steps_times_the_median_after_the_first():
    pilot = [EpochRecord(i + 1, 0.0, 0.1, seconds, 1.0) for i, seconds in enumerate((9.0, 1.0, 3.0, 2.0))]
    assert seconds_of_training(Plan(100, 5, 4), pilot) == 40.0


def test_memory_is_linear_in_the_batch_and_quadratic_in_the_components():
    base = bytes_of_training(0, 0, 10, 4)
    assert bytes_of_training(2000, 0, 10, 4) - base == 2 * (bytes_of_training(1000, 0, 10, 4) - base)
    assert bytes_of_training(0, 200, 10, 4) - base == 4 * (bytes_of_training(0, 100, 10, 4) - base)


def test_it_reads_as_a_sentence():
    assert str(Cost(0.5, 2_000_000, None)) == "about 0.5 seconds and 2 MB beside the data"
    assert str(Cost(4 * 3600, 2**31, Plan(10, 2, 3))).startswith("about 4 hours and 2.1 GB beside the data: 6 steps of")
