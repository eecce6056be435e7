"""Discernel learns kernels: a few hundred trained kernel features instead of thousands of random ones."""

from discernel.criteria import CE, DI, LS, Criterion, discriminant_information
from discernel.data import ArraySource, Source, SparseSource
from discernel.estimators import (
    DCA,
    DiscernelClassifier,
    DiscernelRegressor,
    KernelDCA,
    KernelDiscriminantAnalysis,
    LearnedFastfood,
    LearnedFeatures,
    LearnedFourier,
    LearnedNystroem,
    feature_importance,
    load,
    save,
)
from discernel.export import export_onnx
from discernel.feature_maps import Fastfood, FeatureMap, ModuleMap, Nystroem, RandomFourier
from discernel.kernels import RBF, Cauchy, Kernel, Laplacian, Linear, Matern, Polynomial, make_kernel
from discernel.landmarks import choose_landmarks
from discernel.moments import Moments, Ridge
from discernel.preprocessing import Preprocessing
from discernel.tables import TableSource
from discernel.targets import Targets
from discernel.training import DivergenceWarning, EpochRecord, Trainer, moments_over
from discernel.two_sample import TwoSampleTest, two_sample_test

__version__ = "0.1.0"

__all__ = [
    "CE",
    "DCA",
    "DI",
    "LS",
    "RBF",
    "ArraySource",
    "Cauchy",
    "Criterion",
    "DiscernelClassifier",
    "DiscernelRegressor",
    "DivergenceWarning",
    "EpochRecord",
    "Fastfood",
    "FeatureMap",
    "Kernel",
    "KernelDCA",
    "KernelDiscriminantAnalysis",
    "Laplacian",
    "LearnedFastfood",
    "LearnedFeatures",
    "LearnedFourier",
    "LearnedNystroem",
    "Linear",
    "Matern",
    "ModuleMap",
    "Moments",
    "Nystroem",
    "Polynomial",
    "Preprocessing",
    "RandomFourier",
    "Ridge",
    "Source",
    "SparseSource",
    "TableSource",
    "Targets",
    "Trainer",
    "TwoSampleTest",
    "choose_landmarks",
    "discriminant_information",
    "export_onnx",
    "feature_importance",
    "load",
    "make_kernel",
    "moments_over",
    "save",
    "two_sample_test",
]
