"""The command line as it is used: from a CSV to a served model, and what it says when something is wrong."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_iris
from sklearn.preprocessing import FunctionTransformer
from typer.testing import CliRunner

import discernel
from discernel.cli import app, drawing
from discernel.cli.common import command_line

pd = pytest.importorskip("pandas")
pytest.importorskip("pyarrow")

IRIS = load_iris(as_frame=True).frame.rename(columns=lambda name: name.replace(" (cm)", "").replace(" ", "_"))
IRIS["target"] = np.array(["setosa", "versicolor", "<script>"])[IRIS["target"]]
IRIS["place"] = np.where(np.arange(150) % 3, "meadow", "bog")
QUICK = ["--epochs", "2", "-J", "10", "--quiet"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A fresh folder with a table for training and one for testing."""
    monkeypatch.chdir(tmp_path)
    rows = IRIS.sample(frac=1, random_state=0)
    rows[:100].to_csv("train.csv", index=False)
    rows[100:].to_csv("test.csv", index=False)
    return tmp_path


def run(*arguments, code=0):
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], env={"COLUMNS": "200"})
    assert result.exit_code == code, result.output
    return result


def fitted(*options):
    run("fit", "train.csv", "--target", "target", *QUICK, *options)
    return discernel.load("model.safetensors")


def test_rows_of_one_class_and_a_single_row_are_scored(folder):
    fitted()
    rows = pd.read_csv("test.csv")
    for name, few in (("one", rows[rows["target"] == "setosa"]), ("single", rows[:1])):
        few.to_csv(f"{name}.csv", index=False)
        accuracy = json.loads(run("evaluate", "model.safetensors", f"{name}.csv", "--json").output)["scores"][
            "accuracy"
        ]
        run("report", "model.safetensors", "--data", f"{name}.csv", "-o", f"{name}.html", "-q")
        page = (folder / f"{name}.html").read_text()
        assert f"{accuracy:.4f}" in page
        assert "There are no baselines" in page


def test_the_whole_way(folder):
    """CSV → fit → evaluate → predict → report → export → onnxruntime says the same."""
    runtime = pytest.importorskip("onnxruntime")
    told = json.loads(run("fit", "train.csv", "-t", "target", *QUICK, "--epochs", "20", "--json").output)
    assert (told["rows"], told["features"], told["components"], told["epochs"]) == (100, 6, 10, 20)
    assert told["columns"] == dict.fromkeys(IRIS.columns[:4], "numeric") | {"place": "categorical"}
    assert sorted(told["classes"]) == ["<script>", "setosa", "versicolor"]
    scores = json.loads(run("evaluate", "model.safetensors", "test.csv", "--json").output)["scores"]
    assert scores["accuracy"] > 0.9
    run("predict", "model.safetensors", "test.csv", "--probabilities", "-o", "said.csv", "-q")
    said, test = pd.read_csv("said.csv"), pd.read_csv("test.csv")
    assert np.mean(said["prediction"] == test["target"]) == scores["accuracy"]
    run("report", "model.safetensors", "--data", "test.csv", "--train", "train.csv", "-q")
    assert f"{scores['accuracy']:.4f}" in (folder / "report.html").read_text()
    run("export", "model.safetensors", "--onnx", "model.onnx")
    session = runtime.InferenceSession("model.onnx")
    columns = {name: test[name].to_numpy() for name in [*IRIS.columns[:4], "place"]}
    label, probabilities = session.run(["label", "probabilities"], columns)
    np.testing.assert_array_equal(label, said["prediction"])
    names = [f"probability_{name}" for name in json.loads(session.get_modelmeta().custom_metadata_map["classes"])]
    np.testing.assert_allclose(probabilities, said[names], atol=1e-5)
    assert not (folder / "model.safetensors.checkpoint").exists()


