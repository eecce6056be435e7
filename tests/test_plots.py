"""Figures: what is drawn is what was given."""

import numpy as np
import pytest

from discernel import EpochRecord, plots

mpl = pytest.importorskip("matplotlib")
mpl.use("agg")
plt = pytest.importorskip("matplotlib.pyplot")

RNG = np.random.default_rng(0)


@pytest.fixture
def ax():
    figure, ax = plt.subplots(layout="constrained")
    yield ax
    figure.canvas.draw()  # names such as $x$ must not be taken for formulas
    plt.close(figure)


def labels(ticks):
    return [tick.get_text() for tick in ticks]


def record(epoch, score=None):
    return EpochRecord(epoch, 10.0 * epoch, 0.1, 1.0, 100.0, score)


def test_training_curve(ax):
    assert plots.training_curve(ax, [record(1), record(2)]) is ax
    np.testing.assert_array_equal(ax.lines[0].get_xydata(), [[1, 10], [2, 20]])
    assert len(ax.figure.axes) == 1


def test_training_curve_with_validation(ax):
    plots.training_curve(ax, [record(1, 0.5), record(2, 0.7)])
    _, right = ax.figure.axes
    np.testing.assert_array_equal(right.lines[0].get_ydata(), [0.5, 0.7])


def test_profiles_hold_every_landmark_once_and_similar_ones_together(ax):
    shape = RNG.normal(size=5)
    landmarks = np.array([1.0, -1.0, 1.1, -1.1])[:, None] * shape
    assert plots.landmark_profiles(ax, landmarks, list("abcde")) is ax
    shown = ax.images[0].get_array()
    standard = (landmarks - landmarks.mean(0)) / landmarks.std(0)
    np.testing.assert_allclose(np.sort(shown, 0), np.sort(standard, 0))
    assert len({tuple(np.sign(row)) for row in shown[:2]}) == 1
    assert labels(ax.get_xticklabels()) == list("abcde")


def test_a_constant_feature_of_landmarks_is_white(ax):
    plots.landmark_profiles(ax, np.c_[np.ones(3), np.arange(3.0)])
    np.testing.assert_array_equal(ax.images[0].get_array()[:, 0], 0)


def test_importance_has_the_largest_on_top(ax):
    assert plots.importance(ax, np.array([0.1, 0.6, 0.3]), ["a", "$b$", "c"], top=2) is ax
    by_height = sorted(ax.patches, key=lambda bar: -bar.get_y())
    np.testing.assert_allclose([bar.get_width() for bar in by_height], [60, 30])
    assert labels(ax.get_yticklabels()) == [r"\$b\$", "c"]


@pytest.mark.parametrize("n_classes", [2, 10, 26])
def test_components_of_classes(ax, n_classes):
    y = np.array([f"<class {i}>" for i in range(n_classes)]).repeat(3)
    points = RNG.normal(size=(len(y), 2))
    assert plots.components(ax, points, y) is ax
    np.testing.assert_allclose(
        np.concatenate([dots.get_offsets() for dots in ax.collections]), points[np.argsort(y, kind="stable")]
    )
    looks = {(tuple(d.get_facecolor()[0]), d.get_paths()[0].vertices.tobytes()) for d in ax.collections}
    assert len(looks) == n_classes
    assert labels(ax.get_legend().get_texts()) == sorted(set(y))


def test_classes_may_be_called_anything(ax):
    y = np.array(["_", "_hidden", "$a$"])
    plots.components(ax, RNG.normal(size=(3, 2)), y)
    plots.components(ax, RNG.normal(size=(3, 2)), y)  # over what is there already
    assert labels(ax.get_legend().get_texts()) == [r"\$a\$", "_", "_hidden"]


@pytest.mark.parametrize("y", [RNG.normal(size=9), np.arange(100), np.arange(100.0)], ids=["few", "ints", "floats"])
def test_components_of_numbers(ax, y):
    points = RNG.normal(size=(len(y), 2))
    plots.components(ax, points, y)
    np.testing.assert_array_equal(ax.collections[0].get_array(), y)


def test_confusion_matrix_writes_the_counts(ax):
    counts = np.array([[8, 2], [0, 5]])
    assert plots.confusion_matrix(ax, counts, ["yes", "$no"]) is ax
    np.testing.assert_allclose(ax.images[0].get_array(), [[0.8, 0.2], [0, 1]])
    assert {(text.get_position(), text.get_text()) for text in ax.texts} == {
        ((0, 0), "8"),
        ((1, 0), "2"),
        ((1, 1), "5"),
    }


def test_a_class_without_rows_and_many_classes_have_no_text(ax):
    plots.confusion_matrix(ax, np.zeros((30, 30), int), range(30))
    assert not ax.texts
    np.testing.assert_array_equal(ax.images[0].get_array(), 0)


def test_accuracy_against_size_averages_repetitions(ax):
    rows = [
        {"method": "DI", "n_components": 20, "accuracy": 0.8},
        {"method": "DI", "n_components": 10, "accuracy": 0.6},
        {"method": "Std", "n_components": 10, "accuracy": 0.5},
        {"method": "DI", "n_components": 20, "accuracy": 0.9},
    ]
    assert plots.accuracy_against_size(ax, rows) is ax
    np.testing.assert_allclose(ax.lines[0].get_xydata(), [[10, 60], [20, 85]])
    assert labels(ax.get_legend().get_texts()) == ["DI", "Std"]
