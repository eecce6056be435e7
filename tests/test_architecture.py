"""The picture of the house in CONTRIBUTING.md: which module may know which, and what none of them may do."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import discernel

ROOT = Path(discernel.__file__).parent
FILES = sorted(ROOT.rglob("*.py"))
FLOORS = (
    {"adam", "checks", "closed_form", "interrupts", "resources"},
    {"linalg", "hadamard"},
    {"distances", "moments", "targets"},
    {"kernels"},
    {"bandwidth", "criteria", "feature_maps", "landmarks", "heads", "discriminant"},
    {"checkpoint", "data", "profiled", "columns", "readers", "store"},
    {"distributed"},
    {"preprocessing"},
    {"tables"},
    {"run"},
    {"training"},
    {"estimators", "two_sample"},
    {"export", "plots", "evaluation"},
    {"report"},
    {"demo"},
    {"cli", "public"},
    {"__init__", "__main__"},
)
FLOOR = {name: floor for floor, names in enumerate(FLOORS) for name in names}
HOMES = {
    "torch.distributed": {"distributed"},
    "sklearn.base": {"estimators"},
    "matplotlib": {"plots", "demo", "cli"},
    "onnx": {"export"},
    "pyarrow": {"columns", "readers", "preprocessing", "tables", "cli"},
    "typer": {"cli"},
}

each_file = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))


def module_of(path):
    """Return the first name below the package: "kernels", or "estimators" for all files in it."""
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imports(path):
    """Return the dotted names that a file imports, at its top or anywhere within."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path.name}:{node.lineno} imports relatively"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def calls(path):
    return [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]


@each_file
def test_every_module_has_its_place(path):
    assert module_of(path) in FLOOR


@each_file
def test_imports_point_down(path):
    here = module_of(path)
    inner = {name.split(".")[1] for name in imports(path) if name.startswith("discernel.")} - {here, "__version__"}
    assert "discernel" not in imports(path)
    assert inner <= FLOOR.keys(), "import from the module that defines a name, not from the package"
    assert not {name for name in inner if FLOOR[name] >= FLOOR[here]}


def test_criteria_and_feature_maps_do_not_know_each_other():
    for here, there in (("criteria", "feature_maps"), ("feature_maps", "criteria")):
        assert not [name for name in imports(ROOT / f"{here}.py") if name.startswith(f"discernel.{there}")]


@pytest.mark.parametrize("name", sorted(FLOORS[0]))
def test_the_ground_floor_stands_alone(name):
    assert not [imported for imported in imports(ROOT / f"{name}.py") if imported.startswith("discernel")]


@each_file
def test_libraries_are_imported_where_they_belong(path):
    for library, homes in HOMES.items():
        if any(f"{name}.".startswith(f"{library}.") for name in imports(path)):
            assert module_of(path) in homes, f"{library} belongs in {homes}"


@each_file
def test_matplotlib_is_imported_only_when_drawing(path):
    top = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Import | ast.ImportFrom)]
    assert not [node.lineno for node in top if "matplotlib" in ast.unparse(node)]


@each_file
def test_only_the_command_line_prints(path):
    printing = [call.lineno for call in calls(path) if ast.unparse(call.func) == "print"]
    assert module_of(path) == "cli" or not printing


def test_the_public_names_are_those_that_are_imported():
    from discernel import public

    assert {name for name in vars(public) if not name.startswith("__")} == set(discernel.__all__)
    assert len(set(discernel.__all__)) == len(discernel.__all__)
    assert all(getattr(discernel, name) is getattr(public, name) for name in discernel.__all__)
    assert set(discernel.__all__) <= set(dir(discernel))
    with pytest.raises(AttributeError, match="no attribute 'Nystrom'"):
        discernel.Nystrom  # noqa: B018


def test_type_checkers_see_the_public_names(tmp_path):
    pytest.importorskip("pyrefly")
    (tmp_path / "wrong.py").write_text("from discernel import RBF\n\nkernel: int = RBF(1.0)\n")
    where = ("--config", ROOT.parents[1] / "pyproject.toml", "--python-interpreter-path", sys.executable)
    told = run("-m", "pyrefly", "check", "wrong.py", *where, folder=tmp_path)
    assert "`RBF` is not assignable to `int`" in told


@pytest.mark.parametrize("arguments", [["--help"], ["fit", "--help"], ["version"]], ids=" ".join)
def test_the_command_line_is_quick_to_say_what_it_can(arguments):
    """What takes seconds to import is not imported for it."""
    assert run("-c", QUICKLY, *arguments).splitlines()[-1] == "[]"


QUICKLY = """
import sys
from discernel.cli import main
try:
    main()
finally:
    print(sorted({name.split('.')[0] for name in sys.modules} & {'torch', 'sklearn', 'numpy', 'scipy', 'pyarrow'}))
"""


def run(*arguments, folder=None):
    """Return what a Python of its own prints."""
    return subprocess.run([sys.executable, *arguments], cwd=folder, capture_output=True, text=True).stdout
