"""Rules of thumb for the bandwidth γ, for whichever power of the units of the data a kernel's γ undoes."""

import math

import torch
from torch import Tensor


def scale_gamma(x: Tensor, sample_weight: Tensor | None = None, power: int = 2) -> float:
    """Return 1/(dσᵖ), where σ² is the variance of all entries of `x` (n×d), or 1/d where they do not vary.

    Examples
    --------
    >>> scale_gamma(torch.tensor([[1.0, 1.0], [5.0, 5.0]])), scale_gamma(torch.tensor([[1.0], [5.0]]), power=1)
    (0.125, 0.5)
    """
    weight = (torch.ones(len(x)) if sample_weight is None else sample_weight).double().to(x.device)
    weight = weight / weight.sum()
    x = x.double() - x[0, 0].double()  # equal entries are then zero, exactly
    variance = (weight @ (x - (weight @ x).mean()).square()).mean().item()
    if not math.isfinite(variance):
        raise ValueError("the features are so large that their variance overflows: rescale them")
    return 1.0 / (x.shape[1] * variance ** (power / 2)) if variance > 0 else 1.0 / x.shape[1]


def median_gamma(x: Tensor, pairs: Tensor, sample_weight: Tensor | None = None, power: int = 2) -> float:
    """Return 1/(the median of Σ|aᵢ − bᵢ|ᵖ over pairs of rows), the median heuristic; `scale_gamma` where that is zero.

    Parameters
    ----------
    x : Tensor (n, d)
        The data.
    pairs : Tensor (2m,)
        Indices of rows, of which the first m are paired with the others.
    sample_weight : Tensor (n,), optional
        How often each row counts in `scale_gamma`.
    power : int
        The kernel's `power`, p.

    Examples
    --------
    >>> median_gamma(torch.tensor([[0.0], [2.0]]), torch.tensor([0, 1]))
    0.25
    """
    a, b = x[pairs.to(x.device)].double().chunk(2)
    distance = (a - b).abs().pow(power).sum(1).median().item()
    return 1.0 / distance if 0 < distance < math.inf else scale_gamma(x, sample_weight, power)
