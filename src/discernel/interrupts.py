"""Being told to stop: the signals that ask for it wait until there is something whole to leave behind."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

ASKING = (signal.SIGINT, signal.SIGTERM)


class Held:
    """Whether a signal is being held back, and what lets it go."""

    def __init__(self, handlers: dict[int, object]):
        self._handlers = handlers  # what the signals do otherwise
        self._came: int | None = None

    @property
    def waiting(self) -> bool:
        """Whether a signal has come."""
        return self._came is not None

    def _hear(self, number: int, frame: object) -> None:
        self._came = number
        self.stop()  # a second one is not held back

    def start(self) -> None:
        """Hold back what comes."""
        for number in self._handlers:
            signal.signal(number, self._hear)

    def stop(self) -> None:
        """Hold back nothing more."""
        for number, handler in self._handlers.items():
            signal.signal(number, handler)  # pyrefly: ignore

    def let_go(self) -> None:
        """Let the signal that has come, if one has, do what it would have done; should that be nothing, go on."""
        if self._came is not None:
            number, self._came = self._came, None
            signal.raise_signal(number)
            self.start()


@contextmanager
def held_back(hold: bool = True) -> Iterator[Held]:
    """Hold back the first SIGINT or SIGTERM, until the end or `let_go`; a second one acts at once.

    As a rule, they raise KeyboardInterrupt, or end the process. Those that are ignored stay so. Only the main thread
    gets signals: in others nothing is held back.

    Examples
    --------
    >>> with held_back() as held:
    ...     held.waiting
    False
    """
    hold = hold and threading.current_thread() is threading.main_thread()
    before = {number: signal.getsignal(number) for number in ASKING} if hold else {}
    held = Held({number: handler for number, handler in before.items() if handler not in (None, signal.SIG_IGN)})
    held.start()
    try:
        yield held
    finally:
        held.stop()
        held.let_go()
        held.stop()
