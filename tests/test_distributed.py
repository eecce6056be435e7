"""Two and three real processes train what one does, to rounding."""

import json
import os
import socket
import subprocess
import sys
import warnings
from functools import cache
from pathlib import Path
from unittest import mock

import numpy as np
import pandas as pd
import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from sklearn.datasets import load_iris
from sklearn.linear_model import LogisticRegression

from discernel import (
    CE,
    DI,
    LS,
    RBF,
    ArraySource,
    DiscernelClassifier,
    DiscernelRegressor,
    LearnedNystroem,
    Moments,
    Nystroem,
    PrivacyDI,
    Profiled,
    RandomFourier,
    TableSource,
    Targets,
    Trainer,
    load,
    moments_over,
    run,
)
from discernel.checkpoint import FileError
from discernel.data import Shard, View
from discernel.distributed import agreed, gathered, processes, sharded
from discernel.estimators import predictor

CRITERIA = {
    "di": DI,
    "ls": LS,
    "ce": CE,
    "profiled": lambda: Profiled("softmax", 0.1, tol=1e-13, max_iter=1000),
    "privacy": lambda: PrivacyDI(2),
}


def data(n_rows, weighted=False, n_features=4, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.rand(n_rows, n_features, generator=generator, dtype=torch.float64)
    y = (3 * x[:, 0] * x[:, 1] + x[:, 2]).mul(1.5).long().clamp_max(2)
    weight = torch.rand(n_rows, generator=generator, dtype=torch.float64) if weighted else None
    return ArraySource(x, Targets.classes(y.numpy()), weight)


def start(kind, source, n_components=12):
    generator = torch.Generator().manual_seed(1)
    if kind == "fourier":
        return RandomFourier.sample(RBF(2.0), source.width, n_components, generator, source.x.dtype)
    return Nystroem(source.x[:n_components], RBF(torch.full((source.width,), 2.0), trainable=True))


def trained(kind, criterion, source, **settings):
    """Return the parameters of a map and the epoch means of its criterion after a few epochs."""
    made = start(kind, source, settings.pop("n_components", 12))
    history = list(Trainer(**{"max_epochs": 3, "batch_size": 50} | settings).epochs(made, criterion, source, seed=3))
    found = {name: parameter.detach().numpy() for name, parameter in made.named_parameters()}
    return found | {"means": np.array([record.criterion for record in history])}


def in_parts(act):
    """Return what is run with mini-batches of which a process takes few rows at once."""
    with mock.patch.object(run, "AT_ONCE", 12 * 25):
        return act()


def estimator(model, x, y):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = model.fit(x, y)
    return {"predicted": fitted.predict(x), "weights": fitted.head_.weights.numpy()}


def after_trial(act):
    """Return what is done where the map is chosen by a trial on a hundred rows."""
    with mock.patch.object(predictor, "TRIAL_ROWS", 100):
        return act()


def cases():
    """Return what is run, in one process and in several, by name."""
    found = {
        f"{name} {kind}{' weighted' if weighted else ''}": (
            lambda name=name, kind=kind, weighted=weighted: trained(kind, CRITERIA[name](), data(203, weighted))
        )
        for name in CRITERIA
        for kind in ("nystroem", "fourier")
        for weighted in (False, True)
    }
    found["in parts"] = lambda: in_parts(lambda: trained("nystroem", DI(), data(203, True), batch_size=203))
    found["few rows"] = lambda: trained("fourier", DI(), data(13), batch_size=13)
    found["single rows"] = lambda: trained("fourier", DI(), data(7), batch_size=2, n_components=1)
    wide = data(700)
    single = ArraySource(wide.x.float(), wide.targets)
    found["refined"] = lambda: trained("fourier", DI(), single, n_components=260, batch_size=700, max_epochs=2)
    x, y = load_iris(return_X_y=True)
    brief = Trainer(max_epochs=3)
    for head in ("ridge", "svm", "softmax"):
        found[f"{head} head"] = lambda head=head: estimator(
            DiscernelClassifier(8, head=head, trainer=brief, random_state=0), x, y
        )
    found["regressor"] = lambda: estimator(DiscernelRegressor(8, trainer=brief, random_state=0), x[:, :3], x[:, 3])
    found["chosen map"] = lambda: after_trial(
        lambda: estimator(DiscernelClassifier(8, trainer=brief, random_state=0), x, y)
    )
    found["early stopping"] = lambda: estimator(
        DiscernelClassifier(8, early_stopping=True, trainer=brief, random_state=0), x, y
    )
    return found


def write_tables(folder):
    """Write a table in two formats: sorted, so that the processes find other classes and categories in their parts."""
    generator = np.random.default_rng(0)
    frame = pd.DataFrame(generator.random((500, 3)), columns=["a", "b", "c"])
    frame["a"] = np.sort(frame["a"])
    frame["colour"] = np.where(frame["a"] < 0.3, "red", np.where(frame["a"] < 0.8, "blue", "grey"))
    frame["kind"] = np.where(frame["a"] > 0.7, "late", np.where(frame["b"] > frame["c"], "up", "down"))
    frame["value"], frame["weight"] = np.sin(5 * frame["a"]) + frame["b"], generator.random(500) + 0.5
    frame.loc[3, "b"] = np.nan
    frame.to_csv(folder / "rows.csv", index=False)
    frame.to_parquet(folder / "rows.parquet", row_group_size=90)
    frame.iloc[[0, -1]][["a", "kind"]].to_parquet(folder / "tiny.parquet")


FEATURES = ["a", "b", "c", "colour"]


def of_table(folder, path, ranks=1):
    """Return what is found of a table that the processes share, in float32 as tables are."""
    options = {"features": FEATURES, "missing": "impute", "scaling": "standard", "shared": True}
    source = TableSource(folder / path, "kind", weight="weight", **options)
    assert (source.ranks, len(source)) == (ranks, 500)
    assert len(source.stored) < 300 or ranks == 1
    columns = [(column.offset, column.scale, column.fill) for column in source.preprocessing.columns[:3]]
    found = {"columns": np.array(columns), "colours": np.array(source.preprocessing.columns[3].categories)}
    found |= {"classes": source.targets.raw(), "weights": source.sample_weight.numpy()}
    found["rows"] = source.rows(torch.tensor([499, 3, 250])).x.numpy()
    view = View(source, torch.arange(0, 500, 3))
    for name, each in (("batches", source), ("view", view)):
        drawn = each.batches(60, torch.Generator().manual_seed(0))
        parts = [np.concatenate(gathered(batch.x.numpy())) for batch in drawn]
        found[name] = np.stack([part[np.lexsort(part.T)] for part in parts])
    trainer = Trainer(max_epochs=2, learning_rate=1e-3)
    for name, head in {"ridge": "ridge", "svm": "svm", "other": LogisticRegression()}.items():
        model = DiscernelClassifier(8, head=head, trainer=trainer, early_stopping=name == "ridge", random_state=0)
        found[name] = model.fit(source).predict_proba(source)
        found[f"{name} score"] = np.array(model.score(source))
    chosen = after_trial(lambda: DiscernelClassifier(8, trainer=trainer, random_state=0).fit(source))
    found["chosen map"] = chosen.predict_proba(source)
    values = TableSource(folder / path, "value", **options)
    found["values"] = DiscernelRegressor(8, trainer=trainer, random_state=0).fit(values).predict(values)
    return found


def of_tables(folder, ranks=1):
    kinds = ("rows.parquet", "rows.csv")
    found = {f"{kind}/{key}": value for kind in kinds for key, value in of_table(folder, kind, ranks).items()}
    tiny = TableSource(folder / "tiny.parquet", "kind", shared=True)  # fewer rows than processes
    return found | {"tiny/rows": tiny.rows(slice(None)).x.numpy(), "tiny/kinds": tiny.targets.raw()}


def with_checkpoint_of_one(rank, folder):
    """Return what a process says whose checkpoint the others do not have."""
    source, trainer = data(203), Trainer(max_epochs=3, batch_size=50)
    for record in trainer.epochs(start("fourier", source), DI(), source, checkpoint=f"{folder}/first.safetensors"):
        if record.epoch == 2:
            break
    try:
        trainer.epochs(
            start("fourier", source), DI(), source, checkpoint=f"{folder}/{'first' if rank == 0 else rank}.safetensors"
        )
    except FileError as error:
        return str(error)


def work(rank, ranks, folder):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    results = {f"{name}/{key}": value for name, run in cases().items() for key, value in run().items()}
    results |= of_tables(folder, ranks)
    results["refused"] = np.array(with_checkpoint_of_one(rank, folder))
    results["agreed"] = np.array(agreed(100 + rank))
    unseeded = LearnedNystroem(5, trainer=Trainer(max_epochs=1)).fit(*load_iris(return_X_y=True))
    results["unseeded"] = unseeded.components_
    np.savez(f"{folder}/{rank}.npz", **results)
    dist.destroy_process_group()


@cache
def alone():
    return {f"{name}/{key}": value for name, run in cases().items() for key, value in run().items()}


@pytest.fixture(scope="module", params=[2, 3])
def together(request, tmp_path_factory):
    """Return the results of each of so many processes."""
    folder = tmp_path_factory.mktemp("processes")
    write_tables(folder)
    mp.start_processes(work, (request.param, folder), request.param, start_method="spawn")
    return [dict(np.load(folder / f"{rank}.npz")) for rank in range(request.param)]


@pytest.mark.parametrize("name", cases())
def test_several_processes_are_one(together, name):
    expected = {key: value for key, value in alone().items() if key.startswith(f"{name}/")}
    for results in together:
        for key, value in expected.items():
            if name == "refined" and not key.endswith("means"):
                # Adam's first steps are as long as the learning rate, however small the gradient: in float32 one that
                # is zero to rounding may have either sign.
                assert np.isclose(results[key], value, rtol=1e-3, atol=1e-2).mean() > 0.98, key
            else:
                tolerance = 1e-5 if name == "refined" else 1e-7
                np.testing.assert_allclose(results[key], value, rtol=tolerance, atol=tolerance, err_msg=key)


def test_processes_that_share_a_table_find_what_one_does(together, tmp_path):
    write_tables(tmp_path)
    for key, value in of_tables(tmp_path).items():
        for results in together:
            if value.dtype.kind == "f":
                tolerance = 1e-6 if key.endswith(("columns", "rows", "batches", "view", "weights")) else 1e-3
                np.testing.assert_allclose(results[key], value, rtol=tolerance, atol=tolerance, err_msg=key)
            else:
                np.testing.assert_array_equal(results[key], value, err_msg=key)


def test_all_processes_end_with_the_same_bits(together):
    for results in together[1:]:
        for key, value in together[0].items():
            if key == "refused":  # names the file
                continue
            np.testing.assert_array_equal(results[key], value, err_msg=key)


def test_a_checkpoint_that_only_one_process_has_is_refused(together):
    assert all("the processes have different checkpoints" in str(results["refused"]) for results in together)


def test_a_number_is_agreed_upon(together):
    assert all(results["agreed"] == 100 for results in together)
    assert agreed(7) == 7


@pytest.mark.parametrize("size", [1, 10, 64, 500])
@pytest.mark.parametrize("ranks", [1, 2, 5, 300])
def test_shards_share_out_every_batch(ranks, size):
    whole = data(203)
    shards = [Shard(whole, rank, ranks, lambda tensor: tensor) for rank in range(ranks)]
    for seed in (None, 0):
        generators = [None if seed is None else torch.Generator().manual_seed(seed) for _ in range(ranks + 1)]
        parts = [list(shard.batches(size, g)) for shard, g in zip(shards, generators, strict=False)]
        for number, batch in enumerate(whole.batches(size, generators[-1])):
            mine = torch.cat([part[number].x for part in parts])
            assert sorted(map(tuple, mine.tolist())) == sorted(map(tuple, batch.x.tolist()))


def test_a_shard_of_a_memory_mapped_file_streams(tmp_path):
    whole = data(203)
    np.save(tmp_path / "x.npy", whole.x.numpy())
    mapped = ArraySource(np.load(tmp_path / "x.npy", mmap_mode="r"), whole.targets)
    for rank in range(3):
        for seed in (None, 0):
            made = (Shard(source, rank, 3, lambda tensor: tensor) for source in (whole, mapped))
            generators = [None if seed is None else torch.Generator().manual_seed(seed) for _ in range(2)]
            here, there = (source.batches(40, g) for source, g in zip(made, generators, strict=True))
            assert all(
                torch.equal(a.x, b.x) and torch.equal(a.targets, b.targets) for a, b in zip(here, there, strict=True)
            )


def test_alone_nothing_is_shared():
    source = data(20)
    assert sharded(source) is source
    with processes():
        assert sharded(source) is source


def test_moments_of_shards_add_up():
    whole = data(203, weighted=True)
    made = start("nystroem", whole)
    parts = []
    for rank in range(3):
        batches = Shard(whole, rank, 3, lambda tensor: tensor).batches(64)
        parts += [Moments.of(made.basis(b.x), b.targets, b.sample_weight) for b in batches]
    summed, expected = parts[0], moments_over(whole, made)
    for part in parts[1:]:
        summed = summed + part
    torch.testing.assert_close(summed.scatter, expected.scatter)
    assert summed.count == pytest.approx(expected.count)


SCRIPT = """
import os, sys, time, numpy as np, torch
from discernel import DI, ArraySource, RandomFourier, RBF, Targets, Trainer
from discernel.distributed import processes, rank

folder, kill = sys.argv[1], sys.argv[2] == "kill"
x = torch.rand(400, 4, generator=torch.Generator().manual_seed(0))
source = ArraySource(x, Targets.classes((x[:, 0] > x[:, 1]).numpy()))
made = RandomFourier.sample(RBF(1.0), 4, 10, torch.Generator().manual_seed(1))
torch.set_num_threads(1)
with processes(timeout=60):
    trainer = Trainer(max_epochs=6, batch_size=100)
    for record in trainer.epochs(made, DI(), source, checkpoint=f"{folder}/run.safetensors"):
        if kill and record.epoch == 3 and rank() == 1 and not os.path.exists(f"{folder}/killed"):
            open(f"{folder}/killed", "w").close()
            os.kill(os.getpid(), 9)
    if rank() == 0:
        np.save(f"{folder}/result.npy", made.frequencies.detach().numpy())
"""


def torchrun(*arguments) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, "--max-restarts", "2", *map(str, arguments)],
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def run_script(folder: Path, mode: str) -> np.ndarray:
    folder.mkdir()
    script = folder / "script.py"
    script.write_text(SCRIPT)
    torchrun(script, folder, mode)
    return np.load(folder / "result.npy")


