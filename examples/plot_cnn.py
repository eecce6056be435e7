"""
Any network, trained by Discriminant Information
================================================

DI is a function of features and targets: what makes the features is no concern of its. `LearnedFeatures` trains any
`torch.nn.Module` by it, and in a training loop of one's own it is a loss like any other, in five lines. What linear
discriminant analysis asks of features, a network can then learn ("Deep LDA"), without the eigenvalue problem of Dorfer
et al. 2016: the gradient is a closed form, and no softmax layer is trained with the network.

**When it helps.** When features are wanted rather than a classifier: an exact ridge head is fitted to them in one pass,
also for other targets or for data that come later. On plain classification expect about the accuracy of cross-entropy.
The batch has to be a few times larger than the number of features, for each batch is fitted by a ridge regression.
``benchmarks/cnn.py`` trains the same network on MNIST.
"""

import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from discernel import DCA, DiscernelClassifier, LearnedFeatures, Moments, Targets, Trainer, discriminant_information

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X.astype("float32") / 16, y, random_state=0, stratify=y)


def network():
    """Return two convolutions and one linear layer, from rows of 64 pixels to 32 features."""
    torch.manual_seed(0)
    convolutions = nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1)
    flat = nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()
    return nn.Sequential(nn.Unflatten(1, (1, 8, 8)), *convolutions, *flat, nn.Linear(128, 32), nn.Tanh())


# %%
# A convolutional network by DI alone, then the exact ridge head.

trainer = Trainer(max_epochs=60, batch_size=200)
features = LearnedFeatures(network(), trainer=trainer, random_state=0)
model = DiscernelClassifier(feature_map=features, head="ridge")
print(f"test accuracy: {100 * model.fit(X_train, y_train).score(X_test, y_test):.1f}%")

# %%
# The same in a loop of one's own. DI per row is at most the variance of the targets, 0.9 for ten equal classes.

net, x, targets = network(), torch.from_numpy(X_train), Targets.classes(y_train)[:]
optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
values = []
for _ in range(60):
    for rows in torch.randperm(len(x)).split(200)[:-1]:
        loss = -discriminant_information(net(x[rows]), targets[rows], rho=1.0)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    values.append(-loss.item() / len(rows))

with torch.no_grad():
    features, test = net(x), net(torch.from_numpy(X_test))
found = Moments.of(features, targets).ridge(1.0).predict(test).argmax(1).numpy()
print(f"test accuracy: {100 * (found == y_test).mean():.1f}%")

# %%
# DI of the last batch of each epoch, and the plane in which the features of test digits differ most between classes.

fig, (left, right) = plt.subplots(1, 2, figsize=(9, 4), layout="constrained")
left.plot(values)
left.axhline(0.9, color="0.7", linewidth=1)
left.set(xlabel="epoch", ylabel="DI per row")
plane = DCA(2).fit(features.numpy(), y_train).transform(test.numpy())
right.scatter(*plane.T, c=y_test, cmap="tab10", s=8)
right.set(xticks=[], yticks=[], title="test digits, first two discriminant components")
plt.show()
