"""A progress bar around a run of epochs."""

from collections.abc import Iterable, Iterator

from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from discernel.training import EpochRecord


def tracked(epochs: Iterable[EpochRecord], label: str) -> Iterator[EpochRecord]:
    """Yield the records while showing them in the terminal."""
    columns = TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"), TimeElapsedColumn()
    with Progress(*columns, transient=True) as progress:
        task = progress.add_task(label, total=None, state="")
        for record in epochs:
            state = f"epoch {record.epoch}, criterion {record.criterion:.5g}, {record.samples_per_second:,.0f} rows/s"
            progress.update(task, advance=1, state=state)
            yield record
