"""
Telling one thing and hiding another
====================================

The Discriminant Information comes from work on privacy (Kung 2017): features are to keep what is useful in the data and
lose what is nobody's business. `PrivacyDI` maximises DI(utility) − λ·DI(sensitive). Here the features of a digit should
tell which digit it is, and not in which of two inks it was written.

**When it helps.** It hides the second label from *linear* models on the features, which is what DI measures, and from
others only as far as nothing is left for them. A kernel machine on the features that are released may still find
something (its accuracy is drawn as well): where an adversary may use any model, measure it with that model, and treat
this as compression, not as a guarantee. Where the two labels depend on each other, utility is lost with the secret.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split
from sklearn.svm import SVC

from discernel import RBF, ArraySource, Nystroem, PrivacyDI, Targets, Trainer, choose_landmarks

# %%
# Digits in two inks: half of them are a little fainter.

X, y = load_digits(return_X_y=True)
ink = np.random.default_rng(0).integers(0, 2, len(X))
X = np.where(ink[:, None] == 1, 0.8, 1.0) * X / 16
X_train, X_test, y_train, y_test, ink_train, ink_test = train_test_split(X, y, ink, random_state=0, stratify=y)
both = np.column_stack([np.eye(10)[y_train], ink_train])

# %%
# Twenty landmarks for each λ, and what models trained on the features get right of either label.

penalties, scores = [0.0, 0.1, 0.3, 1.0, 3.0], []
x, x_test = torch.from_numpy(X_train), torch.from_numpy(X_test)
for penalty in penalties:
    landmarks = choose_landmarks(x, 20, generator=torch.Generator().manual_seed(0))
    features = Nystroem(landmarks, RBF(np.full(64, 0.05), trainable=True))
    source = ArraySource(x, Targets.values(both))
    for _ in Trainer(max_epochs=150).epochs(features, PrivacyDI(10, penalty, rho=1e-2), source):
        pass
    with torch.no_grad():
        train, test = features(x).numpy(), features(x_test).numpy()
    scale = train.std()
    models = {"digit": (LogisticRegression(C=100, max_iter=1000), y_train, y_test)}
    models["ink, linear model"] = LogisticRegression(C=100, max_iter=1000), ink_train, ink_test
    models["ink, kernel machine"] = SVC(C=10), ink_train, ink_test
    scores.append({name: m.fit(train / scale, a).score(test / scale, b) for name, (m, a, b) in models.items()})

# %%
# For a linear model the ink fades to a coin toss while the digits stay; a kernel machine still finds much of it.

fig, ax = plt.subplots(figsize=(6, 3.5), layout="constrained")
for name, style in (("digit", "o-"), ("ink, linear model", "s-"), ("ink, kernel machine", "s:")):
    ax.plot(range(len(penalties)), [100 * each[name] for each in scores], style, label=name)
ax.axhline(50, color="0.7", linewidth=1)
ax.set_xticks(range(len(penalties)), [f"{penalty:g}" for penalty in penalties])
ax.set(xlabel="λ", ylabel="test accuracy, %")
ax.legend()
plt.show()