def test_a_saved_model_knows_its_columns(folder):
    model = fitted()
    back = discernel.load("model.safetensors")
    assert back.preprocessing_ == model.preprocessing_
    assert back.target_names_.tolist() == ["target"]
    assert back.trainer == discernel.Trainer(max_epochs=2)
    run("predict", "model.safetensors", "test.csv", "-o", "said.parquet", "-q")
    x = back.preprocessing_.transform(pd.read_csv("test.csv"))
    np.testing.assert_array_equal(pd.read_parquet("said.parquet")["prediction"], back.predict(x))
    run("transform", "model.safetensors", "test.csv", "-o", "features.csv", "-q")
    np.testing.assert_allclose(pd.read_csv("features.csv"), back.transform(x), rtol=1e-5, atol=1e-6)


def test_the_same_seed_gives_the_same_model(folder):
    fitted()
    first = (folder / "model.safetensors").read_bytes()
    arrays = discernel.load("model.safetensors").transformer_.components_
    fitted()
    np.testing.assert_array_equal(discernel.load("model.safetensors").transformer_.components_, arrays)
    assert len((folder / "model.safetensors").read_bytes()) > 0.9 * len(first)
    assert not np.array_equal(fitted("--seed", "1").transformer_.components_, arrays)


def test_text_that_looks_like_numbers_is_what_it_was_in_training(folder):
    for name in ("train", "test"):
        rows = pd.read_csv(f"{name}.csv").replace({"setosa": "7", "versicolor": "08", "bog": "1"})
        rows.to_csv(f"{name}.csv", index=False)
    model = fitted("--epochs", "20", "--missing", "impute")
    assert sorted(model.classes_) == ["08", "7", "<script>"]
    some = pd.read_csv("test.csv", dtype=str).query("target != '<script>' and place == '1'")
    assert len(some) > 5
    some.to_csv("some.csv", index=False)
    scores = json.loads(run("evaluate", "model.safetensors", "some.csv", "--json").output)["scores"]
    assert scores["accuracy"] == np.mean(model.predict("some.csv") == some["target"]) > 0.9
    some[:1].assign(place="").to_csv("one.csv", index=False)
    said = run("predict", "model.safetensors", "one.csv", "-q").output.split()
    assert said == ['"prediction"', f'"{some["target"].iloc[0]}"']


def test_predictions_go_to_the_terminal_unless_told(folder):
    fitted()
    lines = run("predict", "model.safetensors", "test.csv", "-q").stdout.splitlines()
    assert (lines[0], len(lines)) == ('"prediction"', 51)


def test_regression_labels_and_several_targets(folder):
    data = load_diabetes(as_frame=True).frame.round(3)
    data["old"], data["heavy"] = data["age"] > 0, data["bmi"] > 0
    data.to_csv("diabetes.csv", index=False)
    run("fit", "diabetes.csv", "-t", "target", "--task", "regression", "-o", "one.safetensors", *QUICK)
    assert set(json.loads(run("evaluate", "one.safetensors", "diabetes.csv", "--json").output)["scores"]) == {
        *("r2", "rmse", "mae")
    }
    run("fit", "diabetes.csv", "-t", "bp", "-t", "s1", "-o", "two.safetensors", *QUICK)
    run("predict", "two.safetensors", "diabetes.csv", "-o", "two.csv", "-q")
    assert list(pd.read_csv("two.csv")) == ["prediction_bp", "prediction_s1"]
    run("fit", "diabetes.csv", "-t", "old", "-t", "heavy", "-o", "labels.safetensors", "--head", "softmax", *QUICK)
    run("predict", "labels.safetensors", "diabetes.csv", "--probabilities", "-o", "labels.csv", "-q")
    assert list(pd.read_csv("labels.csv")) == [
        *("prediction_old", "prediction_heavy", "probability_old", "probability_heavy")
    ]
    for name in ("one", "two", "labels"):
        run("report", f"{name}.safetensors", "--data", "diabetes.csv", "-o", f"{name}.html", "-q")
        assert (folder / f"{name}.html").read_text().startswith("<!doctype html>")


@pytest.mark.parametrize("picture", ["training", "landmarks", "importance", "components", "confusion"])
def test_pictures(folder, picture):
    pytest.importorskip("matplotlib")
    fitted()
    run("plot", "model.safetensors", picture, "--data", "test.csv", "-q")
    assert (folder / f"{picture}.png").read_bytes().startswith(b"\x89PNG")


