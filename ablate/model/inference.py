"""The Transformer as beam search runs it: one position at a time, weights packed for a CPU, no key ever moved.

Axes: B sentences being decoded, k beams of each, N = B · k rows, sentence by sentence, S source length, h heads,
`heads` those of all sentences, B · h, V vocabulary, E entries of a cache.
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ablate.model.attention import scaled_product, softmax
from ablate.model.linear import PackedLinear, has_kernels
from ablate.model.ragged import HIDDEN, Ragged
from ablate.model.transformer import DecoderLayer, Transformer

CACHE_BLOCK = 64  # entries by which a cache grows
PACKED_FROM = 2**15  # weights; the call of oneDNN costs more than packing gains in a smaller matrix
LARGE = 2**24  # weights; two threads that share the steps of so large a model are 1.02 to 1.05 times as fast


@dataclass
class LayerState:
    """What one decoder layer keeps between steps.

    Keys lie in memory with their last axes swapped, as products with a few queries are faster so.
    """

    keys: Tensor  # (heads, d_k, capacity) of the self-attention; the first E entries are in use
    values: Tensor  # (heads, capacity, d_v)
    memory_keys: Tensor  # (heads, d_k, S) of the encoder's output
    memory_values: Tensor  # (heads, S, d_v)
    num_heads: int  # h

    @classmethod
    def of(cls, keys: Float[Tensor, "B h S d_k"], values: Float[Tensor, "B h S d_v"]) -> "LayerState":
        """Begin with this memory and no entries."""
        memory = keys.transpose(2, 3).flatten(0, 1).contiguous(), values.flatten(0, 1)
        count, d_k, d_v = len(memory[0]), keys.shape[3], values.shape[3]
        own = keys.new_zeros(count, d_k, CACHE_BLOCK), values.new_zeros(count, CACHE_BLOCK, d_v)
        return cls(*own, *memory, keys.shape[1])

    @property
    def num_sentences(self) -> int:
        """B."""
        return len(self.keys) // self.num_heads

    def by_sentence(self, kept: Float[Tensor, "heads x y"]) -> Float[Tensor, "B h x y"]:
        """View one of its tensors sentence by sentence."""
        return kept.view(-1, self.num_heads, *kept.shape[1:])

    def add(self, keys: Float[Tensor, "N _"], values: Float[Tensor, "N _"], new: slice) -> None:
        """Write down the entries of a position, one for each beam."""
        num_beams = new.stop - new.start
        of_keys, of_values = self.by_sentence(self.keys), self.by_sentence(self.values)
        of_keys[..., new] = keys.view(-1, num_beams, self.num_heads, of_keys.shape[2]).permute(0, 2, 3, 1)
        of_values[:, :, new] = values.view(-1, num_beams, self.num_heads, of_values.shape[3]).transpose(1, 2)

    def keep(self, left: Int[Tensor, "B E_left"], room: int) -> None:
        """Keep these entries of each sentence, and make room for more."""
        left = left.repeat_interleave(self.num_heads, 0)  # (heads, E_left)
        keys = self.keys.gather(2, left[:, None].expand(-1, self.keys.shape[1], -1))
        values = self.values.gather(1, left[:, :, None].expand(-1, -1, self.values.shape[2]))
        self.keys, self.values = F.pad(keys, (0, room)), F.pad(values, (0, 0, 0, room))

    def select(self, sentences: Int[Tensor, "B"]) -> None:
        """Keep these sentences."""
        for name in ("keys", "values", "memory_keys", "memory_values"):
            kept = take_(self.by_sentence(getattr(self, name)), sentences)
            setattr(self, name, kept.flatten(0, 1))


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
        capacity, num_sentences = self.layers[0].keys.shape[2], self.layers[0].num_sentences
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
        num_sentences = self.layers[0].num_sentences
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
        self.large = sum(parameter.numel() for parameter in model.parameters()) >= LARGE
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
        x = self.model.embedding(ids) + self.model.tgt_positions(state.length, 1)  # (N, d_model)
        num_sentences, num_heads = state.layers[0].num_sentences, state.layers[0].num_heads
        new = state.add_position()
        visible = of_heads(state.visible.view(num_sentences, 1, -1, new.stop), num_heads)
        mask = None if state.mask is None else of_heads(state.mask, num_heads)
        for layer, layer_state in zip(self.model.decoder, state.layers, strict=True):
            x = step(layer, x, layer_state, visible, mask, new)
        return self.output(x)


def of_heads(mask: Float[Tensor, "B 1 #k E"], num_heads: int) -> Float[Tensor, "heads #k E"]:
    """Repeat a mask for every head."""
    return mask.expand(-1, num_heads, -1, -1).flatten(0, 1)


def step(
    layer: DecoderLayer,
    x: Float[Tensor, "N d_model"],
    kept: LayerState,
    visible: Float[Tensor, "heads k E"],
    mask: Float[Tensor, "heads 1 S"] | None,
    new: slice,
) -> Float[Tensor, "N d_model"]:
    """Decode the next position one layer further: `DecoderLayer.forward` without dropout, in as few calls as it takes.

    At these sizes calling takes as long as computing, and threads wait for each other's calls.
    """
    attention, cross = layer.attention, layer.cross_attention
    query, key, value = attention.qkv(x).split(attention.widths, dim=1)
    kept.add(key, value, new)
    heads = attend_beams(query, kept.keys[:, :, : new.stop], kept.values[:, : new.stop], visible, kept.num_heads)
    x = layer.attention_norm.norm(added(attention.out, heads, x))
    heads = attend_beams(cross.query(x), kept.memory_keys, kept.memory_values, mask, kept.num_heads)
    x = layer.cross_attention_norm.norm(added(cross.out, heads, x))
    inner = layer.feed_forward.activation(layer.feed_forward.inner(x))
    return layer.feed_forward_norm.norm(added(layer.feed_forward.out, inner, x))


def added(
    linear: nn.Module, x: Float[Tensor, "N d_in"], residual: Float[Tensor, "N d_out"]
) -> Float[Tensor, "N d_out"]:
    """Compute linear(x) + residual, in one step where that exists."""
    result: Tensor = linear(x, residual) if isinstance(linear, PackedLinear) else linear(x) + residual
    return result


def attend_beams(
    query: Float[Tensor, "N _"],
    keys: Float[Tensor, "heads d_k E"],
    values: Float[Tensor, "heads E d_v"],
    mask: Float[Tensor, "heads #k E"] | None,
    num_heads: int,
) -> Float[Tensor, "N _"]:
    """Compute softmax(Q Kᵀ / √d_k + mask) V (equation 1); the beams of a sentence are as if they were its positions."""
    num_rows, (count, d_k, _) = len(query), keys.shape
    num_beams = num_rows * num_heads // count
    query = query.view(-1, num_beams, num_heads, d_k).transpose(1, 2).reshape(count, num_beams, d_k)
    weights = softmax(scaled_product(query, keys, 1 / math.sqrt(d_k), mask))
    heads = torch.bmm(weights, values).view(-1, num_heads, num_beams, values.shape[2])
    return heads.transpose(1, 2).reshape(num_rows, -1)
