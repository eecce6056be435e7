"""Several processes that train one model: each reads its share of the rows, and every sum goes over all of them.

The moments of a batch, the gradients and the heads' sums are added up exactly, so the number of processes does not
matter to the result but for rounding. (Averaging the gradients of each process's own criterion would be another thing:
the criterion of a batch is not the mean of those of its parts.) Processes are those of `torch.distributed`: started by
``torchrun``, or by a user's own ``init_process_group``.
"""

import json
import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn  # while there is no group: its default arguments would hold one, and its threads, for good
from torch import Tensor

from discernel.data import Shard, Source

TIMEOUT = 300.0  # seconds that a process waits for the others


class ProcessLost(ConnectionError):
    """Another process of the group has ended, or does not answer."""


@contextmanager
def processes(timeout: float = TIMEOUT) -> Iterator[None]:
    """Join the processes that `torchrun` has started, if it has, and leave them at the end."""
    if "TORCHELASTIC_RUN_ID" not in os.environ or dist.is_initialized():
        yield
        return
    cuda = torch.cuda.is_available()
    if cuda:
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    try:
        dist.init_process_group("nccl" if cuda else "gloo", timeout=timedelta(seconds=timeout))
    except RuntimeError as error:
        raise ProcessLost(f"not all processes have come together within {timeout:g} s: {error}") from error
    try:
        yield
    finally:
        dist.destroy_process_group()


def first() -> bool:
    """Return whether this process is the one to write and to speak, also before it has joined the others."""
    return int(os.environ.get("RANK", "0")) == 0 if "TORCHELASTIC_RUN_ID" in os.environ else rank() == 0


def restarted() -> bool:
    """Return whether `torchrun` has started the processes again, because one of them was lost."""
    return int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")) > 0


def rank() -> int:
    """Return the number of this process among those that train together; zero if it is alone."""
    return dist.get_rank() if size() > 1 else 0


def size() -> int:
    """Return how many processes train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def sharded(source: Source) -> Source:
    """Return the share of this process in a source that all processes have; all of it if it is alone."""
    return source if size() == 1 or source.ranks > 1 else Shard(source, rank(), size(), total)


def total(tensor: Tensor) -> Tensor:
    """Return the sum of a tensor over the processes, the same bits in all of them; where the tensor is."""
    out = tensor.detach().to(_device(), copy=True, memory_format=torch.contiguous_format)
    try:
        dist.all_reduce(out)
    except RuntimeError as error:
        raise ProcessLost(f"another process has ended or does not answer: {error}") from error
    return out.to(tensor.device)


def agreed(number: int) -> int:
    """Return the first process's number, in all of them."""
    if size() == 1:
        return number
    return int(total(torch.tensor(number if rank() == 0 else 0)))


def gathered(part: np.ndarray) -> list[np.ndarray]:
    """Return what all the processes have, in their order: arrays that differ in their length alone."""
    if size() == 1:
        return [part]
    lengths = torch.zeros(size(), dtype=torch.int64)
    lengths[rank()] = len(part)
    lengths = total(lengths).tolist()
    row = part.dtype.itemsize * math.prod(part.shape[1:])
    out = torch.zeros(row * sum(lengths), dtype=torch.uint8)
    start = row * sum(lengths[: rank()])
    out[start : start + part.nbytes] = torch.from_numpy(np.frombuffer(part.tobytes(), np.uint8).copy())
    whole = total(out).numpy().view(part.dtype).reshape(-1, *part.shape[1:])
    return np.split(whole, np.cumsum(lengths)[:-1])


def gathered_json(content: Any) -> list[Any]:
    """Return what all the processes have, in their order: anything that JSON holds."""
    return [json.loads(part.tobytes()) for part in gathered(np.frombuffer(json.dumps(content).encode(), np.uint8))]


def _device() -> str:
    """Return where sums are taken: nccl knows no other tensors than CUDA's."""
    return "cuda" if dist.get_backend() == "nccl" else "cpu"
