"""The subspace that a discriminant analysis looks for components in."""

from torch import Tensor

from discernel.feature_maps import FeatureMap

NOTHING = "X and y have nothing in common that could be a component: is one of them constant?"


class Subspace(FeatureMap):
    """Where components are looked for: φ(x) = (g(x) − c)T, g being the basis of a map; in float64 whatever `x` is.

    A kernel's basis k(x, X_r) gets the root of k(X_r, X_r), and so orthonormal features: moments of the basis itself
    would square a condition number that is large enough as it is.
    """

    def __init__(self, feature_map: FeatureMap, root: Tensor | None = None, centre: Tensor | float = 0.0):
        super().__init__()
        if root is not None and root.shape[1] == 0:
            raise ValueError(NOTHING)
        self.feature_map, self.root, self.centre = feature_map, root, centre

    def forward(self, x: Tensor) -> Tensor:
        """Return φ(x)."""
        basis = self.feature_map.basis(x.double()) - self.centre
        return basis if self.root is None else basis @ self.root

    def lift(self, scalings: Tensor) -> Tensor:
        """Return what multiplies the basis, given what multiplies φ."""
        return scalings if self.root is None else self.root @ scalings

    def mean(self, mean: Tensor) -> Tensor:
        """Return the mean of the basis, given that of φ."""
        gram, lifted = self.feature_map.gram(), self.lift(mean)
        return self.centre + (lifted if gram is None else gram @ lifted)
