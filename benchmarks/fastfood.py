"""What Fastfood saves: seconds and parameters of a map, and its error in the kernel, beside random Fourier features.

For each dimension d and number of features J, the same batch of rows goes through `RandomFourier` (independent and
orthogonal frequencies) and `Fastfood`, forward and with the gradient of every parameter. One thread, float32, the best
of several repeats taken in turns. The error is the root mean square over pairs of rows of φ(x)ᵀφ(z) − k(x, z).
Prints a table, writes it as JSON.

    OMP_NUM_THREADS=1 python benchmarks/fastfood.py
"""

import argparse
import json
import time
from pathlib import Path

import torch

from discernel import RBF, Fastfood, RandomFourier

ROWS, REPEATS = 1000, 5


def maps(n_features: int, n_components: int) -> dict:
    kernel, generator = RBF(0.4 / n_features), torch.Generator().manual_seed(0)
    size = n_features, n_components, generator
    return {
        "Fourier": RandomFourier.sample(kernel, *size),
        "Fourier, orthogonal": RandomFourier.sample(kernel, *size, orthogonal=True),
        "Fastfood": Fastfood.sample(kernel, *size),
    }


def forward(feature_map, x) -> float:
    started = time.perf_counter()
    with torch.no_grad():
        feature_map(x)
    return time.perf_counter() - started


def with_gradient(feature_map, x) -> float:
    feature_map.zero_grad()
    started = time.perf_counter()
    feature_map(x).sum().backward()
    return time.perf_counter() - started


def error(feature_map, x) -> float:
    with torch.no_grad():
        phi = feature_map(x[:300]).double()
        exact = RBF(0.4 / x.shape[1])(x[:300].double(), x[:300].double())
        return (phi @ phi.T - exact).square().mean().sqrt().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--features", nargs="+", type=int, default=[784, 4096])
    parser.add_argument("--components", nargs="+", type=int, default=[1024, 4096, 8192])
    parser.add_argument("--out", default="benchmarks/results/fastfood.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    heads = f"{'forward, ms':>12} {'+ gradient':>11} {'parameters':>11} {'error':>7}"
    print(f"{'d':>5} {'J':>5} {'map':20} {heads}")
    for d in options.features:
        x = torch.randn(ROWS, d, generator=torch.Generator().manual_seed(1))
        for components in options.components:
            named = maps(d, components)
            times = [{name: (forward(m, x), with_gradient(m, x)) for name, m in named.items()} for _ in range(REPEATS)]
            for name, m in named.items():
                one, both = (1000 * min(t[name][part] for t in times) for part in (0, 1))
                size = sum(p.numel() for p in m.parameters())
                row = {"d": d, "J": components, "map": name, "forward_ms": one, "gradient_ms": both}
                rows.append(row | {"parameters": size, "error": error(m, x)})
                print(f"{d:5} {components:5} {name:20} {one:12.1f} {both:11.1f} {size:11,} {rows[-1]['error']:7.4f}")
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    record = {"torch": torch.__version__, "threads": torch.get_num_threads(), "rows_per_batch": ROWS, "rows": rows}
    Path(options.out).write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
