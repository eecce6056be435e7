"""Learning from a stream: what `partial_fit` remembers of it, and how far it trains."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import scipy.sparse as sp

from discernel.training import Plan, Trainer

MEMORY = 20_000  # rows that are remembered
FULL_RATE = 30  # steps, after which the learning rate falls
LEAST_STEPS = 5  # of training in each call


class Stream(NamedTuple):
    """Rows of a stream: a uniform sample of those seen, and the last batch if it has just joined them."""

    X: Any
    y: np.ndarray
    weight: np.ndarray | None
    seen: int  # rows, in all
    steps: int = 0  # of training, so far

    def joined(self, batch: "Stream") -> "Stream":
        """Return the remembered rows and those of a batch, in the precision and the kind of the former."""
        X = batch.X.astype(self.X.dtype, copy=False)
        if sp.issparse(self.X):
            X = sp.vstack([self.X, X], format="csr")
        else:
            X = np.concatenate([self.X, X.toarray() if sp.issparse(X) else X])
        weight = None
        if self.weight is not None or batch.weight is not None:
            weight = np.concatenate([self._weights(), batch._weights()])
        y = np.concatenate([self.y, batch.y.reshape(-1, *self.y.shape[1:])])
        return Stream(X, y, weight, self.seen + batch.seen, self.steps)

    def _weights(self) -> np.ndarray:
        return np.ones(len(self.y), self.X.dtype) if self.weight is None else self.weight

    def remembered(self, n_new: int, generator: np.random.Generator) -> "Stream":
        """Return a copy of a uniform sample of all rows seen, given that of the former ones and `n_new` after them.

        So many are new as there would be among MEMORY rows drawn from all: a hypergeometric number.
        """
        n_old, index = len(self.y) - n_new, np.arange(len(self.y))
        if self.seen > MEMORY:
            new = generator.hypergeometric(n_new, min(self.seen - n_new, 10**9 - 1), MEMORY)
            old = generator.permutation(n_old)[: MEMORY - new]
            index = np.sort(np.concatenate([old, n_old + generator.permutation(n_new)[:new]]))
        weight = None if self.weight is None else self.weight[index]
        return self._replace(X=self.X[index], y=self.y[index], weight=weight)


def next_trainer(trainer: Trainer, stream: Stream, plan: Callable[[int], Plan]) -> Trainer:
    """Return what trains on with a stream: as many epochs as are missing, and at a learning rate that has fallen.

    What is missing are the steps that `fit` would take on all rows seen so far, less those taken; at least a few.
    """
    whole = plan(stream.seen)
    missing = max(whole.steps * whole.epochs - stream.steps, LEAST_STEPS)
    epochs = max(1, round(missing / plan(len(stream.y)).steps))
    rate = trainer.learning_rate * min(1.0, math.sqrt(FULL_RATE / max(stream.steps, 1)))
    return dataclasses.replace(trainer, max_epochs=epochs, learning_rate=rate)
