"""What a step may use: as many threads as pay, memory that is kept, and rows that are in the cache."""

import math
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from threadpoolctl import ThreadpoolController
from torch import Tensor

CHUNK = 64  # rows of a wide matrix that are worked on while they are in the cache, at least
_CACHED, _SHARED = 2**17, 2**19  # entries of them: on one thread, and on each of several, which take time to wake
_ONE_THREAD = 1e8  # multiplications
LARGE = 2**20  # bytes of a matrix whose memory is kept
_ALIGNED = 64  # bytes
_SEEN = 2**23  # bytes, more than the products of a step that are in the cache

_thread = threading.local()
_limiting = threading.Lock()
_limited = False  # whether a Python thread is to put back the threads of numpy's and scipy's BLAS


@contextmanager
def threads_for(work: float) -> Iterator[None]:
    """Use one thread if the work of a step (in multiplications) is so little that waking others costs more.

    On a busy machine it costs forty times more. The setting is put back at the end.
    """
    before, outside = torch.get_num_threads(), alone()
    if before > 1 and work >= _ONE_THREAD:
        yield
        return
    if before > 1:  # a Python thread that begins while another is in here finds the 1 of that
        torch.set_num_threads(1)
    _thread.alone = True
    try:
        with one_thread():
            yield
    finally:
        _thread.alone = outside
        if before > 1:
            torch.set_num_threads(before)


def alone() -> bool:
    """Return whether `threads_for` has this Python thread, and numpy's and scipy's BLAS, use one thread."""
    return getattr(_thread, "alone", False)


def single_threaded(a: Tensor) -> bool:
    """Return whether one thread of the processor works on `a`, as scipy's libraries can too."""
    return a.device.type == "cpu" and torch.get_num_threads() == 1


@contextmanager
def one_thread() -> Iterator[None]:
    """Have numpy's and scipy's BLAS, which have threads of their own, use one.

    The first Python thread that asks for it sets them, and puts them back: of two at once, one would put back a 1.
    """
    global _limited
    with _limiting:
        first = not (_limited or _have_one_thread())
        limit = _libraries().limit(limits=1).__enter__() if first else None
        _limited = _limited or first
    try:
        yield
    finally:
        if limit is not None:
            with _limiting:
                limit.__exit__(None, None, None)
                _limited = False


def by_one_thread(call: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call a function of numpy or scipy with its BLAS on one thread."""
    if _have_one_thread():
        return call(*args, **options)
    with one_thread():
        return call(*args, **options)


def _have_one_thread() -> bool:
    return all(library.num_threads == 1 for library in _libraries().lib_controllers)


@cache
def _libraries() -> ThreadpoolController:
    return ThreadpoolController().select(user_api="blas")


Memory = dict[int, list[np.ndarray]]  # blocks by their size


@contextmanager
def kept(memory: Memory) -> Iterator[None]:
    """Have `empty` use this memory again and again, and add to it what it needs more.

    Large blocks that are freed go back to the system: to be given new ones takes longer than to fill them.
    """
    _have_freed_blocks_kept()
    before = getattr(_thread, "memory", None)
    _thread.memory = memory
    try:
        yield
    finally:
        _thread.memory = before


@cache
def _have_freed_blocks_kept() -> None:
    """Have glibc not give back at once what a step's products free, but only to get it again.

    For the rest of the process, as after any tensor of this size, it takes smaller blocks from its heap, and keeps
    twice as much at the end of that.
    """
    torch.empty(_SEEN, dtype=torch.uint8)


def empty(shape: Sequence[int], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Return a new tensor with undefined entries where `like` is, in memory that is `kept` if there is some."""
    memory, dtype = getattr(_thread, "memory", None), dtype or like.dtype
    size = math.prod(shape) * dtype.itemsize
    if memory is None or size < LARGE or like.device.type != "cpu":
        return torch.empty(shape, dtype=dtype, device=like.device)
    blocks = memory.setdefault(size, [])
    if _UNUSED not in (uses := _references(blocks)):
        blocks.append(np.empty(size + _ALIGNED, np.uint8))
        uses.append(_UNUSED)
    block = blocks[uses.index(_UNUSED)]
    start = -block.ctypes.data % _ALIGNED
    return torch.from_numpy(block[start : start + size]).view(dtype).view(shape)


def _references(blocks: list[np.ndarray]) -> list[int]:
    """Return how often each of the blocks is referred to: more often while a tensor has a part in it."""
    return [sys.getrefcount(block) for block in blocks]


_UNUSED = _references([np.empty(0)])[0]


def chunk_rows(width: int, depth: int = 0) -> int:
    """Return how many rows of this width are worked on at a time, while they are in the cache.

    Where they are the result of a product, or a factor of one, not fewer than its `depth`, or that would be slow.
    """
    threads = torch.get_num_threads()
    entries = _CACHED if threads == 1 else _SHARED * threads
    return max(CHUNK, min(depth, 1024), entries // max(width, 1))


def in_parts(rows: int, *tensors: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Yield so many rows of each of the tensors at a time; where they have no more, the tensors themselves."""
    if len(tensors[0]) <= rows:
        yield tensors
    else:
        yield from zip(*(tensor.split(rows) for tensor in tensors), strict=True)
