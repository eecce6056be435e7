"""`discernel two-sample`."""

from pathlib import Path
from typing import Annotated

import typer

from discernel.cli.common import DIFFERENT, Debug, Json, Quiet, bar, command, console, print_json


@command
def two_sample(
    first: Annotated[Path, typer.Argument(help="A CSV or Parquet file, or a folder of them.", metavar="A")],
    second: Annotated[Path, typer.Argument(help="Another one with the same columns.", metavar="B")],
    learn: Annotated[bool, typer.Option(help="Learn the kernel on half of the rows and test on the other.")] = True,
    rows: Annotated[int, typer.Option(help="Take at most so many rows of each, at random.", min=8)] = 5000,
    level: Annotated[float, typer.Option(help="The tables differ if the p-value is at most this.")] = 0.05,
    seed: Annotated[int, typer.Option(help="Decides what is random.")] = 0,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Test whether two tables come from one distribution: a drift detector.

    Prints the p-values of the kernel Fisher discriminant test, and of MMD on
    the same features. The exit code is 3 if the tables differ.

    \b
    Examples:
      discernel two-sample last_month.parquet this_month.parquet
      discernel two-sample old.csv new.csv --json | jq .p_value
    """
    import numpy as np

    from discernel.preprocessing import Preprocessing
    from discernel.two_sample import two_sample_test

    screen, rng = console(quiet or as_json), np.random.default_rng(seed)
    with bar(screen, f"Reading {first}, {second}"):
        preprocessing = Preprocessing.fit([first, second], scaling="standard", missing="impute")
        tables = [preprocessing.transform(path) for path in (first, second)]
    x, y = (table[rng.permutation(len(table))[:rows]] for table in tables)
    with bar(screen, "Learning the kernel and testing" if learn else "Testing"):
        found = two_sample_test(x, y, learn=learn, seed=seed)
    differ = bool(found.p_value <= level)
    if as_json:
        names = ("statistic", "p_value", "mmd", "mmd_p_value", "counts")
        print_json({name: getattr(found, name) for name in names} | {"level": level, "differ": differ})
    else:
        counts = " and ".join(f"{count:,}" for count in found.counts)
        typer.echo(f"kernel Fisher ratio {found.statistic:.4g}, p = {found.p_value:.4g} ({counts} rows)")
        typer.echo(f"MMD² {found.mmd:.4g}, p = {found.mmd_p_value:.4g}")
        typer.echo(f"the tables {'differ' if differ else 'may come from one distribution'} (level {level:g})")
    raise typer.Exit(DIFFERENT if differ else 0)
