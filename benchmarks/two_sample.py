"""Power of the two-sample tests: how often each finds a difference that is there, and one that is not.

Three pairs of distributions with equal or nearly equal means, after the literature on kernel two-sample tests:

- blobs: nine Gaussians on a grid, round in one sample and slanted in the other;
- digits: scikit-learn's digits, in the second sample moved to the right by a small part of a pixel;
- events: the transverse momenta and directions of two particles, like the Higgs data, of which some in the second
  sample come from one resonance: only their invariant mass tells.

Tests at the level 5%: the kernel Fisher ratio on a held-out half with features learned on the other half; the same
ratio with random landmarks on all rows; MMD on the learned features; and MMD with the exact kernel of the median
heuristic on all rows. "none" has both samples from the first distribution. Prints a table, writes it as JSON.

    OMP_NUM_THREADS=1 python benchmarks/two_sample.py
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits

from discernel import RBF, two_sample_test
from discernel.two_sample import start_gamma

LEVEL, PERMUTATIONS = 0.05, 199
ROWS = {"blobs": 500, "digits": 800, "events": 1500}
DIGITS = load_digits().data.reshape(-1, 8, 8) / 16


def blobs(n: int, rng, differ: bool) -> np.ndarray:
    spread = np.linalg.cholesky([[1.0, 0.6], [0.6, 1.0]]) if differ else np.eye(2)
    return rng.integers(0, 3, (n, 2)) + np.sqrt(0.03) * rng.normal(size=(n, 2)) @ spread.T


def digits(n: int, rng, differ: bool) -> np.ndarray:
    images = DIGITS[rng.permutation(len(DIGITS))[:n]]
    part = 0.03 if differ else 0.0
    return ((1 - part) * images + part * np.roll(images, 1, axis=2)).reshape(n, -1)


def events(n: int, rng, differ: bool) -> np.ndarray:
    momenta, heights = 0.3 + rng.exponential(1, (n, 2)), rng.normal(size=(n, 2))
    angles = rng.uniform(-np.pi, np.pi, (n, 2))
    opening = np.cosh(heights[:, 0] - heights[:, 1]) - np.cos(angles[:, 0] - angles[:, 1])
    mass = 1.5 + 0.1 * rng.normal(size=n)
    partner = np.clip(mass**2 / (2 * momenta[:, 0] * opening), 0.3, 6.0)
    resonant = rng.random(n) < (0.15 if differ else 0.0)
    momenta[:, 1] = np.where(resonant, partner, momenta[:, 1])
    return np.column_stack([np.log(momenta), heights, angles / np.pi])


TASKS = {"blobs": blobs, "digits": digits, "events": events}


def p_values(x: np.ndarray, y: np.ndarray, seed: int) -> dict[str, float]:
    options = {"n_permutations": PERMUTATIONS, "seed": seed}
    learned = two_sample_test(x, y, **options)
    random = two_sample_test(x, y, learn=False, **options)
    return {
        "Fisher, learned": learned.p_value,
        "Fisher, random": random.p_value,
        "MMD, learned": learned.mmd_p_value,
        "MMD, median": exact_mmd(x, y, seed),
    }


def exact_mmd(x: np.ndarray, y: np.ndarray, seed: int) -> float:
    """Return the p-value of MMD with the kernel matrix of all rows and the median heuristic."""
    rows, rng = torch.from_numpy(np.vstack([x, y])), np.random.default_rng(seed)
    kernel = RBF(start_gamma(rows, torch.Generator().manual_seed(seed))).double()(rows, rows)
    signs = np.repeat([1.0 / len(x), -1.0 / len(y)], [len(x), len(y)])
    columns = torch.from_numpy(np.stack([signs, *(rng.permutation(signs) for _ in range(PERMUTATIONS))], axis=1))
    values = (columns * (kernel @ columns)).sum(0)
    return (values >= values[0]).double().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--out", default="benchmarks/results/two_sample.json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, started = [], time.perf_counter()
    for task, sampler in TASKS.items():
        for differ in (True, False):
            found = []
            for seed in range(options.repeats):
                rng, n = np.random.default_rng(seed), ROWS[task]
                found.append(p_values(sampler(n, rng, False), sampler(n, rng, differ), seed))
            shares = {name: float(np.mean([each[name] <= LEVEL for each in found])) for name in found[0]}
            if not rows:
                print(f"{'':8} {'differ':7}" + "".join(f"{name:>17}" for name in shares))
            line = "".join(f"{100 * share:16.0f}%" for share in shares.values())
            print(f"{task:8} {'yes' if differ else 'none':7}{line}", flush=True)
            rows.append({"task": task, "differ": differ, "n": ROWS[task], "rejected": shares})
    print(f"rejected at the level {LEVEL:.0%}, {options.repeats} repeats; {time.perf_counter() - started:.0f} s")
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    record = {"level": LEVEL, "repeats": options.repeats, "permutations": PERMUTATIONS, "rows": rows}
    Path(options.out).write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
