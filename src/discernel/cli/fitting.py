"""`discernel fit`."""

import time
from contextlib import ExitStack
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from discernel.cli.common import (
    STOPPED,
    Data,
    Debug,
    Json,
    Quiet,
    command,
    command_line,
    console,
    print_json,
    reading,
)


class Task(StrEnum):
    """What the target is."""

    auto = "auto"
    classification = "classification"
    regression = "regression"


class Map(StrEnum):
    """What is learned."""

    auto = "auto"
    nystroem = "nystroem"
    fourier = "fourier"


class Head(StrEnum):
    """The model on the features."""

    ridge = "ridge"
    svm = "svm"
    softmax = "softmax"


class Scaling(StrEnum):
    """Of numeric columns."""

    standard = "standard"
    unit = "unit"
    none = "none"


class Missing(StrEnum):
    """What to do about missing values."""

    error = "error"
    impute = "impute"


@command
def fit(
    data: Data,
    target: Annotated[list[str], typer.Option("--target", "-t", help="The column to predict; repeat it for several.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the model goes.")] = Path("model.safetensors"),
    task: Annotated[
        Task,
        typer.Option(metavar="NAME", help="classification, regression or auto: text and whole numbers are classes."),
    ] = Task.auto,
    components: Annotated[int, typer.Option("--components", "-J", help="The number of features to learn.")] = 200,
    map: Annotated[
        Map,
        typer.Option(
            metavar="NAME", help="Landmarks (nystroem), frequencies (fourier), or auto: the better in a trial."
        ),
    ] = Map.auto,
    head: Annotated[
        Head | None, typer.Option(metavar="NAME", help="The model on them: ridge, svm or softmax; else by the task.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Passes over the data; else chosen by its size.")] = None,
    early_stopping: Annotated[
        bool, typer.Option("--early-stopping", help="Stop by the score of held-out rows.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Decides everything random.")] = 0,
    features: Annotated[str, typer.Option(help="Columns to predict from, as a,b,c; else all others.")] = "",
    weight: Annotated[str | None, typer.Option(help="The column with the weights of the rows.")] = None,
    categorical: Annotated[str, typer.Option(help="Columns of numbers that are categories, as a,b.")] = "",
    scaling: Annotated[
        Scaling, typer.Option(metavar="NAME", help="Of numeric columns: standard, unit ([0, 1]) or none.")
    ] = Scaling.standard,
    missing: Annotated[
        Missing, typer.Option(metavar="NAME", help="Of missing values: error, or impute means.")
    ] = Missing.error,
    report: Annotated[Path | None, typer.Option(help="Also write a report, an HTML page.")] = None,
    test: Annotated[
        list[Path] | None, typer.Option(help="Rows for the report's scores; else the training rows.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on where the same command was stopped.")] = False,
    timeout: Annotated[float, typer.Option(help="Seconds to wait for another process of torchrun.")] = 300.0,
    quiet: Quiet = False,
    as_json: Json = False,
    debug: Debug = False,
) -> None:
    """Learn a classifier or a regressor from a table.

    Stopped by Ctrl-C or SIGTERM, the same command with --resume goes on where it
    was; killed, after the last epoch (or minute) that was completed.

    \b
    Examples:
      discernel fit train.csv --target species
      discernel fit train.csv -t price --task regression -J 500
      discernel fit train.csv -t species --report report.html --test test.csv
      discernel fit 'year=*/*.parquet' -t label --head softmax -o m.safetensors
      torchrun --nproc-per-node 2 -m discernel fit train.parquet -t label
    """
    from discernel.checkpoint import place
    from discernel.distributed import first, processes, restarted
    from discernel.readers import found_files

    screen, started = console(quiet or as_json or not first()), time.perf_counter()
    checkpoint = place(out).with_name(f"{out.name}.checkpoint")
    if resume and not checkpoint.is_file():
        raise ValueError(f"there is nothing to resume: {checkpoint} does not exist; run the command without --resume")
    if test and report is None:
        raise ValueError("--test has the rows of a report: give --report too")
    place(report or out)  # before training, which would be in vain
    for path in test or []:
        found_files(path)
    with processes(timeout):
        source = _source(screen, data, target, task, features, weight, categorical, scaling, missing)
        model = _estimator(source, components, map, head, early_stopping, seed)
        if not resume and not restarted():
            checkpoint.unlink(missing_ok=True)
        try:
            _train(screen, model, source, epochs, checkpoint)
        except KeyboardInterrupt:
            if first():
                typer.echo(_how_to_resume(checkpoint), err=True)
            raise typer.Exit(STOPPED) from None
    if not first():
        return
    _keep(model, target, out)
    checkpoint.unlink(missing_ok=True)
    facts = _facts(model, source, out, time.perf_counter() - started)
    if report is not None:
        from discernel.cli.showing import write_report

        write_report(screen, model, test or data, data, report, command_line(), trained_on=not test)
        facts["report"] = str(report)
    print_json(facts) if as_json else typer.echo(_told(facts))


