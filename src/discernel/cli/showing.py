"""`discernel inspect`, `export`, `plot` and `report`."""

import shutil
import textwrap
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from discernel.cli.common import (
    Debug,
    Json,
    Model,
    Quiet,
    Target,
    bar,
    command,
    command_line,
    console,
    loaded,
    opened,
    predictor,
    print_json,
)

FORMATS = (".png", ".svg", ".pdf")


class Picture(StrEnum):
    """What to draw."""

    training = "training"
    landmarks = "landmarks"
    importance = "importance"
    components = "components"
    confusion = "confusion"


@command
def inspect(model: Model, as_json: Json = False, debug: Debug = False) -> None:
    """Tell what is in a saved model, and how it was trained.

    \b
    Examples:
      discernel inspect model.safetensors
      discernel inspect model.safetensors --json | jq .versions
    """
    from discernel.estimators import inspect as header_of

    header = header_of(model)
    if as_json:
        print_json(header)
        return
    width = shutil.get_terminal_size().columns - 1
    for name, value in _summary(header, loaded(model)._n_features_out).items():
        typer.echo(textwrap.fill(f"{name:12} {value}", width, subsequent_indent=" " * 13, break_on_hyphens=False))


def _summary(header: dict[str, Any], learned: int) -> dict[str, Any]:
    """Return what is worth telling of the header of a model with so many learned features, by name."""
    names = {name.strip("_"): entry["values"] for name, entry in header["names"].items()}
    told = {"estimator": header["class"]}
    inner = header.get("transformer", header)
    told["features"] = f"{header['values']['n_features_in_']} in, {learned} learned ({inner['map']['class']})"
    for name, plural in (("target_names", "target"), ("classes", "classes"), ("feature_names_in", "columns")):
        if name in names:
            told[plural] = _some(names[name])
    if "preprocessing" in header:
        columns = [column["name"] for column in header["preprocessing"]["columns"]]
        told["columns"] = _some(columns)
    if header["history"]:
        first, last = header["history"][0], header["history"][-1]
        seconds = sum(record["seconds"] for record in header["history"])
        told["training"] = f"{last['epoch']} epochs, {seconds:.1f} s, criterion {first['criterion']:.5g} to "
        told["training"] += f"{last['criterion']:.5g}"
        if last["validation_score"] is not None:
            told["training"] += f", validation {last['validation_score']:.4f}"
    set_by_hand = {k: v for k, v in header["params"].items() if v is not None and v is not False}
    told["parameters"] = ", ".join(f"{k}={v}" for k, v in set_by_hand.items())
    told["written by"] = ", ".join(f"{name} {version}" for name, version in header["versions"].items())
    return told


def _some(names: list[Any], most: int = 8) -> str:
    shown = ", ".join(map(str, names[:most]))
    return shown if len(names) <= most else f"{shown}, ... ({len(names)} in all)"


@command
def export(
    model: Model,
    onnx: Annotated[Path, typer.Option("--onnx", help="The file to write.")],
    debug: Debug = False,
) -> None:
    """Write a model as ONNX, to be run where discernel is not installed.

    \b
    Examples:
      discernel export model.safetensors --onnx model.onnx
    """
    from discernel.export import export_onnx

    export_onnx(loaded(model), onnx)
    typer.echo(f"saved {onnx}")


@command
def plot(
    model: Model,
    picture: Annotated[
        Picture,
        typer.Argument(metavar="PICTURE", help="training, landmarks, importance, components or confusion."),
    ],
    data: Annotated[
        list[Path] | None, typer.Option(help="Rows; importance, components and confusion need them.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="PNG, SVG or PDF; else named after the picture.")
    ] = None,
    target: Target = None,
    image: Annotated[str, typer.Option(help="Draw landmarks as images of this shape, as 28x28.")] = "",
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Draw a model: its training, landmarks, importance of features, discriminant components or confusions.

    \b
    Examples:
      discernel plot model.safetensors training
      discernel plot model.safetensors landmarks --image 8x8 -o landmarks.png
      discernel plot model.safetensors confusion --data test.csv
    """
    from discernel.cli.drawing import draw
    from discernel.cli.using import targets_of

    out = Path(f"{picture}.png") if out is None else out
    if out.suffix not in FORMATS:
        raise ValueError(f"--out must end in {', '.join(FORMATS)}, got {str(out)!r}")
    screen, estimator = console(quiet), loaded(model)
    source = None
    if picture not in (Picture.training, Picture.landmarks):
        if not data:
            raise ValueError(f"to draw {picture} takes rows: give --data")
        known = None if picture == Picture.importance else targets_of(estimator, target)
        source = opened(screen, data, estimator, known)
    draw(str(picture), estimator, source, out, _shape(image))
    typer.echo(f"saved {out}")


def _shape(image: str) -> tuple[int, int] | None:
    if not image:
        return None
    try:
        height, width = map(int, image.lower().split("x"))
    except ValueError:
        raise ValueError(f"--image must be a height and a width such as 28x28, got {image!r}") from None
    return height, width


@command
def report(
    model: Model,
    data: Annotated[list[Path], typer.Option("--data", help="Rows with known targets, best not trained on.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The page to write.")] = Path("report.html"),
    train: Annotated[
        list[Path] | None, typer.Option(help="The training rows, for baselines fitted on the same rows.")
    ] = None,
    target: Target = None,
    image: Annotated[str, typer.Option(help="Show landmarks as images of this shape, as 28x28.")] = "",
    quiet: Quiet = False,
    debug: Debug = False,
) -> None:
    """Write one HTML page about a model: scores beside baselines, confusions, landmarks, importance.

    \b
    Examples:
      discernel report model.safetensors --data test.csv --train train.csv
    """
    estimator, shape = predictor(model), _shape(image)
    write_report(console(quiet), estimator, data, train, out, command_line(), target=target, image=shape)
    typer.echo(f"saved {out}")


def write_report(
    screen: Any,
    estimator: Any,
    data: list[Path],
    train: list[Path] | None,
    out: Path,
    made_by: str,
    *,
    target: list[str] | None = None,
    trained_on: bool = False,
    image: tuple[int, int] | None = None,
) -> None:
    """Write the report of a model on rows of a table."""
    from discernel.checkpoint import place, write_bytes
    from discernel.cli.using import targets_of
    from discernel.report import make_report

    place(out)
    known = targets_of(estimator, target)
    source = opened(screen, data, estimator, known)
    others = None if train is None else opened(screen, train, estimator, known)
    with bar(screen, "Comparing with baselines"):
        page = make_report(
            estimator,
            source,
            others,
            made_by=made_by,
            data=", ".join(map(str, data)),
            trained_on=trained_on,
            image=image,
        )
    write_bytes(out, page.encode())
