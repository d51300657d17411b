"""Embeddings and positions (sections 3.4 and 3.5), and the one dropout of the model.

Axes: B batch, L length, V vocabulary.
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ablate.config import ModelConfig
from ablate.errors import ConfigError
from ablate.model.opaque import opaque
from ablate.model.ragged import Ragged

SINUSOID_ROWS = 512  # positions made at first; a longer sequence extends them


class PositionError(ConfigError):
    """A sequence is longer than the learned positions."""


def sinusoid(num_positions: int, d_model: int, layout: str) -> Float[Tensor, "L d_model"]:
    """Compute the sinusoidal positions 0 … num_positions − 1.

    Args:
        num_positions: rows.
        d_model: columns.
        layout: "interleaved" is the text's (section 3.5): sine and cosine of pos / 10000^(2i/d_model) in turn;
            "halves" is the authors' program's: all sines, then all cosines, of pos / 10000^(i/(d_model/2 − 1)).
    """
    num_timescales = (d_model + 1) // 2  # an odd d_model loses the last cosine
    index = torch.arange(num_timescales, dtype=torch.float64)
    exponent = 2 * index / d_model if layout == "interleaved" else index / max(num_timescales - 1, 1)
    angle = torch.arange(num_positions, dtype=torch.float64)[:, None] * 10_000.0**-exponent  # (L, d_model / 2)
    waves = torch.stack([angle.sin(), angle.cos()], dim=-1 if layout == "interleaved" else 1)
    return waves.flatten(1)[:, :d_model].float()


def draw_kept(x: Tensor, num_dropped: int) -> Tensor:
    """Draw which elements dropout keeps, as bytes of 0 and 1; of 2^16 values that a draw can have, so many drop one."""
    draws = torch.empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None).view(torch.int16)
    kept = torch.empty(x.shape, dtype=torch.uint8)  # a bool would be slower to make and to multiply with
    return torch.ge(draws[: x.numel()].view(x.shape), num_dropped - 2**15, out=kept)


_draw_kept = opaque(
    "draw_kept(Tensor x, int num_dropped) -> Tensor",
    draw_kept,
    lambda x, num_dropped: x.new_empty(x.shape, dtype=torch.uint8),
    random=True,
)


class _Dropout(torch.autograd.Function):
    """Dropout on a CPU, added to another tensor; one byte for each element is kept for the gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, residual: Tensor | None, p: float) -> Tensor:
        num_dropped = min(max(round(p * 2**16), 1), 2**16 - 1)  # of the 2^16 values a draw can have
        kept = _draw_kept(x, num_dropped)
        ctx.save_for_backward(kept)
        ctx.dtype, ctx.residual, ctx.scale = x.dtype, residual is not None, 2**16 / (2**16 - num_dropped)
        return (x * kept).mul_(ctx.scale) if residual is None else torch.addcmul(residual, x, kept, value=ctx.scale)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (kept,) = ctx.saved_tensors
        return (grads[0] * kept).mul_(ctx.scale).to(ctx.dtype), grads[0] if ctx.residual else None, None


def dropout(
    x: Float[Tensor, "*axes"], p: float, training: bool, residual: Float[Tensor, "*axes"] | None = None
) -> Float[Tensor, "*axes"]:
    """Zero each element with probability `p`, scale the others so that the expectation is exactly `x`, add `residual`.

    On a CPU, `p` is rounded to a multiple of 2^-16 other than 0 and 1 (0.1 becomes 0.100006), which lets one 64-bit
    draw of torch's generator serve four elements: six times as fast as torch's own. `p = 0` draws nothing.
    """
    if p == 0 or not training or x.device.type != "cpu":
        x = F.dropout(x, p, training)
        return x if residual is None else residual + x
    dropped: Tensor = _Dropout.apply(x, residual, p)  # type: ignore[no-untyped-call]
    return dropped


class Positions(nn.Module):
    """The vectors added to the embeddings: sinusoids without limit, or a learned table of `max_positions` rows."""

    table: Tensor  # (positions, d_model); a parameter if learned

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.layout = model.sinusoid_layout
        self.learned = model.positional == "learned"
        if self.learned:
            self.table = nn.Parameter(torch.empty(model.max_positions, model.d_model))
            nn.init.normal_(self.table, std=model.d_model**-0.5)
        else:
            self.register_buffer("table", sinusoid(SINUSOID_ROWS, model.d_model, self.layout), persistent=False)

    def check_length(self, longest: int) -> None:
        """Make sure that a sequence of `longest` subwords has positions; sinusoids are extended.

        Raises:
            PositionError: if the positions are learned and fewer than `longest`.
        """
        num_positions, d_model = self.table.shape
        if longest <= num_positions:
            return
        if self.learned:
            raise PositionError(
                "model.max_positions",
                num_positions,
                f"a sequence may have {longest} subwords here; train with model.max_positions of at least {longest}, "
                "or with model.positional=sinusoid, or keep sentences shorter",
            )
        self.table = sinusoid(2 * longest, d_model, self.layout).to(self.table)

    def forward(self, start: int, length: int) -> Float[Tensor, "L d_model"]:
        """Give positions start … start + length − 1.

        Raises:
            PositionError: as `check_length`.
        """
        self.check_length(start + length)
        return self.table[start : start + length]

    def of(self, sentences: Ragged) -> Float[Tensor, "N d_model"]:
        """Give the position of each token.

        Raises:
            PositionError: as `check_length`.
        """
        self.check_length(sentences.tokens.shape[1])
        return F.embedding(sentences.positions, self.table)


class _LookUp(torch.autograd.Function):
    """Rows of a matrix, scaled, and the matrix itself, to whose gradient theirs is added in place.

    Torch would make another V × d_model gradient for the rows, nearly all zeros, and add the two.
    """

    @staticmethod
    def forward(ctx: Any, ids: Tensor, matrix: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(ids, scale)
        return F.embedding(ids, matrix) * scale, matrix.view_as(matrix)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        ids, scale = ctx.saved_tensors
        return None, grads[1].index_add_(0, ids, grads[0] * scale), None


class Embedding(nn.Module):
    """One matrix for source, target and output layer; × √d_model at the input, where the pad id gives zero."""

    def __init__(self, vocab_size: int, d_model: int, pad_id: int) -> None:
        super().__init__()
        self.pad_id = pad_id
        self.weight = nn.Parameter(torch.empty(vocab_size, d_model))
        nn.init.normal_(self.weight, std=d_model**-0.5)

    def forward(self, ids: Int[Tensor, "*axes"]) -> Float[Tensor, "*axes d_model"]:
        """Embed ids. Padding is masked: its row takes part in the output layer, so it cannot itself be zero."""
        return self.look_up(ids.flatten())[0].unflatten(0, ids.shape)

    def look_up(self, ids: Int[Tensor, "N"]) -> tuple[Float[Tensor, "N d_model"], Float[Tensor, "V d_model"]]:
        """Embed ids, and give the matrix for its use in the output layer, so that one gradient serves both uses."""
        scale = (ids != self.pad_id).to(self.weight.dtype)[:, None] * math.sqrt(self.weight.shape[1])  # (N, 1)
        embedded, matrix = _LookUp.apply(ids, self.weight, scale)  # type: ignore[no-untyped-call]
        return embedded, matrix
