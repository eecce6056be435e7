"""What `estimate` says before a fit, beside what the fit then takes.

Seconds are of a fit that follows its estimate. Memory is the growth of the peak resident memory in a process that does
nothing but fit: an estimate already takes the buffers that stay. The first fit of a process takes a second longer than
is estimated. Prints a table, writes it as JSON.

    python benchmarks/estimate.py --data digits letter
"""

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1]))
from discernel import DiscernelClassifier
from experiments.datasets import LOADERS, load

CASES = ((100, "nystroem", "ridge"), (100, "fourier", "svm"), (300, "nystroem", "svm"), (300, "fourier", "softmax"))


def resident() -> int:
    """Return the bytes that this process has in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def times(model: DiscernelClassifier, x, y) -> dict:
    """Return what an estimate says, and what the fit after it takes."""
    began = time.perf_counter()
    cost = model.estimate(x, y)
    estimated = time.perf_counter()
    model.fit(x, y)
    found = {"estimated_seconds": cost.seconds, "estimated_memory": cost.memory, "estimating": estimated - began}
    return found | {"seconds": time.perf_counter() - estimated}


def memory(model: DiscernelClassifier, x, y) -> dict:
    """Return what a fit alone takes of memory."""
    before = resident()
    model.fit(x, y)
    return {"memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before}


def measure(what: str, name: str, components: str, kind: str, head: str) -> dict:
    data, model = load(name), DiscernelClassifier(int(components), feature_map=kind, head=head, random_state=0)
    return (times if what == "times" else memory)(model, data.x_train, data.y_train)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["digits", "letter"], choices=LOADERS)
    parser.add_argument("--out", default="benchmarks/results/estimate.json")
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(*options.one)))
        return
    rows = []
    print(f"{'data':8} {'features':20} {'head':8} {'estimate, s':>11} {'fit, s':>8} {'ratio':>6}"
          f" {'estimate, MB':>13} {'peak, MB':>9} {'ratio':>6} {'estimating, s':>14}")  # fmt: skip
    for name in options.data:
        for components, kind, head in CASES:
            row = {"data": name, "components": components, "map": kind, "head": head}
            for what in ("times", "memory"):
                command = [sys.executable, __file__, "--one", what, name, str(components), kind, head]
                row |= json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
            rows.append(row)
            times = row["estimated_seconds"] / row["seconds"]
            sizes = row["estimated_memory"] / row["memory"]
            print(f"{name:8} {f'{kind}({components})':20} {head:8} {row['estimated_seconds']:11.1f}"
                  f" {row['seconds']:8.1f} {times:6.2f} {row['estimated_memory'] / 1e6:13.0f}"
                  f" {row['memory'] / 1e6:9.0f} {sizes:6.2f} {row['estimating']:14.1f}", flush=True)  # fmt: skip
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    record = {"torch": torch.__version__, "threads": torch.get_num_threads(), "rows": rows}
    Path(options.out).write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
