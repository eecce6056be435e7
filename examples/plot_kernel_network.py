"""
A convolutional kernel network
==============================

A convolutional kernel network (Mairal et al. 2014; with Nyström 2016) compares images by a kernel on their patches:
κ(z, z') = ‖z‖‖z'‖ exp(α(⟨ẑ, ẑ'⟩ − 1)) of patches z with directions ẑ. On unit vectors that is a Gaussian kernel with
γ = α/2, so `Nystroem` is the layer: landmarks are its filters. What it says of all patches is pooled over the image.
With landmarks from k-means the network is learned without labels; DI then trains it with them.

**When it helps.** On small sets of images: without labels the layer does as well as a kernel on whole images with as
many features, and training its few filters gains a little more. An ordinary network (``plot_cnn.py``) is the better
choice where there are labels for many images.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn
from torch.nn import functional as F

from discernel import RBF, DiscernelClassifier, LearnedFeatures, LearnedNystroem, Nystroem, Trainer, choose_landmarks

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X.astype("float32") / 16, y, random_state=0, stratify=y)


class KernelLayer(nn.Module):
    """Patches of 3×3 of images of 8×8, the kernel's features of each, and means over 2×2 of them."""

    def __init__(self, landmarks, alpha=4.0):
        super().__init__()
        self.kernel = Nystroem(landmarks, RBF(alpha / 2))

    def forward(self, x):
        patches, norms = unit_patches(x)
        maps = (norms * self.kernel(patches)).view(len(x), 36, -1).transpose(1, 2)
        return F.avg_pool2d(maps.unflatten(2, (6, 6)), 2).flatten(1)


def unit_patches(x):
    """Return the directions (36n×9) and lengths of all patches."""
    patches = F.unfold(x.view(-1, 1, 8, 8), 3).transpose(1, 2).reshape(-1, 9)
    norms = patches.norm(dim=1, keepdim=True)
    return patches / norms.clamp_min(1e-6), norms


# %%
# The filters start from k-means of patches that are not blank. The head is ridge throughout.

patches, norms = unit_patches(torch.from_numpy(X_train))
filters = choose_landmarks(patches[norms[:, 0] > 0.5], 16, "kmeans", torch.Generator().manual_seed(0))
filters /= filters.norm(dim=1, keepdim=True)
trainer = Trainer(max_epochs=30, batch_size=400, learning_rate=0.05)
maps = {
    "Nyström of whole images, 144 random landmarks": LearnedNystroem(
        144, criterion=None, gamma="scale", random_state=0
    ),
    "kernel network, filters by k-means": LearnedFeatures(KernelLayer(filters), criterion=None),
    "kernel network, filters by DI": LearnedFeatures(KernelLayer(filters), trainer=trainer, random_state=0),
}
models = {
    name: DiscernelClassifier(feature_map=m, head="ridge", alpha=0.1).fit(X_train, y_train) for name, m in maps.items()
}
scores = {name: 100 * model.score(X_test, y_test) for name, model in models.items()}
for name, score in scores.items():
    print(f"{name:46} {score:.1f}%")

# %%
# The filters before and after.

trained = models["kernel network, filters by DI"].transformer_.feature_map_.module.kernel.landmarks
fig, axes = plt.subplots(4, 8, figsize=(8, 4.4), layout="constrained")
for ax, patch in zip(axes.flat, [*filters, *trained], strict=True):
    ax.imshow(patch.detach().view(3, 3).numpy(), cmap="gray")
    ax.set_axis_off()
fig.suptitle("16 filters from k-means (above) and after training by DI (below)")
plt.show()
