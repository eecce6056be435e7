"""
Ways to a Nyström map
=====================

A Nyström map approximates a kernel by its values at a few landmarks. Landmarks can be drawn evenly, be the centres of
k-means, or be drawn by leverage scores (Gittens & Mahoney 2016); many can be averaged in parts (Kumar et al. 2009) or
reduced to the largest eigenvalues, by a randomised SVD (Li et al. 2015). DI learns them, for the classes and not for
the kernel.

**When it helps.** Of J landmarks, the centres of k-means approximate the kernel best. Leverage scores help where some
rows are unlike the others: here a small group far from the rest, of which an even draw has too few. An ensemble is for
where one decomposition of all landmarks is too large. To predict classes from few features, learn them.
``benchmarks/nystroem.py`` has more data and the times.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from discernel import RBF, DiscernelClassifier, LearnedNystroem, Nystroem, choose_landmarks

# %%
# The error in the kernel matrix, of even data and of data with a small group far away, median of ten draws.


def made(method: str, x: torch.Tensor, size: int, seed: int) -> Nystroem:
    kernel, generator = RBF(0.5), torch.Generator().manual_seed(seed)
    if method == "ensemble of 5":
        return Nystroem(choose_landmarks(x, size, generator=generator), kernel, experts=5)
    if method == "4J, reduced to J":
        return Nystroem(choose_landmarks(x, 4 * size, generator=generator), kernel, rank=size, randomized=True)
    return Nystroem(choose_landmarks(x, size, method, generator, kernel=kernel), kernel)


def error(method: str, x: torch.Tensor, size: int, seed: int) -> float:
    exact, phi = RBF(0.5)(x, x), made(method, x, size, seed)(x)
    return ((exact - phi @ phi.T).norm() / exact.norm()).item()


draw = torch.Generator().manual_seed(0)
even = torch.randn(1000, 5, generator=draw, dtype=torch.float64)
uneven = torch.cat([0.3 * even[:980], 0.3 * even[980:] + 8])
methods = ("uniform", "kmeans", "leverage", "ensemble of 5", "4J, reduced to J")
sizes = [10, 20, 40, 80]
fig, axes = plt.subplots(1, 2, figsize=(9, 3.5), sharey=True, layout="constrained")
for ax, (title, x) in zip(axes, {"even data": even, "2% of the rows far away": uneven}.items(), strict=True):
    for method, style in zip(methods, ("o:", "s-", "^-", "v--", "D--"), strict=True):
        with torch.no_grad():
            errors = [np.median([error(method, x, size, seed) for seed in range(10)]) for size in sizes]
        ax.loglog(sizes, errors, style, label=method)
    ax.set(title=title, xlabel="features J")
    ax.set_xticks(sizes, [str(size) for size in sizes])
    ax.minorticks_off()
axes[0].set_ylabel("relative error of the kernel matrix")
axes[0].legend()
plt.show()

# %%
# The accuracy of a ridge head on digits: there the landmarks that DI has learned lead, where they are few.

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X.astype("float32") / 16, y, random_state=0, stratify=y)
ways = {"uniform": (None, "o:"), "kmeans": (None, "s-"), "leverage": (None, "^-"), "learned by DI": ("di", "P-")}
fig, ax = plt.subplots(figsize=(4.5, 3.5), layout="constrained")
for name, (criterion, style) in ways.items():
    accuracies = []
    for size in sizes:
        init = "uniform" if criterion else name
        features = LearnedNystroem(size, criterion=criterion, init=init, gamma="scale")
        model = DiscernelClassifier(feature_map=features, head="ridge", random_state=0).fit(X_train, y_train)
        accuracies.append(100 * model.score(X_test, y_test))
    ax.semilogx(sizes, accuracies, style, label=name)
ax.set(xlabel="features J", ylabel="test accuracy, %")
ax.set_xticks(sizes, [str(size) for size in sizes])
ax.minorticks_off()
ax.legend()
plt.show()
