"""The paper's experiments: their data, the order and the resuming of the work, the table, and the page made of it."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

from discernel.cli import app, reproduction
from discernel.run import Run
from experiments import datasets, run, table
from experiments.datasets import FILES, Dataset
from experiments.fits import epochs_of, fit, problem, start, svm_accuracy
from experiments.jobs import INIT, PLANS, Job, Plan, Tier, chosen, jobs

ROOT = Path(__file__).parents[1]
PLAN = Plan((Tier((4, 8), 2), Tier((16,), 1)), Tier((8,), 2), (32,))
RESULT = table.Result(100, 50, 3, 0.5, 0.7, 0.25, 0.5, 0.7, 0.75, "discernel=0")


def job(**changes):
    return Job("digits", "nystroem", "di", "uniform", 4, 0, 0.1, 1e-4, "paper")._replace(**changes)


@pytest.fixture(scope="module")
def small():
    return problem(Dataset(*(part[:300] for part in datasets.load("digits"))))


# The data


def letter_rows(n):
    rng = np.random.default_rng(0)
    return "".join(f"{chr(65 + rng.integers(26))},{','.join(map(str, rng.integers(16, size=16)))}\n" for _ in range(n))


def test_missing_files_are_fetched_once_with_their_checksum(tmp_path, monkeypatch):
    fetched = []

    def fetch_file(url, folder, name, sha256):
        fetched.append((url, sha256))
        (Path(folder) / name).write_text(letter_rows(20_000))

    monkeypatch.setattr(datasets, "fetch_file", fetch_file)
    for _ in range(2):
        data = datasets.load("letter", tmp_path)
    assert fetched == [FILES["letter/letter-recognition.data"][:2]]
    assert data.x_train.shape == (15000, 16)
    assert data.x_test.shape == (5000, 16)
    assert data.x_train.min() == 0
    assert data.x_train.max() == 1


def test_without_network_the_error_says_what_to_put_where(tmp_path, monkeypatch):
    def fetch_file(url, folder, name, sha256):
        raise OSError("no network")

    monkeypatch.setattr(datasets, "fetch_file", fetch_file)
    monkeypatch.setenv("DISCERNEL_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match="no network") as caught:
        datasets.load("mnist")
    for path in (path for path in FILES if path.startswith("mnist")):
        assert str(tmp_path / path) in str(caught.value)
        assert FILES[path].url in str(caught.value)
    assert "--data" in str(caught.value)
    assert "DISCERNEL_DATA" in str(caught.value)


def test_a_cut_file_is_noticed(tmp_path):
    (tmp_path / "letter").mkdir()
    (tmp_path / "letter" / "letter-recognition.data").write_text(letter_rows(10))
    with pytest.raises(ValueError, match="has 10 rows, not 20000"):
        datasets.load("letter", tmp_path)


# The order of work


def test_every_prefix_of_the_work_is_whole_curves_of_the_first_seeds():
    work = jobs("digits", 0.1, PLAN, "paper", ["curves"], 100)
    places = [(j.seed, j.n_components) for j in work]
    assert list(dict.fromkeys(places)) == [(0, 4), (0, 8), (1, 4), (1, 8), (0, 16)]
    for place in set(places):
        methods = [(j.map, j.criterion, j.init) for j in work if (j.seed, j.n_components) == place]
        assert len(set(methods)) == len(methods) == 9
        assert len({(j.data, j.gamma, j.rho) for j in work}) == 1


def test_no_job_is_there_twice_and_studies_come_after_the_curves():
    work = jobs("digits", 0.1, PLAN, "paper", ["curves", "rho", "init"], 100)
    assert len(set(work)) == len(work) == 5 * 9 + 2 * 5 * 2 + 2
    assert {j.rho for j in work[:45]} == {1e-4}
    assert [j.init for j in work[-2:]] == ["kmeans", "kmeans"]


def test_an_exact_svc_is_not_tried_on_many_rows():
    assert {j.criterion for j in jobs("letter", 4.0, PLAN, "fast", ["lines"], 15_000)} == {"svc", "lightgbm"}
    assert {j.criterion for j in jobs("covtype", 4.0, PLAN, "fast", ["lines"], 464_810)} == {"lightgbm"}


def test_components_and_seeds_narrow_the_plan_or_go_past_it():
    plan = chosen(PLANS["letter"], [25, 800, 30], 2)
    assert plan.tiers == (Tier((25,), 2), Tier((800,), 2), Tier((30,), 2))
    assert plan.study.components == ()
    assert chosen(PLANS["letter"]) == PLANS["letter"]


def test_criteria_narrow_the_work(tmp_path, monkeypatch):
    fitted = []
    monkeypatch.setattr(run, "fit", lambda job, *_: fitted.append(job) or RESULT)
    settings = run.Settings(quick=True, seeds=1, studies=["curves"], criteria=["di", "ls"])
    run.run("digits", tmp_path, settings, lambda line: None)
    assert {job.criterion for job in fitted} == {"di", "ls"}
    assert len(fitted) == 3 * 2 * 2


def test_an_unknown_study_is_refused():
    with pytest.raises(ValueError, match="no study 'rhoo'"):
        jobs("digits", 0.1, PLAN, "paper", ["rhoo"], 100)


# The table


def test_rows_come_back_as_they_were_written(tmp_path):
    path = tmp_path / "digits.csv"
    odd = job(gamma=0.1 + 0.2, rho=1e-05)
    table.append(path, odd, RESULT)
    table.append(path, job(map="exact", criterion="svc"), RESULT._replace(train_mse=float("nan")))
    assert table.done(path) == {odd, job(map="exact", criterion="svc")}
    frame = table.read(path)
    assert tuple(frame.loc[0, list(table.Result._fields)]) == RESULT
    assert np.isnan(frame.loc[1, "train_mse"])


@pytest.mark.parametrize("kept", [1, 20, -1])
def test_half_a_row_is_neither_read_nor_kept(tmp_path, kept):
    path = tmp_path / "digits.csv"
    table.append(path, job(seed=0), RESULT)
    whole = path.read_bytes()
    table.append(path, job(seed=1), RESULT)
    added = path.read_bytes()[len(whole) :]
    path.write_bytes(whole + added[:kept])
    assert table.done(path) == {job(seed=0)}
    table.append(path, job(seed=2), RESULT)
    assert path.read_bytes() == whole + added.replace(b",4,1,", b",4,2,")


def test_a_table_of_other_columns_is_refused(tmp_path):
    path = tmp_path / "digits.csv"
    path.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match="other columns"):
        table.read(path)


# The fits


@pytest.mark.parametrize(("name", "criterion"), [("nystroem", "di"), ("fourier", "ls"), ("nystroem", "ce")])
def test_the_same_job_gives_the_same_row(small, name, criterion):
    wanted = job(map=name, criterion=criterion, init=INIT[name])
    first, second = (fit(wanted, small, max_epochs=3) for _ in range(2))
    times = {"seconds": 0.0, "wall_seconds": 0.0}
    assert first._replace(**times) == second._replace(**times)
    assert first.epochs == 3
    other = fit(wanted._replace(seed=1), small, max_epochs=3)
    assert other.train_mse != first.train_mse


def test_criteria_start_from_the_same_map_of_a_seed(small):
    a, b = (start(job(criterion=criterion), small.train.x) for criterion in ("di", "ce"))
    assert (a.landmarks == b.landmarks).all()


def test_the_svm_agrees_with_scikit_learns(small):
    from sklearn.svm import LinearSVC

    feature_map = start(job(n_components=40, init="kmeans", criterion="none"), small.train.x)
    features, held_out = (feature_map(source.x).detach().numpy() for source in small)
    theirs = LinearSVC(C=1, dual=False).fit(features, small.train.targets.data).predict(held_out)
    assert svm_accuracy(feature_map, small) == pytest.approx(
        (theirs == small.test.targets.data.numpy()).mean(), abs=0.004
    )


# The run

DRIVER = """
import sys, time
from pathlib import Path
from experiments import run, table
from experiments.run import Settings

