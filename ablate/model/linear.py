"""Products with weights, on a CPU by oneDNN, whose kernels are faster there than those of `F.linear`.

Axes: N rows.
"""

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

ONEDNN_FROM = 2**15  # weights; with a smaller matrix the call costs what the kernel gains


def product(
    x: Float[Tensor, "*axes d_in"],
    weight: Float[Tensor, "d_out d_in"],
    bias: Float[Tensor, "d_out"] | None = None,
    relu: bool = False,
) -> Float[Tensor, "*axes d_out"]:
    """Compute x Wᵀ + b, and max(0, ·) of it if asked, by oneDNN and without a gradient; W may be packed."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "relu" if relu else "none", [], "")
    return result


def has_onednn(x: Tensor) -> bool:
    """Whether oneDNN computes where a tensor lies."""
    return x.device.type == "cpu" and torch.backends.mkldnn.is_available()


def pays(weight: Float[Tensor, "d_out d_in"]) -> bool:
    """Whether it is there for a matrix, and worth its call."""
    return has_onednn(weight) and weight.numel() >= ONEDNN_FROM


def multiplies_bf16(x: Tensor) -> bool:
    """Whether it also multiplies in bfloat16 there."""
    return has_onednn(x) and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
        result = product(x, weight, bias, relu)
        ctx.save_for_backward(x, weight, result if relu else None)
        ctx.has_bias = bias is not None
        return result

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, result = ctx.saved_tensors
        grad = grads[0] if result is None else torch.ops.aten.threshold_backward(grads[0], result, 0)
        grad_x, rows = product(grad, weight.t()), grad.flatten(0, -2)
        return grad_x, rows.t() @ x.flatten(0, -2), rows.sum(0) if ctx.has_bias else None, None


class Linear(nn.Linear):
    """x Wᵀ + b, and with `relu` max(0, ·) of it."""

    def __init__(self, d_in: int, d_out: int, bias: bool = True, relu: bool = False) -> None:
        super().__init__(d_in, d_out, bias)
        self.relu = relu

    def forward(self, x: Float[Tensor, "*axes d_in"]) -> Float[Tensor, "*axes d_out"]:
        """Multiply."""
        if pays(self.weight) and not torch.is_autocast_enabled("cpu"):
            result: Tensor = _Product.apply(x, self.weight, self.bias, self.relu)  # type: ignore[no-untyped-call]
            return result
        result = super().forward(x)
        return F.relu_(result) if self.relu else result


class PackedLinear(nn.Module):
    """A linear layer whose weight lies in memory as oneDNN's kernels read it: up to 1.3 times as fast again."""

    def __init__(self, linear: Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.dtype, self.relu = dtype, linear.relu
        self.bias = None if linear.bias is None else linear.bias.detach().to(dtype)
        self.weight = packed(linear.weight, dtype)

    def forward(self, x: Float[Tensor, "*axes d_in"]) -> Float[Tensor, "*axes d_out"]:
        """Multiply without a gradient, in `dtype`; the result is of x's."""
        return product(x.to(self.dtype), self.weight, self.bias, self.relu).to(x.dtype)


def packed(weight: Float[Tensor, "d_out d_in"], dtype: torch.dtype = torch.float32) -> Float[Tensor, "d_out d_in"]:
    """Pack a matrix for `product`, which alone can read it then."""
    weight = weight.detach().to(dtype)
    reordered: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight)
    return reordered
