import os
import signal
import threading

import pytest
import torch

from discernel import DI, RBF, ArraySource, Nystroem, Targets, Trainer
from discernel import checkpoint as files
from discernel.interrupts import held_back

SIGNALS = [signal.SIGINT, signal.SIGTERM]
X = torch.rand(120, 3, generator=torch.Generator().manual_seed(0))
SOURCE = ArraySource(X, Targets.classes((X[:, 0] > X[:, 1]).numpy()))


class Told(Exception):
    """What the handlers of these tests raise."""


@pytest.fixture(autouse=True)
def handlers():
    """Have signals raise an error that no one else does."""

    def tell(number, frame):
        raise Told(number)

    before = {number: signal.signal(number, tell) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_waits_for_the_end(number):
    done = []
    with pytest.raises(Told, match=str(int(number))), held_back() as held:  # noqa: PT012
        assert not held.waiting
        signal.raise_signal(number)
        assert held.waiting
        done.append(True)
    assert done


def test_a_second_signal_does_not_wait():
    with pytest.raises(Told), held_back():  # noqa: PT012
        signal.raise_signal(signal.SIGTERM)
        with pytest.raises(Told, match="2"):
            signal.raise_signal(signal.SIGINT)


def test_a_signal_can_be_let_go_before_the_end():
    reached = []
    with pytest.raises(Told), held_back() as held:  # noqa: PT012
        held.let_go()
        signal.raise_signal(signal.SIGINT)
        reached.append("raised")
        held.let_go()
        reached.append("never")
    assert reached == ["raised"]


def test_a_handler_that_raises_nothing_is_called_and_the_next_signal_waits_again():
    heard = []
    signal.signal(signal.SIGINT, lambda number, frame: heard.append(number))
    with held_back() as held:
        for count in range(3):
            signal.raise_signal(signal.SIGINT)
            assert held.waiting
            assert len(heard) == count
            held.let_go()
            assert not held.waiting
    assert heard == [signal.SIGINT] * 3


def test_what_is_ignored_stays_ignored():
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with held_back() as held:
        signal.raise_signal(signal.SIGINT)
        assert not held.waiting


@pytest.mark.parametrize("raised", [None, ValueError])
def test_the_handlers_are_put_back(raised):
    before = [signal.getsignal(number) for number in SIGNALS]
    try:
        with held_back():
            assert signal.getsignal(signal.SIGINT) not in before
            if raised:
                raise raised
    except ValueError:
        pass
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_nothing_is_held_back_if_not_asked_for_or_not_in_the_main_thread():
    before = signal.getsignal(signal.SIGINT)
    with held_back(False):
        assert signal.getsignal(signal.SIGINT) is before
    found = []

    def other():
        with held_back() as held:
            found.append((signal.getsignal(signal.SIGINT), held.waiting))

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert found == [(before, False)]


def start(path, feature_map):
    return Trainer(max_epochs=3, batch_size=20).epochs(feature_map, DI(), SOURCE, seed=1, checkpoint=path)


def nystroem():
    return Nystroem(X[:8], RBF(1.0))


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("step", [1, 4, 6, 8])  # of 18; the sixth is the last of an epoch
def test_a_run_that_is_told_to_stop_saves_the_step_it_is_in(tmp_path, number, step, monkeypatch):
    stopped, path, left = nystroem(), tmp_path / "run", [step]

    def with_pull_back(x):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), number)
        return Nystroem.with_pull_back(stopped, x)

    monkeypatch.setattr(stopped, "with_pull_back", with_pull_back)
    with pytest.raises(Told):
        list(start(path, stopped))
    progress = files.read(path, "checkpoint")[1]["progress"]
    assert 6 * progress["epoch"] + progress["step"] == step
    resumed, calm = nystroem(), nystroem()
    history = list(start(path, resumed))
    told = [record.criterion for record in history]
    last = history[step // 6]  # the epoch that was cut off: only what was left of it took time
    assert last.samples_per_second * last.seconds == pytest.approx(20 * (6 - step % 6))
    assert told == [record.criterion for record in start(None, calm)]
    assert torch.equal(resumed.landmarks, calm.landmarks)
    assert os.listdir(tmp_path) == ["run"]


def test_a_run_without_a_checkpoint_stops_at_once(monkeypatch):
    feature_map, seen = nystroem(), []

    def with_pull_back(x):
        seen.append(len(seen))
        signal.raise_signal(signal.SIGINT)
        return Nystroem.with_pull_back(feature_map, x)

    monkeypatch.setattr(feature_map, "with_pull_back", with_pull_back)
    with pytest.raises(Told):
        list(start(None, feature_map))
    assert seen == [0]


class Tells(ArraySource):
    """A source that tells to stop when it has no more batches in its third pass."""

    passes = 0

    def batches(self, *args, **options):
        yield from super().batches(*args, **options)
        self.passes += 1
        if self.passes == 3:
            signal.raise_signal(signal.SIGTERM)


def test_a_run_that_is_told_to_stop_after_the_last_step_of_an_epoch_saves_it(tmp_path):
    source, path = Tells(X, SOURCE.targets), tmp_path / "run"
    epochs = Trainer(max_epochs=3, batch_size=20).epochs(nystroem(), DI(), source, seed=1, checkpoint=path)
    with pytest.raises(Told):
        list(epochs)
    progress = files.read(path, "checkpoint")[1]["progress"]
    assert (progress["epoch"], progress["step"]) == (2, 6)
