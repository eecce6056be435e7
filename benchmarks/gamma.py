"""Which rule for gamma, and which map, should be the default: test accuracy of each on eight data sets, three seeds.

The head is the default one. Large sets are cut to 10000 training rows. A metric is learned by Nyström maps only. What
"cv" finds with the first seed of the first map is given to the others, since it takes so long. Seconds are of the
processor, the mean of the seeds. Prints a table, writes it as JSON.

    OMP_NUM_THREADS=1 python benchmarks/gamma.py
"""

import argparse
import json
import sys
import time
import warnings
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_breast_cancer, load_iris, load_wine, make_moons
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import MinMaxScaler

sys.path.insert(0, str(Path(__file__).parents[1]))
from discernel import DiscernelClassifier
from experiments.datasets import Dataset, load

CHECKED = ("scale", "median", "cv", "learn")
RULES = {"nystroem": CHECKED, "fourier": CHECKED[:3]}
SEEDS = 3
TRAIN_ROWS, TEST_ROWS = 10_000, 10_000


def small(loader) -> Dataset:
    x, y = loader()
    x_train, x_test, y_train, y_test = train_test_split(x, y, test_size=1 / 3, random_state=0, stratify=y)
    scaler = MinMaxScaler().fit(x_train)
    x_train, x_test = (scaler.transform(a).astype(np.float32) for a in (x_train, x_test))
    return Dataset(x_train, y_train, x_test, y_test)


def datasets(names: list[str]) -> dict:
    bundled = {
        "iris": lambda: load_iris(return_X_y=True),
        "wine": lambda: load_wine(return_X_y=True),
        "cancer": lambda: load_breast_cancer(return_X_y=True),
        "moons": lambda: make_moons(3000, noise=0.25, random_state=0),
    }
    return {name: (lambda n=name: small(bundled[n]) if n in bundled else load(n)) for name in names}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    everything = ["iris", "wine", "cancer", "moons", "digits", "letter", "mnist", "covtype"]
    parser.add_argument("--data", nargs="+", default=everything, choices=everything)
    parser.add_argument("--components", type=int, default=100)
    parser.add_argument("--maps", nargs="+", default=list(RULES), choices=RULES)
    parser.add_argument("--out", default="benchmarks/results/gamma.json")
    options = parser.parse_args()
    rows = []
    print(f"{'data':8} {'map':8}" + "".join(f"{rule:>16}" for rule in CHECKED) + "   (test accuracy, %; seconds)")
    for name, get in datasets(options.data).items():
        data, found = get(), {}
        x, y = data.x_train[:TRAIN_ROWS], data.y_train[:TRAIN_ROWS]
        x_test, y_test = data.x_test[:TEST_ROWS], data.y_test[:TEST_ROWS]
        for kind in options.maps:
            line = f"{name:8} {kind:8}"
            for rule in RULES[kind]:
                scores, started = [], time.process_time()
                for seed in range(SEEDS):
                    model = DiscernelClassifier(
                        min(options.components, len(x) // 4),
                        feature_map=kind,
                        gamma=found.get(rule, rule),
                        random_state=seed,
                    )
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        scores.append(model.fit(x, y).score(x_test, y_test))
                    if rule == "cv":
                        found[rule] = model.transformer_.gamma_
                seconds = (time.process_time() - started) / SEEDS
                rows.append({"data": name, "map": kind, "gamma": rule, "accuracy": scores, "seconds": seconds})
                line += f"{100 * np.mean(scores):9.2f} {seconds:5.1f}s"
            print(line, flush=True)
        Path(options.out).parent.mkdir(parents=True, exist_ok=True)
        record = {"torch": torch.__version__, "components": options.components, "rows": rows}
        Path(options.out).write_text(json.dumps(record, indent=1))


if __name__ == "__main__":
    main()
