"""Choosing the representative points that a Nyström map starts from: a uniform sample, or k-means centroids."""

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from discernel import checks

KMEANS_SAMPLES = 20_000
INITS = ("uniform", "kmeans")


def choose_landmarks(
    x: Tensor, n_components: int, init: str = "uniform", generator: torch.Generator | None = None
) -> Tensor:
    """Return `n_components` points (J×d) chosen from, or made of, the rows of `x`.

    Parameters
    ----------
    x : Tensor (n, d)
        The data.
    n_components : int
        How many landmarks, J; at most the number of distinct rows.
    init : {"uniform", "kmeans"}
        "uniform" samples rows without replacement, passing over rows equal to one already chosen (equal landmarks add
        nothing and make the gram singular); "kmeans" runs k-means++ and Lloyd's iterations on at most 20000 rows.
    generator : torch.Generator, optional
        The source of randomness.

    Examples
    --------
    >>> x = torch.tensor([[0.0], [0.0], [0.0], [5.0]])
    >>> choose_landmarks(x, 2).sort(0).values.squeeze()
    tensor([0., 5.])
    """
    checks.matrix("x", x)
    checks.positive_int("n_components", n_components)
    checks.one_of("init", init, INITS)
    if n_components > len(x):
        raise ValueError(f"n_components must be at most the number of samples, {len(x)}; got {n_components}")
    order = torch.randperm(len(x), generator=generator)
    if init == "uniform":
        return x[_distinct(x, order, n_components)]
    sample = x[order[:KMEANS_SAMPLES].sort().values].cpu().numpy()
    _distinct(x, order, n_components)  # fewer distinct rows than clusters is an error here too
    seed = int(torch.randint(2**31 - 1, (), generator=generator))
    centroids = KMeans(n_components, n_init=1, max_iter=100, random_state=seed).fit(sample).cluster_centers_
    return torch.as_tensor(centroids, dtype=x.dtype, device=x.device)


def _distinct(x: Tensor, order: Tensor, count: int) -> Tensor:
    """Return the first `count` indices of `order` whose rows differ from all rows before them."""
    taken = 2 * count
    while True:
        head = order[:taken]
        _, first = np.unique(x[head].cpu().numpy(), axis=0, return_index=True)
        if len(first) >= count:
            return head[torch.from_numpy(np.sort(first)[:count])]
        if taken >= len(order):
            raise ValueError(f"n_components is {count}, but the data have only {len(first)} distinct rows")
        taken *= 2
