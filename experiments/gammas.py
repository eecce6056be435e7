"""The bandwidth, by the paper's protocol: 3-fold cross-validation of a linear SVM on 1000 standard Nyström features.

The grid is searched in two rounds: by factors of four from 2⁻⁸ to 2⁸, then the two neighbours of the best by a factor
of two. At most 10000 training rows, drawn at random, take part.
"""

import json
from pathlib import Path

import numpy as np
import torch
from sklearn.model_selection import StratifiedKFold

from discernel import RBF, Nystroem, Targets, choose_landmarks
from discernel.heads import fit_linear
from experiments.datasets import Dataset

COARSE = tuple(4.0**e for e in range(-4, 5))
FOLDS, COMPONENTS, ROWS = 3, 1000, 10_000


def gamma_for(name: str, data: Dataset, path: Path) -> float:
    """Return the bandwidth of a data set from the file at `path`; search for it and add it there if need be."""
    known = json.loads(path.read_text()) if path.is_file() else {}
    if name not in known:
        known[name] = search(data)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(dict(sorted(known.items())), indent=1) + "\n")
    return known[name]["gamma"]


def search(data: Dataset) -> dict:
    """Return the best bandwidth, with the accuracy of each one tried and what they were tried on."""
    rows = np.random.default_rng(0).permutation(len(data.x_train))[:ROWS]
    x, y = torch.from_numpy(data.x_train[rows]), data.y_train[rows]
    scores = {gamma: accuracy(x, y, gamma) for gamma in COARSE}
    best = max(scores, key=scores.__getitem__)
    scores |= {gamma: accuracy(x, y, gamma) for gamma in (best / 2, best * 2)}
    best = max(scores, key=scores.__getitem__)
    grid = {str(gamma): round(scores[gamma], 5) for gamma in sorted(scores)}
    return {"gamma": best, "accuracy": grid, "rows": len(x), "folds": FOLDS, "components": COMPONENTS}


def accuracy(x: torch.Tensor, y: np.ndarray, gamma: float) -> float:
    """Return the mean accuracy on the held-out folds."""
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0).split(x, y)
    return float(np.mean([_fold(x, y, gamma, *map(torch.from_numpy, fold)) for fold in folds]))


def _fold(x, y, gamma, inside, outside) -> float:
    generator = torch.Generator().manual_seed(0)
    components = min(COMPONENTS, len(torch.unique(x[inside], dim=0)))
    targets = Targets.classes(y[inside])
    with torch.no_grad():
        feature_map = Nystroem(choose_landmarks(x[inside], components, generator=generator), RBF(gamma))
        features, held_out = feature_map(x[inside]), feature_map(x[outside])
    head = fit_linear(lambda: [(features, targets[:], None)], "svm")
    return float(np.mean(targets.names[head.scores(held_out).argmax(1)] == y[outside]))