def test_a_killed_process_is_started_again_and_the_result_is_the_same(tmp_path):
    undisturbed, killed = run_script(tmp_path / "a", "run"), run_script(tmp_path / "b", "kill")
    assert (tmp_path / "b" / "killed").exists()
    np.testing.assert_array_equal(killed, undisturbed)


LEAVES = """
import os, sys
from pathlib import Path
import torch
from discernel.distributed import processes, total

def threads():
    return len(os.listdir("/proc/self/task"))

before = threads()
with processes(timeout=60):
    x = torch.ones(3, requires_grad=True)
    optimizer = torch.optim.Adam([x])
    x.sum().backward()
    x.grad.copy_(total(x.grad))
    optimizer.step()
    during = threads()
Path(sys.argv[1], os.environ["RANK"]).write_text(f"{before} {during} {threads()}")
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted as Linux shows them")
def test_the_threads_of_a_group_end_with_it(tmp_path):
    """A thread of gloo's that outlives the interpreter aborts the process."""
    (tmp_path / "script.py").write_text(LEAVES)
    torchrun(tmp_path / "script.py", tmp_path)
    for rank in ("0", "1"):
        before, during, after = map(int, (tmp_path / rank).read_text().split())
        assert before == after < during


def test_the_command_line_fits_under_torchrun(tmp_path):
    x, y = load_iris(return_X_y=True)
    table = tmp_path / "iris.csv"
    pd.DataFrame(x, columns=list("abcd")).assign(species=y).to_csv(table, index=False)
    fit = ["fit", table, "-t", "species", "-J", "10", "--epochs", "3", "--head", "svm", "--out"]
    torchrun("-m", "discernel", *fit, tmp_path / "two.safetensors")
    subprocess.run([sys.executable, "-m", "discernel", *map(str, fit), tmp_path / "one.safetensors"], check=True)
    one, two = (load(tmp_path / f"{name}.safetensors") for name in ("one", "two"))
    np.testing.assert_allclose(two.transformer_.components_, one.transformer_.components_, rtol=1e-3, atol=1e-3)
    assert not list(tmp_path.glob("*.checkpoint"))


