import json
import os
import pickle
import struct

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from discernel import CE, DI, LS, RBF, ArraySource, Laplacian, Nystroem, RandomFourier, Targets, Trainer, training
from discernel import checkpoint as files
from discernel.checkpoint import FileError

CRITERIA = {"DI": DI, "LS": LS, "CE": CE}
ROWS = torch.rand(120, 3, generator=torch.Generator().manual_seed(0))
Y = (ROWS[:, 0] * ROWS[:, 1] > 0.25).numpy()
SETTINGS = {"max_epochs": 6, "batch_size": 30, "learning_rate": 0.1, "patience": 1, "tol": 0.05}

all_criteria = pytest.mark.parametrize("criterion", CRITERIA.values(), ids=CRITERIA)
both_schedules = pytest.mark.parametrize("schedule", training.SCHEDULES)


def nystroem(kernel=RBF):
    return Nystroem(ROWS[:8], kernel([1.0, 2.0, 3.0], trainable=True))


def start(feature_map, criterion, path=None, seed=1, x=ROWS, y=Y, weight=None, **settings):
    source = ArraySource(x, Targets.classes(y), weight)
    return Trainer(**SETTINGS | settings).epochs(feature_map, criterion, source, seed=seed, checkpoint=path)


def outcome(feature_map, history):
    """Return all that has to be the same to the bit."""
    values = [(r.epoch, r.criterion, r.learning_rate, r.validation_score) for r in history]
    return values, {name: a.numpy().tobytes() for name, a in feature_map.state_dict().items()}


def uninterrupted(criterion, **settings):
    feature_map = nystroem()
    return outcome(feature_map, list(start(feature_map, criterion(), **settings)))


@all_criteria
@both_schedules
@pytest.mark.parametrize("epochs", [1, 3])
def test_a_run_left_after_some_epochs_is_resumed_to_the_bit(tmp_path, criterion, schedule, epochs):
    run = start(nystroem(), criterion(), tmp_path / "run", schedule=schedule)
    for _ in range(epochs):
        next(run)
    run.close()
    feature_map = nystroem()
    history = list(start(feature_map, criterion(), tmp_path / "run", schedule=schedule))
    assert outcome(feature_map, history) == uninterrupted(criterion, schedule=schedule)


class PowerCut(Exception):
    """What stops a run in the middle."""


@all_criteria
@both_schedules
@pytest.mark.parametrize("steps", [1, 6, 12, 14])
def test_a_run_cut_off_within_an_epoch_is_resumed_to_the_bit(tmp_path, monkeypatch, criterion, schedule, steps):
    monkeypatch.setattr("discernel.run.SAVE_SECONDS", 0)
    feature_map, left = nystroem(), [steps]

    def with_pull_back(x):
        left[0] -= 1
        if left[0] < 0:
            raise PowerCut
        return Nystroem.with_pull_back(feature_map, x)

    with monkeypatch.context() as patch:
        patch.setattr(feature_map, "with_pull_back", with_pull_back)
        with pytest.raises(PowerCut):
            list(start(feature_map, criterion(), tmp_path / "run", schedule=schedule))
    feature_map = nystroem()
    history = list(start(feature_map, criterion(), tmp_path / "run", schedule=schedule))
    assert outcome(feature_map, history) == uninterrupted(criterion, schedule=schedule)


def test_a_finished_run_is_told_again_and_not_repeated(tmp_path):
    first = list(start(nystroem(), LS(), tmp_path / "run"))
    content = (tmp_path / "run").read_bytes()
    feature_map = nystroem()
    again = list(start(feature_map, LS(), tmp_path / "run"))
    assert again == first
    assert outcome(feature_map, again) == uninterrupted(LS)
    assert (tmp_path / "run").read_bytes() == content


def test_a_run_stopped_by_its_plateau_stays_stopped(tmp_path):
    settings = {"schedule": "plateau", "tol": 10.0, "max_epochs": 50}
    first = list(start(nystroem(), DI(), tmp_path / "run", **settings))
    assert len(first) < 50
    assert list(start(nystroem(), DI(), tmp_path / "run", **settings)) == first


