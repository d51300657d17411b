"""Products with weights: on a CPU by oneDNN's kernels where they are faster than torch's own, which are MKL's.

oneDNN lays the weights out for its kernels first: anew in every call for training, where they change, once for
decoding. Results are those of torch's kernels up to rounding.
"""

import os
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ablate.model.opaque import opaque

LARGE = 2**19  # weights; in training, oneDNN is 1.05 to 1.4 times as fast for a matrix so large, and gains little below
ONEDNN = torch.backends.mkldnn.is_available()

# oneDNN makes a kernel for every number of rows, and torch and oneDNN keep the last 1,024 each: gigabytes, as what they
# keep lies between large blocks that are freed. A run's batches differ in their rows, so few are used again after their
# own update, which needs about twenty; a thread that decodes needs fewer. Both read this when the first kernel is made.
for cache in ("LRU_CACHE_CAPACITY", "ONEDNN_PRIMITIVE_CACHE_CAPACITY"):
    os.environ.setdefault(cache, str(32 * torch.get_num_threads()))


def has_kernels(weight: Tensor) -> bool:
    """Whether oneDNN can multiply with a matrix where it lies."""
    return weight.device.type == "cpu" and weight.dtype == torch.float32 and ONEDNN


def multiply(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """Compute x · weightᵀ + bias by oneDNN, without a gradient; the weight may be transposed, or packed by it."""
    multiplied: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    return multiplied


_multiply = opaque(
    "multiply(Tensor x, Tensor weight, Tensor? bias) -> Tensor",
    multiply,
    lambda x, weight, bias: x.new_empty(*x.shape[:-1], weight.shape[0]),
)


def product(x: Float[Tensor, "N d_in"], weight: Float[Tensor, "d_out d_in"]) -> Float[Tensor, "N d_out"]:
    """Compute x · weightᵀ by whichever kernel is faster, without a gradient."""
    if weight.numel() >= LARGE and has_kernels(weight):
        return multiply(x, weight, None)
    return x @ weight.t()


class _Linear(torch.autograd.Function):
    """oneDNN's product with its gradients; that of the weight is faster by torch's kernel."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.has_bias = bias is not None
        return _multiply(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = grads[0].flatten(0, -2)
        grad_weight = rows.t() @ x.flatten(0, -2)
        return _multiply(grads[0], weight.t(), None), grad_weight, rows.sum(0) if ctx.has_bias else None


class Linear(nn.Linear):
    """`nn.Linear`, a large one in float32 on a CPU by oneDNN."""

    def forward(self, x: Float[Tensor, "*axes d_in"]) -> Float[Tensor, "*axes d_out"]:
        """Multiply and add the bias."""
        if self.weight.numel() < LARGE or not has_kernels(self.weight) or torch.is_autocast_enabled("cpu"):
            return F.linear(x, self.weight, self.bias)
        multiplied: Tensor = _Linear.apply(x, self.weight, self.bias)  # type: ignore[no-untyped-call]
        return multiplied


class PackedLinear(nn.Module):
    """A linear layer whose weight lies in memory as oneDNN's kernels read it: up to 1.3 times as fast on a CPU."""

    def __init__(self, weight: Float[Tensor, "d_out d_in"], bias: Float[Tensor, "d_out"] | None) -> None:
        super().__init__()
        self.bias = None if bias is None else bias.detach()
        self.weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach())

    def forward(
        self, x: Float[Tensor, "*axes d_in"], residual: Float[Tensor, "*axes d_out"] | None = None
    ) -> Float[Tensor, "*axes d_out"]:
        """Multiply and add the bias, and the residual if there is one, without a gradient."""
        if residual is None:
            return multiply(x, self.weight, self.bias)
        added: Tensor = torch.ops.mkldnn._linear_pointwise.binary(x, residual, self.weight, self.bias, "add")
        return added
