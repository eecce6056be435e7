"""`discernel predict`, `transform` and `evaluate`."""

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from discernel.cli.common import (
    Data,
    Debug,
    Json,
    Model,
    Quiet,
    Target,
    bar,
    command,
    console,
    loaded,
    opened,
    predictor,
    print_json,
)

FORMULA = ("=", "+", "-", "@", "\t", "\r")
NUMBER = r"[+-]?[0-9.]+([eE][+-]?[0-9]+)?"

Out = Annotated[Path | None, typer.Option("--out", "-o", help="A CSV or Parquet file; else CSV on the terminal.")]


@command
def predict(
    model: Model,
    data: Data,
    out: Out = None,
    probabilities: Annotated[bool, typer.Option("--probabilities", help="Add those of the classes.")] = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Predict the target of each row of a table.

    \b
    Examples:
      discernel predict model.safetensors new.csv -o predictions.csv
      discernel predict model.safetensors new.parquet --probabilities -o p.parquet
      discernel predict model.safetensors new.csv | head
    """
    estimator = predictor(model)
    if probabilities and not hasattr(estimator, "predict_proba"):
        raise ValueError(f"{model} is a regressor and has no probabilities: leave --probabilities out")
    _each(data, estimator, out, quiet, lambda x: _predictions(estimator, x, probabilities))


@command
def transform(model: Model, data: Data, out: Out = None, quiet: Quiet = False, debug: Debug = False) -> None:
    """Compute the learned features of each row of a table.

    \b
    Examples:
      discernel transform model.safetensors new.csv -o features.parquet
    """
    estimator = loaded(model)
    names = [f"feature_{number}" for number in range(estimator._n_features_out)]
    _each(data, estimator, out, quiet, lambda x: dict(zip(names, estimator.transform(x).T, strict=True)))


@command
def evaluate(
    model: Model,
    data: Data,
    target: Target = None,
    as_json: Json = False,
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Score a model on rows with known targets.

    \b
    Examples:
      discernel evaluate model.safetensors test.csv
      discernel evaluate model.safetensors test.csv --json | jq .scores.accuracy
    """
    from discernel.evaluation import say, scores

    screen, estimator = console(quiet or as_json), predictor(model)
    source = opened(screen, data, estimator, targets_of(estimator, target))
    with bar(screen, "Predicting", len(source)) as advance:
        found = scores(say(estimator, source, advance), getattr(estimator, "classes_", None))
    if as_json:
        print_json({"model": str(model), "rows": len(source), "scores": found})
        return
    typer.echo(f"{len(source):,} rows")
    for name, value in found.items():
        typer.echo(f"  {name.replace('_', ' '):18} {value:8.4f}")


def targets_of(estimator: Any, target: list[str] | None) -> Any:
    """Return the columns to predict, those of training unless told."""
    if target is None and not hasattr(estimator, "target_names_"):
        raise ValueError("the model does not know the name of its target: give --target")
    names = list(target or map(str, estimator.target_names_))
    return names if len(names) > 1 else names[0]


def _predictions(estimator: Any, x: Any, probabilities: bool) -> dict[str, Any]:
    predicted = estimator.predict(x)
    if predicted.ndim == 1:
        columns = {"prediction": predicted}
    else:
        names = getattr(estimator, "target_names_", range(predicted.shape[1]))
        columns = {f"prediction_{name}": column for name, column in zip(names, predicted.T, strict=True)}
    if probabilities:
        names = estimator.classes_ if predicted.ndim == 1 else getattr(estimator, "target_names_", estimator.classes_)
        shares = estimator.predict_proba(x).T
        columns |= {f"probability_{name}": column for name, column in zip(names, shares, strict=True)}
    return columns


def _each(data: list[Path], estimator: Any, out: Path | None, quiet: bool, columns: Callable[[Any], dict]) -> None:
    """Write the columns that are computed of all rows, some rows at a time."""
    import pyarrow as pa

    from discernel.evaluation import batches

    screen = console(quiet)
    source = opened(screen, data, estimator)
    with writer(out) as write, bar(screen, "Predicting", len(source)) as advance:
        for x in batches(source, advance):
            write(pa.table({name: pa.array(column) for name, column in columns(x).items()}))
    if out is not None:
        screen.print(f"saved {out}: {len(source):,} rows", markup=False)


@contextmanager
def writer(out: Path | None) -> Iterator[Callable[[Any], None]]:
    """Yield what writes Arrow tables, one after the other, to a file of CSV or Parquet or to the standard output."""
    import sys

    import pyarrow as pa
    from pyarrow import csv, parquet

    from discernel.checkpoint import whole

    if out is not None and out.suffix not in (".csv", ".parquet"):
        raise ValueError(f"--out must end in .csv or .parquet, got {str(out)!r}")
    is_parquet = out is not None and out.suffix == ".parquet"
    sink: Any = None

    with nullcontext() if out is None else whole(out) as path:

        def write(table: pa.Table) -> None:
            nonlocal sink
            if sink is None:
                where = sys.stdout.buffer if path is None else str(path)
                sink = parquet.ParquetWriter(where, table.schema) if is_parquet else csv.CSVWriter(where, table.schema)
            sink.write_table(table if is_parquet else no_formulas(table))

        try:
            yield write
        finally:
            if sink is not None:
                sink.close()


def no_formulas(table: Any) -> Any:
    """Return the table with an apostrophe before text that a spreadsheet would take for a formula.

    Numbers are none, also as text: -1 stays as it is.
    """
    import pyarrow as pa

    for place, field in enumerate(table.schema):
        if pa.types.is_string(field.type):
            texts = [f"'{text}" if _is_formula(text) else text for text in table.column(place).to_pylist()]
            table = table.set_column(place, field, pa.array(texts, field.type))
    return table


def _is_formula(text: str) -> bool:
    return text.startswith(FORMULA) and not re.fullmatch(NUMBER, text)
