"""What the pages of the site say is so: their examples give what they show, and what they name is there."""

import doctest
import json
import pkgutil
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import discernel
from discernel.cli import app

ROOT = Path(__file__).parents[1]
MADE = ("gallery", "generated")  # when the site is built
PAGES = [p for p in sorted((ROOT / "docs").rglob("*.md")) if p.relative_to(ROOT / "docs").parts[0] not in MADE]
BLOCK = re.compile(r"^```(pycon|console)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


@pytest.mark.parametrize(
    "page", [page for page in PAGES if BLOCK.search(page.read_text())], ids=lambda page: str(page.relative_to(ROOT))
)
def test_the_examples_of_a_page_give_what_it_shows(page, tmp_path, monkeypatch):
    """Blocks of Python and of commands, one after the other, in a fresh folder."""
    pytest.importorskip("pyarrow")
    monkeypatch.chdir(tmp_path)
    names = {}
    for kind, block in BLOCK.findall(page.read_text()):
        run_python(block, names, page) if kind == "pycon" else run_commands(block)


class Checker(doctest.OutputChecker):
    """Takes decimal numbers for equal that differ by at most two in the last digit shown: other versions round so."""

    def check_output(self, want, got, optionflags):
        shown = iter(re.findall(r"\d+\.\d+", want))
        return super().check_output(want, re.sub(r"\d+\.\d+", lambda m: near(m[0], next(shown, "")), got), optionflags)


def near(got, shown):
    digits = len(shown.partition(".")[2])
    return shown if shown and abs(float(got) - float(shown)) < 2.5 * 10**-digits else got


def run_python(block, names, page):
    example = doctest.DocTestParser().get_doctest(block, names, page.name, str(page), 0)
    example.globs = names
    told = []
    failed = (
        doctest.DocTestRunner(Checker(), optionflags=doctest.ELLIPSIS)
        .run(example, out=told.append, clear_globs=False)
        .failed
    )
    assert not failed, "".join(told)


def run_commands(block):
    for command, shown in re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
        program, *arguments = shlex.split(command)
        assert program == "discernel"
        result = CliRunner().invoke(app, arguments)
        assert result.exit_code == int(shown.startswith("Error")), result.output
        output = "".join(f"{line}\n" for line in result.output.splitlines())
        assert not shown or Checker().check_output(shown, output, doctest.ELLIPSIS), result.output


@each_page
def test_what_a_page_names_is_there(page):
    text = page.read_text()
    for name in re.findall(r"`~?(discernel(?:\.\w+)+)`", text):
        pkgutil.resolve_name(name)
    for path in re.findall(r"`((?:benchmarks|docs|examples|experiments|src|tests)/[\w/.]+)`", text):
        assert (ROOT / path).exists(), path


def test_every_public_name_has_an_example():
    """But for what is made to be filled in, or to be returned."""
    without = {"Criterion", "FeatureMap", "Kernel", "Source", "DivergenceWarning", "EpochRecord", "TwoSampleTest"}
    assert [name for name in discernel.__all__ if ">>>" not in str(getattr(discernel, name).__doc__)] == sorted(without)


def test_the_figure_of_the_readme_shows_what_is_said_of_it():
    rows = json.loads((ROOT / "benchmarks/results/features.json").read_text())["rows"]
    accuracy = {(row["landmarks"], row["J"]): row["accuracy"] for row in rows}
    assert "50 learned landmarks make fewer errors than 1000 random ones" in (ROOT / "README.md").read_text()
    assert accuracy["learned", 50] > accuracy["random", 1000]


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"])
def test_the_links_of_a_text_lead_somewhere(name):
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", (ROOT / name).read_text())
    for link in (link for link in links if "://" not in link):
        assert (ROOT / link).exists(), link