def test_weights_and_validation_scores_are_resumed_too(tmp_path):
    def run(path):
        feature_map = RandomFourier(torch.ones(3, 5) * torch.arange(5.0), torch.arange(5.0))
        source = ArraySource(ROWS, Targets.classes(Y), torch.arange(120.0))
        return feature_map, Trainer(**SETTINGS).epochs(
            feature_map, DI(), source, checkpoint=path, validation=lambda m: m(ROWS).sum().item()
        )

    feature_map, epochs = run(None)
    expected = outcome(feature_map, list(epochs))
    next(run(tmp_path / "run")[1])
    feature_map, epochs = run(tmp_path / "run")
    assert outcome(feature_map, list(epochs)) == expected


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, function):
    path = tmp_path / "run"
    files.write(path, "checkpoint", {"a": torch.ones(2)}, {"b": 1})
    before = path.read_bytes()

    def fail(*args):
        raise OSError("no space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, function, fail)
        with pytest.raises(OSError, match="no space left"):
            files.write(path, "checkpoint", {"a": torch.zeros(2)}, {"b": 2})
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["run"]


def test_only_a_file_is_replaced_by_one(tmp_path):
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):  # or a device, as /dev/null is
        with pytest.raises(FileExistsError, match="is no file"):
            files.write_bytes(tmp_path / name, b"content")
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["folder", "pipe"]
    with pytest.raises(FileNotFoundError, match="make it first"):
        files.write_bytes(tmp_path / "nowhere" / "file", b"content")


def test_what_is_written_is_read_again(tmp_path):
    arrays = {"a": torch.rand(3, 2).T, "b": torch.arange(3), "c": torch.tensor(1.5, dtype=torch.float64)}
    meta = {"x": [1, 2.5, None, True], "y": {"z": "ü", "inf": float("inf")}}
    files.write(tmp_path / "file", "thing", arrays, meta)
    read, again = files.read(tmp_path / "file", "thing")
    assert again == meta
    assert read.keys() == arrays.keys()
    assert all(torch.equal(read[name], arrays[name]) and read[name].dtype == arrays[name].dtype for name in arrays)


def test_a_written_file_may_be_read_by_whoever_the_umask_allows(tmp_path):
    files.write_bytes(tmp_path / "ours", b"")
    (tmp_path / "plain").write_bytes(b"")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode


def test_flatten_and_branch_are_inverse():
    tree = {"a": torch.ones(1), "b": {0: {"c": torch.zeros(2)}, 1: {"c": 3.0}}}
    flat = files.flatten("t", tree)
    assert flat.keys() == {"t.a", "t.b.0.c", "t.b.1.c"}
    assert files.branch("t.b.1", flat)["c"] == 3
    assert files.branch("t.b", flat).keys() == {"0.c", "1.c"}


class Trap:
    """Something that leaves a trace if it is unpickled."""

    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (str(self.trace),)


def header(**content):
    return {"discernel": json.dumps(content)}


@pytest.mark.parametrize("criterion", [DI, CE])
@both_schedules
def test_parameters_in_any_layout_are_resumed_to_the_bit(tmp_path, criterion, schedule):
    """Files have rows; fused optimisers go through the memory of parameters, gradients and moments side by side."""

    def by_columns():
        return Nystroem(ROWS[:8].T.contiguous().T, RBF(1.0))

    whole, resumed = by_columns(), by_columns()
    assert not whole.landmarks.is_contiguous()
    history = list(start(whole, criterion(), schedule=schedule))
    run = start(by_columns(), criterion(), tmp_path / "run", schedule=schedule)
    next(run)
    run.close()
    found = list(start(resumed, criterion(), tmp_path / "run", schedule=schedule))
    assert outcome(resumed, found) == outcome(whole, history)


def fourier():
    return RandomFourier.sample(RBF(1.0), 3, 8, torch.Generator().manual_seed(0))


