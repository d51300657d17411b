"""The Transformer as beam search runs it: one position at a time, weights packed for a CPU, no key ever moved.

Axes: B sentences being decoded, k beams of each, N = B · k rows, sentence by sentence, S source length, h heads,
V vocabulary, E entries of a cache.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from ablate.model.attention import attend, join_heads
from ablate.model.linear import PackedLinear, has_kernels
from ablate.model.ragged import HIDDEN, Ragged
from ablate.model.transformer import DecoderLayer, Transformer

CACHE_BLOCK = 64  # entries by which a cache grows
PACKED_FROM = 2**15  # weights; the call of oneDNN costs more than packing gains in a smaller matrix


@dataclass
class LayerState:
    """What one decoder layer keeps between steps.

    The last two axes of keys are swapped in memory, as products with a few queries are faster so; see `room_for_keys`.
    """

    keys: Tensor  # (B, h, capacity, d_k) of the self-attention; the first E entries are in use
    values: Tensor  # (B, h, capacity, d_v)
    memory_key: Tensor  # (B, h, S, d_k) of the encoder's output
    memory_value: Tensor  # (B, h, S, d_v)

    @classmethod
    def of(cls, key: Float[Tensor, "B h S d_k"], value: Float[Tensor, "B h S d_v"]) -> "LayerState":
        """Begin with this memory and no entries."""
        num_sentences, h, src_len, _ = key.shape
        values = value.new_zeros(num_sentences, h, CACHE_BLOCK, value.shape[3])
        state = cls(room_for_keys(key, CACHE_BLOCK), values, room_for_keys(key, src_len), value)
        state.memory_key.copy_(key)
        return state

    def keep(self, left: Int[Tensor, "B E_left"], room: int) -> None:
        """Keep these entries of each sentence, and make room for more."""
        keys, values = (
            old.gather(2, left[:, None, :, None].expand(-1, old.shape[1], -1, old.shape[3]))
            for old in (self.keys, self.values)
        )
        num_sentences, h, num_left, d_v = values.shape
        self.keys = room_for_keys(keys, num_left + room)
        self.values = values.new_zeros(num_sentences, h, num_left + room, d_v)
        self.keys[:, :, :num_left], self.values[:, :, :num_left] = keys, values

    def select(self, sentences: Int[Tensor, "B"]) -> None:
        """Keep these sentences."""
        self.keys, self.values = take_(self.keys, sentences), take_(self.values, sentences)
        self.memory_key = take_(self.memory_key, sentences)
        self.memory_value = take_(self.memory_value, sentences)


def room_for_keys(like: Float[Tensor, "B h _ d_k"], entries: int) -> Float[Tensor, "B h {entries} d_k"]:
    """Give zeros whose last two axes are swapped in memory."""
    return like.new_zeros(*like.shape[:2], like.shape[3], entries).transpose(2, 3)


@dataclass
class State:
    """What the decoder keeps between steps.

    The beams of a sentence share its cache: each position adds an entry per beam, and `visible` says which entries are
    in which beam's past. So beams are reordered by reordering the rows of `visible`, and keys stay where they are.
    """

    layers: list[LayerState]
    mask: Tensor | None  # (B, 1, 1, S), over the source's padding
    visible: Tensor  # (N, E), added to scores: 0 for what is in a beam's past, `HIDDEN` for the rest; at first (B, 0)
    length: int = 0  # positions decoded

    def select(self, rows: Int[Tensor, "N"], sentences: Int[Tensor, "B"] | None = None) -> None:
        """Let row i continue what row `rows[i]` was; keep only the sentences named, all if None.

        The number of rows may change with it, to another multiple of the number of sentences.
        """
        self.visible = self.visible[rows]
        if sentences is None:
            return
        for layer in self.layers:
            layer.select(sentences)
        if self.mask is not None:
            self.mask = self.mask[sentences]

    def add_position(self) -> slice:
        """Make an entry for each beam of each sentence, visible to it alone, and say where they are in the cache."""
        num_sentences, _, capacity, _ = self.layers[0].keys.shape
        k = len(self.visible) // num_sentences
        if self.visible.shape[1] + k > capacity:
            self.collect(max(CACHE_BLOCK, k))
        start = self.visible.shape[1]
        own = self.visible.new_full((k, k), HIDDEN).fill_diagonal_(0)
        self.visible = torch.cat([self.visible, own.repeat(num_sentences, 1)], dim=1)
        self.length += 1
        return slice(start, start + k)

    def collect(self, room: int) -> None:
        """Drop the entries that are in nobody's past, and make room for new ones."""
        num_sentences = len(self.layers[0].keys)
        used = (self.visible == 0).view(num_sentences, -1, self.visible.shape[1]).any(1)  # (B, E)
        left = (~used).int().argsort(dim=1, stable=True)[:, : used.sum(1).max()]  # (B, E_left), in their order
        self.visible = self.visible.gather(1, left.repeat_interleave(len(self.visible) // num_sentences, 0))
        for layer in self.layers:
            layer.keep(left, room)


def take_(x: Float[Tensor, "B *axes"], index: Int[Tensor, "B_new"]) -> Float[Tensor, "B_new *axes"]:
    """Give x[index] in x's own memory, copying only what moves."""
    moved = torch.nonzero(index != torch.arange(len(index), device=index.device))[:, 0]
    x[moved] = x[index[moved]]
    return x[: len(index)]


class Decoder:
    """A trained Transformer made ready to decode; a `Model` of `ablate.beam`.

    It shares the Transformer's parameters, but for the matrices it packs: those stay as they are now.
    """

    def __init__(self, model: Transformer) -> None:
        """Pack the weights of a model in evaluation mode."""
        self.pad_id, self.eos_id, self.first_id = model.pad_id, model.eos_id, model.first_id
        self.training = model.training
        shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
        self.model = copy.deepcopy(model, shared)  # of the modules, not of the tensors
        self.output: Callable[[Tensor], Tensor] = self.model.logits
        if has_kernels(model.embedding.weight):
            self.output = PackedLinear(model.embedding.weight, None)
            self.pack()

    def pack(self) -> None:
        """Replace the linear layers for which it pays."""
        for module in list(self.model.modules()):
            for name, linear in module.named_children():
                if isinstance(linear, nn.Linear) and linear.weight.numel() >= PACKED_FROM:
                    setattr(module, name, PackedLinear(linear.weight, linear.bias))

    def check_length(self, longest: int) -> None:
        """Make sure that sequences of up to `longest` subwords can be read and written (`Transformer.check_length`)."""
        self.model.check_length(longest)

    def start(self, src: Int[Tensor, "B S"]) -> State:
        """Encode, and project the memory for every decoder layer: what decoding one position at a time needs."""
        sentences = Ragged.of(src, self.pad_id)
        memory = self.model.encode(sentences)  # (tokens, d_model)
        layers = [LayerState.of(*layer.cross_attention.project(memory, sentences)) for layer in self.model.decoder]
        return State(layers, sentences.mask, memory.new_empty(len(src), 0))

    def step(self, state: State, ids: Int[Tensor, "N"]) -> Float[Tensor, "N V"]:
        """Feed one id per row, `first_id` at the start, and score what follows it; `state` moves on.

        N is the number of sentences at first, then what `State.select` says.
        """
        x = self.model.embedding(ids[:, None]) + self.model.tgt_positions(state.length, 1)
        x = x.view(len(state.layers[0].keys), -1, x.shape[2])  # (B, k, d_model)
        new = state.add_position()
        visible = state.visible.view(len(x), 1, x.shape[1], -1)
        for layer, layer_state in zip(self.model.decoder, state.layers, strict=True):
            x = step(layer, x, layer_state, visible, state.mask, new)
        return self.output(x.flatten(0, 1))


def step(
    layer: DecoderLayer,
    x: Float[Tensor, "B k d_model"],
    kept: LayerState,
    visible: Float[Tensor, "B 1 k E"],
    mask: Float[Tensor, "B 1 1 S"] | None,
    new: slice,
) -> Float[Tensor, "B k d_model"]:
    """Decode the next position one layer further; the beams of a sentence are as if they were its positions."""
    query, kept.keys[:, :, new], kept.values[:, :, new] = layer.attention.project(x)
    attended = attend(query, kept.keys[:, :, : new.stop], kept.values[:, :, : new.stop], visible)
    x = layer.attention_norm(x, layer.attention.out(join_heads(attended)))
    x = layer.cross_attention_norm(x, layer.cross_attention.step(x, kept.memory_key, kept.memory_value, mask))
    x = layer.feed_forward_norm(x, layer.feed_forward(x))
    return x
