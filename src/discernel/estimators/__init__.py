"""The scikit-learn skin: estimators that have a feature map."""

from discernel.estimators.predictors import DiscernelClassifier, DiscernelRegressor
from discernel.estimators.saving import load, save
from discernel.estimators.transformers import LearnedFeatures, LearnedFourier, LearnedNystroem

__all__ = [
    "DiscernelClassifier",
    "DiscernelRegressor",
    "LearnedFeatures",
    "LearnedFourier",
    "LearnedNystroem",
    "load",
    "save",
]
