"""Disturb fits at random moments, resume them, and compare with undisturbed ones to the bit.

    python -m tests.stress                              # `make stress`: 200 kills, or ten minutes
    python -m tests.stress --kills 20 --seconds 60

Three kinds of fits, each in a process of its own that saves its state after every step: on arrays, on a Parquet file
that is streamed from the disk, and the command `discernel fit`. A disturbance is SIGKILL; once in a while the disk is
full instead (the size of files is limited to less than a checkpoint has), or the process is told to stop (SIGINT,
SIGTERM). After each of them, whatever file is there must be whole; in the end, there must be no other files than those
of an undisturbed run, with the same content.
"""

import argparse
import json
import multiprocessing
import random
import resource
import signal
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch

from discernel import DI, RBF, ArraySource, Nystroem, TableSource, Targets, Trainer, tables
from discernel import checkpoint as files
from discernel import run as loop
from discernel.cli import main as command_line

RESULTS = Path(__file__).parent / "results" / "stress.json"
FAULTS = ("kill",) * 8 + ("full disk", "interrupt", "terminate")
SIGNALS = {"kill": signal.SIGKILL, "interrupt": signal.SIGINT, "terminate": signal.SIGTERM}
CODES = {"kill": -signal.SIGKILL, "full disk": 1, "interrupt": 130, "terminate": 130}
STARTED = 300  # seconds in which a process must have begun, on a busy machine
PER_RUN = 10  # disturbances, after which a run is let go on to its end


def rows(n=240):
    """Return features and classes that are the same in every process."""
    x = torch.rand(n, 4, generator=torch.Generator().manual_seed(0))
    return x, (x[:, 0] * x[:, 1] > 0.25).numpy()


def write_table(path):
    """Write the rows as a Parquet file, with a column of categories."""
    import pyarrow as pa
    from pyarrow import parquet

    x, y = rows()
    columns = {f"x{number}": x[:, number].numpy() for number in range(4)}
    parquet.write_table(pa.table(columns | {"colour": np.array(["red", "blue"])[y.astype(int)], "kind": y}), path)


def train(source, folder):
    """Train a map on a source, with a checkpoint; then write what it has become."""
    feature_map = Nystroem(source.rows(slice(0, 8)).x, RBF(1.0, trainable=True))
    trainer = Trainer(max_epochs=20, batch_size=60)
    history = list(trainer.epochs(feature_map, DI(), source, seed=1, checkpoint=folder / "run"))
    told = [(record.epoch, record.criterion, record.learning_rate) for record in history]
    state = {name: array.tolist() for name, array in feature_map.state_dict().items()}
    files.write_bytes(folder / "done", json.dumps([told, state]).encode())


def on_arrays(folder):
    """Train on arrays."""
    x, y = rows()
    train(ArraySource(x, Targets.classes(y)), folder)


def on_parquet(folder):
    """Train on a file, the numbers of which go to a temporary one that is read by a thread."""
    tables.IN_MEMORY = 0
    train(TableSource(folder.parent / "table.parquet", target="kind", cache=folder), folder)


def by_command(folder):
    """Let the command line do it."""
    table, model = folder.parent / "table.parquet", folder / "model.safetensors"
    sys.argv = ["discernel", "fit", str(table), "-t", "kind", "-J", "8", "--epochs", "20", "-o", str(model), "-q"]
    if (folder / "model.safetensors.checkpoint").exists():
        sys.argv.append("--resume")
    command_line()


JOBS = {"arrays": on_arrays, "parquet": on_parquet, "command": by_command}
CHECKPOINTS = {"arrays": "run", "parquet": "run", "command": "model.safetensors.checkpoint"}
RESULT = {"arrays": "done", "parquet": "done", "command": "model.safetensors"}


def work(job, folder, ready):
    """Do a job, once signals are heard; what becomes of it is said by the exit code."""
    torch.set_num_threads(1)
    loop.SAVE_SECONDS = 0.0
    sys.stdout = sys.stderr = open(folder.parent / "log", "a")  # noqa: SIM115
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        ready.set()
        JOBS[job](folder)
    except OSError as error:
        print(repr(error))
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)


