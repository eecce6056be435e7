"""Mutation check: whether the tests of a module notice when one thing in it is wrong.

    python -m tests.mutation                     # all mutants of linalg, moments, criteria, run and training
    python -m tests.mutation --sample 50 linalg  # fifty of each module, drawn at random, always the same

A mutant is the module with one operator, number, flag, text, argument or statement changed. The tests are collected
once, and run once to see which lines of the module each of them reaches. A mutant is then put into a fork of that
process, where the tests that reach its line run until one fails: one of each function first, the quick before the
slow, and no more of them than take so many seconds (so that what survives is, if anything, overstated). What has been
found is in a table that the next call goes on with; delete it to start afresh. (mutmut 3 does this too, but does not
run with pytest 9.2.)
"""

import argparse
import ast
import copy
import csv
import gc
import importlib
import inspect
import json
import operator
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
import types
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "tests" / "results" / "mutation.csv"
FIELDS = ("module", "function", "before", "after", "number", "outcome")
# Tests that start processes would start them without the mutant.
TESTS = {
    "linalg": ["linalg", "moments", "criteria"],
    "moments": ["moments", "criteria"],
    "criteria": ["criteria", "privacy", "checkpoint", "training"],
    "run": ["training", "interrupts", "checkpoint", "bad_input"],
    "training": ["training", "checkpoint", "bad_input"],
}
PRELOADED = "ignore::pytest.PytestAssertRewriteWarning"
LEFT_OUT = "not process and not 1500-1 and not digits and not targets_can_be"  # and tests that are slow
TEST_SECONDS = 15.0  # of tests for a mutant, as the module itself takes them
MORE_SECONDS = 30  # of CPU until a mutant is called endless
TRACED_SECONDS = 900
WALL_SECONDS = 600

SWAPS: dict[type, type] = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Div},
    **{ast.Pow: ast.Mult, ast.MatMult: ast.Mult, ast.BitOr: ast.BitAnd, ast.BitAnd: ast.BitOr, ast.Mod: ast.FloorDiv},
}
REMOVABLE = (ast.Expr, ast.AugAssign, ast.If, ast.For, ast.With)
DEFINING = (ast.FunctionDef, ast.ClassDef)


# Making mutants


def mutants(source: str) -> Iterator[tuple[str, str, str, range, ast.Module]]:
    """Yield function, text before, text after, lines and the tree of every mutant of a module."""
    tree = ast.parse(source)
    for owner, place in list(_places(tree)):
        node = _get(owner, place)
        for other in _others(node):
            before = _first_line(owner, node)
            _set(owner, place, other)
            after = _first_line(owner, other)
            if before != after:
                yield owner.function, before, after, _lines(owner, node), copy.deepcopy(tree)
            _set(owner, place, node)


def _places(node: ast.AST, function: str = "", statement: ast.AST | None = None) -> Iterator[tuple[ast.AST, tuple]]:
    """Yield each node that may be changed: its owner (which knows function and statement) and where it is in it."""
    if isinstance(node, DEFINING):
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


def _lines(owner: ast.AST, node: ast.AST) -> range:
    """Return the lines of which one is run wherever the node is: of its statement, of a function for its defaults."""
    statement = node if isinstance(node, ast.stmt) else owner.statement
    compound = hasattr(statement, "body") and not isinstance(statement, DEFINING)
    return range(statement.lineno, statement.body[0].lineno if compound else statement.end_lineno + 1)


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
        yield ast.copy_location(ast.If(ast.Constant(False), [node], []), node)


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


def numbered(module: str) -> list[tuple[tuple, range, ast.Module]]:
    """Return the mutants of a module in a random order, under keys that stay when other lines change."""
    seen: Counter = Counter()
    found = []
    for function, before, after, lines, tree in mutants((ROOT / "src" / "discernel" / f"{module}.py").read_text()):
        seen[function, before, after] += 1
        found.append(((module, function, before, after, str(seen[function, before, after])), lines, tree))
    random.Random(0).shuffle(found)  # so that those of a run that was stopped are a fair sample
    return found


