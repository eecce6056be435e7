"""One training step against the arithmetic it takes.

For both maps and four shapes: milliseconds of a whole step (basis, criterion, gradient, Adam), the arithmetic limit
nJ² + J³/3 + 4ndJ + 6nJL flops at the rate of torch's float32 product on this machine, measured in the same run, and the
same step by (a) float32 autograd through a Cholesky factor and (b) float64 autograd through `linalg.solve`. The limit
counts nothing for the landmarks' own kernel matrix; "with gram" adds its 3J²d. Where `discernel.linalg.product` is
quicker than torch's, "at ours" is the ratio to the limit at its rate. "bare" are the products and the factor of the
limit alone, in float32, by the same means, half of the scatter in blocks: what bounds a step. Data are uniform in
[0, 1]. Of our step also where its time goes, by torch's profiler, whose own cost is
in "other" where operations are small, and by the clock for what numpy and scipy do. Prints a table, writes it as JSON.

The small step is one of float64 products by OpenBLAS, which takes its kernels by the processor unless OPENBLAS_CORETYPE
names others; the last line says which it took.

    python benchmarks/step.py
"""

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import torch
from threadpoolctl import threadpool_info
from torch import Tensor

from discernel import DI, RBF, ArraySource, Nystroem, RandomFourier, Targets, Trainer, feature_maps, linalg
from discernel.linalg import product, symmetric_product
from discernel.resources import kept, threads_for
from discernel.run import Run

SHAPES = ((1000, 100, 16, 26), (1000, 500, 784, 10), (4000, 2000, 54, 7), (4000, 2000, 784, 10))
RHO = 1e-4
KINDS = {
    "products": {"mm", "addmm", "addmm_", "mv", "addmv_", "_linear_pointwise"},
    "factor": {"linalg_cholesky_ex", "_cholesky_solve_helper", "linalg_solve_triangular", "tril"},
    "functions": {"exp2_", "cos", "sin"},
    "copies": {"copy_", "cat"},
}
OUTSIDE = (  # of torch, on one thread
    ("products", linalg, "_numpy_product"),
    ("products", linalg, "_syrk"),
    ("factor", linalg, "_by_cholesky"),
    ("functions", feature_maps, "trigonometric"),
)


def best(action: Callable[[], object], seconds: float = 2.0) -> float:
    """Return the least time of an action that is repeated for so many seconds, but at least three times."""
    action()
    times, started = [], time.perf_counter()
    while len(times) < 3 or time.perf_counter() - started < seconds:
        before = time.perf_counter()
        action()
        times.append(time.perf_counter() - before)
    return min(times)


def shares(step: Callable[[], object], seconds: float, repeats: int = 3) -> dict[str, float]:
    """Return the shares of a step's seconds that go into each kind of operation, and of what is left."""
    step()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(repeats):
            step()
    found = dict.fromkeys((*KINDS, "other"), 0.0)
    for event in profile.key_averages():
        kind = next((kind for kind, names in KINDS.items() if event.key.rpartition("::")[2] in names), "other")
        found[kind] += 1e-6 * event.self_cpu_time_total / repeats
    with timed_outside_of_torch(found, repeats):
        for _ in range(repeats):
            step()
    found["Python"] = max(0.0, seconds - sum(found.values()))  # and the dispatch of operations
    return {kind: time / sum(found.values()) for kind, time in found.items()}


@contextmanager
def timed_outside_of_torch(found: dict[str, float], repeats: int) -> Iterator[None]:
    """Add what one thread has numpy and scipy do, which torch's profiler does not see."""
    with ExitStack() as stack:
        for kind, owner, name in OUTSIDE:
            call = getattr(owner, name)

            def timed(*args, call=call, kind=kind, **options):
                began = time.perf_counter()
                result = call(*args, **options)
                if torch.get_num_threads() == 1:
                    found[kind] += (time.perf_counter() - began) / repeats
                return result

            stack.enter_context(patch.object(owner, name, timed))
        yield


def product_rate(multiply: Callable[[Tensor, Tensor], Tensor]) -> float:
    """Return flops per second of a large float32 product."""
    a, b = torch.rand(2048, 2048), torch.rand(2048, 2048)
    return 2 * 2048**3 / best(lambda: multiply(a, b))


def feature_map(kind: str, x: Tensor, n_components: int):
    generator = torch.Generator().manual_seed(0)
    gamma = 1 / (x.shape[1] * x.var().item())
    if kind == "fourier":
        return RandomFourier.sample(RBF(gamma), x.shape[1], n_components, generator, x.dtype)
    return Nystroem(torch.rand(n_components, x.shape[1], generator=generator, dtype=x.dtype), RBF(gamma))


