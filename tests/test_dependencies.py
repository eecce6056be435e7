"""What pyproject.toml declares, what the constraints pin and what `make test-oldest` installs agree."""

import itertools
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]


def name_of(requirement):
    return canonicalize_name(requirement.name)


def declared(without=()):
    """Return what is asked for to build, to run and in the extras, but for the extras that stand for others."""
    content = tomllib.loads((ROOT / "pyproject.toml").read_text())
    project = content["project"]
    extras = [lines for name, lines in project["optional-dependencies"].items() if name not in without]
    lines = itertools.chain(content["build-system"]["requires"], project["dependencies"], *extras)
    return [each for each in map(Requirement, lines) if each.name != project["name"]]


def pinned(file):
    lines = (line for line in (ROOT / file).read_text().splitlines() if not line.startswith("#"))
    return {name_of(each): each for each in map(Requirement, lines)}


def version(requirement, operator):
    """Return the version in "name>=version" or "name==version", of which nothing else may be asked."""
    (specifier,) = requirement.specifier
    assert specifier.operator == operator, f"expected {requirement.name}{operator}..., got {requirement}"
    return specifier.version


@pytest.mark.parametrize("requirement", declared(without=["docs"]), ids=str)  # built with the pinned versions alone
def test_the_oldest_version_that_is_tested_is_the_bound(requirement):
    bound, name, oldest = version(requirement, ">="), name_of(requirement), pinned("constraints-oldest.txt")
    assert name in oldest, f"add {name}=={bound} to constraints-oldest.txt and run make test-oldest"
    if name != "torch":
        assert version(oldest[name], "==") == bound


@pytest.mark.parametrize("requirement", declared(), ids=str)
def test_the_pinned_version_is_within_the_bound(requirement):
    name, pins = name_of(requirement), pinned("constraints.txt")
    assert name in pins, f"pin {name} in constraints.txt"
    assert requirement.specifier.contains(version(pins[name], "=="))


@pytest.mark.parametrize("file", ["constraints-oldest.txt", "constraints-newest.txt"])
def test_torch_is_the_one_with_the_small_build(file):
    assert pinned(file)["torch"] == pinned("constraints.txt")["torch"]