def test_whole_numbers_that_are_predicted_are_not_drawn_as_classes():
    plt = pytest.importorskip("matplotlib.pyplot")
    rng = np.random.default_rng(0)
    y = rng.permutation(100).astype(np.float64)
    x = torch.from_numpy(np.c_[y / 100, 50 * rng.normal(size=100)])
    ax = plt.figure().subplots()
    drawing._components(ax, FunctionTransformer(), discernel.ArraySource(x, discernel.Targets.values(y)))
    (dots,) = (each for each in ax.collections if len(each.get_offsets()) == 100)
    assert abs(np.corrcoef(dots.get_offsets()[:, 0], y)[0, 1]) > 0.99
    plt.close(ax.figure)


def test_a_model_that_was_not_told_its_target_is_told(folder):
    pytest.importorskip("matplotlib")
    source, short = discernel.TableSource("train.csv", "target"), {"trainer": discernel.Trainer(max_epochs=1)}
    discernel.save(discernel.DiscernelClassifier(5, **short).fit(source), "classes.safetensors")
    discernel.save(discernel.LearnedNystroem(5, **short).fit(source), "features.safetensors")
    told = "--data", "test.csv", "--target", "target", "-q"
    run("report", "classes.safetensors", *told)
    run("plot", "classes.safetensors", "confusion", *told)
    run("plot", "features.safetensors", "components", *told, "-o", "plane.svg")
    assert "</html>" in (folder / "report.html").read_text()
    assert (folder / "confusion.png").read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in (folder / "plane.svg").read_text()


@pytest.mark.filterwarnings("ignore:n_components is 1000")
def test_inspect_counts_the_features_that_there_are(folder):
    fitted("-J", "1000")
    assert "6 in, 100 learned" in run("inspect", "model.safetensors").output
    discernel.save(discernel.DCA().fit(IRIS.iloc[:, :4], IRIS["target"]), "dca.safetensors")
    assert "4 in, 2 learned" in run("inspect", "dca.safetensors").output


def test_inspect_tells_what_it_is(folder):
    fitted("--head", "svm")
    told = run("inspect", "model.safetensors").output
    for words in (
        "DiscernelClassifier",
        "6 in, 10 learned (Nystroem)",
        "setosa",
        "place",
        "2 epochs",
        "head=svm",
        "torch",
    ):
        assert words in told
    header = json.loads(run("inspect", "model.safetensors", "--json").output)
    assert header["preprocessing"]["columns"][0]["name"] == IRIS.columns[0]


def test_fit_can_report(folder):
    fitted("--report", "report.html")
    assert "trained on" in (folder / "report.html").read_text()
    fitted("--report", "report.html", "--test", "test.csv")
    assert "rows that the model was trained on" not in (folder / "report.html").read_text()


