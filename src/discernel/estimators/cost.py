"""What a fit will take: the seconds from a few of its steps, the memory from the paper's count of numbers."""

import statistics
from collections.abc import Sequence
from typing import NamedTuple

from discernel.run import EpochRecord
from discernel.training import Plan

PILOT_STEPS = 6  # that are timed
PILOT_ROWS = 2000  # that a head is timed on, or those of a mini-batch if they are more
WORKSPACE = 64 * 2**20  # bytes of buffers that every fit takes


class Cost(NamedTuple):
    """What a fit is expected to take on this machine; training that stops early takes less.

    Examples
    --------
    >>> print(Cost(754.2, 1_300_000_000, Plan(3000, 155, 4)))
    about 13 minutes and 1.3 GB beside the data: 620 steps of 3000 rows, 4 epochs
    """

    seconds: float
    memory: int  # bytes beside the data
    plan: Plan | None  # None where nothing is trained

    def __str__(self) -> str:
        size = f"{self.memory / 1e9:.1f} GB" if self.memory >= 1e9 else f"{self.memory / 1e6:.0f} MB"
        text = f"about {_duration(self.seconds)} and {size} beside the data"
        if self.plan is None:
            return text
        steps = self.plan.steps * self.plan.epochs
        return f"{text}: {steps} steps of {self.plan.rows} rows, {self.plan.epochs} epochs"


def _duration(seconds: float) -> str:
    for unit, size in (("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.0f} seconds" if seconds >= 10 else f"{seconds:.1f} seconds"


def seconds_of_training(plan: Plan, pilot: Sequence[EpochRecord]) -> float:
    """Return what training takes, by epochs of one step each; the first of them warms up."""
    return plan.epochs * plan.steps * statistics.median(record.seconds for record in pilot[1:])


def bytes_of_training(rows: int, n_components: int, n_features: int, itemsize: int) -> int:
    """Return the O(n_b J + J²) numbers of a step: the basis, its centred copy and gradient, the scatter, its factor."""
    per_row = n_components * (4 * itemsize + 8) + 3 * n_features * itemsize
    return rows * per_row + 6 * 8 * n_components**2 + WORKSPACE