def content(job, folder):
    """Return what a finished job has left: the names of the files, and all that must be the same to the bit."""
    names = sorted(path.name for path in folder.iterdir())
    result = folder / RESULT[job]
    if job != "command":
        return names, result.read_bytes()
    arrays, meta = files.read(result, "model")
    for part in (meta, meta["transformer"]):
        part["history"] = [{k: v for k, v in record.items() if "second" not in k} for record in part["history"]]
    return names, {name: array.numpy().tobytes() for name, array in arrays.items()}, meta


class Stress:
    """Runs jobs, disturbs them, and counts."""

    def __init__(self, root, seed=0):
        self.root, self.random, self.counts = Path(root), random.Random(seed), Counter()
        self.context = multiprocessing.get_context("forkserver")
        self.context.set_forkserver_preload([__name__, "torch._dynamo", "discernel.evaluation"])
        write_table(self.root / "table.parquet")
        self.expected = {job: self.undisturbed(job) for job in JOBS}

    def start(self, job, folder):
        ready = self.context.Event()
        process = self.context.Process(target=work, args=(job, folder, ready))
        process.start()
        assert ready.wait(STARTED), f"{job} does not start: see {self.root / 'log'}"
        return process

    def undisturbed(self, job):
        folder = self.root / f"undisturbed {job}"
        folder.mkdir()
        process = self.start(job, folder)
        process.join()
        assert process.exitcode == 0, f"{job} fails undisturbed: see {self.root / 'log'}"
        return content(job, folder)

    def run(self, job, disturbances=PER_RUN):
        """Do a job with so many disturbances, if it lasts that long."""
        folder = self.root / f"{job} {self.counts['runs']}"
        folder.mkdir()
        for _ in range(disturbances):
            if self.disturb(job, folder, self.random.choice(FAULTS)):
                break
        else:
            process = self.start(job, folder)
            process.join()
            assert process.exitcode == 0, f"{job} does not resume: see {self.root / 'log'}"
        assert content(job, folder) == self.expected[job], f"{job} has become another: see {folder}"
        self.counts["runs"] += 1

    def disturb(self, job, folder, fault):
        """Start or resume a job, do something to it, and return whether it has been done before that."""
        path = folder / CHECKPOINTS[job]
        strays = unfinished(folder)  # a kill has left them
        before, process = changed(path), self.start(job, folder)
        while changed(path) == before and process.is_alive() and self.random.random() > 1e-4:
            time.sleep(0.001)
        process.join(self.random.uniform(0, 0.05))
        if not process.is_alive():
            assert process.exitcode == 0, f"{job} ends by itself with {process.exitcode}: see {self.root / 'log'}"
            return True
        if fault == "full disk":
            size = path.stat().st_size if path.exists() else 1000
            with suppress(ProcessLookupError):  # it may just have come to its end
                resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (self.random.randrange(size),) * 2)
        else:
            process._popen._send_signal(SIGNALS[fault])
        process.join()
        self.check(job, folder, path, fault, process.exitcode, strays)
        return process.exitcode == 0

    def check(self, job, folder, path, fault, code, before):
        """See that a disturbed process has ended as it should, and has left no half of a file that was not there."""
        assert code in (CODES[fault], 0), f"{job} ends with {code} after {fault}: see {self.root / 'log'}"
        self.counts[fault] += code != 0
        strays = unfinished(folder) - before
        if fault == "kill":
            self.counts["kills while writing"] += bool(strays)
        elif code != 0:
            assert not strays, f"{strays} left by {job} after {fault}"
        if path.exists():
            files.read(path, "checkpoint")


def unfinished(folder):
    """Return the names of the halves of files in a folder, and when each was written."""
    return {(entry.name, entry.stat().st_mtime_ns) for entry in folder.iterdir() if entry.name.endswith(".tmp")}


def changed(path):
    """Return when a file was last written."""
    try:
        return path.stat().st_mtime_ns
    except FileNotFoundError:
        return None


def stress(kills, seconds, root, seed=0):
    """Return how often what happened, all of it having ended well: until so many kills, or for so long."""
    started = time.monotonic()
    machine = Stress(root, seed)
    while machine.counts["kill"] < kills and time.monotonic() - started < seconds:
        machine.run(list(JOBS)[machine.counts["runs"] % len(JOBS)])
    return dict(machine.counts) | {"seconds": round(time.monotonic() - started)}


def main():
    """Run the stress, and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        counts = stress(options.kills, options.seconds, root, options.seed)
    print(json.dumps(counts, indent=2))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(counts, indent=2) + "\n")


if __name__ == "__main__":
    main()