def data(n: int, d: int, n_classes: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(n, d, generator=generator)
    classes = (x @ torch.randn(d, n_classes, generator=generator)).argmax(1)
    return x, torch.nn.functional.one_hot(classes, n_classes).float()


@contextmanager
def our_step(kind, x, y, n_components) -> Iterator[Callable[[], None]]:
    source = ArraySource(x, Targets.values(y.numpy()))
    trainer = Trainer(batch_size=len(x), learning_rate=1e-3)
    run = Run(trainer, feature_map(kind, x, n_components), DI(RHO), source, seed=0, path=None)
    batch = source.rows(slice(0, len(x)))
    with threads_for(run.work), kept(run.memory):  # once an epoch
        yield lambda: run.update(batch)


def bare_step(x: Tensor, y: Tensor, n_components: int) -> Callable[[], None]:
    """Return what the limit counts and nothing else: no functions, no centring, no second precision, no Adam."""
    linear, basis = torch.rand(x.shape[1], n_components), torch.rand(len(x), n_components)
    weights, regular = torch.rand(n_components, y.shape[1]), torch.eye(n_components)

    def step():
        with threads_for(len(x) * n_components * (n_components + x.shape[1])):
            product(x, linear)
            symmetric_product(basis, lower=True)
            torch.linalg.cholesky_ex(regular)
            product(basis.T, y)
            product(basis, weights)
            product(y, weights.T)
            product(x.T, basis)

    return step


def autograd_step(kind, x, y, n_components, solve: Callable[[Tensor, Tensor], Tensor]) -> Callable[[], None]:
    made = feature_map(kind, x, n_components)
    optimizer = torch.optim.Adam([p for p in made.parameters() if p.requires_grad], maximize=True, fused=True)

    def kernel(a, b):
        metric = made.kernel.metric.to(a)
        a, b = a * metric, b * metric
        return (2 * a @ b.T - a.square().sum(1, keepdim=True) - b.square().sum(1)).exp()

    def step():
        optimizer.zero_grad()
        if kind == "fourier":
            basis = (x @ made.frequencies + made.phases).cos() * (2 / n_components) ** 0.5
            penalty = torch.eye(n_components, dtype=x.dtype)
        else:
            basis, penalty = kernel(x, made.landmarks), kernel(made.landmarks, made.landmarks)
        basis, targets = basis - basis.mean(0), y - y.mean(0)
        cross = basis.T @ targets
        (solve(basis.T @ basis + RHO * penalty, cross) * cross).sum().backward()
        optimizer.step()

    return step


def by_cholesky(a: Tensor, b: Tensor) -> Tensor:
    jitter = 1e-5 * a.diagonal().mean().detach() * torch.eye(len(a))
    return torch.cholesky_solve(b, torch.linalg.cholesky_ex(a + jitter).L)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="benchmarks/results/step.json")
    parser.add_argument("--ours", action="store_true", help="leave the autograd steps out")
    options = parser.parse_args()
    print(f"{'n, J, d, L':22} {'map':9} {'GFLOP/s':>8} {'limit':>7} {'step':>7} {'ratio':>6} {'with gram':>10}"
          f" {'at ours':>8} {'bare':>7} {'(a)':>8} {'(b)':>8} {'a/step':>7} {'b/step':>7}   (ms)")  # fmt: skip
    rows = []
    for n, j, d, n_classes in SHAPES:
        x, y = data(n, d, n_classes)
        for kind in ("nystroem", "fourier"):
            rate, our_rate = product_rate(torch.mm), product_rate(product)
            flops = n * j**2 + j**3 / 3 + 4 * n * d * j + 6 * n * j * n_classes
            gram = 3 * j**2 * d if kind == "nystroem" else 0
            with our_step(kind, x, y, j) as step:
                ours = best(step)
            row = {"n": n, "J": j, "d": d, "L": n_classes, "map": kind, "rate": rate, "limit": flops / rate}
            row["our_rate"] = our_rate
            row |= {"limit_with_gram": (flops + gram) / rate, "step": ours, "bare": best(bare_step(x, y, j))}
            with our_step(kind, x, y, j) as step:
                row["share"] = shares(step, ours)
            line = f"{f'{n}, {j}, {d}, {n_classes}':22} {kind:9} {rate / 1e9:8.0f} {1e3 * row['limit']:7.2f}"
            line += f" {1e3 * ours:7.2f} {ours / row['limit']:6.2f} {ours / row['limit_with_gram']:10.2f}"
            line += f" {ours * our_rate / flops:8.2f} {1e3 * row['bare']:7.2f}"
            if not options.ours:
                single = best(autograd_step(kind, x, y, j, by_cholesky))
                double = best(autograd_step(kind, x.double(), y.double(), j, torch.linalg.solve))
                row |= {"autograd_float32": single, "autograd_float64": double}
                line += f" {1e3 * single:8.1f} {1e3 * double:8.1f} {single / ours:7.1f} {double / ours:7.1f}"
            rows.append(row)
            print(line + "   " + ", ".join(f"{kind} {share:.0%}" for kind, share in row["share"].items()), flush=True)
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    kernels = sorted({library["architecture"] for library in threadpool_info() if "architecture" in library})
    print(f"OpenBLAS has kernels for {', '.join(kernels)}")
    record = {"torch": torch.__version__, "threads": torch.get_num_threads(), "openblas": kernels, "rows": rows}
    Path(options.out).write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
