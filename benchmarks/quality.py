"""Test accuracy of the default classifiers beside scikit-learn's and LightGBM's, in one run.

Everything is at its default but the number of features, the map and the head; "auto" with the SVM head is the default,
and its seconds are with the trial by which the map is chosen.
SVC is fitted where the rows allow it, LightGBM if it is installed. Seconds are of the processor, so that what else runs
on the machine counts for little; run it with one thread. Prints a table, writes it as JSON; rows of the file that are
not measured again stay in it.

    OMP_NUM_THREADS=1 python benchmarks/quality.py --data letter mnist --components 100 500
"""

import argparse
import json
import sys
import time
from pathlib import Path

import torch
from sklearn.kernel_approximation import Nystroem
from sklearn.pipeline import make_pipeline
from sklearn.svm import SVC, LinearSVC

sys.path.insert(0, str(Path(__file__).parents[1]))
from discernel import DiscernelClassifier
from discernel.estimators.predictor import kind_of
from experiments.datasets import LOADERS, load

GAMMA = {"digits": 0.1, "letter": 4.0, "mnist": 0.02, "covtype": 10.0}  # of the baselines, set by hand and not tuned
SVC_ROWS = 100_000


def baselines(name: str, n_rows: int) -> dict:
    nystroem = Nystroem(gamma=GAMMA[name], n_components=1000, random_state=0)
    models = {"Nystroem(1000) + LinearSVC": make_pipeline(nystroem, LinearSVC(dual=False))}
    if n_rows <= SVC_ROWS:
        models["SVC"] = SVC(C=10, gamma=GAMMA[name])
    try:
        from lightgbm import LGBMClassifier
    except ImportError:
        return models
    return models | {"LightGBM(100)": LGBMClassifier(verbose=-1, n_jobs=torch.get_num_threads())}


def ours(components: list[int], heads: list[str]) -> dict:
    return {
        f"Discernel {kind}({j}), {head}": DiscernelClassifier(j, feature_map=kind, head=head, random_state=0)
        for j in components
        for kind in ("auto", "nystroem", "fourier")
        for head in heads
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", default=["letter"], choices=LOADERS)
    parser.add_argument("--components", nargs="+", type=int, default=[100, 500])
    parser.add_argument("--heads", nargs="+", default=["svm", "ridge"], choices=["svm", "ridge", "softmax"])
    parser.add_argument("--only", nargs="+", default=[""], help="run only the models whose name has one of these in it")
    parser.add_argument("--out", default="benchmarks/results/quality.json")
    options = parser.parse_args()
    path = Path(options.out)
    known = json.loads(path.read_text())["rows"] if path.exists() else []
    rows = {(row["data"], row["model"]): row for row in known}
    print(f"{'data':8} {'model':36} {'accuracy, %':>11} {'fit, s':>8} {'predict, s':>10}")
    for name in options.data:
        data = load(name)
        models = ours(options.components, options.heads) | baselines(name, len(data.x_train))
        for label, model in models.items():
            if not any(part in label for part in options.only):
                continue
            started = time.process_time()
            model.fit(data.x_train, data.y_train)
            fitted = time.process_time()
            accuracy = float((model.predict(data.x_test) == data.y_test).mean())
            fit, predict = fitted - started, time.process_time() - fitted
            rows[name, label] = {"data": name, "model": label, "accuracy": accuracy, "fit": fit, "predict": predict}
            told = f"{name:8} {label:36} {100 * accuracy:11.2f} {fit:8.1f} {predict:10.2f}"
            if isinstance(model, DiscernelClassifier):
                rows[name, label]["map"] = kind_of(model.transformer_)
                told += f"   {kind_of(model.transformer_)}"
            print(told, flush=True)
            write(path, list(rows.values()))


def write(path: Path, rows: list[dict]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    record = {"torch": torch.__version__, "threads": torch.get_num_threads(), "rows": rows}
    path.write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