def environment(rank, port) -> dict[str, str]:
    """Return what torchrun would set for one of two processes."""
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
    numbers = {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}
    return os.environ | where | numbers | {"TORCHELASTIC_RUN_ID": "test"}


def free_port() -> int:
    with socket.socket() as each:
        each.bind(("127.0.0.1", 0))
        return each.getsockname()[1]


@pytest.mark.parametrize("rank", [0, 1], ids=["the other never arrives", "there is no store"])
def test_a_command_whose_processes_do_not_come_together_ends_and_says_so(rank, tmp_path):
    (tmp_path / "a.csv").write_text("x,y\n1,a\n2,b\n")
    fit = ["fit", str(tmp_path / "a.csv"), "-t", "y", "--timeout", "2"]
    command, given = [sys.executable, "-m", "discernel", *fit], environment(rank, free_port())
    done = subprocess.run(command, env=given, capture_output=True, text=True, timeout=200, cwd=tmp_path)
    assert done.returncode == 1
    assert "Error: not all processes have come together within 2 s" in done.stderr
    assert "bug" not in done.stderr


FAULT = """
import os, sys, time, torch
from discernel.distributed import ProcessLost, processes, rank, total

folder, fault = sys.argv[1:]
open(f"{folder}/{os.environ['RANK']}", "w").close()
while len(os.listdir(folder)) < 2:  # so that the timeout is not one of starting
    time.sleep(0.05)
try:
    with processes(timeout=4):
        total(torch.ones(2))
        if rank() == 0 and fault == "ends":
            os._exit(9)
        if rank() == 0:
            time.sleep(300)
        total(torch.ones(2))
except ProcessLost as error:
    print(error)
"""


