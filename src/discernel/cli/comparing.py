"""`discernel two-sample`."""

from pathlib import Path
from typing import Annotated

import typer


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

    \b
    Examples:
      discernel two-sample last_month.parquet this_month.parquet
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
