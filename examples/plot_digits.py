"""
Learned landmarks of digits
===========================

A Nyström map compares every row with a few landmarks. Random landmarks are training rows; learned ones are moved by the
gradient of the Discriminant Information until a ridge regression on the comparisons predicts the classes as well as it
can. They no longer look like digits: each has become a question about the differences between them.

**When it helps.** When few features have to do: with twenty landmarks the random ones make several times the errors.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from discernel import DCA, DiscernelClassifier, LearnedNystroem, plots

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X.astype("float32") / 16, y, random_state=0, stratify=y)

models = {}
for name, criterion in (("random", None), ("learned", "di")):
    features = LearnedNystroem(20, criterion=criterion, random_state=0)
    models[name] = DiscernelClassifier(feature_map=features).fit(X_train, y_train)
    print(f"{name:8} accuracy on the test rows: {models[name].score(X_test, y_test):.3f}")

# %%
# The landmarks. Zero is grey: learned ones have negative pixels.

figures = plt.figure(figsize=(8, 4.4), layout="constrained").subfigures(2, 1)
for figure, (name, model) in zip(figures, models.items(), strict=True):
    figure.suptitle(name, x=0.01, ha="left")
    plots.landmark_images(figure.subplots(2, 10), model.transformer_.components_, (8, 8))

# %%
# Training: the Discriminant Information, averaged over the mini-batches of each epoch.

fig, ax = plt.subplots(figsize=(5, 3), layout="constrained")
plots.training_curve(ax, models["learned"].history_)

# %%
# The test rows in the plane of the two most informative directions of the learned features.

fig, axes = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
for ax, (name, model) in zip(axes, models.items(), strict=True):
    plane = DCA(2).fit(model.transform(X_train), y_train)
    plots.components(ax, plane.transform(model.transform(X_test)), y_test)
    ax.set_title(name)
axes[0].get_legend().remove()

# %%
# The learned metric: γ of each pixel, which was the same for all of them at the start.

fig, ax = plt.subplots(figsize=(3.5, 3), layout="constrained")
image = ax.imshow(np.reshape(models["learned"].transformer_.gamma_, (8, 8)), cmap="magma")
ax.set_axis_off()
fig.colorbar(image, label="γ")
plt.show()