@pytest.mark.parametrize("fault", ["ends", "is silent"])
def test_a_process_that_is_lost_with_the_store_is_an_error_in_the_other(fault, tmp_path):
    port = free_port()
    command = [sys.executable, "-c", FAULT, str(tmp_path), fault]
    bad, good = (
        subprocess.Popen(command, env=environment(rank, port), stdout=subprocess.PIPE, text=True) for rank in (0, 1)
    )
    try:
        said, _ = good.communicate(timeout=200)
    finally:
        bad.kill()
        bad.communicate()
    assert said.startswith("another process has ended or does not answer")
    assert good.returncode == 0


def test_the_tables_of_the_page_are_those_that_were_measured():
    from benchmarks import distributed as benchmark

    root = Path(__file__).parents[1]
    page = (root / "docs" / "distributed.md").read_text()
    record = json.loads((root / "benchmarks" / "results" / "distributed.json").read_text())
    assert benchmark.filled(page, record) == page
    assert page.count("\n|") > 20


def test_the_volume_of_a_step_is_that_of_the_page():
    """8(J² + JL + J + L) bytes of sums and 4P of gradients, and the number of rows and the value."""
    calls = []

    def counted(tensor):
        calls.append(tensor.numel() * tensor.element_size())
        return 2 * tensor  # as if the other process had the same rows

    whole = data(203)
    source = Shard(ArraySource(whole.x.float(), whole.targets), 0, 2, counted)
    made = start("nystroem", source.whole)
    epochs = Trainer(max_epochs=3, batch_size=203).epochs(made, DI(), source)
    next(epochs)
    calls.clear()
    next(epochs)
    n_components, n_targets, n_parameters = 12, 3, 12 * 4 + 4
    sums = n_components**2 + n_components * n_targets + n_components + n_targets
    assert len(calls) == 4
    assert sum(calls) == 8 * (sums + 1) + 4 * (n_parameters + 1)