# what goes wrong


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["fit", "nothing.csv", "-t", "y"], "nothing.csv"),
        (["fit", "train.csv", "-t", "nothing"], "there is no column 'nothing'"),
        (["fit", "train.csv", "-t", "target", "--resume"], "there is nothing to resume"),
        (["fit", "train.csv", "-t", "target", "-o", "no/where/model"], "does not exist: make it first"),
        (["fit", "train.csv", "-t", "target", "-o", "."], "is no file, but a folder"),
        (["fit", "train.csv", "-t", "target", "--report", "no/where.html"], "does not exist: make it first"),
        (["fit", "train.csv", "-t", "target", "--test", "test.csv"], "give --report too"),
        (["fit", "train.csv", "-t", "target", "--report", "r.html", "--test", "no.csv"], "no file or folder 'no.csv'"),
        (["fit", "train.csv", "-t", "sepal_length", "--head", "svm", "--task", "regression"], "ridge head alone"),
        (["fit", "train.csv", "-t", "target", "-J", "0"], "n_components must be at least 1"),
        (["predict", "train.csv", "test.csv"], "damaged or not a discernel file"),
        (["predict", "nothing.safetensors", "test.csv"], "there is no file 'nothing.safetensors'"),
        (["predict", "model.safetensors", "other.csv"], "are missing; there are"),
        (["predict", "model.safetensors", "test.csv", "-o", "said.xlsx"], "must end in .csv or .parquet"),
        (["evaluate", "model.safetensors", "other.csv"], "there is no column 'target'"),
        (["plot", "model.safetensors", "confusion"], "give --data"),
        (["plot", "model.safetensors", "training", "-o", "training"], "must end in .png, .svg, .pdf"),
        (["plot", "discriminant.safetensors", "training"], "there is no training to draw"),
        (["plot", "model.safetensors", "landmarks", "--image", "2x2"], "does not make 6 features"),
        (["plot", "model.safetensors", "landmarks", "--image", "round"], "such as 28x28"),
        (["report", "plain.safetensors", "--data", "test.csv"], "does not know the name of its target"),
        (["predict", "plain.safetensors", "test.csv"], "was not fitted on a table"),
        (["predict", "features.safetensors", "test.csv"], "predicts nothing"),
        (["evaluate", "features.safetensors", "test.csv", "-t", "target"], "predicts nothing"),
        (["report", "features.safetensors", "--data", "test.csv", "-t", "target"], "predicts nothing"),
    ],
)
def test_an_error_is_one_sentence(folder, arguments, words):
    fitted()
    pd.DataFrame({"a": [1.0]}).to_csv("other.csv", index=False)
    x, y = IRIS.iloc[:, :4].to_numpy(), IRIS["target"].to_numpy()
    short = {"trainer": discernel.Trainer(max_epochs=1), "random_state": 0}
    discernel.save(discernel.DiscernelClassifier(5, **short).fit(x, y), "plain.safetensors")
    discernel.save(discernel.LearnedNystroem(5, **short).fit(x, y), "features.safetensors")
    discernel.save(discernel.DCA().fit(x, y), "discriminant.safetensors")
    before = {path: path.read_bytes() for path in folder.iterdir()}
    result = run(*arguments, code=1)
    assert result.stderr.startswith("Error: ")
    assert words in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert "Traceback" in run(*arguments, "--debug", code=1).stderr
    assert {path: path.read_bytes() for path in folder.iterdir()} == before


def test_a_fit_that_is_refused_leaves_the_state_of_a_stopped_one(folder):
    kept = folder / "model.safetensors.checkpoint"
    kept.write_text("hours of work")
    run("fit", "train.csv", "-t", "typo", *QUICK, code=1)
    assert kept.read_text() == "hours of work"
    fitted()
    assert not kept.exists()


def test_wrong_usage_and_bugs_have_codes_of_their_own(folder, monkeypatch):
    run("fit", "train.csv", code=2)
    run("plot", "model.safetensors", "sunset", code=2)

    def broken(path):
        raise AssertionError("never")

    monkeypatch.setattr("discernel.cli.using.predictor", broken)
    assert "a bug in discernel" in run("evaluate", "model.safetensors", "test.csv", code=70).stderr


@pytest.mark.parametrize(
    "name",
    [
        "fit",
        "evaluate",
        "predict",
        "transform",
        "report",
        "plot",
        "inspect",
        "export",
        "two-sample",
        "demo",
        "reproduce",
        "version",
    ],
)
def test_help_fits_a_terminal_and_has_examples(name):
    told = CliRunner().invoke(app, [name, "--help"], env={"COLUMNS": "80"}).output
    assert max(map(len, told.splitlines())) <= 80
    if name != "version":
        assert f"discernel {name} " in told.split("Examples:")[1]


@pytest.mark.skipif(os.name == "nt", reason="pipes")
def test_a_reader_may_have_read_enough(folder):
    fitted()
    pd.concat([IRIS] * 2000).to_csv("many.csv", index=False)
    command = '"$0" -m discernel predict model.safetensors many.csv | head -1; echo ${PIPESTATUS[0]}'
    result = subprocess.run(["bash", "-c", command, sys.executable], capture_output=True, text=True)
    assert result.stdout.splitlines() == ['"prediction"', "141"]
    assert result.stderr == ""


