"""
Two-sample tests with a learned kernel
======================================

Do two sets of rows come from one distribution? The Discriminant Information of *which set a row is from*, written as
the kernel Fisher discriminant ratio (Eric, Bach & Harchaoui 2008), is a test statistic, and its kernel can be learned
by DI on one half of the rows before the other half is tested. Permutations give an exact p-value.

**When it helps.** When the difference is at another scale, or in fewer columns, than the typical distance between rows:
then the median heuristic's kernel is blind to it, and the learned one is not (here; and see
``benchmarks/two_sample.py``). Learning costs half of the rows: where random landmarks show the difference already,
``learn=False`` tests on all of them and finds it sooner. With few rows (below some hundreds) prefer that.
"""

import matplotlib.pyplot as plt
import numpy as np

from discernel import two_sample_test

# %%
# Nine blobs: round in one sample, slanted in the other. Means and variances are the same.

rng = np.random.default_rng(0)
slant = np.linalg.cholesky([[1.0, 0.7], [0.7, 1.0]])
X = rng.integers(0, 3, (800, 2)) + np.sqrt(0.03) * rng.normal(size=(800, 2))
Y = rng.integers(0, 3, (800, 2)) + np.sqrt(0.03) * rng.normal(size=(800, 2)) @ slant.T

learned = two_sample_test(X, Y)
random = two_sample_test(X, Y, learn=False)
print(f"Fisher ratio, learned kernel: {learned.statistic:.1f}, p = {learned.p_value:.3f}")
print(f"Fisher ratio, random landmarks: {random.statistic:.1f}, p = {random.p_value:.3f}")
print(f"MMD with the median heuristic: {random.mmd:.5f}, p = {random.mmd_p_value:.3f}")

# %%
# The landmarks have moved to where the samples differ, and the bandwidth has shrunk to the size of a blob.

median, found = (each.feature_map.kernel.gamma.max().item() for each in (random, learned))
landmarks = learned.feature_map.landmarks.numpy()
fig, axes = plt.subplots(1, 2, figsize=(8, 4), sharex=True, sharey=True, layout="constrained")
for ax, rows, name in zip(axes, (X, Y), ("X", "Y"), strict=True):
    ax.plot(*rows.T, ".", color="0.6", markersize=3)
    ax.plot(*landmarks.T, "x", color="#d55e00", label="learned landmarks")
    ax.set_title(f"{name}; γ {median:.2g} → {found:.2g}" if name == "X" else name)
axes[0].legend(loc="upper right")
axes[0].set(xlim=(-0.8, 2.8), ylim=(-0.8, 2.8))
plt.show()
