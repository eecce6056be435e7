"""`discernel reproduce`."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from discernel.cli.common import Debug, command


@command
def reproduce(
    names: Annotated[list[str], typer.Argument(metavar="NAME", help="digits, letter, mnist or covtype.")],
    quick: Annotated[bool, typer.Option(help="Few rows, features, seeds and epochs, to see that it works.")] = False,
    seeds: Annotated[int | None, typer.Option(help="How many seeds; else as planned for the data set.")] = None,
    components: Annotated[str, typer.Option(help="Numbers of features, as 25,50,100; else as planned.")] = "",
    hours: Annotated[float | None, typer.Option(help="Start no fit after so long; 0 only draws and writes.")] = None,
    schedule: Annotated[
        str, typer.Option(help="paper; patient (a tenth of its tolerance); fast, the library's own.")
    ] = "paper",
    study: Annotated[str, typer.Option(help="Only these: curves,rho,init,gamma,lines.")] = "",
    criteria: Annotated[str, typer.Option(help="Only these: di,ls,ce, or none for untrained maps.")] = "",
    data: Annotated[Path | None, typer.Option(help="Where the data sets are; else DISCERNEL_DATA.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where the tables are; else experiments/results.")] = None,
    debug: Debug = False,
) -> None:
    """Run the paper's experiments, draw its figures and judge its claims.

    Each fit adds a row to a table, and a row that is there is not fitted again:
    the command goes on where it was stopped or killed. Figures and the page of
    claims are made from the tables alone.

    \b
    Examples:
      discernel reproduce digits --quick
      discernel reproduce letter mnist --data /data --hours 3
    """
    experiments = _experiments()
    numbers = _numbers(components)
    settings = experiments.Settings(quick, seeds, numbers, schedule, _parts(study), _parts(criteria), hours, data)
    try:
        experiments.reproduce(names, out, settings, typer.echo)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def _parts(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in _parts(text)]
    except ValueError:
        raise typer.BadParameter(f"expected numbers of features such as 25,50,100; got {text!r}") from None


def _experiments():
    """Return the repository's package of experiments, which an installed wheel does not have."""
    roots = [p for p in (Path(__file__).parents[3], Path.cwd()) if (p / "experiments" / "reproduce.py").is_file()]
    if not roots:
        raise typer.BadParameter(
            "the experiments are not in the installed package: run this in a clone of the repository"
        )
    if str(roots[0]) not in sys.path:
        sys.path.insert(0, str(roots[0]))
    from experiments import reproduce

    return reproduce
