"""
Regression with a learned metric
================================

The targets of a regression are the matrix Y of the criterion as they are, one column or many. With a bandwidth for each
feature, trained along with the landmarks, the kernel finds out which features the target depends on.

**When it helps.** When many features are noise, or of different scales: a kernel with one bandwidth sees mostly those.
Here two features of ten matter, and one of the two much more finely than the other.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.kernel_approximation import Nystroem
from sklearn.linear_model import RidgeCV
from sklearn.model_selection import train_test_split
from sklearn.pipeline import make_pipeline

from discernel import DiscernelRegressor, feature_importance

rng = np.random.default_rng(0)
X = rng.uniform(-1, 1, (2000, 10)).astype("float32")
y = np.sin(6 * X[:, 0]) + X[:, 1] ** 2 + 0.1 * rng.normal(size=2000)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)

# %%
# The same number of landmarks, random and learned, and many more random ones. The noise allows an R² of 0.98.

models = {}
for J in (50, 500):
    alphas = np.logspace(-6, 2, 9)
    models[f"random, J={J}"] = make_pipeline(Nystroem(gamma=0.3, n_components=J, random_state=0), RidgeCV(alphas))
models["learned, one γ, J=50"] = DiscernelRegressor(50, gamma="scale", random_state=0)
models["learned γ, J=50"] = DiscernelRegressor(50, random_state=0)
scores = {name: model.fit(X_train, y_train).score(X_test, y_test) for name, model in models.items()}
for name, score in scores.items():
    print(f"{name:22} R² = {score:.3f}")

# %%
# What it has found: the importance of the features, and the target along the first of them.

model = models["learned γ, J=50"]
fig, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
axes[0].bar(range(10), 100 * feature_importance(model, X_train))
axes[0].set(xlabel="feature", ylabel="importance, %", xticks=range(10))
line = np.zeros((200, 10), dtype="float32")
line[:, 0] = np.linspace(-1, 1, 200)
axes[1].plot(line[:, 0], np.sin(6 * line[:, 0]), color="0.6", linewidth=4, label="truth")
for name, style in (("random, J=500", ":"), ("learned γ, J=50", "-")):
    axes[1].plot(line[:, 0], models[name].predict(line), style, label=name)
axes[1].set(xlabel="first feature, the others zero", ylabel="target")
axes[1].legend()
plt.show()
