"""Several ranks in one process, for tests that look into it: each is a thread, and sums are handed around."""

import threading
from concurrent.futures import ThreadPoolExecutor

import torch

TIMEOUT = 60  # seconds that a rank waits for the others; an error in one of them ends the waiting at once


def together(ranks, work):
    """Return what work(rank, total) returns in each of the ranks, where `total` adds a tensor up over them."""
    barrier, parts = threading.Barrier(ranks, timeout=TIMEOUT), [torch.empty(0)] * ranks

    def run(rank):
        def total(tensor):
            parts[rank] = tensor.detach().clone()
            barrier.wait()
            found = torch.stack(parts).sum(0)
            barrier.wait()
            return found

        try:
            return work(rank, total)
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(ranks) as pool:
        futures = [pool.submit(run, rank) for rank in range(ranks)]
    errors = [error for error in (future.exception() for future in futures) if error is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error
    return [future.result() for future in futures]