@pytest.mark.filterwarnings("always")
def test_a_warning_is_one_sentence(folder):
    told = run("fit", "train.csv", "-t", "target", "-J", "1000", "--epochs", "1")
    assert told.stderr.startswith("Note: n_components is 1000, but there are 100 distinct rows: using those\n")
    assert ".py" not in told.stderr


def test_the_command_is_told_as_it_was_typed(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["/bin/discernel", "fit", "a b.csv", "--resume"])
    assert command_line("--resume") == "discernel fit 'a b.csv' --resume"


@pytest.mark.skipif(os.name == "nt", reason="signals")
def test_ctrl_c_keeps_the_state_and_resume_goes_on(folder):
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background is born deaf to it
    arguments = ["fit", "train.csv", "-t", "target", "-J", "10", "--epochs", "100000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "discernel", *arguments], stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    checkpoint = folder / "model.safetensors.checkpoint"
    while not checkpoint.exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130, told
    assert "go on with:\n  python -m discernel fit" in told
    assert told.strip().endswith("--resume")
    assert "Traceback" not in told
    assert "another run" in run(*arguments[:-1], "200", "--resume", "-q", code=1).stderr
    assert checkpoint.exists()


def test_a_resumed_run_ends_where_an_undisturbed_one_does(folder, monkeypatch):
    expected = fitted().transformer_.components_
    from discernel.cli import watched

    class Interrupted(watched.Watched):
        def epochs(self, *arguments, **options):
            for record in super().epochs(*arguments, **options):
                yield record
                if record.epoch == 1:
                    raise KeyboardInterrupt

    monkeypatch.setattr(watched, "Watched", Interrupted)
    stopped = run("fit", "train.csv", "--target", "target", *QUICK, code=130)
    assert "Stopped. The state is in model.safetensors.checkpoint" in stopped.stderr
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    np.testing.assert_array_equal(fitted("--resume").transformer_.components_, expected)


def test_a_resumed_run_stops_as_early_as_an_undisturbed_one(folder, monkeypatch):
    from discernel.cli import watched

    arguments = "--early-stopping", "--epochs", "40"
    expected = fitted(*arguments)
    assert 3 < expected.n_iter_ < 40

    class Interrupted(watched.Watched):
        def epochs(self, *arguments, **options):
            for record in super().epochs(*arguments, **options):
                yield record
                if record.epoch == expected.n_iter_ - 2:
                    raise KeyboardInterrupt

    monkeypatch.setattr(watched, "Watched", Interrupted)
    run("fit", "train.csv", "--target", "target", *QUICK, *arguments, code=130)
    monkeypatch.undo()
    monkeypatch.chdir(folder)
    found = fitted(*arguments, "--resume")
    assert [r.validation_score for r in found.history_] == [r.validation_score for r in expected.history_]
    np.testing.assert_array_equal(found.transformer_.components_, expected.transformer_.components_)


def test_text_that_a_spreadsheet_would_run_is_marked_in_csv(folder):
    names = np.array(["=cmd()", "-1", "@sum"])
    rows = IRIS.assign(target=names[np.arange(150) // 50])
    rows.to_csv("train.csv", index=False)
    run("fit", "train.csv", "-t", "target", *QUICK, "--epochs", "10")
    for out in ("said.csv", "said.parquet"):
        run("predict", "model.safetensors", "train.csv", "-o", out, "-q")
    marked, plain = pd.read_csv("said.csv", dtype=str), pd.read_parquet("said.parquet")
    assert set(marked["prediction"]) == {"'=cmd()", "-1", "'@sum"}
    assert set(plain["prediction"]) == set(names)


def test_predictions_appear_when_they_are_whole(folder, monkeypatch):
    fitted()
    (folder / "said.csv").write_text("those of yesterday")
    estimator = type(discernel.load("model.safetensors"))

    def fail(*args):
        raise MemoryError("no more")

    monkeypatch.setattr(estimator, "predict", fail)
    assert "no more" in run("predict", "model.safetensors", "test.csv", "-o", "said.csv", "-q", code=1).output
    assert (folder / "said.csv").read_text() == "those of yesterday"
    assert not list(folder.glob(".*tmp"))
