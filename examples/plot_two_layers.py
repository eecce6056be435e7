"""
Two layers: kernels on learned features
=======================================

A feature map is a torch Module, so maps stack: Fourier features of Fourier features are a deep kernel, and a linear
layer before a Nyström map is a kernel in a learned subspace. `LearnedFeatures` trains all layers together by DI.

**When it helps.** When the features that come out are to be few: ten of two layers do what forty of one do here, though
with a hundred hidden ones before them. With many features in the end one layer does as well. A bottleneck shows *where*
the classes differ: two numbers for each digit that can be drawn, and from which a kernel machine tells more of them
than from LDA's two.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC
from torch import nn

from discernel import RBF, DiscernelClassifier, LearnedFeatures, LearnedFourier, Nystroem, RandomFourier, Trainer

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X.astype("float32") / 16, y, random_state=0, stratify=y)
trainer = Trainer(max_epochs=100, learning_rate=0.05)

# %%
# A hundred Fourier features, and a few Fourier features of them, beside as few in one layer.


def fourier_of_fourier(size, seed):
    """Return the stacked maps; φ(x) has unit length about, so that γ = 1 suits the second."""
    generator = torch.Generator().manual_seed(seed)
    first = RandomFourier.sample(RBF(0.1), 64, 100, generator)
    return nn.Sequential(first, RandomFourier.sample(RBF(1.0), 100, size, generator))


sizes, accuracy = [5, 10, 20, 40], {"one layer": [], "two layers": []}
for size in sizes:
    found = {name: [] for name in accuracy}
    for seed in range(3):
        maps = {
            "one layer": LearnedFourier(size, trainer=trainer, random_state=seed),
            "two layers": LearnedFeatures(fourier_of_fourier(size, seed), trainer=trainer, random_state=seed),
        }
        for name, feature_map in maps.items():
            model = DiscernelClassifier(feature_map=feature_map, head="softmax").fit(X_train, y_train)
            found[name].append(100 * model.score(X_test, y_test))
    for name, scores in found.items():
        accuracy[name].append(np.mean(scores))
for name, means in accuracy.items():
    print(f"{name:10}", *(f"{mean:.1f}" for mean in means))

# %%
# Fifty landmarks in a plane, which is learned with them: the linear layer starts at LDA's two directions.

start = LinearDiscriminantAnalysis(solver="eigen", shrinkage=0.1, n_components=2).fit(X_train, y_train)
directions = torch.from_numpy(start.scalings_[:, :2].T).float()
directions /= (torch.from_numpy(X_train) @ directions.T).std(0)[:, None]
bottleneck = nn.Linear(64, 2, bias=False)
bottleneck.weight = nn.Parameter(directions)
landmarks = torch.from_numpy(X_train[:50]) @ directions.T
plane = nn.Sequential(bottleneck, Nystroem(landmarks, RBF(4.0)))
learned = LearnedFeatures(plane, trainer=trainer, random_state=0).fit(X_train, y_train)
weight = learned.feature_map_.module[0].weight.numpy()

# %%
# The two planes, with what a kernel machine makes of them.

fig, axes = plt.subplots(1, 3, figsize=(11, 3.6), layout="constrained")
for name, means in accuracy.items():
    axes[0].plot(sizes, means, "o-", label=name)
axes[0].set(xlabel="Fourier features", ylabel="test accuracy, %", xscale="log")
axes[0].set_xticks(sizes, sizes)
axes[0].minorticks_off()
axes[0].legend()
for ax, name, w in zip(axes[1:], ("LDA", "learned by DI"), (directions.numpy(), weight), strict=True):
    model = SVC(C=10).fit(X_train @ w.T, y_train)
    ax.scatter(*(X_test @ w.T).T, c=y_test, cmap="tab10", s=8)
    ax.set(xticks=[], yticks=[], title=f"{name}: {100 * model.score(X_test @ w.T, y_test):.1f}%")
    print(ax.get_title())
plt.show()
