"""A trainer that keeps its state and shows how far it is."""

import os
from collections.abc import Callable, Iterator
from typing import Any, Self

from discernel.cli.common import bar
from discernel.feature_maps import width
from discernel.run import EpochRecord
from discernel.training import Trainer


class Watched(Trainer):
    """A trainer with a checkpoint and a bar; the records are those of any other."""

    def watched(
        self, screen: Any, checkpoint: str | os.PathLike, first: Callable[[], object], then: Callable[[], object]
    ) -> Self:
        """Set where to show the bar and keep the state, what to do before and after the epochs, and return self."""
        self._screen, self._checkpoint, self._first, self._then = screen, checkpoint, first, then
        return self

    def epochs(
        self, feature_map, criterion, source, *, seed=0, checkpoint=None, validation=None, n_iter_no_change=None
    ) -> Iterator[EpochRecord]:
        """Train as `Trainer.epochs` does."""
        total = self.plan(len(source), width(feature_map, source.rows(slice(0, 1)).x), criterion).epochs
        records = super().epochs(
            feature_map,
            criterion,
            source,
            seed=seed,
            checkpoint=self._checkpoint,
            validation=validation,
            n_iter_no_change=n_iter_no_change,
        )
        self._first()
        try:
            with bar(self._screen, "Training", total, "epochs") as advance:
                for record in records:
                    advance(1, f"{record.samples_per_second:,.0f} rows/s")
                    yield record
        finally:  # also where it is stopped early
            self._then()
