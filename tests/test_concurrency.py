"""Fits beside each other are those one after the other; what they use, they give back; the same seed, the same bits."""

import hashlib
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from joblib import Parallel, delayed
from sklearn.datasets import load_digits, load_iris

from discernel import DiscernelClassifier, DiscernelRegressor, LearnedFourier, LearnedNystroem, Trainer
from discernel.resources import threads_for
from tests.leaks import KINDS, leaked

X, Y = load_iris(return_X_y=True)
SHORT = {"trainer": Trainer(max_epochs=3), "random_state": 0}
SETTINGS = [
    DiscernelClassifier(8, **SHORT),
    DiscernelClassifier(8, head="svm", feature_map="fourier", **SHORT),
    DiscernelRegressor(8, **SHORT),
    LearnedNystroem(8, criterion="ls", **SHORT),
    LearnedNystroem(8, criterion="ce", init="kmeans", **SHORT),
    LearnedFourier(8, gamma="median", **SHORT),
]


def features(estimator):
    from sklearn.base import clone

    return clone(estimator).fit(X, Y).transform(X).tobytes()


@pytest.fixture(scope="module")
def one_after_the_other():
    return [features(estimator) for estimator in SETTINGS]


@pytest.mark.parametrize("backend", ["loky", "threading"])
def test_joblib_gives_the_same_features(backend, one_after_the_other):
    assert Parallel(n_jobs=2, backend=backend)(map(delayed(features), SETTINGS)) == one_after_the_other


def test_two_threads_at_once_give_the_same_features(one_after_the_other):
    found, together = {}, threading.Barrier(len(SETTINGS))

    def run(number):
        together.wait()
        found[number] = features(SETTINGS[number])

    threads = [threading.Thread(target=run, args=(number,)) for number in range(len(SETTINGS))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [found[number] for number in range(len(SETTINGS))] == one_after_the_other


def test_the_number_of_threads_is_given_back_also_by_fits_that_overlap():
    found, first_in, second_done = [], threading.Event(), threading.Event()

    def first():
        with threads_for(1):
            first_in.set()
            second_done.wait()

    def second():
        first_in.wait()
        with threads_for(1):
            pass
        second_done.set()

    torch.set_num_threads(2)
    try:
        threads = [threading.Thread(target=run) for run in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        later = threading.Thread(target=lambda: found.append(torch.get_num_threads()))
        later.start()
        later.join()
        assert [torch.get_num_threads(), *found] == [2, 2]
    finally:
        torch.set_num_threads(1)


def test_fits_leave_nothing_behind(tmp_path):
    found = leaked(24, tmp_path, warm=3 * len(KINDS))
    assert found.pop("megabytes") < 30
    assert max(found.values()) <= 0


SCRIPT = """
import hashlib, sys, torch
torch.set_num_threads(int(sys.argv[1]))
from sklearn.datasets import load_digits
from discernel import DiscernelClassifier, Trainer
x, y = load_digits(return_X_y=True)
model = DiscernelClassifier(30, trainer=Trainer(max_epochs=2), random_state=0).fit(x, y)
print(hashlib.sha256(model.predict_proba(x).tobytes()).hexdigest())
"""


def digest(seed):
    environment = os.environ | {"PYTHONHASHSEED": seed, "OMP_NUM_THREADS": "1"}
    found = subprocess.run([sys.executable, "-c", SCRIPT, "1"], env=environment, capture_output=True, text=True)
    return found.stdout.strip()


def test_the_same_seed_gives_the_same_bits_in_every_process():
    x, y = load_digits(return_X_y=True)
    model = DiscernelClassifier(30, trainer=Trainer(max_epochs=2), random_state=0).fit(x, y)
    here = hashlib.sha256(model.predict_proba(x).tobytes()).hexdigest()
    assert [digest("1"), digest("2")] == [here, here]


@pytest.mark.parametrize(("n_components", "tolerance"), [(30, 1e-9), (400, 1e-3)])
def test_the_number_of_threads_changes_rounding_only(n_components, tolerance):
    """A step of 30 features is so little work that it is done by one thread in any case; one of 400 is not."""
    x, y = (part[:900] for part in load_digits(return_X_y=True))
    found = []
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            model = DiscernelClassifier(
                n_components, rho=1e-2, head="ridge", trainer=Trainer(max_epochs=1), random_state=0
            )
            found.append(model.fit(x / 16, y).decision_function(x / 16))
    finally:
        torch.set_num_threads(1)
    assert np.abs(found[0] - found[1]).max() < tolerance * np.abs(found[0]).max()
