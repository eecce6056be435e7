"""The one command: fit what is missing, then draw the figures and write the page from the tables."""

from collections.abc import Callable, Sequence
from pathlib import Path

from experiments import datasets, figures, page, table
from experiments.jobs import STUDIES
from experiments.run import GAMMAS, Settings, run

ROOT = Path(__file__).parents[1]


def reproduce(names: Sequence[str], out: Path | None, settings: Settings, tell: Callable[[str], None]) -> None:
    """Run the experiments of some data sets and report on all that have a table in `out`."""
    for name in names:
        if name not in datasets.LOADERS:
            raise ValueError(f"there is no data set {name!r}; there are {', '.join(datasets.LOADERS)}")
    if settings.schedule not in STUDIES:
        raise ValueError(f"there is no schedule {settings.schedule!r}; there are {', '.join(STUDIES)}")
    if settings.quick and out is None:
        raise ValueError("a quick run is not for the tables of the repository: name another place for them by --out")
    directory = out or table.RESULTS
    for name in names if settings.hours != 0 else ():
        run(name, directory, settings, tell)
    for path in report(directory, ROOT / "docs" if out is None else out):
        tell(f"saved {path}")


def report(tables: Path, out: Path) -> list[Path]:
    """Draw the figures and write the page from the tables in a directory; return the files."""
    frame = table.read_all(tables)
    paths = figures.draw(frame, out / "images" / "reproduction")
    paths.append(out / "reproduction.md")
    page.write(frame, paths[-1], "images/reproduction", GAMMAS)
    return paths
