"""Views of the table: the rows of a method, and those of a curve."""

import pandas as pd

from experiments.jobs import RHO
from experiments.table import where

DATA = {"letter": "Letter", "mnist": "MNIST", "covtype": "CovType", "digits": "Digits"}
MAPS = {"nystroem": "Nyström", "fourier": "Fourier"}
TRAINED = ("DI", "LS", "CE")
METHODS = {
    "nystroem": {
        "DI": {"criterion": "di", "init": "uniform"},
        "LS": {"criterion": "ls", "init": "uniform"},
        "CE": {"criterion": "ce", "init": "uniform"},
        "KM Nys": {"criterion": "none", "init": "kmeans"},
        "Std Nys": {"criterion": "none", "init": "uniform"},
    },
    "fourier": {
        "DI": {"criterion": "di"},
        "LS": {"criterion": "ls"},
        "CE": {"criterion": "ce"},
        "Std RF": {"criterion": "none"},
    },
}


def gamma_of(frame: pd.DataFrame, data: str) -> float:
    """Return the bandwidth that the trained maps of a data set have, the protocol's; NaN if there are none."""
    trained = frame[(frame["data"] == data) & (frame["epochs"] > 0)]
    return trained["gamma"].iloc[0] if len(trained) else float("nan")


def method(frame: pd.DataFrame, data: str, name: str, label: str, schedule: str = "paper") -> pd.DataFrame:
    """Return the rows of a method's curve: at the protocol's bandwidth and the paper's rho."""
    schedule = schedule if label in TRAINED else "none"
    conditions = {"data": data, "map": name, "schedule": schedule, "rho": RHO, "gamma": gamma_of(frame, data)}
    return where(frame, conditions | METHODS[name][label])


def own_gamma(frame: pd.DataFrame, data: str, name: str, label: str) -> pd.DataFrame:
    """Return an untrained method's rows at the bandwidth that is best for each J, as judged on the test rows."""
    rows = where(frame, {"data": data, "map": name, "schedule": "none", "rho": RHO} | METHODS[name][label])
    rows = where(rows, {"seed": 0})
    rows = better_head(rows)
    return rows.loc[rows.groupby("n_components")["test_accuracy"].idxmax()] if len(rows) else rows


def better_head(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with the accuracy of the SVM or of ridge regression, whichever is higher."""
    return rows.assign(test_accuracy=rows[["test_accuracy", "ridge_accuracy"]].max(axis=1))


def curve(rows: pd.DataFrame, metric: str) -> pd.DataFrame:
    """Return the mean, standard deviation and number of seeds of a metric by J."""
    return rows.groupby("n_components")[metric].agg(["mean", "std", "count"]).fillna(0.0)


def datasets(frame: pd.DataFrame) -> list[str]:
    """Return the data sets that have rows, in the paper's order."""
    return [name for name in DATA if (frame["data"] == name).any()]
