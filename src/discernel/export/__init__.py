"""Export to ONNX: map and head as one graph that other programs run. Needs ``pip install 'discernel[onnx]'``."""

from discernel.export.models import export_onnx

__all__ = ["export_onnx"]
