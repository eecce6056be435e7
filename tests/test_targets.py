import numpy as np
import pytest
import torch

from discernel import Targets


@pytest.mark.parametrize(
    ("y", "names", "codes"),
    [
        (["b", "a", "c", "a"], ["a", "b", "c"], [1, 0, 2, 0]),
        ([7, -1, 7, 3], [-1, 3, 7], [2, 0, 2, 1]),
        ([True, False, True], [False, True], [1, 0, 1]),
        (np.array([1.0, 0.5]), [0.5, 1.0], [1, 0]),
        (np.array(["b", "a"], dtype=object), ["a", "b"], [1, 0]),
        (torch.tensor([4, 2, 4]), [2, 4], [1, 0, 1]),
    ],
    ids=["str", "int", "bool", "float", "object", "tensor"],
)
def test_classes_are_indicators_of_the_sorted_names(y, names, codes):
    targets = Targets.classes(y)
    assert targets.names.tolist() == names
    assert targets.n_targets == len(names)
    assert len(targets) == len(y)
    assert torch.equal(targets[:], torch.eye(len(names))[codes])


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_unit_columns_have_weighted_norm_one(weighted, dtype):
    y = np.repeat([0, 1, 2], [3, 50, 947])
    weight = np.random.default_rng(0).uniform(0.1, 3, 1000) if weighted else np.ones(1000)
    targets = Targets.classes(y, scaling="unit", sample_weight=weight if weighted else None)
    matrix = targets.to(torch.zeros((), dtype=dtype))[:].double()
    norms = torch.from_numpy(weight) @ matrix.square()
    torch.testing.assert_close(norms, torch.ones(3).double(), rtol=100 * torch.finfo(dtype).eps, atol=0)


def test_weights_of_a_tensor_count_like_those_of_an_array():
    weight = np.array([1.0, 2.0, 3.0])
    first, second = (Targets.classes(["a", "b", "a"], "unit", w) for w in (weight, torch.from_numpy(weight)))
    assert torch.equal(first[:], second[:])


def test_classes_may_be_known_of_which_y_has_only_some():
    targets = Targets.classes(["c", "a"], names=np.array(["a", "b", "c"]))
    assert targets.n_targets == 3
    assert targets[:].tolist() == [[0, 0, 1], [1, 0, 0]]
    assert Targets.classes([1.0, 1.0], names=np.array([1, 2]))[:].tolist() == [[1, 0], [1, 0]]
    with pytest.raises(ValueError, match=r"y has the classes \['d'\], .* known ones, \['a', 'c'\]"):
        Targets.classes(["d", "a"], names=np.array(["a", "c"]))
    with pytest.raises(ValueError, match="must not be zero for a whole class"):
        Targets.classes(["c", "a"], "unit", names=np.array(["a", "b", "c"]))


@pytest.mark.parametrize("y", [[[0, 1, 1], [0, 0, 0]], [[False, True, True], [False, False, False]]])
def test_labels_are_kept(y):
    targets = Targets.labels(np.array(y))
    assert targets.kind == "labels"
    assert targets.n_targets == 3
    assert targets[:].tolist() == [[0, 1, 1], [0, 0, 0]]


@pytest.mark.parametrize("shape", [(5,), (5, 1), (5, 3)])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_values_keep_their_numbers_and_precision(shape, dtype):
    y = np.random.default_rng(0).normal(size=shape).astype(dtype)
    targets = Targets.values(y)
    assert targets.n_targets == (shape[1] if len(shape) == 2 else 1)
    assert targets.data.dtype == targets[:].dtype == getattr(torch, dtype)
    assert np.array_equal(targets[:].numpy(), y.reshape(5, -1))


def test_whole_numbers_are_values_too():
    assert Targets.values(np.array([1, 2, 3])).to(torch.zeros((), dtype=torch.float64))[:].tolist() == [[1], [2], [3]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    "targets",
    [
        Targets.classes(list("aba")),
        Targets.classes(list("aba"), "unit"),
        Targets.labels(np.eye(3)),
        Targets.values(np.arange(3.0)),
    ],
    ids=["classes", "unit", "labels", "values"],
)
def test_rows_are_rows_of_the_matrix_in_the_precision_of_the_data(targets, dtype):
    targets = targets.to(torch.zeros((), dtype=dtype))
    whole = targets[:]
    assert whole.dtype == dtype
    assert whole.shape == (3, targets.n_targets)
    assert torch.equal(targets[torch.tensor([2, 0])], whole[[2, 0]])
    assert torch.equal(targets[1:], whole[1:])


def test_targets_cannot_be_changed_by_accident():
    y = np.arange(3.0)
    targets = Targets.values(y)
    y[0] = 100
    assert targets[:].flatten().tolist() == [0, 1, 2]
    with pytest.raises(AttributeError):
        targets.kind = "labels"


def test_scaled_targets_among_more_classes_keep_their_scale():
    targets = Targets.classes(["b", "d", "d", "d", "d"], scaling="unit").among(np.array(["a", "b", "c", "d"]))
    np.testing.assert_allclose(targets[:], [[0, 1, 0, 0], *[[0, 0, 0, 0.5]] * 4])
