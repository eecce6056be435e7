"""How much each input feature matters to a fitted estimator, from the gradients of what it computes."""

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from discernel import checks
from discernel.data import Source, as_tensor
from discernel.estimators.sources import validated
from discernel.heads import LinearModel


def feature_importance(estimator: Any, X: Any, max_rows: int = 1000) -> np.ndarray:
    """Return the share of each input feature in what an estimator says, by its gradients at the rows of `X`.

    Feature i has the importance s_i √(mean over rows and outputs f of (∂f/∂x_i)²), s_i being its standard deviation:
    how far the outputs go when the feature moves by its own spread, the others staying where they are. The outputs are
    the scores of a linear head, else the features or components. Correlated features share what they have in common.

    Parameters
    ----------
    estimator : an estimator of discernel
        Fitted.
    X : array, data frame, CSR matrix (n, d), source or path
        Rows to look at, such as those it was trained on: whatever `predict` takes.
    max_rows : int
        At most so many of them, evenly spaced.

    Returns
    -------
    ndarray (d,)
        Shares, of sum one; zeros if nothing matters. Where the estimator was fitted on a table, the features are those
        of its preprocessing, `preprocessing_.feature_names`: a column of categories has several.

    Examples
    --------
    >>> from discernel import DiscernelRegressor
    >>> X = np.random.default_rng(0).uniform(size=(200, 3))
    >>> model = DiscernelRegressor(20, random_state=0).fit(X, np.sin(3 * X[:, 0]))
    >>> feature_importance(model, X).round(1)
    array([1., 0., 0.])
    """
    check_is_fitted(estimator)
    rows = _spread(validated(estimator, X), checks.positive_int("max_rows", max_rows))
    outputs, dtype = _outputs(estimator)
    size = _mean_square_gradient(outputs, as_tensor(rows).to(dtype)).sqrt().numpy() * rows.std(0, dtype=np.float64)
    return size / (size.sum() or 1.0)


def _spread(X: Any, count: int) -> np.ndarray:
    """Return so many of the rows, evenly spaced, or all if there are fewer."""
    count = min(X.shape[0], count)
    index = np.arange(count) * X.shape[0] // count
    if isinstance(X, Source):
        return X.features(torch.from_numpy(index)).cpu().numpy()
    return X[index].toarray() if sp.issparse(X) else X[index]


def _mean_square_gradient(outputs: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Return the mean over rows and outputs of (∂f/∂x_i)², for each i. Rows have to be independent of each other."""
    x = x.detach().requires_grad_(True)
    total, values = torch.zeros(x.shape[1], dtype=torch.float64), outputs(x)
    for column in values.sum(0):
        (slope,) = torch.autograd.grad(column, x, retain_graph=True)
        total += slope.double().square().mean(0)
    return total / values.shape[1]


def _outputs(estimator) -> tuple[Callable[[Tensor], Tensor], torch.dtype]:
    """Return what is differentiated, and the precision that it takes."""
    feature_map = getattr(estimator, "transformer_", estimator).feature_map_
    dtype = next((p.dtype for p in feature_map.parameters()), torch.float64)
    head = getattr(estimator, "head_", None)
    if isinstance(head, LinearModel):
        return lambda x: head.scores(feature_map.basis(x)), dtype
    if hasattr(estimator, "scalings_"):
        return lambda x: feature_map.basis(x) @ torch.from_numpy(estimator.scalings_), dtype
    return feature_map, dtype
