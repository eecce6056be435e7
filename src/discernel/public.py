"""The public names, from the modules that define them. The package comes for them when the first is asked for."""

# ruff: noqa: F401

from discernel.criteria import CE, DI, LS, Criterion, PrivacyDI, discriminant_information
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
from discernel.profiled import Profiled
from discernel.run import DivergenceWarning, EpochRecord, moments_over
from discernel.tables import TableSource
from discernel.targets import Targets
from discernel.training import Trainer
from discernel.two_sample import TwoSampleTest, two_sample_test