# Putting one in the place of the module


def graft(module: types.ModuleType, functions: list[types.FunctionType], tree: ast.Module) -> None:
    """Make a loaded module what the tree says: the code and the defaults of functions, classes and constants."""
    code = compile(ast.fix_missing_locations(tree), module.__file__, "exec")
    new = types.ModuleType(module.__name__)
    exec(code, vars(new))
    codes = dict(_codes(code))
    for function in functions:
        function.__code__ = codes[function.__code__.co_qualname, function.__code__.co_firstlineno]
        if "<" not in function.__qualname__:
            twin = inspect.unwrap(operator.attrgetter(function.__qualname__)(new))
            twin = getattr(twin, "__func__", twin)
            function.__defaults__, function.__kwdefaults__ = twin.__defaults__, twin.__kwdefaults__
    for name, value in list(vars(module).items()):
        if isinstance(value, type) and value.__module__ == module.__name__:
            _graft_class(value, getattr(new, name))
        elif not name.startswith("__") and not callable(value) and value != getattr(new, name):
            for other in [m for key, m in sys.modules.items() if key.startswith("discernel")]:
                if vars(other).get(name) is value:
                    setattr(other, name, getattr(new, name))


def _codes(code: types.CodeType) -> Iterator[tuple[tuple[str, int], types.CodeType]]:
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            yield (inner.co_qualname, inner.co_firstlineno), inner
            yield from _codes(inner)


def _graft_class(old: type, new: type) -> None:
    for name, value in vars(new).items():
        if isinstance(value, bool | int | float | str | None) and not name.startswith("__"):
            setattr(old, name, value)
    if hasattr(new, "__dataclass_fields__"):
        old.__dataclass_fields__, old.__init__.__defaults__ = new.__dataclass_fields__, new.__init__.__defaults__


# Running the tests


class Forks:
    """A plugin of pytest that does not run the tests it has collected, but the mutants."""

    def __init__(self, modules: list[str], sample: int | None, table: Path):
        self.modules, self.sample, self.table = modules, sample, table
        self.rows = _read(table)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session) -> bool:
        """Try the mutants that the table does not have yet."""
        for name in self.modules:
            module = importlib.import_module(f"discernel.{name}")
            functions = _functions(module)
            items = [item for item in session.items if item.path.stem.removeprefix("test_") in TESTS[name]]
            reached = _reached(items, module.__file__)
            for key, lines, tree in numbered(name)[: self.sample]:
                if key not in self.rows:
                    chosen = _chosen(items, reached, lines)
                    self.rows[key] = outcome(lambda: (graft(module, functions, tree), run(chosen)))  # noqa: B023
                    _write(self.table, self.rows)
                    print(*key[:2], key[3], self.rows[key], sep=" | ", flush=True)
        return True


def _functions(module: types.ModuleType) -> list[types.FunctionType]:
    """Return all functions of a module, also those in classes and behind decorators."""
    every = [each for each in gc.get_objects() if type(each) is types.FunctionType]
    return [function for function in every if function.__code__.co_filename == module.__file__]


def _reached(items: list[pytest.Item], path: str) -> dict[str, tuple[float, set[int]]]:
    """Return how long each test takes, and the lines of a file that it reaches; they must all pass."""
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder) / "reached"
        if outcome(lambda: found.write_text(json.dumps(_traced(items, path))), TRACED_SECONDS) != "survived":
            raise pytest.UsageError(f"the tests of {path} fail without a mutant, or take {TRACED_SECONDS} s: mend that")
        return {name: (seconds, set(lines)) for name, (seconds, lines) in json.loads(found.read_text()).items()}


def _traced(items: list[pytest.Item], path: str) -> dict[str, tuple[float, list[int]]]:
    found = {}
    for item in items:
        lines: set[int] = set()

        def trace(frame, event, argument, lines=lines):
            if frame.f_code.co_filename != path:
                return None
            lines.add(frame.f_lineno)
            return trace

        started = time.process_time()
        for settrace in (sys.settrace, threading.settrace):
            settrace(trace)
        run([item])
        for settrace in (sys.settrace, threading.settrace):
            settrace(None)
        found[item.nodeid] = time.process_time() - started, sorted(lines)
    return found


