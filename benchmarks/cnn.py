"""A small convolutional network trained by Discriminant Information alone, and a ridge head on its features.

No softmax layer and no cross-entropy: `LearnedFeatures` trains the network by DI, then one pass over the features gives
the exact ridge head (`DiscernelClassifier`). Beside it the same network trained jointly with a softmax layer
(`criterion="ce"`), with a softmax head, for the same steps. Prints a table, writes it as JSON.

    OMP_NUM_THREADS=1 python benchmarks/cnn.py --data mnist
"""

import argparse
import json
import math
import sys
import time
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))
from discernel import DiscernelClassifier, LearnedFeatures, Trainer
from experiments.datasets import load

HEADS = {"di": "ridge", "ce": "softmax"}


def network(n_pixels: int, seed: int) -> nn.Sequential:
    """Return two convolutions and one linear layer, from rows of pixels to 64 features."""
    side = math.isqrt(n_pixels)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(
            nn.Unflatten(1, (1, side, side)),
            *(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(32 * (side // 4) ** 2, 64), nn.Tanh()),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="mnist", choices=["digits", "mnist"])
    parser.add_argument("--criteria", nargs="+", default=list(HEADS), choices=HEADS)
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--batch", type=int, default=500)
    parser.add_argument("--rate", type=float, default=0.1)
    parser.add_argument("--out", default="benchmarks/results/cnn.json")
    options = parser.parse_args()
    data = load(options.data)
    trainer = Trainer(max_epochs=options.epochs, batch_size=options.batch, learning_rate=options.rate)
    rows = []
    print(f"{'data':8} {'criterion':9} {'head':8} {'accuracy, %':>11} {'seconds':>8}")
    for criterion in options.criteria:
        features = LearnedFeatures(
            network(data.x_train.shape[1], 0), criterion=criterion, trainer=trainer, random_state=0
        )
        model = DiscernelClassifier(feature_map=features, head=HEADS[criterion])
        started = time.process_time()
        model.fit(data.x_train, data.y_train)
        seconds = time.process_time() - started
        accuracy = model.score(data.x_test, data.y_test)
        row = {"data": options.data, "criterion": criterion, "head": HEADS[criterion], "accuracy": accuracy}
        rows.append(row | {"trainer": repr(trainer), "seconds": seconds})
        print(f"{options.data:8} {criterion:9} {HEADS[criterion]:8} {100 * accuracy:11.2f} {seconds:8.0f}", flush=True)
    Path(options.out).parent.mkdir(parents=True, exist_ok=True)
    Path(options.out).write_text(json.dumps({"torch": torch.__version__, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
