"""Mutation check: whether the tests of a module notice when one thing in it is wrong.

    python -m tests.mutation            # `make mutation`: all mutants of linalg, moments, criteria and training
    python -m tests.mutation --sample 50 linalg

A mutant is the module with one operator, number, flag, text, argument or statement changed. Each runs in a fork of a
process that has imported torch and pytest already, so that it costs little more than the tests that notice it. What
has been found is in a table that the next call goes on with; delete it to start afresh. (mutmut 3 does this too, but
does not run with pytest 9.2.)
"""

import argparse
import ast
import copy
import csv
import importlib.machinery
import os
import random
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tests" / "results" / "mutation.csv"
FIELDS = ("module", "function", "before", "after", "number", "outcome")
# The tests of each module, the most telling first. Tests that start processes would start them without the mutant.
TESTS = {
    "linalg": ["linalg", "moments", "criteria"],
    "moments": ["moments", "criteria"],
    "criteria": ["criteria", "checkpoint", "training"],
    "training": ["training", "interrupts", "checkpoint", "bad_input"],
}
PRELOADED = "ignore::pytest.PytestAssertRewriteWarning"
LEFT_OUT = "not process and not 1500-1 and not digits and not targets_can_be"  # and tests that are slow
CPU_SECONDS = 90
WALL_SECONDS = 900
MEMORY = 16 * 2**30

SWAPS: dict[type, type] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div},
    **{ast.Pow: ast.Mult, ast.MatMult: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.Mod: ast.FloorDiv},
}
REMOVABLE = (ast.Expr, ast.AugAssign, ast.If, ast.For, ast.With)


def mutants(source: str) -> Iterator[tuple[str, str, str, ast.Module]]:
    """Yield function, text before, text after and the tree of every mutant of a module."""
    tree = ast.parse(source)
    for owner, place in list(_places(tree)):
        node = _get(owner, place)
        for other in _others(node):
            before = _first_line(owner, node)
            _set(owner, place, other)
            after = _first_line(owner, other)
            if before != after:
                yield owner.function, before, after, copy.deepcopy(tree)
            _set(owner, place, node)


def _places(node: ast.AST, function: str = "", statement: ast.AST | None = None) -> Iterator[tuple[ast.AST, tuple]]:
    """Yield each node that may be changed: its owner (which knows function and statement) and where it is in it."""
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        function = f"{function}.{node.name}" if function else node.name
    statement = node if isinstance(node, ast.stmt) else statement
    node.function, node.statement = function, statement
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list"):
            continue
        for index, child in enumerate(value if isinstance(value, list) else [value]):
            if not isinstance(child, ast.AST) or _left_alone(node, child):
                continue
            yield node, (field, index if isinstance(value, list) else None)
            yield from _places(child, function, statement)


def _left_alone(node: ast.AST, child: ast.AST) -> bool:
    """Whether it is a docstring, an f-string or of the log, which are for people."""
    text = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
    return text or isinstance(child, ast.JoinedStr) or ast.unparse(child).startswith("logger")


def _get(owner: ast.AST, place: tuple) -> ast.AST:
    value = getattr(owner, place[0])
    return value if place[1] is None else value[place[1]]


def _set(owner: ast.AST, place: tuple, new: ast.AST) -> None:
    if place[1] is None:
        setattr(owner, place[0], new)
    else:
        getattr(owner, place[0])[place[1]] = new


def _first_line(owner: ast.AST, node: ast.AST) -> str:
    """Return the smallest statement around a node; of a compound one, its first line will do."""
    return ast.unparse(node if isinstance(node, ast.stmt) else owner.statement).splitlines()[0]


