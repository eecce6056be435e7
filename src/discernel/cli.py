"""The command line. What a command needs is imported when it runs, so that `--help` is quick."""

import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)


@app.callback()
def discernel() -> None:
    """Discernel learns kernels: a few hundred trained features instead of thousands of random ones."""


@app.command()
def version() -> None:
    """Print the version."""
    from discernel import __version__

    typer.echo(__version__)


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Where the model and the figures go.")] = Path("discernel-demo"),
) -> None:
    """Compare the paper's methods on scikit-learn's digits, in under a minute.

    Learns 20 Nyström landmarks or Fourier frequencies by the Discriminant Information (DI), least squares (LS) and
    cross-entropy (CE), beside random and k-means ones and an exact SVC. Saves the best learned model and two figures.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
    from rich.table import Table

    from discernel import demo as demonstration

    console = Console()
    names, rows = list(demonstration.methods()), []
    columns = TextColumn("{task.description:16}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task(names[0], total=len(names))
        for row in demonstration.run():
            rows.append(row)
            progress.update(task, advance=1, description=[*names, ""][len(rows)])
    table = Table(title=f"Digits: {demonstration.N_COMPONENTS} features, two thirds of the rows to learn from")
    for heading, justify in (("method", "left"), ("accuracy, %", "right"), ("MSE", "right"), ("seconds", "right")):
        table.add_column(heading, justify=justify)
    best = max(row.accuracy for row in rows)
    for row in rows:
        mse = "" if row.mse is None else f"{row.mse:.3f}"
        style = "bold" if row.accuracy == best else None
        table.add_row(row.method, f"{100 * row.accuracy:.1f}", mse, f"{row.seconds:.1f}", style=style)
    console.print(table)
    console.print("Of the test rows: accuracy of a linear SVM on the features, MSE of ridge regression on them.")
    for path in demonstration.keep(rows, out):
        console.print(f"saved {path}", highlight=False, soft_wrap=True)


@app.command()
def reproduce(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="digits, letter, mnist or covtype.")],
    quick: Annotated[bool, typer.Option(help="Few rows, features, seeds and epochs, to see that it works.")] = False,
    seeds: Annotated[int | None, typer.Option(help="How many seeds; else as planned for the data set.")] = None,
    components: Annotated[str, typer.Option(help="Numbers of features, as 25,50,100; else as planned.")] = "",
    hours: Annotated[float | None, typer.Option(help="Start no fit after so long; 0 only draws and writes.")] = None,
    schedule: Annotated[
        str, typer.Option(help="paper; patient (a tenth of its tolerance); fast, the default.")
    ] = "paper",
    study: Annotated[str, typer.Option(help="Only these: curves,rho,init,gamma,lines.")] = "",
    criteria: Annotated[str, typer.Option(help="Only these: di,ls,ce, or none for untrained maps.")] = "",
    data: Annotated[Path | None, typer.Option(help="Where the data sets are; else DISCERNEL_DATA.")] = None,
    out: Annotated[Path | None, typer.Option(help="Where the tables are; else experiments/results.")] = None,
) -> None:
    """Run the paper's experiments, draw its figures and judge its claims.

    Each fit adds a row to a table, and a row that is there is not fitted again: the command goes on where it was
    stopped or killed. Figures and the page of claims are made from the tables alone.
    """
    experiments = _experiments()
    numbers = _numbers(components)
    settings = experiments.Settings(quick, seeds, numbers, schedule, _parts(study), _parts(criteria), hours, data)
    try:
        experiments.reproduce(names, out, settings, typer.echo)
    except (ValueError, FileNotFoundError) as error:
        raise typer.BadParameter(str(error)) from error


@app.command("two-sample")
def two_sample(
    first: Annotated[Path, typer.Argument(help="A Parquet or CSV file, or a folder of them.")],
    second: Annotated[Path, typer.Argument(help="Another one with the same columns.")],
    learn: Annotated[bool, typer.Option(help="Learn the kernel on half of the rows and test on the other.")] = True,
    rows: Annotated[int, typer.Option(help="Take at most so many rows of each, at random.", min=8)] = 5000,
    level: Annotated[float, typer.Option(help="Exit with status 1 if the p-value is at most this.")] = 0.05,
    seed: Annotated[int, typer.Option(help="Decides what is random.")] = 0,
) -> None:
    """Test whether two tables come from one distribution: a drift detector.

    Prints the p-values of the kernel Fisher discriminant test and of MMD on the same features.
    """
    import numpy as np

    from discernel.preprocessing import Preprocessing
    from discernel.two_sample import two_sample_test

    try:
        preprocessing = Preprocessing.fit([first, second], scaling="standard", missing="impute")
        tables = [preprocessing.transform(path) for path in (first, second)]
        rng = np.random.default_rng(seed)
        x, y = (table[rng.permutation(len(table))[:rows]] for table in tables)
        found = two_sample_test(x, y, learn=learn, seed=seed)
    except (ValueError, TypeError, FileNotFoundError) as error:
        raise typer.BadParameter(str(error)) from error
    typer.echo(f"kernel Fisher ratio {found.statistic:.4g}, p = {found.p_value:.4g} ({found.counts} rows)")
    typer.echo(f"MMD² {found.mmd:.4g}, p = {found.mmd_p_value:.4g}")
    raise typer.Exit(int(found.p_value <= level))


def _parts(text: str) -> list[str]:
    return [part for part in text.split(",") if part]


def _numbers(text: str) -> list[int]:
    try:
        return [int(part) for part in _parts(text)]
    except ValueError:
        raise typer.BadParameter(f"expected numbers of features such as 25,50,100; got {text!r}") from None


def _experiments():
    """Return the repository's package of experiments, which an installed wheel does not have."""
    roots = [p for p in (Path(__file__).parents[2], Path.cwd()) if (p / "experiments" / "reproduce.py").is_file()]
    if not roots:
        raise typer.BadParameter(
            "the experiments are not in the installed package: run this in a clone of the repository"
        )
    if str(roots[0]) not in sys.path:
        sys.path.insert(0, str(roots[0]))
    from experiments import reproduce

    return reproduce


def main() -> None:
    """Run the command line."""
    app()
