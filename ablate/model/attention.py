"""Multi-head attention (section 3.2) with free d_k and d_v, and fused projections.

Axes: B batch, S source length, T target length, h heads, M source tokens, N target tokens, of all sentences.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from ablate.config import ModelConfig
from ablate.model.linear import Linear
from ablate.model.ragged import HIDDEN, Ragged, to_heads, to_rows

# Float32 numbers that torch's kernels here take at once; with fewer keys its softmax takes 17 ns for each, else 1.3.
VECTOR = 16 if torch.backends.cpu.get_cpu_capability() == "AVX512" else 8
FEW = 8  # columns; torch's batched product for CPUs takes up to three times as long as for as many rows


class _Attend(torch.autograd.Function):
    """Attention of heads (B · h, length, d): softmax(Q Kᵀ / √d_k + bias) V, scaled within the products."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        ctx.scale = 1 / math.sqrt(query.shape[2])
        weights = softmax(scaled_product(query, key.transpose(1, 2), ctx.scale, bias))
        ctx.save_for_backward(query, key, value, weights)
        return narrow_product(weights, value)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights = ctx.saved_tensors
        grad_scores = softmax_backward(grads[0] @ value.transpose(1, 2), weights)
        grad_query = narrow_product(grad_scores, key, ctx.scale)
        grad_key = narrow_product(grad_scores.transpose(1, 2), query, ctx.scale)
        return grad_query, grad_key, narrow_product(weights.transpose(1, 2), grads[0]), None


class _CompiledAttend(torch.autograd.Function):
    """The same where torch compiles it, which makes its own kernels, and fails at `_Attend`'s products."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None) -> Tensor:
        ctx.scale = 1 / math.sqrt(query.shape[2])
        weights = scaled_product(query, key.transpose(1, 2), ctx.scale, bias).softmax(-1)
        ctx.save_for_backward(query, key, value, weights)
        return weights @ value

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, weights = ctx.saved_tensors
        grad_weights = grads[0] @ value.transpose(1, 2)
        grad_scores = torch._softmax_backward_data(grad_weights, weights, -1, weights.dtype)
        grad_query = scaled_product(grad_scores, key, ctx.scale)
        grad_key = scaled_product(grad_scores.transpose(1, 2), query, ctx.scale)
        return grad_query, grad_key, weights.transpose(1, 2) @ grads[0], None


def scaled_product(
    a: Float[Tensor, "B T n"], b: Float[Tensor, "B n S"], scale: float, bias: Float[Tensor, "B #T S"] | None = None
) -> Float[Tensor, "B T S"]:
    """Compute scale · a b + bias in one pass."""
    if bias is None:
        # Zero, as Apple's GPUs do not ignore it at beta=0 (pytorch#187521).
        return torch.baddbmm(a.new_zeros(()), a, b, beta=0, alpha=scale)
    return torch.baddbmm(bias, a, b, alpha=scale)


def narrow_product(a: Float[Tensor, "B T S"], b: Float[Tensor, "B S n"], scale: float = 1.0) -> Float[Tensor, "B T n"]:
    """Compute scale · a b, as (bᵀ aᵀ)ᵀ where b is narrow."""
    if b.shape[2] > FEW:
        return scaled_product(a, b, scale)
    return scaled_product(b.transpose(1, 2), a.transpose(1, 2), scale).transpose(1, 2)


def is_slow(x: Float[Tensor, "*axes S"]) -> bool:
    """Whether torch takes the numbers of the last axis one by one."""
    return x.shape[-1] < VECTOR and x.is_cpu and x.dtype == torch.float32


def softmax(scores: Float[Tensor, "*axes S"]) -> Float[Tensor, "*axes S"]:
    """Compute `scores.softmax(-1)`, for a few keys in operations on all numbers at once, without a gradient."""
    if not is_slow(scores):
        return scores.softmax(-1)
    powers = (scores - scores.amax(-1, keepdim=True)).exp_()
    return powers.div_(powers.sum(-1, keepdim=True))


def softmax_backward(grad: Float[Tensor, "*axes S"], weights: Float[Tensor, "*axes S"]) -> Float[Tensor, "*axes S"]:
    """Give the gradient of the scores from that of their softmax, which is `weights`."""
    if not is_slow(weights):
        return torch._softmax_backward_data(grad, weights, -1, weights.dtype)
    products = grad * weights
    return products.sub_(weights * products.sum(-1, keepdim=True))


def attend(
    query: Float[Tensor, "B h T d_k"],
    key: Float[Tensor, "B h S d_k"],
    value: Float[Tensor, "B h S d_v"],
    mask: Float[Tensor, "B 1 #T S"] | None = None,
    causal: bool = False,
) -> Float[Tensor, "B h T d_v"]:
    """Compute softmax(Q Kᵀ / √d_k) V of every head (equation 1).

    Args:
        query: the queries.
        key: the keys.
        value: the values; d_v may differ from d_k.
        mask: added to the scores: 0 for a visible key, `HIDDEN` for a hidden one; None hides none.
        causal: hide from query t every key after t; then there is no mask.
    """
    assert mask is None or not causal, "targets are padded at the end, and nothing sees what comes later"
    if query.device.type != "cpu":
        return fused(query, key, value, mask, causal)
    # At these sizes 1.6 times as fast as torch's fused kernel for CPUs.
    batch, num_heads, tgt_len, _ = query.shape
    if causal:
        mask = query.new_full((1, 1, tgt_len, tgt_len), HIDDEN).triu_(1)
    bias = None if mask is None else mask.expand(batch, num_heads, tgt_len, -1).flatten(0, 1)
    attention = _CompiledAttend if torch.compiler.is_compiling() else _Attend
    heads: Tensor = attention.apply(*(x.flatten(0, 1) for x in (query, key, value)), bias)  # type: ignore[no-untyped-call]
    return heads.unflatten(0, (batch, num_heads))


def fused(
    query: Float[Tensor, "B h T d_k"],
    key: Float[Tensor, "B h S d_k"],
    value: Float[Tensor, "B h S d_v"],
    mask: Float[Tensor, "B 1 #T S"] | None,
    causal: bool,
) -> Float[Tensor, "B h T d_v"]:
    """Do `attend` by torch's fused kernels, whose fastest want d_k = d_v: the narrower is filled up with zeros.

    Zeros change no score and stand in columns of the output that are cut off; √d_k stays what it was.
    """
    d_k, d_v = query.shape[3], value.shape[3]
    query, key, value = (F.pad(x, (0, max(d_k, d_v) - x.shape[3])) for x in (query, key, value))
    mask = None if mask is None else mask.to(query.dtype)
    scale = 1 / math.sqrt(d_k)
    return F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal, scale=scale)[..., :d_v]


def xavier_uniform(weight: Float[Tensor, "rows d_in"], parts: list[int]) -> None:
    """Initialise a fused projection in place, uniform in ±√(6 / (fan_in + fan_out)), part by part.

    Args:
        weight: the matrix; its rows are the outputs.
        parts: how many rows belong together; one part for the fans of the whole, as in the authors' program.
    """
    for part in torch.split(weight, parts):
        nn.init.xavier_uniform_(part)


class SelfAttention(nn.Module):
    """Attention of a sequence to itself; queries, keys and values come from one fused matrix."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.num_heads = model.num_heads
        self.head_widths = (model.d_k, model.d_k, model.d_v)
        self.widths = [model.num_heads * width for width in self.head_widths]
        self.qkv = Linear(model.d_model, sum(self.widths), bias=model.attention_bias)
        self.out = Linear(self.widths[2], model.d_model, bias=model.attention_bias)
        xavier_uniform(self.qkv.weight, [sum(self.widths)] if model.fused_init else self.widths)

    def forward(
        self, x: Float[Tensor, "N d_model"], sentences: Ragged, causal: bool = False
    ) -> Float[Tensor, "N d_model"]:
        """Attend to all positions of the sentence (encoder) or, if `causal`, to the earlier ones."""
        query, key, value = to_heads(self.qkv(x), sentences, self.num_heads, self.head_widths)
        mask = None if causal else sentences.mask  # what is missing comes later than every token
        attended: Tensor = self.out(to_rows(attend(query, key, value, mask, causal), sentences))
        return attended


