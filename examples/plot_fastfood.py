"""
Fastfood: learned Fourier features without a matrix
===================================================

Random Fourier features multiply every sample by a d×J matrix of frequencies, and learning them trains all of it.
Fastfood (Le, Sarlós & Smola 2013) writes the matrix as a product of Hadamard transforms, a permutation and three
diagonals, so that a sample takes O(J log d) and only the diagonals and the phases are trained (Yang et al. 2015).

**When it helps.** Where d is in the thousands: there it saves most of the time and nearly all of the parameters (see
``benchmarks/fastfood.py``). With as many features it is less accurate than learned frequencies, which have d times the
freedom; with as many *parameters* it is far more accurate. For tens of features, use `LearnedFourier` or
`LearnedNystroem`.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from discernel import DiscernelClassifier, LearnedFastfood, LearnedFourier

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X.astype("float32") / 16, y, random_state=0, stratify=y)

# %%
# Learned and random features of both kinds, with a ridge head.

methods = {
    "Fourier, random": (LearnedFourier, None, "o:"),
    "Fourier, learned": (LearnedFourier, "di", "o-"),
    "Fastfood, random": (LearnedFastfood, None, "s:"),
    "Fastfood, learned": (LearnedFastfood, "di", "s-"),
}
fig, axes = plt.subplots(1, 2, figsize=(9, 3.5), sharey=True, layout="constrained")
for name, (kind, criterion, style) in methods.items():
    sizes, parameters, accuracies = [16, 32, 64, 128], [], []
    for size in sizes:
        features = kind(size, criterion=criterion, random_state=0)
        model = DiscernelClassifier(feature_map=features, head="ridge").fit(X_train, y_train)
        parameters.append(sum(p.numel() for p in model.transformer_.feature_map_.parameters()))
        accuracies.append(100 * model.score(X_test, y_test))
    for ax, x in zip(axes, (sizes, parameters), strict=True):
        ax.semilogx(x, accuracies, style, label=name, base=2)
axes[0].set(xlabel="features", ylabel="test accuracy, %")
axes[1].set(xlabel="parameters of the map")
axes[1].legend()
plt.show()