def _source(screen, data, target, task, features, weight, categorical, scaling, missing) -> Any:
    from discernel.tables import TableSource

    with reading(screen, data) as progress:
        return TableSource(
            [str(path) for path in data],
            target if len(target) > 1 else target[0],
            features=features.split(",") if features else None,
            task=str(task),
            weight=weight,
            scaling=str(scaling),
            missing=str(missing),
            categorical=[name for name in categorical.split(",") if name],
            shared=True,
            progress=progress,
        )


def _estimator(source, components, feature_map, head, early_stopping, seed) -> Any:
    from discernel.estimators import DiscernelClassifier, DiscernelRegressor

    options = {"feature_map": str(feature_map), "early_stopping": early_stopping, "random_state": seed}
    if source.targets.kind == "values":
        if head not in (None, Head.ridge):
            raise ValueError(f"regression has the ridge head alone, got --head {head}")
        return DiscernelRegressor(components, **options)
    return DiscernelClassifier(components, head=str(head or Head.svm), **options)


def _train(screen, model, source, epochs: int | None, checkpoint: Path) -> None:
    from discernel.cli.watched import Watched
    from discernel.estimators.predictor import AUTO
    from discernel.estimators.progress import spinning
    from discernel.training import Trainer

    trainer = Trainer() if epochs is None else Trainer(max_epochs=epochs)
    with ExitStack() as shown:
        spinner = partial(spinning, console=screen, shown=screen.is_terminal, transient=True)
        head = spinner("Fitting the head")
        watched = Watched(**trainer.get_params()).watched(
            screen, checkpoint, first=shown.close, then=lambda: shown.enter_context(head)
        )
        shown.enter_context(spinner("Choosing the map" if model.feature_map == AUTO else "Preparing"))
        model.set_params(trainer=watched).fit(source)
    for part in (model, model.transformer_):
        part.set_params(trainer=None if epochs is None else trainer)


def _keep(model, target: list[str], out: Path) -> None:
    import numpy as np

    from discernel.estimators import save

    model.target_names_ = np.array(target)
    save(model, out)


def _how_to_resume(checkpoint: Path) -> str:
    if not checkpoint.is_file():
        return "Stopped before the first step was done: there is nothing to resume."
    return f"Stopped. The state is in {checkpoint}; go on with:\n  {command_line('--resume')}"


def _facts(model, source, out: Path, seconds: float) -> dict[str, Any]:
    from discernel.estimators.predictor import kind_of

    facts: dict[str, Any] = {
        "model": str(out),
        "rows": len(source),
        "columns": {column.name: type(column).__name__.lower() for column in source.preprocessing.columns},
        "features": model.n_features_in_,
        "components": model.transformer_._n_features_out,
        "map": kind_of(model.transformer_),
        "epochs": model.n_iter_,
        "seconds": round(seconds, 2),
    }
    if hasattr(model, "classes_"):
        facts["classes"] = model.classes_.tolist()
    return facts


def _told(facts: dict[str, Any]) -> str:
    kinds = list(facts["columns"].values())
    columns = ", ".join(f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(kinds))
    classes = f", {len(facts['classes'])} classes" if "classes" in facts else ""
    lines = [
        f"{facts['rows']:,} rows, {len(kinds)} columns ({columns}){classes}",
        f"{facts['components']} features ({facts['map']}) learned in {facts['epochs']} epochs,"
        f" {facts['seconds']:.1f} s in all",
        f"saved {facts['model']}",
    ]
    return "\n".join([*lines, f"saved {facts['report']}"] if "report" in facts else lines)
