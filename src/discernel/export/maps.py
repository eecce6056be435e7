"""Feature maps as graphs: a formula each, as in `discernel.kernels` and `discernel.feature_maps`."""

from collections.abc import Callable

import numpy as np
from torch import Tensor, nn

from discernel.export.graph import Graph
from discernel.feature_maps import Fastfood, FeatureMap, ModuleMap, Nystroem, RandomFourier
from discernel.kernels import RBF, Cauchy, Kernel, Laplacian, Linear, Matern, Polynomial, StationaryKernel


def basis(graph: Graph, feature_map: FeatureMap, x: str) -> str:
    """Return the basis G of a map, in the graph's precision."""
    if type(feature_map) is Nystroem:
        return _kernel(graph, feature_map.kernel, feature_map.landmarks, x)
    if type(feature_map) is RandomFourier:
        return _fourier(graph, feature_map, x)
    if type(feature_map) is Fastfood:
        return _fourier(graph, feature_map.dense(), x)
    if isinstance(feature_map, ModuleMap) and isinstance(feature_map.module, nn.Identity):
        return x
    raise TypeError(f"a {type(feature_map).__name__} cannot be exported: use torch.onnx.export on feature_map_")


def _fourier(graph: Graph, feature_map: RandomFourier, x: str) -> str:
    """Return √(2/J) cos(xW + b); as a sine, since runtimes have no cosine of doubles."""
    angle = graph.add("MatMul", x, graph.constant(feature_map.frequencies))
    shifted = graph.add("Add", angle, graph.constant(feature_map.phases.double() + np.pi / 2))
    scale = np.full(len(feature_map.phases), (2 / len(feature_map.phases)) ** 0.5)
    return graph.add("Mul", graph.add("Sin", shifted), graph.constant(scale))


def _kernel(graph: Graph, kernel: Kernel, landmarks: Tensor, x: str) -> str:
    """Return k(x, landmarks)."""
    if type(kernel) not in FORMULAS:
        raise TypeError(f"the kernel {type(kernel).__name__} cannot be exported: it is known by its code alone")
    return FORMULAS[type(kernel)](graph, kernel, graph.cast(x, np.float64), landmarks.detach().double())


def _scaled(graph: Graph, kernel: StationaryKernel, x: str, z: Tensor) -> tuple[str, np.ndarray]:
    """Return the rows and the landmarks about the kernel's origin, in its metric.

    The multiplication comes first: right before a product, onnxruntime turns it into a factor of single precision.
    """
    metric, origin = kernel.metric.detach().double(), kernel.origin(z)
    x = graph.add("Mul", x, graph.constant(metric, np.float64))
    x = graph.add("Sub", x, graph.constant(origin * metric, np.float64))
    return x, ((z - origin) * metric).numpy()


def _squared_distances(graph: Graph, kernel: StationaryKernel, rows: str, landmarks: Tensor) -> str:
    """Return ‖x − z‖² by a product of doubles: close points have far smaller distances than norms."""
    x, z = _scaled(graph, kernel, rows, landmarks)
    x2 = graph.add("ReduceSum", graph.add("Mul", x, x), graph.constant([1], np.int64), keepdims=1)
    product = graph.add("MatMul", x, graph.constant(-2 * z.T, np.float64))
    norms = graph.add("Add", x2, graph.constant(np.square(z).sum(1), np.float64))
    distances = graph.add("Max", graph.add("Add", product, norms), graph.constant(0, np.float64))
    return graph.cast(distances, graph.dtype)


def _rbf(graph: Graph, kernel: StationaryKernel, x: str, z: Tensor) -> str:
    return graph.add("Exp", graph.add("Neg", _squared_distances(graph, kernel, x, z)))


def _matern(graph: Graph, kernel: Matern, x: str, z: Tensor) -> str:
    a2 = graph.add("Mul", _squared_distances(graph, kernel, x, z), graph.constant(4 * kernel.nu))
    a2 = graph.add("Min", a2, graph.constant(1e8))  # beyond, a·exp(−a) is zero, and not ∞·0
    a = graph.add("Sqrt", a2)
    decay = graph.add("Exp", graph.add("Neg", a))
    if kernel.nu == 0.5:
        return decay
    factor = graph.add("Add", a, graph.constant(1))
    if kernel.nu == 2.5:
        factor = graph.add("Add", factor, graph.add("Div", a2, graph.constant(3)))
    return graph.add("Mul", factor, decay)


def _cauchy(graph: Graph, kernel: StationaryKernel, x: str, z: Tensor) -> str:
    return graph.add("Reciprocal", graph.add("Add", _squared_distances(graph, kernel, x, z), graph.constant(1)))


def _laplacian(graph: Graph, kernel: StationaryKernel, x: str, z: Tensor) -> str:
    """Return exp(−‖x − z‖₁), one landmark after the other, so that no array is larger than `x` or the result."""
    from onnx import TensorProto, helper

    rows, landmarks = _scaled(graph, kernel, x, z)
    body = Graph(np.dtype(np.float64), f"{graph.prefix}each_")
    taken, given = ([f"{body.prefix}{name}" for name in names] for names in (("rows", "landmark"), ("same", "row")))
    difference = body.add("Abs", body.add("Sub", *taken))
    distance = body.add("ReduceSum", difference, body.constant([1], np.int64), keepdims=0)
    for value, name in zip((taken[0], distance), given, strict=True):
        body.nodes.append(helper.make_node("Identity", [value], [name]))
    inputs, outputs = (
        [helper.make_tensor_value_info(name, TensorProto.DOUBLE, None) for name in names] for names in (taken, given)
    )
    loop = helper.make_graph(body.nodes, "distances", inputs, outputs, body.constants)
    name = f"{graph.prefix}distances_{len(graph.nodes)}"
    scan = helper.make_node(
        "Scan", [rows, graph.constant(landmarks, np.float64)], [f"{name}_x", name], body=loop, num_scan_inputs=1
    )
    graph.nodes.append(scan)
    distances = graph.cast(graph.add("Transpose", name, perm=[1, 0]), graph.dtype)
    return graph.add("Exp", graph.add("Neg", distances))


def _linear_kernel(graph: Graph, kernel: Kernel, x: str, z: Tensor) -> str:
    weights = z * kernel.gamma.double()
    return graph.cast(graph.add("MatMul", x, graph.constant(weights.T, np.float64)), graph.dtype)


def _polynomial(graph: Graph, kernel: Polynomial, x: str, z: Tensor) -> str:
    base = graph.add("Add", _linear_kernel(graph, kernel, x, z), graph.constant(kernel.coef0))
    return graph.add("Pow", base, graph.constant(kernel.degree))


FORMULAS: dict[type, Callable[..., str]] = {
    RBF: _rbf,
    Matern: _matern,
    Cauchy: _cauchy,
    Laplacian: _laplacian,
    Polynomial: _polynomial,
    Linear: _linear_kernel,
}
