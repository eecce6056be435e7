"""
Pipeline and grid search
========================

The estimators are scikit-learn's kind, so what works with those works with these: columns of numbers and of text in a
``ColumnTransformer``, missing values through an imputer, and settings chosen by cross-validation, the trainer's too.

**When it helps.** When the table is not numbers yet. From the command line ``discernel fit --missing impute`` treats
the columns likewise by itself.
"""

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from sklearn.compose import make_column_transformer
from sklearn.datasets import load_wine
from sklearn.impute import SimpleImputer
from sklearn.model_selection import GridSearchCV, train_test_split
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from discernel import DiscernelClassifier, Trainer, feature_importance, plots

# %%
# Wines by their chemistry, with some values lost and a column of text.

table = load_wine(as_frame=True).frame
rng = np.random.default_rng(0)
table = table.mask(rng.random(table.shape) < 0.05).assign(target=table["target"])
table["colour"] = pd.cut(table.pop("color_intensity").fillna(4), [0, 3, 6, 20], labels=["light", "red", "dark"]).astype(
    str
)
train, test = train_test_split(table, random_state=0, stratify=table["target"])
numbers = [name for name in table if name not in ("target", "colour")]

prepare = make_column_transformer(
    (make_pipeline(SimpleImputer(), StandardScaler()), numbers),
    (OneHotEncoder(), ["colour"]),
)
model = make_pipeline(prepare, DiscernelClassifier(trainer=Trainer(max_epochs=30), random_state=0))

# %%
# Every setting has a name to search by.

grid = {
    "discernelclassifier__n_components": [5, 10, 20, 40],
    "discernelclassifier__trainer__learning_rate": [0.1, 0.2, 0.4],
}
search = GridSearchCV(model, grid, cv=3).fit(train, train["target"])
print("best:", search.best_params_)
print(f"in cross-validation {search.best_score_:.3f}, on the test rows {search.score(test, test['target']):.3f}")

# %%
# The scores of the grid, and what the best model looks at.

found = pd.DataFrame(search.cv_results_)
scores = found.pivot_table(
    "mean_test_score", "param_discernelclassifier__n_components", "param_discernelclassifier__trainer__learning_rate"
)
fig, axes = plt.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
for rate in scores:
    axes[0].plot(scores.index, 100 * scores[rate], "o-", label=f"learning rate {rate:g}")
axes[0].set(xlabel="number of features J", ylabel="accuracy in cross-validation, %", xscale="log")
axes[0].set_xticks(scores.index, scores.index)
axes[0].minorticks_off()
axes[0].legend()
prepared, classifier = search.best_estimator_[0], search.best_estimator_[1]
shares = feature_importance(classifier, prepared.transform(train))
names = [name.split("__")[-1] for name in prepared.get_feature_names_out()]
plots.importance(axes[1], shares, names, top=10)
plt.show()
