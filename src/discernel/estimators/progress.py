"""What is shown of what goes on: a bar for the epochs, a spinner for what has no known end."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TimeElapsedColumn, TimeRemainingColumn

from discernel.run import EpochRecord


def tracked(epochs: Iterable[EpochRecord], label: str, total: int | None) -> Iterator[EpochRecord]:
    """Yield the records while showing them in the terminal, with the time left if the number of epochs is known."""
    times = [TimeElapsedColumn()] if total is None else [TimeElapsedColumn(), "left", TimeRemainingColumn(compact=True)]
    with Progress("{task.description}", BarColumn(5), "{task.fields[state]}", *times) as progress:
        task = progress.add_task(label, total=total, state="")
        for record in epochs:
            state = f"epoch {record.epoch}{'' if total is None else f'/{total}'} criterion {record.criterion:.4g}"
            if record.validation_score is not None:
                state += f" score {record.validation_score:.4g}"
            progress.update(task, advance=1, state=state)
            yield record


@contextmanager
def spinning(label: str, shown: bool, console: Console | None = None, transient: bool = False) -> Iterator[None]:
    """Show, if it is to be shown, that something goes on whose end is not known, and for how long it has."""
    if not shown:  # rich's own switch prints an empty line in some versions
        yield
        return
    columns = SpinnerColumn(), "{task.description}", TimeElapsedColumn()
    with Progress(*columns, console=console, transient=transient) as progress:
        progress.add_task(label, total=None)
        yield
