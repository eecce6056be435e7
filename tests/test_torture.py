"""Fits on generated and on chosen odd data; `make torture` makes ten thousand of the former."""

import json
from collections import Counter

import numpy as np
import pytest
import scipy.sparse as sp
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from discernel import DI, RBF, ArraySource, DiscernelClassifier, Nystroem, Targets, Trainer, choose_landmarks
from tests import torture

CASES = 150
MANY = 10_000
USUAL = {
    **{"n_rows": 40, "n_columns": 2, "copies": False, "form": "float64", "targets": "two classes", "weights": "none"},
    **{"components": 5, "gamma": "learn", "rho": 1e-4, "feature_map": "nystroem", "kernel": "rbf", "criterion": "di"},
    **{"head": "ridge"},
}


@st.composite
def cases(draw):
    choices = tuple(draw(st.sampled_from(options)) for options in torture.CHOICES.values())
    n_columns = dict(zip(torture.CHOICES, choices, strict=True))["n_columns"]
    column = st.sampled_from(list(torture.COLUMNS))
    columns = draw(st.lists(column, min_size=n_columns, max_size=n_columns))
    return torture.Case(draw(st.integers(0, 2**32 - 1)), tuple(columns), choices)


def case(*columns, seed=0, **choices):
    usual = USUAL | {"n_columns": len(columns)} | choices
    return torture.Case(seed, columns, tuple(usual[name] for name in torture.CHOICES))


quick = settings(max_examples=CASES, deadline=None, database=None, derandomize=True, suppress_health_check=HealthCheck)
long = settings(quick, max_examples=MANY, derandomize=False)


@quick
@given(cases())
def test_generated_fits_are_right_or_refused(case):
    torture.check(case)


@pytest.mark.torture
def test_ten_thousand_generated_fits_are_right_or_refused():
    outcomes = Counter()

    @long
    @given(cases())
    def run(case):
        outcomes[torture.check(case)] += 1

    run()
    assert outcomes.total() >= MANY
    assert outcomes["fitted"] > outcomes["refused"] > 0
    torture.RESULTS.write_text(json.dumps(outcomes, indent=2) + "\n")


ZOO = {
    "constant columns": case("constant", "zero"),
    "a constant column": case("constant", "normal"),
    "copies of two rows": case("normal", "normal", copies=True),
    "features of 1e-30": case("tiny", "tiny"),
    "features of 1e30": case("huge", "huge"),
    "features of 1e-30 and 1e30": case("tiny", "huge"),
    "features of 1e-30 in float32": case("tiny", "tiny", form="float32"),
    "features of 1e30 in float32": case("huge", "huge", form="float32"),
    "indicators": case("indicator", "indicator", "indicator"),
    "separable": case("normal", targets="separable"),
    "one sample of a class": case("normal", "normal", targets="one of a class"),
    "every sample its own class": case("normal", "normal", targets="all different"),
    "fewer rows than features": case("normal", n_rows=5, components=40, feature_map="fourier", targets="separable"),
    "one component": case("normal", "normal", components=1),
    "one target": case("normal", targets="noise"),
    "rows of zeros": case("zero", "zero", form="sparse"),
    "two rows": case("normal", n_rows=2, targets="separable"),
    **{f"gamma {gamma}": case("normal", "normal", gamma=gamma) for gamma in (1e-30, 1e-8, 1e8, 1e30)},
    "rows that hardly differ": case("normal", "whole", gamma=1e-14, rho=1e-30, components=40, criterion=None),
    "rows that differ by rounding, of a huge weight": case(
        "normal", "whole", gamma=1e-30, weights="huge", components=40, feature_map="fourier", criterion=None
    ),
    **{f"rho {rho}": case("normal", "normal", rho=rho) for rho in (1e-30, 1e-12, 1e12, 1e30)},
    **{f"of the form {form}": case("normal", "whole", form=form) for form in torture.FORMS},
    **{f"weights {name}": case("normal", weights=name, head="softmax") for name in torture.WEIGHTS},
    **{f"values {name}": case("normal", targets=name, rho="auto") for name in torture.TARGETS if "values" in name},
}