def slow(job, sources, max_epochs, checkpoint):
    time.sleep(0.05)
    return table.Result(100, 50, 3, 0.5, 0.7, 0.25, 0.5, 0.7, 0.75, "discernel=0")

run.fit = slow
run.run("digits", Path(sys.argv[1]), Settings(quick=True, components=[10], studies=["curves"]), lambda line: None)
"""


def test_a_killed_run_goes_on_without_repeating_or_losing_a_row(tmp_path):
    command = [sys.executable, "-c", DRIVER, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    path, most = tmp_path / "digits.csv", 27
    process = subprocess.Popen(command, env=environment)
    while len(table.done(path)) < 3:
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    killed = path.read_text()
    assert 3 <= len(table.done(path)) < most
    subprocess.run(command, env=environment, check=True)
    assert path.read_text().startswith(killed[: killed.rfind("\n") + 1])
    assert len(path.read_text().splitlines()) == 1 + most == 1 + len(table.done(path))


def test_two_runs_share_the_work(tmp_path):
    command = [sys.executable, "-c", DRIVER, str(tmp_path)]
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}"}
    both = [subprocess.Popen(command, env=environment) for _ in range(2)]
    assert [process.wait() for process in both] == [0, 0]
    path = tmp_path / "digits.csv"
    assert len(path.read_text().splitlines()) == 1 + 27 == 1 + len(table.done(path))
    assert [file.name for file in tmp_path.iterdir()] == ["digits.csv"]


def test_a_fit_that_was_cut_off_goes_on_from_its_checkpoint(small, tmp_path, monkeypatch):
    checkpoint, wanted, steps = tmp_path / "checkpoint", job(map="fourier", init="spectral"), []
    whole, update = fit(wanted, small, 5), Run.update

    def cut(self, batch):
        if len(steps) == 3:
            raise KeyboardInterrupt
        steps.append(self.epoch)
        update(self, batch)

    monkeypatch.setattr(Run, "update", cut)
    with pytest.raises(KeyboardInterrupt):  # the rows are fewer than a batch: every step is an epoch
        fit(wanted, small, 5, checkpoint)
    assert epochs_of(checkpoint) == 3
    steps.clear()
    resumed = fit(wanted, small, 5, checkpoint)
    assert steps == [3, 4]
    times = {"seconds": 0.0, "wall_seconds": 0.0}
    assert resumed._replace(**times) == whole._replace(**times)
    assert resumed.wall_seconds >= resumed.seconds > 0
    assert epochs_of(tmp_path / "none") == epochs_of(None) == 0


def test_a_long_fit_has_a_checkpoint_until_its_row_is_there(tmp_path, monkeypatch):
    seen = []

    def cut(job, sources, max_epochs, checkpoint):
        seen.append(checkpoint)
        if checkpoint is not None and not checkpoint.exists():
            checkpoint.touch()
            raise KeyboardInterrupt
        return RESULT

    monkeypatch.setattr(run, "fit", cut)
    settings = run.Settings(quick=True, components=[4, run.LONG], seeds=1, studies=["curves"], criteria=["none"])
    jobs_done = 0
    while jobs_done < 6:
        try:
            run.run("digits", tmp_path, settings, lambda line: None)
        except KeyboardInterrupt:
            assert sorted(file.suffix for file in tmp_path.iterdir() if file.name[0] == ".") == [
                ".lock",
                ".safetensors",
            ]
        jobs_done = len(table.done(tmp_path / "digits.csv"))
    assert [path is None for path in seen] == [True] * 3 + [False] * 6
    (tmp_path / f".{run.slug(next(iter(table.done(tmp_path / 'digits.csv'))))}.safetensors").touch()
    run.run("digits", tmp_path, settings, pytest.fail)
    assert [file.name for file in tmp_path.iterdir()] == ["digits.csv"]


def test_time_that_is_up_starts_no_fit(tmp_path, monkeypatch):
    told = []
    monkeypatch.setattr(run, "fit", lambda *_: pytest.fail("a fit was started"))
    run.run("digits", tmp_path, run.Settings(quick=True, hours=-1.0), told.append)
    assert told == ["the time is up: the same command goes on from here"]


def test_the_command_fits_draws_and_writes(tmp_path, monkeypatch):
    monkeypatch.setattr(run, "QUICK_EPOCHS", 1)
    options = ["--quick", "--seeds", "1", "--components", "4,6", "--study", "curves", "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["reproduce", "digits", *options])
    assert result.exit_code == 0, result.output
    assert "0 of 18 left" in result.output
    assert len(table.done(tmp_path / "digits.csv")) == 18
    page = (tmp_path / "reproduction.md").read_text()
    assert "DI is at or above LS | Digits, Fourier" in page
    assert "| Digits | Fourier | 4 | 1 | 1 | 1 |  |  |  |" in page  # epochs
    for name in ("mse", "accuracy", "beyond"):
        assert (tmp_path / "images" / "reproduction" / f"{name}.png").stat().st_size > 10_000
    table_before = (tmp_path / "digits.csv").read_bytes()
    again = CliRunner().invoke(app, ["reproduce", "digits", "--hours", "0", "--out", str(tmp_path)])
    assert again.exit_code == 0, again.output
    assert (tmp_path / "digits.csv").read_bytes() == table_before
    assert (tmp_path / "reproduction.md").read_text() == page


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["iris"], "there is no data set 'iris'"),
        (["digits", "--schedule", "slow"], "there is no schedule 'slow'"),
        (["digits", "--quick"], "--out"),
        (["digits", "--components", "a"], "numbers of features"),
    ],
)
def test_the_command_says_what_is_wrong(arguments, words):
    result = CliRunner().invoke(app, ["reproduce", *arguments], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert words in result.output


def test_without_the_repository_the_command_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(reproduction, "__file__", str(tmp_path / "a" / "b" / "cli" / "reproduction.py"))
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["reproduce", "digits"], env={"COLUMNS": "200"})
    assert result.exit_code == 2
    assert "clone of the repository" in result.output


# The committed tables


def committed():
    frame = table.read_all(table.RESULTS)
    return frame[frame["map"] != "exact"].sort_values("wall_seconds")


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["none", "paper", "fast"])
def test_committed_rows_come_out_again(schedule):
    """To rounding where nothing is trained; training amplifies what a change of the arithmetic leaves of it."""
    rows = table.where(committed(), {"data": "letter", "schedule": schedule})
    row = rows.iloc[0]
    key = (getattr(value, "item", lambda value=value: value)() for value in row[table.KEY])  # as Python's numbers
    result = fit(Job(*key), problem(datasets.load("letter")))
    mse, points = (1e-6, 1e-3) if schedule == "none" else (0.03, 0.03)
    assert result.train_mse == pytest.approx(row["train_mse"], rel=mse)
    assert result.test_mse == pytest.approx(row["test_mse"], rel=mse)
    assert result.test_accuracy == pytest.approx(row["test_accuracy"], abs=points)


def test_the_committed_tables_are_whole_and_have_one_gamma_per_data_set():
    frame = committed()
    assert len(frame)
    for path in table.RESULTS.glob("*.csv"):  # no half row, and none twice
        assert len(path.read_text().splitlines()) == 1 + len(table.read(path))
    assert frame["test_accuracy"].between(0, 1).all()
    assert (frame["train_mse"] > 0).all()
    assert (frame[frame["epochs"] > 0].groupby("data")["gamma"].nunique() == 1).all()
