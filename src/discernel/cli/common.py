"""What the commands share: options, errors in one sentence, bars on the way."""

import json
import os
import sys
import time
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Annotated, Any

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)

UNUSABLE, DIFFERENT, BUG, STOPPED, UNHEARD = 1, 3, 70, 130, 141  # exit codes; 2, wrong usage, is typer's
EXPECTED = (ValueError, TypeError, OSError, ImportError, MemoryError, FloatingPointError)

Data = Annotated[list[Path], typer.Argument(help="CSV or Parquet: files, folders or patterns.", metavar="DATA")]
Model = Annotated[Path, typer.Argument(help="A model that `fit` has saved.", metavar="MODEL")]
Target = Annotated[
    list[str] | None, typer.Option("--target", "-t", help="The target, if the model does not know its name here.")
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and show no progress.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]


def command(function: Callable[..., None]) -> Callable[..., None]:
    """Return a command that says in one sentence what is wrong, and ends with the exit code that means it."""

    @wraps(function)
    def run(*args: Any, debug: bool = False, **options: Any) -> None:
        try:
            with warnings.catch_warnings():
                warnings.showwarning = _note
                function(*args, debug=debug, **options)
        except BrokenPipeError:  # `| head` has read enough: nothing is wrong, and nobody is listening
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(UNHEARD) from None
        except EXPECTED as error:
            _end(error, UNUSABLE, debug, f"Error: {_sentence(error)}")
        except KeyboardInterrupt as error:
            _end(error, STOPPED, debug, "Stopped.")
        except (typer.Exit, typer.Abort, typer.BadParameter):
            raise
        except Exception as error:
            _end(error, BUG, debug, f"Error, and a bug in discernel: {error!r}. --debug shows where; please report it.")

    return run


def _note(message: Any, category: Any, filename: str, lineno: int, file: Any = None, line: str | None = None) -> None:
    """Show a warning as a sentence, without the place in the source that gave it."""
    typer.echo(f"Note: {_sentence(message)}", err=True)


def _end(error: BaseException, code: int, debug: bool, message: str) -> None:
    if debug:
        traceback.print_exception(error)
    typer.echo(message, err=True)
    raise typer.Exit(code)


def _sentence(error: BaseException) -> str:
    if isinstance(error, OSError) and error.filename is not None and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return " ".join(str(error).split()) or type(error).__name__


def console(quiet: bool) -> Any:
    """Return where progress and remarks are shown: the terminal, beside what the command prints."""
    from rich.console import Console

    return Console(stderr=True, quiet=quiet, highlight=False, soft_wrap=True)


@contextmanager
def bar(screen: Any, label: str, total: int | None = None, unit: str = "rows") -> Iterator[Any]:
    """Show a bar with the rate and the time left, on a terminal only; yields what moves it on.

    Without a total, which is not always known before the end, it is a count.
    """
    if screen.quiet or not screen.is_terminal:
        yield lambda count, state=None: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
    from rich.progress import TimeRemainingColumn as Left

    words = TextColumn("{task.description}"), BarColumn(bar_width=None)
    counted = (MofNCompleteColumn(), TextColumn(unit), TextColumn("{task.fields[state]}"))
    times = (TextColumn("•"), Left(compact=True, elapsed_when_finished=True))
    count = (TextColumn("{task.completed:,.0f}"), *counted[1:], TextColumn("•"), TimeElapsedColumn())
    columns = (*words, *counted, *times) if total else (SpinnerColumn(), words[0], *count)
    with Progress(*columns, console=screen, transient=True, expand=True) as progress:
        task, started = progress.add_task(label, total=total, state=""), time.perf_counter()

        def advance(count: int, state: str | None = None) -> None:
            done = progress.tasks[0].completed + count
            rate = f"{done / max(1e-9, time.perf_counter() - started):,.0f}/s"
            progress.update(task, advance=count, state=rate if state is None else state)

        yield advance


def opened(screen: Any, data: list[Path], model: Any, target: str | list[str] | None = None) -> Any:
    """Return the rows of a table as the model's features; with the targets, if it is told or knows where they are."""
    from discernel.readers import open_table
    from discernel.tables import TableSource

    if not hasattr(model, "preprocessing_"):
        raise ValueError(
            "the model was not fitted on a table, so it does not know the columns: "
            "use `discernel fit`, or fit an estimator on a TableSource"
        )
    task = "classification" if hasattr(model, "classes_") else "regression" if hasattr(model, "predict") else "auto"
    with reading(screen, data) as progress:
        return TableSource(
            open_table([str(path) for path in data], known=model.preprocessing_.types | _target_types(model, target)),
            target or None,
            task=task,
            preprocessing=model.preprocessing_,
            progress=progress,
        )


def _target_types(model: Any, target: str | list[str] | None) -> dict[str, str]:
    """Return the type of a target whose classes are text, some of which may look like numbers in a CSV file."""
    texts = hasattr(model, "classes_") and model.classes_.dtype.kind == "U"
    return {target: "string"} if texts and isinstance(target, str) else {}


def reading(screen: Any, data: list[Path]) -> Any:
    """Show how many rows of some files have been read."""
    return bar(screen, f"Reading {', '.join(map(str, data))}")


def loaded(path: Path) -> Any:
    """Return the saved model."""
    from discernel.estimators import load

    return load(path)


def predictor(path: Path) -> Any:
    """Return the saved model, which must be one that predicts."""
    estimator = loaded(path)
    if not hasattr(estimator, "predict"):
        raise ValueError(f"{path} is a transformer and predicts nothing: use `discernel transform`")
    return estimator


def print_json(content: Any) -> None:
    """Print a result for machines: JSON, in which there is no NaN."""
    typer.echo(json.dumps(_plain(content), indent=2, allow_nan=False))


def _plain(content: Any) -> Any:
    if isinstance(content, dict):
        return {str(key): _plain(value) for key, value in content.items()}
    if isinstance(content, list | tuple):
        return [_plain(value) for value in content]
    if isinstance(content, float) and content != content:
        return None
    return content.item() if hasattr(content, "item") else content


def command_line(*more: str) -> str:
    """Return the command as it was typed, with more arguments."""
    import shlex

    name = "python -m discernel" if sys.argv[0].endswith("__main__.py") else Path(sys.argv[0]).name
    return f"{name} {shlex.join([*(argument for argument in sys.argv[1:] if argument not in more), *more])}"
