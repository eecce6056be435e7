"""Sources of data: rows and targets, in batches that the seed decides.

The order of the rows depends on their number and width and on the seed, not on where they are kept. Data of up to 2²⁶
numbers (256 MiB in float32) come in a random permutation. Larger ones are cut into blocks of consecutive rows, 2¹⁸
numbers each; a random block of each 128th of the data makes a load, whose rows are permuted. So a source that reads
from a disk reads whole megabytes, and holds two loads (256 MiB): that in use, and that which a thread is fetching; and
processes that have a part of the data each have about as much to do.
"""

import warnings
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy import sparse
from torch import Tensor

from discernel import checks
from discernel.linalg import unchanged
from discernel.targets import Targets

LOAD = 2**25  # numbers in the rows that are permuted together
BLOCKS = 128  # pieces of consecutive rows that make a load
MIN_ROWS = 2**14  # of a load, however wide they are


class Batch(NamedTuple):
    """Rows of the data with their targets and weights."""

    x: Tensor
    targets: Tensor
    sample_weight: Tensor | None

    def split(self, size: int) -> list["Batch"]:
        """Return parts of at most so many rows."""
        weights = [None] * -(-max(len(self.x), 1) // size)
        weights = weights if self.sample_weight is None else self.sample_weight.split(size)
        return list(map(Batch, self.x.split(size), self.targets.split(size), weights))


class Source(ABC):
    """Rows of data with their targets and, optionally, weights; a subclass says how rows are fetched."""

    targets: Targets
    sample_weight: Tensor | None
    width: int  # numbers of a row
    streams: bool = False  # whether rows come from a disk, and are worth fetching ahead
    rank: int = 0  # of this process
    ranks: int = 1  # how many processes share the rows
    start: int = 0  # of the rows that this process reads, if they share them
    stop: int  # of these rows
    total: Callable[[Tensor], Tensor] = staticmethod(unchanged)  # makes a sum over this process's rows one over all
    has_targets: bool = True  # or only stand-ins for them
    preprocessing: Any = None  # what has made the features of a table, a `Preprocessing`

    @abstractmethod
    def features(self, index) -> Tensor:
        """Return the features of the rows at `index`, an index tensor or a slice."""

    def _keep(self, targets: Targets, sample_weight: Tensor | None, n_rows: int, like: Tensor) -> None:
        """Check what goes with the rows of features, and put it where they are."""
        if len(checks.instance("targets", targets, Targets)) != n_rows:
            raise ValueError(f"targets must have {n_rows} rows, one for each row of x; got {len(targets)}")
        self.targets, self.width = targets.to(like), like[0].numel()
        self.sample_weight = None if sample_weight is None else checks.weights(sample_weight, n_rows).to(like)

    def __len__(self) -> int:
        return len(self.targets)

    @property
    def shape(self) -> tuple[int, int]:
        """How many rows of how many numbers, as an array has it."""
        return len(self), self.width

    @property
    def dtype(self) -> np.dtype:
        """The precision of the features, as an array has it."""
        return torch.empty(0, dtype=self.targets.dtype).numpy().dtype

    def rows(self, index) -> Batch:
        """Return the rows at `index`, an index tensor or a slice; where processes share them, the same in all."""
        return self._with_targets(index, self.features(index))

    def _with_targets(self, index, x: Tensor) -> Batch:
        return Batch(x, self.targets[index], None if self.sample_weight is None else self.sample_weight[index])

    def batches(self, size: int, generator: torch.Generator | None = None, skip: int = 0) -> Iterator[Batch]:
        """Yield batches of rows; where processes share them, those rows of each batch that this one reads, or none.

        With a `generator`, exactly `size` rows each in an order drawn from it, the tail left out, from batch number
        `skip` on; without one, all rows in their own order, the last batch being the rest.
        """
        order = map(self.mine, self.order(size, generator, skip))
        if not self.streams:
            yield from map(self.rows, order)
            return
        per_load = max(1, rows_of_a_load(self.width) // size)
        for load, stored in fetched_ahead(self._stored_load, iter(lambda: list(islice(order, per_load)), [])):
            start = 0
            for index in load:
                stop = start + self._count(index)
                yield self._with_targets(index, self._unpacked(stored[start:stop]))
                start = stop
            del stored  # before the thread begins with another

    def order(self, size: int, generator: torch.Generator | None = None, skip: int = 0) -> Iterator[slice | Tensor]:
        """Yield which rows are in each of the batches, of all processes: the index that `rows` takes."""
        checks.positive_int("size", size)
        if generator is None or size >= len(self):
            yield from (slice(start, start + size) for start in range(skip * size, len(self), size))
            return
        rest = torch.empty(0, dtype=torch.int64)
        for part in shuffled(len(self), self.width, generator, start=skip * size):
            rest = torch.cat([rest, part])
            whole = len(rest) // size * size
            yield from (rest[start : start + size] for start in range(0, whole, size))
            rest = rest[whole:]

    def mine(self, index: slice | Tensor) -> slice | Tensor:
        """Return those of the rows at `index` that this process reads."""
        if self.ranks == 1:
            return index
        if isinstance(index, slice):
            return slice(*(min(max(end, self.start), self.stop) for end in index.indices(len(self))[:2]))
        return index[self.reads(index)]

    def reads(self, index: Tensor) -> Tensor:
        """Return which of the rows at `index` this process reads, if processes share them."""
        return (index >= self.start) & (index < self.stop)

    def everywhere(self, values: Tensor) -> Tensor:
        """Return for all rows, in all processes, what each has found for those that it reads, in their order."""
        if self.ranks == 1:
            return values
        whole = values.new_zeros(len(self), *values.shape[1:])
        whole[self.mine(torch.arange(len(self)))] = values
        return self.total(whole)

    def _count(self, index: slice | Tensor) -> int:
        return len(range(*index.indices(len(self)))) if isinstance(index, slice) else len(index)

    def _stored_load(self, load: list) -> np.ndarray:
        """Fetch the rows of several batches; NumPy's work, since torch would start more threads in a thread."""
        whole = isinstance(load[0], slice)
        return self._stored(slice(load[0].start, load[-1].stop) if whole else torch.cat(load).numpy())

    def _stored(self, index: slice | np.ndarray) -> np.ndarray:
        """Return the rows at `index` as they are stored; a source that streams defines it."""
        raise NotImplementedError

    def _unpacked(self, stored: np.ndarray) -> Tensor:
        """Return the features in stored rows; a source that streams defines it. They share no memory."""
        raise NotImplementedError

    def fingerprint(self) -> int:
        """Return a checksum of a few rows, by which a checkpoint knows its data again."""
        rows = self.rows(torch.arange(64) * (len(self) - 1) // 63)
        return zlib.crc32(b"".join(part.cpu().numpy().tobytes() for part in rows if part is not None))


def rows_of_a_load(width: int) -> int:
    """Return how many rows of this width are permuted together."""
    return max(LOAD // width, MIN_ROWS)


def shuffled(n_rows: int, width: int, generator: torch.Generator, start: int = 0) -> Iterator[Tensor]:
    """Yield the numbers of all rows, a load at a time, in the order that the generator draws, from `start` on."""
    rows = rows_of_a_load(width)
    if n_rows <= 2 * rows:
        yield torch.randperm(n_rows, generator=generator)[start:]
        return
    block = max(1, rows // BLOCKS)
    blocks = spread(-(-n_rows // block), generator)
    seed = int(torch.randint(2**62, (), generator=generator))
    for number, some in enumerate(blocks.split(BLOCKS)):
        index = (some[:, None] * block + torch.arange(block)).flatten()
        index = index[index < n_rows]  # the last block is the rest
        if start < len(index):
            inner = torch.Generator().manual_seed(seed + number)
            yield index[torch.randperm(len(index), generator=inner)[start:]]
        start = max(0, start - len(index))


def spread(n_blocks: int, generator: torch.Generator) -> Tensor:
    """Return the blocks in a random order in which every load, but the last, has one of each 128th of the data.

    Examples
    --------
    >>> order = spread(256, torch.Generator().manual_seed(0))
    >>> sorted((order[:128] // 2).tolist()) == list(range(128))
    True
    """
    drawn = torch.randperm(n_blocks, generator=generator)
    drawn = drawn[(drawn * BLOCKS // n_blocks).argsort(stable=True)]  # of the first 128th, then of the second, ...
    counts = torch.bincount(drawn * BLOCKS // n_blocks, minlength=BLOCKS)
    turn = torch.arange(n_blocks) - (counts.cumsum(0) - counts).repeat_interleave(counts)
    return drawn[turn.argsort(stable=True)]


def fetched_ahead(fetch: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[tuple[Any, Any]]:
    """Yield each item with what `fetch` returns for it, which a thread has meanwhile done for the next one.

    The thread ends with the generator, also when that is closed early.
    """
    with ThreadPoolExecutor(1) as pool:
        now = None
        for item in items:
            following = item, pool.submit(fetch, item)
            if now is not None:
                yield now[0], now[1].result()
            now = following
        if now is not None:
            yield now[0], now[1].result()


class ArraySource(Source):
    """Data in memory, or in a memory-mapped file.

    Parameters
    ----------
    x : Tensor or NumPy array (n, ...)
        One sample a row, float32 or float64; this decides the precision and the device of what is trained on it. A
        `numpy.memmap` is read ahead of its use; the pages read count as resident, but the system can drop them.
    targets : Targets
        What is to be predicted.
    sample_weight : Tensor (n,), optional
        How often each row counts.

    Examples
    --------
    >>> source = ArraySource(torch.arange(10.0)[:, None], Targets.values(np.arange(10)))
    >>> [len(batch.x) for batch in source.batches(4)]
    [4, 4, 2]
    """

    def __init__(self, x: Tensor | np.ndarray, targets: Targets, sample_weight: Tensor | None = None):
        self.streams = isinstance(x, np.memmap)
        x = as_tensor(x) if isinstance(x, np.ndarray) else x
        checks.precise("x", x)
        if x.ndim < 2 or 0 in x.shape:
            raise ValueError(f"x must have a row for each sample and at least one feature, got shape {tuple(x.shape)}")
        self.x = x
        self._keep(targets, sample_weight, len(x), x)

    def features(self, index) -> Tensor:
        """Return the rows at `index`; a slice is not copied."""
        return self.x.index_select(0, index.to(self.x.device)) if isinstance(index, Tensor) else self.x[index]

    def _stored(self, index):
        stored = self.x.numpy()[index]
        return stored.copy() if isinstance(index, slice) else stored  # a copy is what has been read

    def _unpacked(self, stored):
        return torch.from_numpy(stored.copy())


def as_tensor(x: np.ndarray) -> Tensor:
    """Return a tensor of the same memory where the strides allow it; it is never written to."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        return torch.from_numpy(np.asarray(x) if all(stride > 0 for stride in x.strides) else x.copy())


class View(Source):
    """Rows of another source: some of them, or with other targets and weights, or on another device.

    Parameters
    ----------
    whole : Source
        Where the rows are.
    index : Tensor, optional
        Which of them, in which order; by default all.
    targets : Targets, optional
        What is to be predicted of these rows, if not what was of the others.
    sample_weight : Tensor, optional
        How often each of them counts, if it is not to be as often as before.
    device : torch.device or str, optional
        Where batches are put.
    """

    def __init__(
        self,
        whole: Source,
        index: Tensor | None = None,
        targets: Targets | None = None,
        sample_weight: Tensor | None = None,
        device: torch.device | str | None = None,
    ):
        self.whole, self.index, self.device = whole, index, device
        for name in ("streams", "has_targets", "preprocessing", "rank", "ranks", "total"):
            setattr(self, name, getattr(whole, name))
        if targets is None:
            targets = whole.targets if index is None else whole.targets.take(index)
        if sample_weight is None and whole.sample_weight is not None:
            sample_weight = whole.sample_weight if index is None else whole.sample_weight[index]
        n_rows = len(whole) if index is None else len(index)
        self._keep(targets, sample_weight, n_rows, self.features(slice(0, 1)))

    def features(self, index) -> Tensor:
        """Return the features of the rows at `index` of this view."""
        return self.whole.features(index if self.index is None else self.index[index]).to(self.device)

    def mine(self, index):
        """Return those of the rows at `index` of this view that this process reads."""
        if self.index is None:
            return self.whole.mine(index)
        return super().mine(torch.arange(len(self))[index] if self.ranks > 1 else index)

    def reads(self, index):
        """Return which of the rows at `index` of this view this process reads."""
        return self.whole.reads(index if self.index is None else self.index[index])

    def _stored(self, index):
        return self.whole._stored(index if self.index is None else self.index[index].numpy())

    def _unpacked(self, stored):
        return self.whole._unpacked(stored).to(self.device)


class SparseSource(Source):
    """Data in a SciPy CSR matrix, of which only the rows of a batch are ever made dense.

    Parameters
    ----------
    x : scipy.sparse CSR matrix or array (n, d)
        One sample a row, float32 or float64.
    targets : Targets
        What is to be predicted.
    sample_weight : Tensor (n,), optional
        How often each row counts.
    device : torch.device or str
        Where batches are put.

    Examples
    --------
    >>> source = SparseSource(sparse.csr_matrix(np.eye(3)), Targets.classes(["a", "b", "a"]))
    >>> source.features(slice(0, 1))
    tensor([[1., 0., 0.]], dtype=torch.float64)
    """

    def __init__(self, x: Any, targets: Targets, sample_weight: Tensor | None = None, device="cpu"):
        if not sparse.issparse(x) or x.format != "csr":
            raise TypeError(f"x must be a scipy.sparse CSR matrix or array, got {type(x).__name__}")
        checks.tensor("x", torch.from_numpy(np.require(x.data, requirements="W")))  # torch warns of read-only memory
        self.x, self.device = x, device
        self._keep(targets, sample_weight, x.shape[0], self.features(slice(0, 1)))

    def features(self, index) -> Tensor:
        """Return the rows at `index`, dense."""
        rows = self.x[index.numpy() if isinstance(index, Tensor) else index]
        return torch.from_numpy(rows.toarray()).to(self.device)


class Shard(Source):
    """The rows of a source that one of several processes reads: a contiguous part of them.

    Its batches are those of the whole source, less the rows of the others; it may have none in a batch. Rows that are
    asked for by number, and the number of rows, are those of the whole.

    Parameters
    ----------
    whole : Source
        What all the processes have.
    rank, ranks : int
        The number of this process, and how many there are.
    total : callable
        Returns the sum of a tensor over the processes.
    """

    def __init__(self, whole: Source, rank: int, ranks: int, total: Callable[[Tensor], Tensor]):
        self.whole, self.rank, self.ranks, self.total = whole, rank, ranks, total
        self.start, self.stop = (len(whole) * number // ranks for number in (rank, rank + 1))
        for name in ("targets", "sample_weight", "width", "streams", "has_targets", "preprocessing"):
            setattr(self, name, getattr(whole, name))

    def features(self, index) -> Tensor:
        """Return the features of the rows at `index` of the whole."""
        return self.whole.features(index)

    def _stored(self, index):
        return self.whole._stored(index)

    def _unpacked(self, stored):
        return self.whole._unpacked(stored)
