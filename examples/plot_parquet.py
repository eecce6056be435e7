"""
Streaming a table from Parquet files
====================================

A :class:`TableSource` reads files of any number of rows: once for the statistics of the columns, once to write
their numbers to a temporary file, and then every epoch in shuffled blocks, so that memory holds two loads of 128 MiB
whatever the size of the table. Training sees batches, and the exact ridge regression one more pass.

**When it helps.** When the table does not fit in memory, or is made of many files. This one is small, to run in
seconds.
"""

import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import torch

from discernel import DI, RBF, Nystroem, TableSource, Trainer, choose_landmarks, moments_over, plots

# %%
# Twelve files, one a month, as a folder of Parquet files: a folder named ``month=3`` is a column ``month``.

folder = Path(tempfile.mkdtemp())
rng = np.random.default_rng(0)
for month in range(1, 13):
    hour, wind = rng.uniform(0, 24, 4000), rng.gamma(2, 2, 4000)
    season = np.cos(2 * np.pi * (month - 7) / 12)
    frost = season + 0.8 * np.cos(2 * np.pi * (hour - 15) / 24) - 0.1 * wind + 0.3 * rng.normal(size=4000) < -0.7
    part = pd.DataFrame({"hour": hour.round(1), "wind": wind.round(1), "frost": np.where(frost, "yes", "no")})
    (folder / f"month={month}").mkdir()
    part.to_parquet(folder / f"month={month}" / "part.parquet", index=False)

source = TableSource(folder, "frost", scaling="standard")
print(f"{len(source):,} rows; features: {', '.join(source.preprocessing.feature_names)}")

# %%
# Train landmarks and a metric; the checkpoint lets the same lines go on if they are stopped.

start = source.features(torch.arange(0, len(source), 24))
landmarks = choose_landmarks(start, 40, generator=torch.Generator().manual_seed(0))
feature_map = Nystroem(landmarks, RBF([0.3] * start.shape[1], trainable=True))
checkpoint = folder / "run.safetensors"
history = list(Trainer(max_epochs=8).epochs(feature_map, DI(), source, checkpoint=checkpoint))
print(f"{history[-1].samples_per_second:,.0f} rows a second")

# %%
# One more pass gives the moments of all rows, and from them the exact ridge regression and its error.

moments, gram = moments_over(source, feature_map), feature_map.gram()
ridge = moments.ridge(1e-4, gram)
print(f"mean squared error {moments.mse(ridge):.4f}, of the variance {moments.energy / moments.count:.4f}")

# %%
# The learned γ of the features, and what the model says of a windless day in each month.

columns = source.preprocessing
grid = [(month, hour) for month in range(1, 13) for hour in range(24)]
days = pd.DataFrame({"hour": [float(h) for _, h in grid], "wind": 0.0, "month": [m for m, _ in grid]})
with torch.no_grad():
    scores = ridge.predict(feature_map.basis(torch.from_numpy(columns.transform(days))))[:, 1]
fig, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
plots.training_curve(axes[0], history)
image = axes[1].imshow(scores.reshape(12, 24).numpy(), aspect="auto", cmap="Blues", vmin=0, vmax=1)
axes[1].set(xlabel="hour", ylabel="month", yticks=range(12), yticklabels=range(1, 13))
fig.colorbar(image, label="share of frost, estimated")
plt.show()
