"""Sentences of a batch without their padding: all tokens in rows, one sentence after another.

Only attention needs to know which rows are one sentence; it spreads them out into a rectangle, head by head.
Everything else looks at each token alone, and spends nothing on padding.
Axes: N tokens of the batch, B sentences, L longest sentence, h heads.
"""

import math
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ablate.model.opaque import opaque

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
    places: dict[tuple[int, ...], tuple[Tensor, Tensor]] = field(default_factory=dict)  # what `moves` has found

    @classmethod
    def of(cls, ids: Int[Tensor, "B L"], pad_id: int, always_mask: bool = False) -> "Ragged":
        """Leave out the padding of sentences that are padded at the end; ids on a GPU would be waited for.

        Args:
            ids: on a CPU.
            pad_id: of padding.
            always_mask: have a mask also where it hides nothing: one kind of batch less.
        """
        real = ids != pad_id
        slots = real.flatten().nonzero()[:, 0]
        tokens = real.flatten().cumsum(0).sub_(1).clamp_(min=0).view_as(ids)
        mask = None if real.all() and not always_mask else torch.where(real, 0.0, HIDDEN)[:, None, None, :]
        return cls(ids.flatten()[slots], slots % ids.shape[1], slots, tokens, mask)

    def to(self, device: str | torch.device) -> "Ragged":
        """Move all of it to a device, without waiting."""

        def moved(tensor: Tensor) -> Tensor:
            return tensor.to(device, non_blocking=True)

        mask = None if self.mask is None else moved(self.mask)
        return Ragged(moved(self.ids), moved(self.positions), moved(self.slots), moved(self.tokens), mask)

    def moves(self, num_heads: int, widths: tuple[int, ...]) -> tuple[Int[Tensor, "spread"], Int[Tensor, "collected"]]:
        """Say how rows become heads and back, in pieces as wide as all widths allow; all layers move alike.

        Args:
            num_heads: h.
            widths: of one head in each part of a row: d_k, d_k, d_v for queries, keys and values side by side.

        Returns:
            For each piece of the parts, (B, h, L, width) one after another, which piece of the rows it shows; for each
            piece of the rows, (N, Σ h · width), where it is among the former.
        """
        if (num_heads, *widths) in self.places:
            return self.places[num_heads, *widths]
        (batch, length), piece = self.tokens.shape, math.gcd(*widths)
        heads = torch.arange(num_heads, device=self.slots.device)
        sentences = self.slots // length
        pieces_of_row = num_heads * sum(widths) // piece
        spread, collected, column, begin = [], [], 0, 0
        for width in widths:
            count = width // piece
            within = torch.arange(count, device=heads.device)
            columns = column + heads[:, None, None] * count + within  # (h, 1, count)
            spread.append((self.tokens[:, None, :, None] * pieces_of_row + columns).flatten())  # (B, h, L, count)
            place = (sentences[:, None] * num_heads + heads) * length + self.positions[:, None]  # (N, h)
            collected.append((begin + place[:, :, None] * count + within).flatten(1))  # (N, h · count)
            column, begin = column + num_heads * count, begin + batch * num_heads * length * count
        self.places[num_heads, *widths] = torch.cat(spread), torch.cat(collected, 1).flatten()
        return self.places[num_heads, *widths]


def pick(x: Tensor, places: Tensor, piece: int) -> Tensor:
    """Take pieces of this width, in this order."""
    return x.reshape(-1, piece).index_select(0, places).flatten()


_pick = opaque(
    "pick(Tensor x, Tensor places, int piece) -> Tensor",
    pick,
    lambda x, places, piece: x.new_empty(places.shape[0] * piece),
)


class _ToHeads(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor, spread: Tensor, collected: Tensor, shapes: list[tuple[int, ...]]) -> Any:
        ctx.save_for_backward(collected)
        ctx.shape, ctx.piece = rows.shape, math.gcd(*(shape[3] for shape in shapes))
        parts = _pick(rows, spread, ctx.piece).split([math.prod(shape) for shape in shapes])
        return tuple(part.view(shape) for part, shape in zip(parts, shapes, strict=True))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        (collected,) = ctx.saved_tensors
        flat = torch.cat([grad.flatten() for grad in grads])
        return _pick(flat, collected, ctx.piece).view(ctx.shape), None, None, None


class _ToRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, heads: Tensor, spread: Tensor, collected: Tensor, mask: Tensor | None) -> Tensor:
        ctx.shape = heads.shape
        ctx.save_for_backward(spread, mask)
        num_heads, width = heads.shape[1], heads.shape[3]
        return _pick(heads, collected, width).view(-1, num_heads * width)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        spread, mask = ctx.saved_tensors
        heads = _pick(grads[0], spread, ctx.shape[3]).view(ctx.shape)
        if mask is not None:
            heads = heads.mul_((mask == 0).to(heads.dtype).transpose(2, 3))
        return heads, None, None, None


def to_heads(
    rows: Float[Tensor, "N width"], sentences: Ragged, num_heads: int, widths: tuple[int, ...]
) -> tuple[Float[Tensor, "B h L _"], ...]:
    """Lay rows out as sentences, head by head; a slot without token shows another token's, and gives it no gradient.

    Args:
        rows: one for each token.
        sentences: that they are of.
        num_heads: h.
        widths: see `Ragged.moves`.

    Returns:
        One tensor for each width.
    """
    batch, length = sentences.tokens.shape
    shapes = [(batch, num_heads, length, width) for width in widths]
    heads: tuple[Tensor, ...] = _ToHeads.apply(rows, *sentences.moves(num_heads, widths), shapes)  # type: ignore[no-untyped-call]
    return heads


def to_rows(heads: Float[Tensor, "B h L d"], sentences: Ragged) -> Float[Tensor, "N h*d"]:
    """Take the tokens back out of their slots, heads side by side; slots without token get no gradient."""
    moves = sentences.moves(heads.shape[1], (heads.shape[3],))
    rows: Tensor = _ToRows.apply(heads, *moves, sentences.mask)  # type: ignore[no-untyped-call]
    return rows
