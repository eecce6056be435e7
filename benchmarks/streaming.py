"""Training from files larger than the memory it may use, beside the same from memory.

Makes a synthetic table (54 numeric columns, 7 classes) as Parquet, CSV and .npy in a temporary folder, and fits one
classifier (with the ridge head, which takes one more pass) from each and from an array in memory, each in a process of
its own, so that its peak of resident memory is its own. `two` is Parquet with two processes that share the rows; its
figures are of both together, its memory that of the one that takes more. `prepare` is what it takes to make the source:
for files, two passes over them. `rows/s` is of the training of an epoch, and `rows/CPU s` the same by the processors'
time, which others at work on the machine change less. `waiting` is the share of the epoch in which training waits for
its next batch. The fits are the same if `criterion` and `accuracy` are. Run it with OMP_NUM_THREADS=1, so that two
processes have twice the cores of one.

    python benchmarks/streaming.py --rows 10000000
    python benchmarks/streaming.py --rows 200000 --kinds memory parquet
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import torch

from discernel import ArraySource, DiscernelClassifier, Preprocessing, TableSource, Targets, Trainer
from discernel.data import Source
from discernel.distributed import first, gathered_json, processes

KINDS = ["memory", "parquet", "two", "memmap", "csv"]
COLUMNS, CLASSES, TEST_ROWS, CHUNK = 54, 7, 50_000, 2**20
NAMES = [f"x{i}" for i in range(COLUMNS)]


def table(rows: int, seed: int) -> pa.Table:
    """Return rows of uniform numbers, with a class that depends on them nonlinearly."""
    rng = np.random.default_rng([1, seed])
    x = rng.random((rows, COLUMNS), dtype=np.float32)
    centres = np.random.default_rng(0).random((10 * CLASSES, 10), dtype=np.float32)  # the class of the nearest
    distance = (centres**2).sum(1) - 2 * x[:, :10] @ centres.T
    return pa.table(dict(zip(NAMES, x.T, strict=True)) | {"class": distance.argmin(1) % CLASSES})


def write(folder: Path, rows: int, kinds: list[str]) -> None:
    """Write the rows in all formats that are asked for, a million at a time."""
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.float32, (rows, COLUMNS)) if "memmap" in kinds else None
    text, y = None, []
    (folder / "parquet").mkdir()
    for number, start in enumerate(range(0, rows, CHUNK)):
        part = table(min(CHUNK, rows - start), seed=number)
        pq.write_table(part, folder / "parquet" / f"part-{number:04}.parquet")
        y.append(part["class"].to_numpy())
        if "csv" in kinds:
            text = text or pa.csv.CSVWriter(folder / "rows.csv", part.schema)
            text.write_table(part)
        if x is not None:
            x[start : start + part.num_rows] = np.column_stack([part[name].to_numpy() for name in NAMES])
    if text is not None:
        text.close()
    np.save(folder / "y.npy", np.concatenate(y))
    pq.write_table(table(TEST_ROWS, seed=10**6), folder / "test.parquet")


def source(kind: str, folder: Path):
    """Return the training data, features unscaled: they are in [0, 1] as they are."""
    paths = {"parquet": folder / "parquet", "two": folder / "parquet", "csv": folder / "rows.csv"}
    if kind in paths:
        return TableSource(paths[kind], "class", scaling="none", cache=folder, shared=True)
    if kind == "memmap":
        x = np.load(folder / "x.npy", mmap_mode="r")
    else:
        x = Preprocessing.fit(folder / "parquet", NAMES, scaling="none").transform(folder / "parquet")
    return ArraySource(x, Targets.classes(np.load(folder / "y.npy")))


class Waiting:
    """Knows how long training has waited for its batches, and its CPU time; those of other passes do not count."""

    seconds = 0.0
    busy = 0.0

    def __enter__(self):
        self.batches = Source.batches

        def timed(source, size, generator=None, skip=0):
            inner, busy = self.batches(source, size, generator, skip), time.process_time()
            while True:
                started = time.perf_counter()
                batch = next(inner, None)
                if generator is not None:
                    self.seconds += time.perf_counter() - started
                if batch is None:
                    self.busy += 0 if generator is None else time.process_time() - busy
                    return
                yield batch

        Source.batches = timed
        return self

    def __exit__(self, *error):
        Source.batches = self.batches


def peak() -> float:
    """Return the peak of this process's resident memory in GiB; getrusage would say the parent's, if that is more."""
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) / 2**20


def run(kind: str, folder: Path, components: int, epochs: int) -> dict:
    """Fit, and return what was measured."""
    started = time.perf_counter()
    data = source(kind, folder)
    prepared, busy = time.perf_counter(), time.process_time()
    model = DiscernelClassifier(
        components, feature_map="nystroem", head="ridge", trainer=Trainer(max_epochs=epochs), random_state=0
    )
    with Waiting() as waiting:
        model.fit(data)
    done, busy, most = time.perf_counter(), time.process_time() - busy, peak()
    test = TableSource(folder / "test.parquet", "class", scaling="none")
    seconds = sum(record.seconds for record in model.history_)
    mine = {"busy": busy, "training": waiting.busy, "peak": most}
    each = gathered_json(mine)
    return {
        "kind": kind,
        "rows": len(data),
        "prepare, s": prepared - started,
        "fit, s": done - prepared,
        "fit, CPU s": sum(part["busy"] for part in each),
        "rows/s": float(np.median([record.samples_per_second for record in model.history_])),
        "rows/CPU s": len(data) * epochs / sum(part["training"] for part in each),
        "waiting, %": 100 * waiting.seconds / seconds,
        "peak, GiB": max(part["peak"] for part in each),
        "criterion": model.history_[-1].criterion,
        "accuracy": model.score(test),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=10_000_000)
    parser.add_argument("--components", type=int, default=200)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--kinds", nargs="+", default=KINDS, choices=KINDS)
    parser.add_argument("--folder", help="where the files go, for as long as this runs; by default the system's own")
    parser.add_argument("--out", default="benchmarks/results/streaming.json")
    parser.add_argument("--one", choices=KINDS, help=argparse.SUPPRESS)  # one kind, in its own process
    options = parser.parse_args()
    if options.one:
        with processes():
            found = run(options.one, Path(options.folder), options.components, options.epochs)
        if first():
            print(json.dumps(found))
        return
    found = []
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        write(Path(folder), options.rows, options.kinds)
        for kind in options.kinds:
            settings = ["--components", str(options.components), "--epochs", str(options.epochs), "--folder", folder]
            launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"] if kind == "two" else []
            command = [sys.executable, *launch, __file__, "--one", kind, *settings]
            done = subprocess.run(command, stdout=subprocess.PIPE, check=True)
            found.append(json.loads(done.stdout) | {"load": os.getloadavg()[1]})
            keep(options, found)
            if len(found) == 1:
                print("".join(f"{name:>12}" for name in found[0]))
            print(
                "".join(f"{v:>12}" if isinstance(v, str | int) else f"{v:12.4g}" for v in found[-1].values()),
                flush=True,
            )


def keep(options: argparse.Namespace, found: list[dict]) -> None:
    """Write what has been measured so far."""
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    record = {"torch": torch.__version__, "threads": torch.get_num_threads(), "components": options.components}
    Path(options.out).write_text(json.dumps(record | {"epochs": options.epochs, "rows": found}, indent=1))


if __name__ == "__main__":
    main()
