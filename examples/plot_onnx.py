"""
A model where discernel is not installed
========================================

``export_onnx`` writes preprocessing, feature map and head as one ONNX graph. onnxruntime runs it, in a server, a
browser or a phone, and says what the model says. ``serve_onnx.py`` puts one behind HTTP.

**When it helps.** When a model is to be served by something that should not carry torch, or is not Python.
"""

import tempfile
import time
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import onnxruntime
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from discernel import DiscernelClassifier, export_onnx, save

X, y = load_digits(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X.astype("float32"), y, random_state=0, stratify=y)
model = DiscernelClassifier(50, random_state=0).fit(X_train, y_train)

folder = Path(tempfile.mkdtemp())
save(model, folder / "model.safetensors")
export_onnx(model, folder / "model.onnx")
for path in sorted(folder.iterdir()):
    print(f"{path.name}: {path.stat().st_size / 1024:.0f} KiB")

# %%
# The same labels, and the same probabilities but for rounding.

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 1
session = onnxruntime.InferenceSession(folder / "model.onnx", options)
label, probabilities = session.run(["label", "probabilities"], {"X": X_test})
difference = np.abs(probabilities - model.predict_proba(X_test)).max()
print(f"labels agree: {bool((label == model.predict(X_test)).all())}; greatest difference {difference:.1e}")

# %%
# What a call takes, of one row and of many. A single row is where a small runtime pays.


def seconds(call, repeats=20):
    """Return the least time of a call."""
    times = []
    for _ in range(repeats):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


sizes = [1, 10, 100, 450]
calls = {
    "discernel": lambda rows: model.predict_proba(rows),
    "onnxruntime": lambda rows: session.run(["probabilities"], {"X": rows}),
}
fig, ax = plt.subplots(figsize=(5.5, 3.6), layout="constrained")
for name, call in calls.items():
    ax.loglog(sizes, [1e3 * seconds(lambda rows=X_test[:n], call=call: call(rows)) for n in sizes], "o-", label=name)
ax.set(xlabel="rows of a call", ylabel="milliseconds", xticks=sizes, xticklabels=sizes)
ax.minorticks_off()
ax.legend()
plt.show()
