"""What the README and the command line promise, done."""

import json
import re
from pathlib import Path

from typer.testing import CliRunner

import discernel
from discernel.cli import app

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def test_the_code_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {}
    for block in re.findall(r"```python\n(.*?)```", README, re.DOTALL):
        exec(block, names)
    score, *epochs = capsys.readouterr().out.splitlines()
    assert float(score) > 0.95
    assert len(epochs) > 1
    assert (tmp_path / "run.safetensors").exists()


def test_the_numbers_of_the_readme_are_those_of_the_tables():
    measured = set()
    for path in (ROOT / "benchmarks" / "results").glob("quality-*.json"):
        for row in json.loads(path.read_text())["rows"]:
            figures = f"{100 * row['accuracy']:.2f} | {row['fit']:.0f} | {row['predict']:.2f}"
            measured.add(f"| {row['data']} | {row['model']} | {figures} |")
    told = re.findall(r"^\| (?:letter|mnist|covtype) .*$", README, re.MULTILINE)
    assert len(told) > 10
    assert set(told) <= measured


def test_the_demo_compares_all_methods_and_keeps_what_it_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["demo", "--out", "made"])
    assert result.exit_code == 0, result.output
    rows = {m[1].strip(): float(m[2]) for m in re.finditer(r"│ (\S[^│]*)│ +([\d.]+) │", result.output)}
    assert len(rows) == 10
    assert rows["DI Nyström"] > max(rows["Std Nyström"], rows["KM Nyström"])
    assert rows["DI RF"] > rows["Std RF"]
    assert sorted(p.name for p in (tmp_path / "made").iterdir()) == [
        "accuracies.png",
        "landmarks.png",
        "model.safetensors",
        "results.csv",
    ]
    model = discernel.load("made/model.safetensors")
    assert model.n_features_in_ == 64
    assert f"saved made{'/'}model.safetensors" in result.output


def test_the_version_is_told():
    assert CliRunner().invoke(app, ["version"]).output.strip() == discernel.__version__
