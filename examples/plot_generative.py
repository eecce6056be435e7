"""
A generator against maximal Discriminant Information
====================================================

How well can a kernel tell samples of a generator from data? The Discriminant Information of *which of the two a row is
from* says so, as a share D of all there is to tell, and its maximum over a learned kernel is a loss for the generator.
The generator lowers it, the metric of the kernel raises it, in turns. As ρ grows it becomes the squared maximum mean
discrepancy (MMD) of generative moment matching networks and MMD-GANs, which is beside it here: the same generator, the
kernel of the median heuristic.

**When it helps.** MMD sees mostly what varies most; D weighs every direction by how much the data vary in it, so the
generator goes on learning where MMD has little left to say. That takes a Cholesky factor of the landmarks' size a step.
It is a game of two players without a guarantee, and this a demonstration on tiny images.
"""

import matplotlib.pyplot as plt
import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

from discernel import RBF, discriminant_information, two_sample_test
from discernel.two_sample import start_gamma

X = torch.from_numpy(load_digits().data).float() / 16
X = X[torch.randperm(len(X), generator=torch.Generator().manual_seed(0))]
train, test = X[:1300], X[1300:]
ROWS, STEPS, EVERY = 200, 1000, 100
RHO = 0.1
WHICH = torch.cat([torch.ones(ROWS, 1), torch.zeros(ROWS, 1)])

# %%
# The two losses. D is DI divided by ‖Ȳ‖²; −log(1 − D) has a slope also where D is near one, as it is at first.


def information(kernel, real, fake):
    """Return D, from 0 to 1, of a Nyström map with some rows of either sample as landmarks."""
    rows, landmarks = torch.cat([real, fake]), torch.cat([real[:50], fake[:50]])
    return discriminant_information(kernel(rows, landmarks), WHICH, RHO * ROWS, kernel(landmarks, landmarks)) / (
        ROWS / 2
    )


def discrepancy(kernel, real, fake):
    """Return the squared MMD."""
    return kernel(real, real).mean() + kernel(fake, fake).mean() - 2 * kernel(real, fake).mean()


# %%
# Every so often a two-sample test with random landmarks and its own kernel, for which neither was trained, compares
# fresh samples with held-out digits.


def trained(learn):
    """Return the generator, and the statistic over training."""
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(10, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 64))
    generator.append(nn.Sigmoid())
    kernel = RBF(torch.full((64,), start_gamma(train)), trainable=learn)
    players = [torch.optim.Adam(generator.parameters(), lr=1e-3)]
    if learn:
        players.append(torch.optim.Adam(kernel.parameters(), lr=1e-3, maximize=True))
    statistics = []
    for step in range(STEPS + 1):
        if step % EVERY == 0:
            with torch.no_grad():
                fake = generator(torch.randn(len(test), 10))
            statistics.append(two_sample_test(test, fake, learn=False, n_permutations=1).statistic)
        real, fake = train[torch.randint(len(train), (ROWS,))], generator(torch.randn(ROWS, 10))
        loss = -torch.log1p(-information(kernel, real, fake)) if learn else discrepancy(kernel, real, fake)
        for player in players:
            player.zero_grad()
        loss.backward()
        for player in players:
            player.step()
    return generator, statistics


results = {"maximal DI, learned kernel": trained(True), "MMD, median heuristic": trained(False)}
level = two_sample_test(test, train[: len(test)], learn=False, n_permutations=1).statistic
for name, (_, statistics) in results.items():
    print(f"{name:27}", *(f"{value:.0f}" for value in statistics), f"(data against data: {level:.0f})")

# %%
# Samples, and the statistic falling over training.

fig, axes = plt.subplots(1, 4, figsize=(12, 3.4), layout="constrained")
samples = {"digits": test[:64]}
for name, (generator, statistics) in results.items():
    with torch.no_grad():
        samples[name] = generator(torch.randn(64, 10))
    axes[3].plot(np.arange(0, STEPS + 1, EVERY), statistics, "o-", label=name)
for ax, (name, images) in zip(axes, samples.items(), strict=False):
    tiles = images.view(8, 8, 8, 8).permute(0, 2, 1, 3).reshape(64, 64).numpy()
    ax.imshow(tiles, cmap="gray_r")
    ax.set(xticks=[], yticks=[], title=name)
axes[3].axhline(level, color="0.7", linewidth=1)
axes[3].set(xlabel="step", ylabel="two-sample statistic", yscale="log")
axes[3].legend()
plt.show()