def test_the_centre_about_which_frequencies_turn_goes_on_with_a_resumed_run(tmp_path):
    whole, resumed = fourier(), fourier()
    history = list(start(whole, DI()))
    run = start(fourier(), DI(), tmp_path / "run")
    next(run)
    run.close()
    assert outcome(resumed, list(start(resumed, DI(), tmp_path / "run"))) == outcome(whole, history)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("centre", "the centre must have the shape"),
        ("gradient.0", "a gradient must have the shape"),
        ("gradient.2", "list index out of range"),
    ],
)
def test_a_checkpoint_with_the_arrays_of_other_data_is_damaged(tmp_path, name, problem):
    path, feature_map = tmp_path / "run", fourier()
    next(start(fourier(), DI(), path))
    arrays, meta = files.read(path, "checkpoint")
    files.write(path, "checkpoint", arrays | {name: torch.zeros(4)}, meta)
    before = outcome(feature_map, [])
    with pytest.raises(FileError, match=f"damaged.*{problem}"):
        start(feature_map, DI(), path)
    assert outcome(feature_map, []) == before


def whole_file(path):
    next(start(nystroem(), DI(), path))
    return path.read_bytes()


FOREIGN = {
    "text": (lambda path: path.write_text("epoch,criterion\n1,0.5\n"), "damaged or not a discernel file"),
    "empty": (lambda path: path.write_bytes(b""), "damaged or not a discernel file"),
    "truncated header": (lambda path: path.write_bytes(whole_file(path)[:100]), "damaged or not a discernel file"),
    "truncated": (lambda path: path.write_bytes(whole_file(path)[:-10]), "damaged or not a discernel file"),
    "lengthened": (lambda path: path.write_bytes(whole_file(path) + b"more"), "damaged or not a discernel file"),
    "huge header": (lambda path: path.write_bytes(struct.pack("<Q", 2**60) + b"{}"), "damaged or not a discernel file"),
    "pickle": (lambda path: path.write_bytes(pickle.dumps(Trap(path.parent / "trace"))), "damaged or not a discernel"),
    "torch": (lambda path: torch.save({"trap": Trap(path.parent / "trace")}, path), "damaged or not a discernel file"),
    "safetensors": (lambda path: save_file({"a": torch.ones(1)}, path), "discernel did not write it"),
    "no header": (lambda path: save_file({"a": torch.ones(1)}, path, {"discernel": ""}), "cannot be read"),
    "not json": (lambda path: save_file({"a": torch.ones(1)}, path, {"discernel": "hello"}), "cannot be read"),
    "no format": (lambda path: save_file({"a": torch.ones(1)}, path, header(kind="checkpoint")), "cannot be read"),
    "newer format": (
        lambda path: save_file({"a": torch.ones(1)}, path, header(format=99, kind="checkpoint", meta={})),
        "has format 99, this version reads format 1: upgrade discernel",
    ),
    "other kind": (
        lambda path: files.write(path, "model", {"a": torch.ones(1)}, {}),
        "holds a model, not a checkpoint",
    ),
    "no identity": (lambda path: files.write(path, "checkpoint", {"a": torch.ones(1)}, {}), "another run"),
    "meta is a list": (lambda path: files.write(path, "checkpoint", {"a": torch.ones(1)}, []), "damaged|another run"),
}


