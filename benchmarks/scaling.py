"""Seconds and memory of training against the number of rows, of features and of rows in a batch, with their exponents.

One epoch of DI on Nyström landmarks and the ridge head, each run in a process of its own, on rows of a memory-mapped
file. Memory is the peak of what the process has allocated itself while it fits (pages of the file do not count), beside
what it had before. Prints a table, writes it as JSON and draws it.

    python benchmarks/scaling.py
    python benchmarks/scaling.py --draw   # the figure again, from the JSON
"""

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import torch

from discernel import DiscernelClassifier, Trainer

N_FEATURES = 20
SWEEPS = {  # (rows, components, batch)
    "rows": [(n, 100, 1000) for n in (10_000, 100_000, 1_000_000, 5_000_000)],
    "components": [(16_000, j, 4000) for j in (50, 100, 200, 500, 1000, 2000)],
    "batch": [(64_000, 200, b) for b in (500, 1000, 2000, 4000, 8000, 16_000, 32_000)],
}
LABELS = {"rows": "rows N", "components": "features J", "batch": "rows of a batch"}


def allocated() -> int:
    """Return the bytes of memory that this process has and that no file backs."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))


class Watch:
    """The peak of `allocated` inside a with block, beyond what it was before."""

    def __enter__(self):
        self.peak = self.before = allocated()
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._look)
        self.thread.start()
        return self

    def _look(self):
        while not self.done.wait(0.005):
            self.peak = max(self.peak, allocated())

    def __exit__(self, *exception):
        self.done.set()
        self.thread.join()
        self.bytes = max(self.peak, allocated()) - self.before


def measure(path: str, n_rows: int, components: int, batch: int) -> dict:
    x = np.memmap(path, dtype=np.float32, mode="r").reshape(-1, N_FEATURES)[:n_rows]
    y = np.concatenate([(part[:, :4] @ np.array([1, -1, 1, -1]) > 0) for part in np.array_split(x, 100)]).astype(int)
    trainer = Trainer(max_epochs=1, batch_size=batch)
    model = DiscernelClassifier(components, feature_map="nystroem", head="ridge", trainer=trainer, random_state=0)
    DiscernelClassifier(10, head="ridge", trainer=trainer, random_state=0).fit(x[:2000], y[:2000])  # warms up
    with Watch() as watch:
        began = time.perf_counter()
        model.fit(x, y)
        seconds = time.perf_counter() - began
    return {"rows": n_rows, "components": components, "batch": batch, "seconds": seconds, "memory": watch.bytes}


def exponent(points: list[tuple[float, float]]) -> float:
    """Return the slope of a line through the larger half of the points in double logarithmic scale."""
    a, b = np.log(points[len(points) // 2 - 1 :]).T
    return float(np.polyfit(a, b, 1)[0])


def draw(results: dict, path: Path) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(2, 3, figsize=(10, 5.5), sharex="col", layout="constrained")
    for column, (sweep, rows) in enumerate(results.items()):
        for axis, (key, unit, factor) in zip(
            axes[:, column], (("seconds", "seconds", 1), ("memory", "memory, MB", 1e-6)), strict=True
        ):
            points = [(row[sweep], factor * row[key]) for row in rows]
            axis.loglog(*zip(*points, strict=True), "o-", color="#0072b2")
            axis.set_title(f"exponent {exponent(points):.2f}", fontsize=10)
            axis.set_ylabel(unit)
            axis.set_ylim(bottom=min(p for _, p in points) / 3, top=max(p for _, p in points) * 3)
            axis.grid(alpha=0.3)
        axes[1, column].set_xlabel(LABELS[sweep])
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/scaling.json"))
    parser.add_argument("--figure", type=Path, default=Path("docs/images/scaling.png"))
    parser.add_argument("--largest", type=int, default=5_000_000, help="leave out runs of more rows")
    parser.add_argument("--draw", action="store_true", help="only draw what was measured before")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        path, *numbers = options.one
        print(json.dumps(measure(path, *map(int, numbers))))
        return
    if not options.draw:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        record = {"torch": torch.__version__, "threads": torch.get_num_threads(), "rows": run(options.largest)}
        options.out.write_text(json.dumps(record, indent=1))
    measured = json.loads(options.out.read_text())["rows"]
    results = {sweep: [row for row in measured if row["sweep"] == sweep] for sweep in SWEEPS}
    for sweep, rows in results.items():
        powers = (exponent([(row[sweep], max(row[key], 1e-9)) for row in rows]) for key in ("seconds", "memory"))
        print("{}: seconds ~ n^{:.2f}, memory ~ n^{:.2f}".format(LABELS[sweep], *powers))
    draw(results, options.figure)


def run(largest: int) -> list[dict]:
    results = []
    print(f"{'rows':>9} {'J':>6} {'batch':>7} {'seconds':>9} {'memory, MB':>11}")
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "rows.f32")
        x = np.memmap(path, dtype=np.float32, mode="w+", shape=(largest, N_FEATURES))
        rng = np.random.default_rng(0)
        for start in range(0, largest, 2**18):
            x[start : start + 2**18] = rng.random((min(2**18, largest - start), N_FEATURES), dtype=np.float32)
        x.flush()
        for sweep, cases in SWEEPS.items():
            for case in (case for case in cases if case[0] <= largest):
                command = [sys.executable, __file__, "--one", path, *map(str, case)]
                row = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
                results.append({"sweep": sweep} | row)
                print(
                    f"{case[0]:9} {case[1]:6} {case[2]:7} {row['seconds']:9.2f} {row['memory'] / 1e6:11.0f}", flush=True
                )
    return results


if __name__ == "__main__":
    main()
