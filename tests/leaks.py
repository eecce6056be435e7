"""Fit again and again, and see what is left behind: memory, threads, processes, open files.

python -m tests.leaks                # `make leaks`: 200 fits of several kinds
python -m tests.leaks --fits 50
"""

import argparse
import contextlib
import gc
import json
import os
import tempfile
import threading
from pathlib import Path

import numpy as np
import torch

from discernel import DiscernelClassifier, DiscernelRegressor, TableSource, Trainer, load, save, tables

RESULTS = Path(__file__).parent / "results" / "leaks.json"
PAGE = os.sysconf("SC_PAGE_SIZE")


def rows(n=120):
    """Return features and classes."""
    x = np.random.default_rng(0).normal(size=(n, 4))
    return x, (x[:, 0] * x[:, 1] > 0).astype(int)


def classifier(folder):
    """Fit, save, load and predict."""
    x, y = rows()
    model = DiscernelClassifier(6, trainer=Trainer(max_epochs=2), random_state=0).fit(x, y)
    save(model, folder / "model.safetensors")
    load(folder / "model.safetensors").predict_proba(x)


def stream(folder):
    """Learn from a stream."""
    x, y = rows()
    model = DiscernelRegressor(6, feature_map="fourier", trainer=Trainer(max_epochs=1), random_state=0)
    model.partial_fit(x[:60], y[:60]).partial_fit(x[60:], y[60:]).predict(x)


def table(folder):
    """Fit from a Parquet file that is kept in a temporary one, and read by a thread."""
    import pandas as pd

    path = folder / "table.parquet"
    if not path.exists():
        x, y = rows()
        pd.DataFrame(x, columns=list("abcd")).assign(y=y).to_parquet(path)
    before, tables.IN_MEMORY = tables.IN_MEMORY, 0
    try:
        source = TableSource(path, target="y")
    finally:
        tables.IN_MEMORY = before
    DiscernelClassifier(6, trainer=Trainer(max_epochs=2), random_state=0).fit(source)


def failing(folder):
    """Be refused."""
    x, y = rows()
    with contextlib.suppress(ValueError):
        DiscernelClassifier(6, gamma=-1.0).fit(x, y)


KINDS = (classifier, stream, table, failing)


def held():
    """Return what this process now holds."""
    gc.collect()
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * PAGE
    return {
        "megabytes": resident / 2**20,
        "threads": len(os.listdir("/proc/self/task")),
        "Python threads": threading.active_count(),
        "open files": len(os.listdir("/proc/self/fd")),
        "processes": len(Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()),
    }


def leaked(fits, folder, warm=8):
    """Return what so many fits leave behind, after some that may fill caches."""
    for number in range(warm):
        KINDS[number % len(KINDS)](folder)
    before = held()
    for number in range(fits):
        KINDS[number % len(KINDS)](folder)
    return {name: round(value - before[name], 1) for name, value in held().items()}


def main():
    """Measure, and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fits", type=int, default=200)
    options = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        found = {"fits": options.fits} | leaked(options.fits, Path(folder), warm=40)
    print(json.dumps(found, indent=2))
    RESULTS.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
