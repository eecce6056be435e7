"""Functions whose derivatives are written beside them, and gradients that pass between a map and a criterion.

A step of training by such functions needs no graph. What a map returns are leaves, on which a criterion leaves its
gradients; a function that comes with them passes these on to the parameters.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

PullBack = Callable[..., None]  # given the gradient by each output, or None, adds to those of what they were made of


class ClosedForm(torch.autograd.Function):
    """A function with its derivative, for a graph (`apply`) or without one (`with_pull_back`)."""

    @classmethod
    def with_pull_back(cls, *args: Any) -> tuple[Any, ...]:
        """Return the outputs as leaves, and their `PullBack`."""
        context = _Context([isinstance(arg, Tensor) and arg.requires_grad for arg in args])
        with torch.no_grad():
            found = cls.forward(context, *args)
        outputs = found if isinstance(found, tuple) else (found,)
        if any(context.needs_input_grad):
            for output in outputs:
                if output is not None:
                    output.requires_grad_()

        def pull_back(*gradients: Any) -> None:
            if any(gradient is not None for gradient in gradients):
                with torch.no_grad():
                    by = cls.backward(context, *gradients)
                    _add_gradients(args, by if isinstance(by, tuple) else (by,))

        return (*outputs, pull_back)


class _Context:
    """What autograd hands to a function, without the graph."""

    def __init__(self, needs_input_grad: list[bool]):
        self.needs_input_grad = needs_input_grad
        self.saved_tensors: tuple[Any, ...] = ()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def set_materialize_grads(self, value: bool) -> None:
        """Do nothing: gradients that are not there are None."""


def _add_gradients(tensors: tuple[Any, ...], gradients: tuple[Tensor | None, ...]) -> None:
    """Add to the gradients of leaves; where there is a graph, or a hook waits for the gradient, autograd does it."""
    others = []
    for tensor, gradient in zip(tensors, gradients, strict=True):
        if gradient is None or not tensor.requires_grad:
            continue
        if not tensor.is_leaf or tensor._backward_hooks or tensor._post_accumulate_grad_hooks:
            others.append((tensor, gradient))
        elif tensor.grad is not None:
            tensor.grad = tensor.grad + gradient
        else:
            alike = gradient.stride() == tensor.stride()  # fused optimisers take it to be
            tensor.grad = gradient if alike else torch.empty_like(tensor).copy_(gradient)
    if others:
        torch.autograd.backward([tensor for tensor, _ in others], [gradient for _, gradient in others])


def as_written(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Return whether a module is of just this class and has no hooks: then what it computes is known without a call."""
    hooks = (module._forward_hooks, module._forward_pre_hooks, module._backward_hooks, module._backward_pre_hooks)
    return type(module) is kind and not any(hooks)


def by_graph(*outputs: Tensor | None) -> tuple[Any, ...]:
    """Return outputs that have a graph as leaves, and their `PullBack`."""

    def pull_back(*gradients: Tensor | None) -> None:
        known = [(o, grad) for o, grad in zip(outputs, gradients, strict=True) if o is not None and grad is not None]
        if known:
            torch.autograd.backward([output for output, _ in known], [grad for _, grad in known])

    leaves = (None if output is None else output.detach().requires_grad_(output.requires_grad) for output in outputs)
    return (*leaves, pull_back)