@pytest.mark.parametrize("name", FOREIGN)
def test_foreign_and_damaged_files_are_refused_and_nothing_in_them_is_run(tmp_path, name):
    make, message = FOREIGN[name]
    path, feature_map = tmp_path / "run", nystroem()
    make(path)
    content, before = path.read_bytes(), outcome(feature_map, [])
    with pytest.raises(FileError, match=message) as caught:
        start(feature_map, DI(), path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == content
    assert outcome(feature_map, []) == before
    assert not (tmp_path / "trace").exists()


@pytest.mark.parametrize("lost", ["order", "map.landmarks", "criterion.weights"])
def test_a_checkpoint_without_one_of_its_arrays_is_damaged_and_the_map_untouched(tmp_path, lost):
    path, feature_map = tmp_path / "run", nystroem()
    next(start(nystroem(), LS(), path))
    arrays, meta = files.read(path, "checkpoint")
    del arrays[lost]
    files.write(path, "checkpoint", arrays, meta)
    before = outcome(feature_map, [])
    with pytest.raises(FileError, match="damaged"):
        start(feature_map, LS(), path)
    assert outcome(feature_map, []) == before


@pytest.mark.parametrize(
    "progress", [{"step": -1}, {"step": 5}, {"step": 4}, {"epoch": 7}, {"epoch": 2}, {"epoch": -1}], ids=str
)
def test_a_checkpoint_of_a_step_that_the_run_has_not_is_damaged(tmp_path, progress):
    path, feature_map = tmp_path / "run", nystroem()
    next(start(nystroem(), DI(), path))
    arrays, meta = files.read(path, "checkpoint")
    meta["progress"] |= progress
    files.write(path, "checkpoint", arrays, meta)
    before = outcome(feature_map, [])
    if progress == {"step": 4}:  # all of the four steps of the second epoch are done, but it has not been told yet
        assert next(start(feature_map, DI(), path)).epoch == 1
        return
    with pytest.raises(FileError, match="damaged"):
        start(feature_map, DI(), path)
    assert outcome(feature_map, []) == before


def test_a_run_saves_within_an_epoch_only_when_a_minute_is_over(tmp_path, monkeypatch):
    now, written = [0.0], []
    write = files.write

    def record(path, kind, arrays, meta):
        written.append(meta["progress"]["epoch"] * 4 + meta["progress"]["step"])
        write(path, kind, arrays, meta)

    class Slow(DI):
        def forward(self, *tensors):
            now[0] += 25.0
            return super().forward(*tensors)

    monkeypatch.setattr("discernel.run.time.perf_counter", lambda: now[0])
    monkeypatch.setattr(files, "write", record)
    list(start(nystroem(), Slow(), tmp_path / "run", max_epochs=2))
    assert written == [3, 4, 7, 8]  # after the third step of 25 seconds, and after each epoch of four
    assert not list(tmp_path.glob("*.tmp"))


OTHER = {
    "seed": lambda path: start(nystroem(), DI(), path, seed=2),
    "learning rate": lambda path: start(nystroem(), DI(), path, learning_rate=0.2),
    "schedule": lambda path: start(nystroem(), DI(), path, schedule="plateau"),
    "epochs": lambda path: start(nystroem(), DI(), path, max_epochs=7),
    "rows": lambda path: start(nystroem(), DI(), path, x=ROWS + 1),
    "number of rows": lambda path: start(nystroem(), DI(), path, x=ROWS[:99], y=Y[:99]),
    "classes": lambda path: start(nystroem(), DI(), path, y=~Y),
    "weights": lambda path: start(nystroem(), DI(), path, weight=torch.ones(120)),
    "criterion": lambda path: start(nystroem(), LS(), path),
    "rho": lambda path: start(nystroem(), DI(rho=1.0), path),
    "kernel": lambda path: start(nystroem(Laplacian), DI(), path),
    "number of landmarks": lambda path: start(Nystroem(ROWS[:9], RBF([1.0, 2.0, 3.0], trainable=True)), DI(), path),
    "map": lambda path: start(RandomFourier(torch.ones(3, 8), torch.ones(8)), DI(), path),
    "precision": lambda path: start(nystroem().double(), DI(), path, x=ROWS.double()),
}


@pytest.mark.parametrize("what", OTHER)
def test_the_checkpoint_of_another_run_is_refused(tmp_path, what):
    path = tmp_path / "run"
    content = whole_file(path)
    with pytest.raises(FileError, match=r"checkpoint of another run: its .* is .*, here it is .*give another"):
        OTHER[what](path)
    assert path.read_bytes() == content


def test_numbers_of_numpy_are_as_good_as_pythons(tmp_path):
    settings = {"max_epochs": np.int64(2), "batch_size": np.int32(40), "learning_rate": np.float32(0.125)}
    history = list(start(nystroem(), DI(), tmp_path / "run", seed=np.int64(1), **settings))
    plain = {"max_epochs": 2, "batch_size": 40, "learning_rate": 0.125}
    assert list(start(nystroem(), DI(), tmp_path / "run", seed=1, **plain)) == history


def test_a_missing_directory_is_noticed_before_training(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere"):
        start(nystroem(), DI(), tmp_path / "nowhere" / "run")


def test_there_is_no_file_to_read(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"there is no file .*missing"):
        files.read(tmp_path / "missing", "checkpoint")
