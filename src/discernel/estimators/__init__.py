"""The scikit-learn skin: estimators that have a feature map."""

from discernel.estimators.classifier import DiscernelClassifier
from discernel.estimators.discriminant import DCA, KernelDCA, KernelDiscriminantAnalysis
from discernel.estimators.importance import feature_importance
from discernel.estimators.regressor import DiscernelRegressor
from discernel.estimators.saving import inspect, load, save
from discernel.estimators.transformers import LearnedFastfood, LearnedFeatures, LearnedFourier, LearnedNystroem

__all__ = [
    "DCA",
    "DiscernelClassifier",
    "DiscernelRegressor",
    "KernelDCA",
    "KernelDiscriminantAnalysis",
    "LearnedFastfood",
    "LearnedFeatures",
    "LearnedFourier",
    "LearnedNystroem",
    "feature_importance",
    "inspect",
    "load",
    "save",
]