def _chosen(items: list[pytest.Item], reached: dict, lines: range) -> list[pytest.Item]:
    """Return the tests that reach one of the lines: one of each function first, up to a sum of seconds."""
    reaching = [item for item in items if not reached[item.nodeid][1].isdisjoint(lines)] or items
    reaching.sort(key=lambda item: reached[item.nodeid][0])
    seen: Counter = Counter()
    rounds = {}
    for item in reaching:
        rounds[item] = seen[item.originalname]
        seen[item.originalname] += 1
    reaching.sort(key=lambda item: rounds[item])
    chosen, total = [], 0.0
    for item in reaching:
        total += reached[item.nodeid][0]
        if total <= TEST_SECONDS or not chosen:
            chosen.append(item)
    return chosen


def run(items: list[pytest.Item]) -> None:
    """Run tests until one fails, which is an error."""
    from _pytest.runner import runtestprotocol

    for item, following in pairwise([*items, None]):
        if any(report.failed for report in runtestprotocol(item, nextitem=following, log=False)):
            raise AssertionError(item.nodeid)


def outcome(work: Callable[[], object], seconds: float = TEST_SECONDS + MORE_SECONDS) -> str:
    """Return what becomes of some work in a fork: it "survived", was "killed" by an error or took "too long"."""
    child = os.fork()
    if child == 0:
        _work(work, int(seconds))
    started = time.monotonic()
    while (found := os.waitpid(child, os.WNOHANG)) == (0, 0):
        if time.monotonic() - started > max(seconds, WALL_SECONDS):
            os.kill(child, signal.SIGKILL)
        time.sleep(0.005)
    code = os.waitstatus_to_exitcode(found[1])
    if code == 0:
        return "survived"
    return "too long" if code in (-signal.SIGXCPU, -signal.SIGKILL) else "killed"


def _work(work: Callable[[], object], seconds: int) -> None:
    code = 1
    try:
        used = int(time.process_time())  # of the parent: a fork has used none, but counts as if
        resource.setrlimit(resource.RLIMIT_CPU, (used + seconds, used + seconds + 5))
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        work()
        code = 0
    finally:
        os._exit(code)


def main() -> None:
    """Run the mutants that the table does not have yet, then say how many are left."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("modules", nargs="*", default=list(TESTS))
    parser.add_argument("--sample", type=int, help="only so many of the mutants of each module, at random")
    parser.add_argument("--table", type=Path, default=TABLE)
    options = parser.parse_args()
    sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
    _preload()
    names = {name for module in options.modules for name in TESTS[module]}
    files = [str(ROOT / "tests" / f"test_{name}.py") for name in sorted(names)]
    forks = Forks(options.modules, options.sample, options.table)
    with tempfile.TemporaryDirectory() as folder:
        plain = ["-o", "addopts=", "-p", "no:cacheprovider", "-m", "not slow and not torture", "-k", LEFT_OUT]
        plain += ["-W", PRELOADED, "-q", "-s", f"--basetemp={folder}/tests"]
        if pytest.main([*plain, *files], [forks]) not in (0, 5):
            raise SystemExit(1)
    _tell(forks.rows)


def _preload() -> None:
    """Import what tests import when they run, and have no threads: there must be none to fork."""
    import hypothesis
    import torch
    import torch._dynamo

    torch.set_num_threads(1)
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
        writer = csv.writer(file, lineterminator="\n")
        writer.writerows([FIELDS, *((*key, rows[key]) for key in sorted(rows))])


def _tell(rows: dict[tuple, str]) -> None:
    for module in TESTS:
        counts = Counter(value for key, value in rows.items() if key[0] == module)
        dead = counts["killed"] + counts["too long"]
        print(f"{module:10} {counts.total():4} mutants, {dead / max(1, counts.total()):.1%} noticed, {dict(counts)}")


if __name__ == "__main__":
    main()
