"""Pages that are made when the site is built: the API, the command line and the benchmarks, so that none goes stale."""

import ast
import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from statistics import mean, stdev

import typer
from typer.testing import CliRunner

import discernel
from discernel.cli import app as command_line

HERE = Path(__file__).parents[1]
BENCHMARKS = HERE.parent / "benchmarks"
# The modules in the order of the page, with what is to be listed besides their public names; others come after them.
MODULES = {
    "estimators": ["estimators.inspect"],
    "export": [],
    "report": ["report.make_report"],
    "plots": [],
    "two_sample": [],
    "criteria": [],
    "feature_maps": [],
    "kernels": [],
    "landmarks": [],
    "targets": [],
    "data": [],
    "tables": [],
    "preprocessing": [],
    "training": [],
    "run": [],
    "moments": [],
}


def setup(app):
    """Make the pages: now, since Sphinx looks for pages before it tells extensions that it has begun."""
    write(HERE / "generated")
    app.connect("autodoc-skip-member", skip)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def write(folder: Path) -> None:
    """Write the pages, leaving those that have not changed."""
    folder.mkdir(exist_ok=True)
    for name, lines in (("api.rst", api()), ("command_line.md", commands()), ("benchmarks.md", benchmarks())):
        text, path = "\n".join(lines) + "\n", folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def skip(app, what, name, member, skipped, options):
    """Leave out what estimators and modules inherit from scikit-learn and torch, which have their own pages."""
    module = getattr(getattr(member, "fget", member), "__module__", None) or "discernel"
    return None if module.startswith("discernel") else True


def api() -> Iterator[str]:
    """Yield the page of all public names, under the modules that define them."""
    yield from ("API reference", "=============", "", ".. currentmodule:: discernel", "")
    yield "Every name is imported from ``discernel``, unless it is written with its module."
    for module, others in (MODULES | {home(name): MODULES.get(home(name), []) for name in discernel.__all__}).items():
        names = [name for name in discernel.__all__ if home(name) == module]
        others = others or ([] if names else [f"{module}.{name}" for name in functions(module)])
        title = module.replace("_", " ").capitalize()
        yield from ("", title, "-" * len(title), "", summary(module), "")
        yield from (".. autosummary::", "   :toctree: api", "   :nosignatures:", "")
        yield from (f"   {name}" for name in (*names, *others))


def home(name: str) -> str:
    """Return the module, or package, that a public name is from."""
    return getattr(discernel, name).__module__.split(".")[1]


def functions(module: str) -> list[str]:
    """Return the functions that a module defines, in their order."""
    tree = ast.parse((Path(discernel.__file__).parent / f"{module}.py").read_text())
    names = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
    return [name for name in names if not name.startswith("_")]


def summary(module: str) -> str:
    """Return the first paragraph of a module's docstring."""
    return str(import_module(f"discernel.{module}").__doc__).split("\n\n")[0]


def commands() -> Iterator[str]:
    """Yield the page of what the command line says about itself."""
    yield from ("# Command line", "", "Also as `python -m discernel`.")
    for name in (None, *typer.main.get_command(command_line).commands):  # pyrefly: ignore
        yield from ("", f"## {'discernel' if name is None else name}", "", "```text")
        arguments = ["--help"] if name is None else [name, "--help"]
        told = CliRunner().invoke(command_line, arguments, env={"COLUMNS": "80"}, prog_name="discernel").output
        yield from (line.rstrip() for line in told.strip("\n").splitlines())
        yield "```"


def benchmarks() -> Iterator[str]:
    """Yield the page of the benchmarks, each with the tables of its committed results."""
    yield from (
        "# Benchmarks",
        "",
        "Made from `benchmarks/` when this site is built. Seconds are of one shared machine:",
    )
    yield "compare them within a table. A list of seeds is shown as mean ± standard deviation."
    scripts = sorted(BENCHMARKS.glob("*.py"), key=lambda path: path.stem)
    for script in scripts:
        yield from ("", f"## {script.stem.replace('_', ' ').capitalize()}", "")
        yield ast.get_docstring(ast.parse(script.read_text())) or ""
        found = [path for path in sorted((BENCHMARKS / "results").glob("*.json")) if writer(path, scripts) == script]
        for path in found:
            rows, facts = parts(json.loads(path.read_text()))
            yield from ("", ", ".join([f"`{path.name}`", *(f"{key} {value}" for key, value in facts.items())]), "")
            yield from table([dict(cells(row)) for row in rows])
        if not found:
            yield from ("", "No results are committed yet.")


def parts(content: list | dict) -> tuple[list[dict], dict]:
    """Return the rows of a file of results, and what holds for all of them."""
    if isinstance(content, list):
        return content, {}
    tables = [value for value in content.values() if isinstance(value, list) and value and isinstance(value[0], dict)]
    facts = {key: value for key, value in content.items() if not isinstance(value, list | dict)}
    return (tables[0], facts) if tables else ([content], {})


def writer(path: Path, scripts: list[Path]) -> Path | None:
    """Return the script that has written a file of results: that of the longest name with which the file's begins."""
    return max((s for s in scripts if path.stem.startswith(s.stem)), key=lambda s: len(s.stem), default=None)


def cells(row: dict, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the headings and the texts of a row; of a list of numbers its mean, and of a curve its end."""
    for key, value in row.items():
        name = f"{prefix}{key}".replace("_", " ")
        if isinstance(value, dict):
            yield from cells(value, f"{name}, ")
        elif not isinstance(value, list):
            yield name, number(value)
        elif value and isinstance(value[0], list):
            yield f"{name}, length", str(len(value))
            yield f"{name}, end", " / ".join(map(number, value[-1]))
        elif not all(isinstance(item, int | float) for item in value):
            yield name, ", ".join(map(str, value))
        elif len(value) > 10:
            yield f"{name}, first and last", f"{number(value[0])} → {number(value[-1])}"
        elif value:
            yield name, number(mean(value)) + (f" ± {stdev(value):.2g}" if len(value) > 1 else "")


def number(value: object) -> str:
    """Return a value as it is read most easily."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:.4g}" if isinstance(value, float) and abs(value) < 1e4 else f"{value:,.0f}"


def table(rows: list[dict[str, str]]) -> Iterator[str]:
    """Yield a table in Markdown, with a column for each key of the rows."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    yield f"| {' | '.join(columns)} |"
    yield "|" + "---|" * len(columns)
    yield from (f"| {' | '.join(row.get(column, '') for column in columns)} |" for row in rows)


if __name__ == "__main__":
    sys.exit("run by `make docs`")
