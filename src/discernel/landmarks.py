"""Choosing the representative points that a Nyström map starts from: a sample, uniform or not, or k-means centroids."""

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from discernel import checks
from discernel.kernels import Kernel
from discernel.linalg import inverse_sqrt, symmetric_product

CHUNK = 256
ROUNDING = 1e-10  # of the largest eigenvalue: what is less is not told from zero
SAMPLES = 20_000  # rows that all but uniform landmarks are chosen from
INITS = ("uniform", "kmeans", "leverage")


def choose_landmarks(
    x: Tensor,
    n_components: int,
    init: str = "uniform",
    generator: torch.Generator | None = None,
    sample_weight: Tensor | None = None,
    kernel: Kernel | None = None,
) -> Tensor:
    """Return `n_components` points (J×d) chosen from, or made of, the rows of `x`.

    Parameters
    ----------
    x : Tensor (n, d)
        The data.
    n_components : int
        How many landmarks, J; at most the number of distinct rows.
    init : {"uniform", "kmeans", "leverage"}
        "uniform" samples rows without replacement, but equal rows only once (equal landmarks add nothing and make the
        gram singular); "kmeans" runs k-means++ and Lloyd's iterations on at most 20000 distinct rows; "leverage"
        samples as many in proportion to their `leverage_scores` (Gittens & Mahoney 2016).
    generator : torch.Generator, optional
        The source of randomness.
    sample_weight : Tensor (n,), optional
        How often each row counts: the same landmarks come from a weight of three as from a row that is there thrice.
    kernel : Kernel, optional
        That of the map, by which "leverage" judges the rows.

    Examples
    --------
    >>> x = torch.tensor([[0.0], [0.0], [0.0], [5.0]])
    >>> choose_landmarks(x, 2).sort(0).values.squeeze()
    tensor([0., 5.])
    """
    checks.precise("x", checks.matrix("x", x))
    checks.positive_int("n_components", n_components)
    checks.one_of("init", init, INITS)
    if n_components > len(x):
        raise ValueError(f"n_components must be at most the number of samples, {len(x)}; got {n_components}")
    if sample_weight is not None:
        checks.weights(sample_weight, rows=len(x))
    rows, weight = distinct_rows(x, sample_weight)
    if n_components > len(rows):
        raise ValueError(f"n_components is {n_components}, but the data have only {len(rows)} distinct rows")
    order = _sampled(weight, generator)
    rows, weight = rows[order], weight[order]
    if init == "uniform":
        return x[rows[:n_components].to(x.device)]
    most = max(SAMPLES, n_components)
    sample, weight = x[rows[:most].to(x.device)], weight[:most]
    if init == "kmeans":
        return _centroids(sample, n_components, generator, weight)
    if kernel is None:
        raise ValueError('init="leverage" needs the kernel by which rows are alike: pass kernel=')
    scores = leverage_scores(sample, kernel, n_components, weight)
    return sample[_sampled(scores, generator)[:n_components].to(x.device)]


def _sampled(weight: Tensor, generator: torch.Generator | None) -> Tensor:
    """Return indices in the order of a sample without replacement in proportion to the weights.

    That is the order of exponential times with these rates.
    """
    return (torch.empty(len(weight), dtype=torch.float64).exponential_(generator=generator) / weight.cpu()).argsort()


def _centroids(x: Tensor, n_components: int, generator: torch.Generator | None, weight: Tensor) -> Tensor:
    seed = int(torch.randint(2**31 - 1, (), generator=generator))
    kmeans = KMeans(n_components, n_init=1, max_iter=100, random_state=seed)
    centroids = kmeans.fit(x.cpu().numpy(), sample_weight=weight.numpy()).cluster_centers_
    return torch.as_tensor(centroids, dtype=x.dtype, device=x.device)


def leverage_scores(x: Tensor, kernel: Kernel, rank: int, sample_weight: Tensor | None = None) -> Tensor:
    """Return how much each row counts in a subspace of dimension k that holds most of the kernel matrix K of the rows.

    ℓᵢ = (K(K + λI)⁻¹)ᵢᵢ from 0 to 1, where λ is the sum of all but the k largest eigenvalues divided by k; that of an
    approximation K ≈ ΦΦᵀ + D, in O(nk²): Φ are the Nyström features with the first 2k rows as landmarks, which should
    therefore be in random order, and the diagonal D is what they leave of kᵢᵢ. So a row unlike all others has a score
    near one.

    Parameters
    ----------
    x : Tensor (n, d)
        The data.
    kernel : Kernel
        The kernel.
    rank : int
        The dimension k.
    sample_weight : Tensor (n,), optional
        How often each row is there; its score is the sum over all of them.

    Examples
    --------
    >>> from discernel.kernels import RBF
    >>> x = torch.tensor([[0.0], [0.0], [0.0], [9.0]])
    >>> leverage_scores(x, RBF(1.0), rank=2)  # three rows share a dimension, the last has one of its own
    tensor([0.3333, 0.3333, 0.3333, 1.0000], dtype=torch.float64)
    """
    x = x.detach().double()
    weight = x.new_ones(len(x)) if sample_weight is None else sample_weight.to(x)
    with torch.no_grad():
        few = x[: 2 * checks.positive_int("rank", rank)]
        features = kernel(x, few) @ inverse_sqrt(kernel(few, few))
        own = torch.cat([kernel(part, part).diagonal() for part in x.split(CHUNK)])
        if not bool(own.any()):
            return own  # of a kernel that is zero, which has no dimension to count in
        left = weight * (own - features.square().sum(1)).clamp_min(0)  # D
        features *= weight.sqrt()[:, None]
        scatter = symmetric_product(features)
        values = torch.linalg.eigvalsh(scatter)
        penalty = torch.maximum((values[:-rank].sum() + left.sum()) / rank, ROUNDING * values[-1])
        shift = left + penalty
        inner = symmetric_product(features / shift.sqrt()[:, None])  # (ΦΦᵀ + D + λI)⁻¹ by Woodbury's formula
        inner.diagonal().add_(1)
        half = torch.linalg.solve_triangular(torch.linalg.cholesky(inner), features.T, upper=False)
        return 1 - penalty / shift + penalty / shift.square() * half.square().sum(0)


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
