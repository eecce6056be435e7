"""
Criteria without a closed form
==============================

Discriminant Information solves for the best linear model of each mini-batch and differentiates with the model held
fixed, which is exact by the envelope theorem. `Profiled` does the same for losses whose best model is not a formula:
cross-entropy and the squared hinge, minimised for each mini-batch by L-BFGS. Joint training of map and model (CE) takes
one gradient step on both instead.

**When it helps.** When features are very few, fewer than the classes here: the loss that is trained is then the loss
that counts. With more of them DI does as well in a fraction of the time. The penalty ρ has to be large enough that a
mini-batch is not separated perfectly, where no gradient is left. ``benchmarks/profiled.py`` has the comparison on
larger data; start with DI.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from discernel import DiscernelClassifier, LearnedFourier, Trainer

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X.astype("float32") / 16, y, random_state=0, stratify=y)

# %%
# A few Fourier features, trained by each criterion for as many steps, with a softmax head.

criteria = {"none": (None, 1e-4), "DI": ("di", 1e-4), "joint CE": ("ce", 1e-4)}
criteria |= {"profiled CE": ("profiled_ce", 0.1), "profiled SVM": ("profiled_svm", 1.0)}
sizes = [5, 10, 20]
fig, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
for name, (criterion, rho) in criteria.items():
    means = []
    for size in sizes:
        trainer = Trainer(max_epochs=60)
        features = [
            LearnedFourier(size, criterion=criterion, rho=rho, trainer=trainer, random_state=seed) for seed in range(3)
        ]
        models = [DiscernelClassifier(feature_map=each, head="softmax").fit(X_train, y_train) for each in features]
        means.append(100 * np.mean([model.score(X_test, y_test) for model in models]))
    ax.plot(sizes, means, "o-", label=name)
    print(f"{name:13}", *(f"{mean:.1f}" for mean in means))
ax.set_xscale("log", base=2)
ax.set_xticks(sizes, sizes)
ax.set(xlabel="Fourier features", ylabel="test accuracy, %")
ax.legend()
plt.show()
