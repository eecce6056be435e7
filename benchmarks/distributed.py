"""What a training step costs on many machines: measured here, modelled beyond.

With one process, the CPU time of a step of DI on landmarks with a learned metric is measured for three batch sizes and
is, for n rows, a + bn: what every process does again (the Cholesky factor, the landmarks' own kernel matrix, Adam), and
what is shared out. With two processes the calls and bytes of a step are counted, the latency α and the bandwidth β of
all-reduce are measured on tensors of that size, and a whole step is timed to check the model

    T(R) = a + bn/R + 2(R − 1)αc + 2(R − 1)/R · V/β

of R processes with c calls for V bytes, summed around a ring. The speed-ups are T(1)/T(R) of the model for networks
that are assumed. Times are the least of several; one thread a process. Writes all as JSON, and the tables to the page
on training in several processes.

    OMP_NUM_THREADS=1 python benchmarks/distributed.py
"""

import argparse
import json
import os
import re
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from discernel import DI, RBF, ArraySource, Nystroem, Targets, Trainer
from discernel.data import Shard
from discernel.distributed import total

FEATURES, CLASSES, STEPS, EPOCHS = 54, 7, 3, 4
COMPONENTS, BATCHES = (100, 200, 500), (2, 7, 20)  # J, and rows of a batch for each component
RANKS = (1, 2, 4, 8, 16, 32, 64)
NETWORKS = {"1 Gbit/s": (1e-4, 0.125e9), "10 Gbit/s": (5e-5, 1.25e9), "100 Gbit/s": (1e-5, 12.5e9)}  # α in s, β in B/s


def data(rows: int) -> ArraySource:
    generator = torch.Generator().manual_seed(0)
    x = torch.rand(rows, FEATURES, generator=generator)
    return ArraySource(x, Targets.classes((x @ torch.randn(FEATURES, CLASSES, generator=generator)).argmax(1).numpy()))


def steps(source, n_components: int, rows: int) -> tuple[float, float]:
    """Return the least wall and CPU seconds of a step, the mean of an epoch."""
    kernel = RBF(torch.full((FEATURES,), 0.1), trainable=True)
    feature_map = Nystroem(source.rows(slice(0, n_components)).x, kernel)
    trainer = Trainer(max_epochs=EPOCHS, batch_size=rows)
    walls, busy, wall, cpu = [], [], time.perf_counter(), time.process_time()
    for _ in trainer.epochs(feature_map, DI(), source):
        walls.append((time.perf_counter() - wall) / STEPS)
        busy.append((time.process_time() - cpu) / STEPS)
        wall, cpu = time.perf_counter(), time.process_time()
    return min(walls), min(busy)


def alone(n_components: int) -> dict[str, float]:
    """Return a and b of one process, in seconds of CPU time."""
    sizes = [times * n_components for times in BATCHES]
    seconds = [steps(data(STEPS * size), n_components, size)[1] for size in sizes]
    slope, fixed = np.polyfit(sizes, seconds, 1, w=1 / np.array(seconds))
    return {"fixed": max(float(fixed), 0.0), "per row": float(slope)}


def together(rank: int, ranks: int, folder: str) -> None:
    """Write what each of several processes has counted and measured."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    found = {str(n_components): shared(rank, ranks, n_components) for n_components in COMPONENTS}
    Path(folder, f"{rank}.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def shared(rank: int, ranks: int, n_components: int) -> dict[str, float]:
    calls = []

    def counted(tensor):
        calls.append(tensor.numel() * tensor.element_size())
        return total(tensor)

    rows = BATCHES[-1] * n_components
    wall, busy = steps(Shard(data(STEPS * rows), rank, ranks, counted), n_components, rows)
    count, volume = len(calls) / (STEPS * EPOCHS), sum(calls) / (STEPS * EPOCHS)
    latency = all_reduce(torch.zeros(1)) / 2
    bandwidth = volume / max(all_reduce(torch.zeros(int(volume) // 4)) - 2 * latency, 1e-9)
    network = {"calls": count, "bytes": volume, "latency": latency, "bandwidth": bandwidth}
    return network | {"step": wall, "step CPU": busy}


def all_reduce(tensor: torch.Tensor, repeats: int = 50) -> float:
    """Return the least seconds that it takes."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        total(tensor)
        times.append(time.perf_counter() - started)
    return min(times)


def seconds(found: dict[str, float], rows: int, ranks: int, latency: float, bandwidth: float) -> float:
    """Return the model's time of a step, T(R)."""
    sent = 2 * (ranks - 1) / ranks * found["bytes"] / bandwidth
    return found["fixed"] + found["per row"] * rows / ranks + 2 * (ranks - 1) * latency * found["calls"] + sent


def table(record: dict) -> str:
    """Return the simulated speed-ups as Markdown, for a batch of 20J rows, and for one of 20J rows a process."""
    lines = [f"| J | rows of a batch | network | {' | '.join(map(str, RANKS))} |", "|---" * (3 + len(RANKS)) + "|"]
    for found in record["rows"]:
        n_components = found["components"]
        for rows, told in ((BATCHES[-1] * n_components, ""), (BATCHES[-1] * n_components, " a process")):
            for name, network in NETWORKS.items():
                cells = []
                for ranks in RANKS:
                    size = rows * ranks if told else rows
                    one = seconds(found, size, 1, *network)
                    cells.append(f"{one / seconds(found, size, ranks, *network):.1f}")
                lines.append(f"| {n_components} | {rows}{told} | {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def check(record: dict) -> str:
    """Return the two-process measurement beside the model as Markdown."""
    head = "| J | c | V, MB | α, µs | β, MB/s | a, ms | b, µs | T(1), ms | T(2), ms | measured, ms | of it CPU, ms |"
    lines = [head, "|---" * 11 + "|"]
    for found in record["rows"]:
        rows = BATCHES[-1] * found["components"]
        one, two = (seconds(found, rows, ranks, found["latency"], found["bandwidth"]) for ranks in (1, 2))
        cells = (found["calls"], found["bytes"] / 1e6, found["latency"] * 1e6, found["bandwidth"] / 1e6)
        times = (found["fixed"] * 1e3, found["per row"] * 1e6, one * 1e3, two * 1e3)
        times += (found["step"] * 1e3, found["step CPU"] * 1e3)
        lines.append(f"| {found['components']} | {' | '.join(f'{cell:.3g}' for cell in (*cells, *times))} |")
    return "\n".join(lines)


def filled(page: str, record: dict) -> str:
    """Return the page with its tables, each of which begins below a comment and ends at an empty line."""
    for name, made in (("check", check(record)), ("speed-ups", table(record))):
        page = re.sub(rf"(<!-- {name} -->\n)(?:\|.*\n)*", lambda found, made=made: f"{found[1]}{made}\n", page)
    return page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="benchmarks/results/distributed.json")
    parser.add_argument("--page", default="docs/distributed.md")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = [{"components": n_components} | alone(n_components) for n_components in COMPONENTS]
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(together, (2, folder), 2, start_method="spawn")
        parts = [json.loads(Path(folder, f"{rank}.json").read_text()) for rank in range(2)]
    for row in rows:
        both = [part[str(row["components"])] for part in parts]
        row |= both[0] | {name: max(part[name] for part in both) for name in ("step", "step CPU")}
    record = {"torch": torch.__version__, "threads": 1, "load": os.getloadavg()[0], "rows": rows}
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    Path(options.out).write_text(json.dumps(record, indent=1))
    Path(options.page).write_text(filled(Path(options.page).read_text(), record))
    print(check(record), table(record), sep="\n\n")


if __name__ == "__main__":
    main()
