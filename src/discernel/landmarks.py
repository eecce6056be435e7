"""Choosing the representative points that a Nyström map starts from: a uniform sample, or k-means centroids."""

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from discernel import checks

KMEANS_SAMPLES = 20_000
INITS = ("uniform", "kmeans")


def choose_landmarks(
    x: Tensor,
    n_components: int,
    init: str = "uniform",
    generator: torch.Generator | None = None,
    sample_weight: Tensor | None = None,
) -> Tensor:
    """Return `n_components` points (J×d) chosen from, or made of, the rows of `x`.

    Parameters
    ----------
    x : Tensor (n, d)
        The data.
    n_components : int
        How many landmarks, J; at most the number of distinct rows.
    init : {"uniform", "kmeans"}
        "uniform" samples rows without replacement, but equal rows only once (equal landmarks add nothing and make the
        gram singular); "kmeans" runs k-means++ and Lloyd's iterations on at most 20000 distinct rows.
    generator : torch.Generator, optional
        The source of randomness.
    sample_weight : Tensor (n,), optional
        How often each row counts: the same landmarks come from a weight of three as from a row that is there thrice.

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
    if sample_weight is not None:
        checks.weights(sample_weight, rows=len(x))
    rows, weight = distinct_rows(x, sample_weight)
    if n_components > len(rows):
        raise ValueError(f"n_components is {n_components}, but the data have only {len(rows)} distinct rows")
    # The least of exponential times with these rates is a sample without replacement in proportion to the weights.
    times = torch.empty(len(rows), dtype=torch.float64).exponential_(generator=generator) / weight
    order = rows[times.argsort()]
    if init == "uniform":
        return x[order[:n_components].to(x.device)]
    order = order[: max(KMEANS_SAMPLES, n_components)]
    sample, weight = x[order.to(x.device)].cpu().numpy(), weight[times.argsort()][: len(order)].numpy()
    seed = int(torch.randint(2**31 - 1, (), generator=generator))
    kmeans = KMeans(n_components, n_init=1, max_iter=100, random_state=seed).fit(sample, sample_weight=weight)
    return torch.as_tensor(kmeans.cluster_centers_, dtype=x.dtype, device=x.device)


def distinct_rows(x: Tensor, sample_weight: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return the index of a representative of each distinct row of positive weight, and the total weights.

    Their order depends on what is in the rows, not on where they stand.
    """
    weight = torch.ones(len(x)) if sample_weight is None else sample_weight
    weight = weight.detach().cpu().double().numpy()
    present = np.flatnonzero(weight > 0)
    # Rows are equal if a random hash of their bits is: far quicker than sorting rows. Numbers often end in zero bits,
    # so what a product moves up is folded down again.
    bits = (x.detach().cpu().numpy()[present] + 0.0).view(np.uint32).astype(np.uint64)
    factors = np.random.default_rng(0).integers(2**63, size=(2, bits.shape[1]), dtype=np.uint64) | np.uint64(1)
    bits *= factors[0]
    bits ^= bits >> np.uint64(32)
    digest = bits @ factors[1]
    _, first, group = np.unique(digest, return_index=True, return_inverse=True)
    return torch.from_numpy(present[first]), torch.from_numpy(np.bincount(group, weights=weight[present]))
