"""The package never unpickles, evaluates text or starts a program: no file that it reads can make it run something."""

import ast
from pathlib import Path

import pytest

import discernel

ROOT = Path(discernel.__file__).parent
BUILTINS = {"eval", "exec", "compile", "__import__"}
FORBIDDEN = {
    *("builtins", "importlib.import_module", "runpy"),
    *("pickle", "_pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve", "pandas.read_pickle", "pandas.eval"),
    *("torch.load", "torch.save", "torch.serialization", "torch.hub", "torch.jit", "torch.package"),
    *(
        "subprocess",
        "pty",
        "os.system",
        "os.popen",
        "asyncio.create_subprocess_exec",
        "asyncio.create_subprocess_shell",
    ),
}
PREFIXES = ("os.exec", "os.spawn", "os.posix_spawn")
SWITCHES = {"shell", "allow_pickle"}


def findings(source):
    """Return the lines that name something forbidden, under whatever name it was imported."""
    nodes = list(ast.walk(ast.parse(source)))
    imported = {here: name for node in nodes for here, name in imports(node)}
    names = {(node.lineno, name) for node in nodes for _, name in imports(node)}
    names |= {(node.lineno, resolved(node, imported)) for node in nodes if isinstance(node, ast.Name | ast.Attribute)}
    switches = [node for node in nodes if isinstance(node, ast.keyword) and node.arg in SWITCHES]
    loose = {node.lineno for node in switches if ast.unparse(node.value) != "False"}
    return sorted({line for line, name in names if forbidden(name)} | loose)


def imports(node):
    """Return what a node imports: the name by which it is known in the file, and its own."""
    if isinstance(node, ast.Import):
        roots = [alias.name.split(".")[0] for alias in node.names if not alias.asname]
        return [*zip(roots, roots, strict=True), *((alias.asname or alias.name, alias.name) for alias in node.names)]
    if isinstance(node, ast.ImportFrom):
        return [(alias.asname or alias.name, f"{node.module}.{alias.name}") for alias in node.names]
    return []


def resolved(node, imported):
    """Return the dotted name of what was imported or is built in, of anything else an empty one."""
    first, *rest = ast.unparse(node).split(".")
    if first in imported:
        return ".".join([imported[first], *rest])
    return first if first in BUILTINS and not rest else ""


def forbidden(name):
    parts = name.split(".")
    starts = {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    return bool(starts & (FORBIDDEN | BUILTINS)) or name.startswith(PREFIXES)


@pytest.mark.parametrize("path", sorted(ROOT.rglob("*.py")), ids=lambda path: str(path.relative_to(ROOT)))
def test_the_package_runs_nothing_that_it_reads(path):
    assert findings(path.read_text()) == []


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from joblib import load",
        "def f():\n    import pickle as p",
        "import torch\ntorch.load('x')",
        "import torch as t\nread = t.load",
        "from torch import load as read",
        "from torch.serialization import load",
        "import torch.jit",
        "import torch.nn\ntorch.load('x')",
        "import pandas as pd\npd.read_pickle('x')",
        "eval('1')",
        "run = exec",
        "import builtins",
        "import os\nos.system('ls')",
        "from os import execvp",
        "import subprocess",
        "run('ls', shell=True)",
        "import numpy as np\nnp.load('x', allow_pickle=True)",
    ],
)
def test_what_is_forbidden_is_found(source):
    assert findings(source) == [source.count("\n") + 1]


@pytest.mark.parametrize(
    "source", ["module.eval()", "import numpy as np\nnp.load('x', allow_pickle=False)", "pickle = 1\nprint(pickle)"]
)
def test_what_is_harmless_is_not(source):
    assert findings(source) == []
