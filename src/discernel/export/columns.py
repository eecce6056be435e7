"""The columns of a table as inputs of a graph, and what `Preprocessing` makes of them."""

from typing import Any

import numpy as np

from discernel.columns import Categorical, Numeric
from discernel.export.graph import INNER, Graph
from discernel.preprocessing import Preprocessing

OUTPUTS = ("label", "probabilities", "values", "features")


def input_names(preprocessing: Preprocessing) -> dict[str, str]:
    """Return what the input of each column is called: as the column, unless something else in the graph may be."""
    columns, names = [column.name for column in preprocessing.columns], {}
    for column in columns:
        name = column
        if column in ("", *OUTPUTS) or column.startswith(INNER):
            name = f"{column.lstrip(INNER)}_column"
            while name in columns or name in names.values():
                name += "_column"
        names[column] = name
    return names


def features_of(graph: Graph, preprocessing: Preprocessing) -> tuple[str, list[Any]]:
    """Return the features, n×d, and the inputs that they are made of: a vector for each column."""
    from onnx import helper

    parts, inputs, names = [], [], input_names(preprocessing)
    for column in preprocessing.columns:
        name = names[column.name]
        x = graph.add("Unsqueeze", name, graph.constant([1], np.int64))
        if isinstance(column, Numeric):
            kind, part = np.float64, _numeric(graph, column, x)
        else:
            kind, part = _kind(column), _categorical(graph, column, x)
        inputs.append(helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(kind)), ["n"]))
        parts.append(part)
    return graph.add("Concat", *parts, axis=1), inputs


def _numeric(graph: Graph, column: Numeric, x: str) -> str:
    """Return (x − offset)/scale, computed in float64 and rounded as in training."""
    if column.fill is not None:
        x = graph.add("Where", graph.add("IsNaN", x), graph.constant(column.fill, np.float64), x)
    x = graph.add("Sub", x, graph.constant(column.offset, np.float64))
    scaled = graph.add("Div", x, graph.constant(column.scale, np.float64))
    return graph.cast(graph.cast(scaled, np.float32), graph.dtype)


def _kind(column: Categorical) -> Any:
    return {str: object, int: np.int64, bool: np.bool_}[type(column.categories[0])]


def _categorical(graph: Graph, column: Categorical, x: str) -> str:
    """Return the indicators of the categories; an empty text that is none of them counts as a missing value."""
    if isinstance(column.categories[0], str):
        keys, values = list(column.categories), list(range(len(column.categories)))
        if column.fill is not None and "" not in keys:
            keys, values = [*keys, ""], [*values, keys.index(column.fill)]
        attributes = {"keys_strings": keys, "values_int64s": values, "default_int64": -1}
        x = graph.add("LabelEncoder", x, domain="ai.onnx.ml", **attributes)
        known = np.arange(len(column.categories))
    else:
        x, known = graph.cast(x, np.int64), np.array(column.categories, np.int64)
    return graph.cast(graph.add("Equal", x, graph.constant(known[None], np.int64)), graph.dtype)