class CrossAttention(nn.Module):
    """Attention of the decoder to the encoder's output; keys and values come from one fused matrix."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.num_heads = model.num_heads
        self.head_widths = (model.d_k, model.d_v)
        self.widths = [model.num_heads * width for width in self.head_widths]
        self.query = Linear(model.d_model, self.widths[0], bias=model.attention_bias)
        self.kv = Linear(model.d_model, sum(self.widths), bias=model.attention_bias)
        self.out = Linear(self.widths[1], model.d_model, bias=model.attention_bias)
        xavier_uniform(self.kv.weight, [sum(self.widths)] if model.fused_init else self.widths)

    def project(
        self, memory: Float[Tensor, "M d_model"], src: Ragged
    ) -> tuple[Float[Tensor, "B h S d_k"], Float[Tensor, "B h S d_v"]]:
        """Give the keys and values of the encoder's output; the same for every target position."""
        key, value = to_heads(self.kv(memory), src, self.num_heads, self.head_widths)
        return key, value

    def forward(
        self, x: Float[Tensor, "N d_model"], tgt: Ragged, memory: Float[Tensor, "M d_model"], src: Ragged
    ) -> Float[Tensor, "N d_model"]:
        """Attend from every target token to all tokens of its source sentence."""
        key, value = self.project(memory, src)
        (query,) = to_heads(self.query(x), tgt, self.num_heads, self.head_widths[:1])
        attended: Tensor = self.out(to_rows(attend(query, key, value, src.mask), tgt))
        return attended
