"""Sentences of a batch without their padding: all tokens in rows, one sentence after another.

Only attention needs to know which rows are one sentence; it spreads them out into a rectangle. Everything else looks
at each token alone, and spends nothing on padding.
Axes: N tokens of the batch, B sentences, L longest sentence.
"""

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

# Added to the scores of hidden keys. Finite, so that a sentence whose keys are all hidden has uniform weights
# instead of NaN; large enough that exp() of it is exactly 0 beside any other key, in bfloat16 too.
HIDDEN = -1e9


@dataclass(frozen=True)
class Ragged:
    """The tokens of B sentences, and where each of them stands in the rectangle of B × L slots."""

    ids: Int[Tensor, "N"]
    positions: Int[Tensor, "N"]  # within the sentence, from 0
    slots: Int[Tensor, "N"]  # of each token, counted row by row
    tokens: Int[Tensor, "B L"]  # which token a slot shows; where there is none, any
    mask: Float[Tensor, "B 1 1 L"] | None  # added to attention scores: hides slots without token; None: there are none

    @classmethod
    def of(cls, ids: Int[Tensor, "B L"], pad_id: int) -> "Ragged":
        """Leave out the padding of sentences that are padded at the end; ids on a GPU would be waited for."""
        real = ids != pad_id
        slots = real.flatten().nonzero()[:, 0]
        tokens = real.flatten().cumsum(0).sub_(1).clamp_(min=0).view_as(ids)
        mask = None if real.all() else torch.where(real, 0.0, HIDDEN)[:, None, None, :]
        return cls(ids.flatten()[slots], slots % ids.shape[1], slots, tokens, mask)

    def to(self, device: str | torch.device) -> "Ragged":
        """Move all of it to a device, without waiting."""

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=True)

        mask = None if self.mask is None else moved(self.mask)
        return Ragged(moved(self.ids), moved(self.positions), moved(self.slots), moved(self.tokens), mask)


class _Spread(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, tokens: Tensor, slots: Tensor) -> Tensor:
        ctx.save_for_backward(slots)
        return rows.index_select(0, tokens.flatten())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (slots,) = ctx.saved_tensors
        return grads[0].index_select(0, slots), None, None


class _Collect(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rectangle: Tensor, tokens: Tensor, slots: Tensor, mask: Tensor | None) -> Tensor:
        ctx.save_for_backward(tokens, mask)
        return rectangle.index_select(0, slots)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        tokens, mask = ctx.saved_tensors
        spread = grads[0].index_select(0, tokens.flatten())
        return spread if mask is None else spread.mul_((mask == 0).to(spread.dtype).view(-1, 1)), None, None, None


def spread(rows: Float[Tensor, "N width"], ragged: Ragged) -> Float[Tensor, "B L width"]:
    """Lay the rows out as sentences; a slot without token shows another token's row, and gives it no gradient."""
    if ragged.mask is None:
        return rows.view(*ragged.tokens.shape, -1)
    slots: Tensor = _Spread.apply(rows, ragged.tokens, ragged.slots)  # type: ignore[no-untyped-call]
    return slots.view(*ragged.tokens.shape, -1)


def collect(rectangle: Float[Tensor, "B L width"], ragged: Ragged) -> Float[Tensor, "N width"]:
    """Take the rows of the tokens back out of their slots; slots without token get no gradient."""
    if ragged.mask is None:
        return rectangle.flatten(0, 1)
    rows: Tensor = _Collect.apply(rectangle.flatten(0, 1), ragged.tokens, ragged.slots, ragged.mask)  # type: ignore[no-untyped-call]
    return rows