def _others(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what a node may be changed to."""
    if type(node) in SWAPS:
        yield SWAPS[type(node)]()
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node.operand
    elif isinstance(node, ast.Constant):
        yield from _other_constants(node.value)
    elif isinstance(node, ast.Call):
        for index in range(len(node.keywords)):
            yield _changed(node, keywords=[*node.keywords[:index], *node.keywords[index + 1 :]])
        if len(node.args) > 1:
            yield _changed(node, args=node.args[:-1])
    elif isinstance(node, ast.IfExp):
        yield node.body
        yield node.orelse
    elif isinstance(node, ast.If | ast.While):
        yield _changed(node, test=ast.UnaryOp(ast.Not(), node.test))
    elif isinstance(node, ast.Assign):
        yield _changed(node, value=ast.Constant(None))
    elif isinstance(node, ast.AugAssign):
        yield ast.Assign([node.target], node.value, lineno=node.lineno)
    if isinstance(node, REMOVABLE):
        yield ast.Pass()


def _other_constants(value: object) -> Iterator[ast.AST]:
    if isinstance(value, bool):
        yield ast.Constant(not value)
    elif isinstance(value, int | float):
        yield ast.Constant(value + 1 if value in (0, -1) or isinstance(value, int) else value * 2)
    elif isinstance(value, str):
        yield ast.Constant(f"XX{value}XX")


def _changed(node: ast.AST, **fields) -> ast.AST:
    other = copy.copy(node)
    for name, value in fields.items():
        setattr(other, name, value)
    return other


class _Finder(importlib.machinery.SourceFileLoader):
    """Finds and loads one module, the mutant."""

    def __init__(self, name: str, path: str, tree: ast.Module):
        super().__init__(name, path)
        self.tree = tree

    def find_spec(self, name, path=None, target=None):
        if name != self.name:
            return None
        return importlib.machinery.ModuleSpec(name, self, origin=self.path)

    def get_code(self, fullname):
        return compile(ast.fix_missing_locations(self.tree), self.path, "exec")


def outcome(module: str, tree: ast.Module | None) -> str:
    """Return whether the tests notice the mutant, the module itself for None: "killed", "survived" or "too long"."""
    child = os.fork()
    if child == 0:
        _run(module, tree)
    started = time.monotonic()
    while (found := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() - started > WALL_SECONDS:
            os.kill(child, signal.SIGKILL)
        time.sleep(0.02)
    code = os.waitstatus_to_exitcode(found[1])
    if code == 0:
        return "survived"
    return "too long" if code in (-signal.SIGXCPU, -signal.SIGKILL) else "killed"


def _run(module: str, tree: ast.Module | None) -> None:
    """Run the tests with the mutant in place of the module, and end the process with their exit code."""
    import pytest

    code = 99
    try:
        resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        if tree is not None:
            path = ROOT / "src" / "discernel" / f"{module}.py"
            sys.meta_path.insert(0, _Finder(f"discernel.{module}", str(path), tree))
        files = [str(ROOT / "tests" / f"test_{name}.py") for name in TESTS[module]]
        plain = ["-o", "addopts=", "-p", "no:cacheprovider", "-m", "not slow", "-k", LEFT_OUT, "-W", PRELOADED]
        code = int(pytest.main(["-x", "-q", *plain, *files]))
    finally:
        os._exit(code)


def main() -> None:
    """Run the mutants that the table does not have yet, then say how many are left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", default=list(TESTS))
    parser.add_argument("--sample", type=int, help="only so many of the mutants, at random")
    parser.add_argument("--table", type=Path, default=TABLE)
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
    sys.dont_write_bytecode = False
    _preload()
    rows = _read(options.table)
    for module in options.modules:
        if outcome(module, None) != "survived":
            raise SystemExit(f"the tests of {module} fail without a mutant: mend that first")
    todo = [mutant for module in options.modules for mutant in _numbered(module)]
    random.Random(0).shuffle(todo)  # so that those of a run that was stopped are a fair sample
    for key, tree in todo[: options.sample]:
        if key not in rows:
            rows[key] = outcome(key[0], tree)
            _write(options.table, rows)
            print(*key[:2], key[3], rows[key], sep=" | ", flush=True)
    _tell(rows)


def _numbered(module: str) -> list[tuple[tuple, ast.Module]]:
    """Return the mutants of a module under keys that stay when other lines change."""
    seen: Counter = Counter()
    found = []
    for function, before, after, tree in mutants((ROOT / "src" / "discernel" / f"{module}.py").read_text()):
        seen[function, before, after] += 1
        found.append(((module, function, before, after, str(seen[function, before, after])), tree))
    return found


def _preload() -> None:
    """Import all but discernel that the tests need."""
    import hypothesis
    import numpy  # noqa: F401
    import pandas  # noqa: F401
    import pytest  # noqa: F401
    import scipy.optimize
    import scipy.sparse  # noqa: F401
    import sklearn.cluster
    import sklearn.datasets
    import sklearn.discriminant_analysis
    import sklearn.kernel_approximation
    import sklearn.linear_model
    import sklearn.model_selection
    import sklearn.svm  # noqa: F401
    import torch
    import torch._dynamo

    torch.set_num_threads(1)  # also: there must be no threads to fork
    hypothesis.settings.register_profile("mutation", database=None, derandomize=True, deadline=None)
    hypothesis.settings.load_profile("mutation")


def _read(path: Path) -> dict[tuple, str]:
    if not path.exists():
        return {}
    with open(path, newline="") as file:
        return {tuple(row[name] for name in FIELDS[:-1]): row["outcome"] for row in csv.DictReader(file)}


def _write(path: Path, rows: dict[tuple, str]) -> None:
    path.parent.mkdir(exist_ok=True)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerows([FIELDS, *((*key, value) for key, value in rows.items())])


def _tell(rows: dict[tuple, str]) -> None:
    for module in TESTS:
        counts = Counter(value for key, value in rows.items() if key[0] == module)
        dead = counts["killed"] + counts["too long"]
        print(f"{module:10} {counts.total():4} mutants, {dead / max(1, counts.total()):.1%} noticed, {dict(counts)}")


if __name__ == "__main__":
    main()