@pytest.mark.parametrize("name", ZOO)
def test_the_zoo_is_fitted(name):
    assert torture.check(ZOO[name]) == "fitted"


def test_a_thousand_classes():
    x = np.random.default_rng(0).normal(size=(2000, 3))
    model = DiscernelClassifier(8, trainer=Trainer(max_epochs=1), random_state=0).fit(x, np.arange(2000) % 1000)
    probabilities = model.predict_proba(x[:5])
    assert probabilities.shape == (5, 1000)
    assert np.allclose(probabilities.sum(1), 1)


def test_equal_landmarks_are_one():
    x = torch.rand(50, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    source = ArraySource(x, Targets.classes(x[:, 0] > 0.5))
    many, one = (Nystroem(torch.zeros(count, 2, dtype=torch.float64), RBF(1.0)) for count in (5, 1))
    told = [next(Trainer(max_epochs=1).epochs(each, DI(rho=1e-12), source)).criterion for each in (many, one)]
    assert np.allclose(*told, rtol=1e-6)
    assert many(x).shape[1] == 1 or torch.isfinite(many(x)).all()


def test_rows_far_from_those_of_training_are_refused_where_they_overflow():
    x = np.random.default_rng(0).normal(size=(40, 2))
    model = DiscernelClassifier(4, feature_map=torture.MAPS["nystroem"](4, kernel="polynomial", gamma=1.0)).fit(
        x, x[:, 0] > 0
    )
    with pytest.raises(ValueError, match="features of 1 rows overflow in float64: rescale"):
        model.transform([[1e200, 1e200], [0.0, 0.0]])
    with pytest.raises(ValueError, match="scores of 1 rows overflow in float64: rescale"):
        model.predict([[1e200, 1e200], [0.0, 0.0]])


@pytest.mark.parametrize("kernel", ["rbf", "laplacian", "matern", "cauchy"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_stationary_kernel_is_zero_far_away_and_one_at_a_point_itself(kernel, dtype):
    from discernel import make_kernel

    far = 1e25 if dtype == torch.float32 else 1e200  # the square is not a number of this precision
    x = torch.tensor([[0.0], [far], [2 * far], [-far]], dtype=dtype, requires_grad=True)
    found = make_kernel(kernel, 1.0)(x, x.detach().clone().requires_grad_())
    assert torch.equal(found, torch.eye(4, dtype=dtype))
    found.sum().backward()
    assert torch.isfinite(x.grad).all()


def test_what_cannot_be_scaled_is_refused_by_name():
    x = torch.tensor([[1.0], [2.0]]) * 1e30
    with pytest.raises(FloatingPointError, match=r"overflows in torch.float32: rescale the features"):
        RBF(1e30)(x, x.clone())
    rows = np.array([[1.0], [-1.0], [3.0]]) * 1e300
    with pytest.raises(ValueError, match="variance overflows: rescale them"):
        DiscernelClassifier(2).fit(rows, [0, 1, 0])
    fourier = DiscernelClassifier(2, feature_map="fourier", gamma=1e30)
    with pytest.raises(ValueError, match=r"gamma is too large for these features in torch\.float64"):
        fourier.fit(np.arange(6.0)[:, None], [0, 1] * 3)
    linear = torture.MAPS["nystroem"](1, kernel="linear", criterion=None)
    with pytest.raises(ValueError, match="no features are left"):
        linear.fit(sp.csr_array((4, 2)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_not_trained_in(dtype):
    x = torch.rand(4, 3).to(dtype)
    with pytest.raises(TypeError, match=f"x must be float32 or float64, got {dtype}; convert with .float"):
        ArraySource(x, Targets.classes([0, 1, 0, 1]))
    with pytest.raises(TypeError, match="x must be float32 or float64"):
        choose_landmarks(x, 2)
