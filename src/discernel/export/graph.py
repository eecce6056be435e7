"""A graph of ONNX operators as it grows."""

from typing import Any

import numpy as np
from torch import Tensor

INNER = "/"  # what the names of values begin with that are neither inputs nor outputs


class Graph:
    """An ONNX graph as it grows; a value in it is known by its name.

    Parameters
    ----------
    dtype : dtype
        The precision of the features: float32 or float64.
    prefix : str
        What all names begin with, so that those of a graph within another one are its own.
    """

    def __init__(self, dtype: np.dtype, prefix: str = INNER):
        self.dtype, self.prefix = dtype, prefix
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, value: Any, dtype: Any = None) -> str:
        """Return the name of a constant, of the graph's precision unless told."""
        from onnx import numpy_helper

        array = np.asarray(value.detach().cpu().numpy() if isinstance(value, Tensor) else value)
        name = f"{self.prefix}constant_{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(array.astype(dtype or self.dtype), name))
        return name

    def add(self, operator: str, *inputs: str, **attributes: Any) -> str:
        """Return the name of what an operator makes of its inputs."""
        from onnx import helper

        name = f"{self.prefix}{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], **attributes))
        return name

    def cast(self, value: str, dtype: Any) -> str:
        """Return a value in another precision."""
        from onnx import helper

        return self.add("Cast", value, to=helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))
