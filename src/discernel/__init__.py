"""Discernel learns kernels: a few hundred trained kernel features instead of thousands of random ones."""

# ruff: noqa: F403, F405

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from discernel.public import *

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
    "PrivacyDI",
    "Profiled",
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


def __getattr__(name: str) -> Any:
    """Return a public name; torch and scikit-learn are imported only now, so that the command line is quick."""
    if name not in __all__:
        raise AttributeError(f"module 'discernel' has no attribute {name!r}")
    from discernel import public

    return getattr(public, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
