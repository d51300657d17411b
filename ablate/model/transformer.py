"""The Transformer of the paper: post-LN encoder and decoder, three-way tied embedding.

Axes: B batch, S source length, T target length, V vocabulary, M source tokens, N target tokens, of all sentences.
"""

from collections.abc import Callable
from typing import Any, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from ablate.config import ModelConfig
from ablate.data.subword import EOS, PAD
from ablate.model.attention import CrossAttention, SelfAttention
from ablate.model.embedding import Embedding, Positions, dropout
from ablate.model.linear import Linear
from ablate.model.ragged import Ragged

LAYER_NORM_EPS = 1e-6  # of the authors' program


class AddNorm(nn.Module):
    """LayerNorm(x + Dropout(Sublayer(x))): what surrounds every sub-layer (sections 3.1 and 5.4)."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.p = model.dropout
        self.norm = nn.LayerNorm(model.d_model, eps=LAYER_NORM_EPS)

    def forward(
        self, x: Float[Tensor, "*axes d_model"], sublayer: Float[Tensor, "*axes d_model"]
    ) -> Float[Tensor, "*axes d_model"]:
        """Add a sub-layer's output to its input, and normalise."""
        normed: Tensor = self.norm(dropout(sublayer, self.p, self.training, x))
        return normed


class FeedForward(nn.Module):
    """Two linear layers with an activation between them, at each position alone (equation 2)."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.activation = {"relu": F.relu_, "gelu": F.gelu}[model.activation]
        self.inner = Linear(model.d_model, model.d_ff)
        self.out = Linear(model.d_ff, model.d_model)

    def forward(self, x: Float[Tensor, "*axes d_model"]) -> Float[Tensor, "*axes d_model"]:
        """Transform each position."""
        transformed: Tensor = self.out(self.activation(self.inner(x)))
        return transformed


class EncoderLayer(nn.Module):
    """Self-attention, then feed-forward."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.attention, self.attention_norm = SelfAttention(model), AddNorm(model)
        self.feed_forward, self.feed_forward_norm = FeedForward(model), AddNorm(model)

    def forward(self, x: Float[Tensor, "M d_model"], src: Ragged) -> Float[Tensor, "M d_model"]:
        """Encode one layer further."""
        x = self.attention_norm(x, self.attention(x, src))
        x = self.feed_forward_norm(x, self.feed_forward(x))
        return x


class DecoderLayer(nn.Module):
    """Causal self-attention, attention to the encoder's output, then feed-forward."""

    def __init__(self, model: ModelConfig) -> None:
        super().__init__()
        self.attention, self.attention_norm = SelfAttention(model), AddNorm(model)
        self.cross_attention, self.cross_attention_norm = CrossAttention(model), AddNorm(model)
        self.feed_forward, self.feed_forward_norm = FeedForward(model), AddNorm(model)

    def forward(
        self, x: Float[Tensor, "N d_model"], tgt: Ragged, memory: Float[Tensor, "M d_model"], src: Ragged
    ) -> Float[Tensor, "N d_model"]:
        """Decode one layer further."""
        x = self.attention_norm(x, self.attention(x, tgt, causal=True))
        x = self.cross_attention_norm(x, self.cross_attention(x, tgt, memory, src))
        x = self.feed_forward_norm(x, self.feed_forward(x))
        return x


def through(layer: nn.Module, *inputs: Any) -> Tensor:
    """Go through one layer; what `Transformer.compile_layers` compiles."""
    output: Tensor = layer(*inputs)
    return output


class Transformer(nn.Module):
    """Encoder and decoder of N layers each, between one shared embedding matrix (Figure 1).

    Differs from the text where the authors' program does, each by a field of `ModelConfig`: biases on the attention
    projections, Xavier fans of the fused matrices, an all-zero first decoder input, sines and cosines in halves.
    """

    def __init__(self, model: ModelConfig, vocab_size: int) -> None:
        """Build and initialise.

        Args:
            model: sizes, already scaled to the preset.
            vocab_size: rows of the embedding matrix.
        """
        super().__init__()
        self.pad_id, self.eos_id = PAD, EOS
        self.first_id = PAD if model.decoder_start == "zeros" else EOS  # padding embeds to the zero vector
        self.dropout = model.dropout
        self.embedding = Embedding(vocab_size, model.d_model, PAD)
        self.src_positions = Positions(model)
        # Learned positions differ between the two sides, as in Gehring et al. 2017, whom section 3.5 cites.
        self.tgt_positions = Positions(model)
        encoder = nn.ModuleList(EncoderLayer(model) for _ in range(model.num_layers))
        decoder = nn.ModuleList(DecoderLayer(model) for _ in range(model.num_layers))
        self.encoder, self.decoder = cast(list[EncoderLayer], encoder), cast(list[DecoderLayer], decoder)
        self.compiled: Callable[..., Tensor] | None = None  # `through`, for training
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear):
                if not name.endswith((".qkv", ".kv")):  # fused matrices initialise themselves
                    nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)

    def compile_layers(self) -> None:
        """Have torch's compiler make code for training: one for all encoder layers, one for all decoder layers.

        It is made when first used. Dropout draws what it draws without.
        """
        self.compiled = torch.compile(through, fullgraph=True, dynamic=True, options={"fallback_random": True})

    def run(self, layer: nn.Module, *inputs: Any) -> Tensor:
        """Go through one layer: in training by the compiled code, if there is any."""
        return self.compiled(layer, *inputs) if self.compiled and self.training else through(layer, *inputs)

    def find_moves(self, src: Ragged, tgt: Ragged) -> None:
        """Find all that attention moves between rows and heads, before compiled layers, which must only look it up."""
        attention = self.decoder[0].attention
        d_k, _, d_v = attention.head_widths
        for sentences, widths in ((src, (d_k, d_v)), (tgt, (d_k,))):
            for moved in (attention.head_widths, widths, (d_v,)):
                sentences.moves(attention.num_heads, moved)

    def check_length(self, longest: int) -> None:
        """Make sure that sequences of up to `longest` subwords can be read and written.

        Raises:
            PositionError: if the positions are learned and fewer than `longest`.
        """
        self.src_positions.check_length(longest)
        self.tgt_positions.check_length(longest)

    def encode(self, src: Ragged) -> Float[Tensor, "M d_model"]:
        """Encode source ids into the memory that the decoder attends to."""
        return self.encode_embedded(self.embedding(src.ids), src)

    def encode_embedded(self, x: Float[Tensor, "M d_model"], src: Ragged) -> Float[Tensor, "M d_model"]:
        """Encode what the embedding made of the source."""
        x = dropout(x + self.src_positions.of(src), self.dropout, self.training)
        for layer in self.encoder:
            x = self.run(layer, x, src)
        return x

    def predict(self, src: Ragged, tgt: Ragged) -> tuple[Float[Tensor, "N d_model"], Float[Tensor, "V d_model"]]:
        """Compute the hidden states whose n-th row predicts `tgt.ids[n]`, and give the matrix that makes them logits.

        The shift to the right happens here, before positions are added, so the first input stands at position 0.

        Args:
            src: source ids, each sentence ended by EOS.
            tgt: target ids, likewise; what is to be predicted.

        Raises:
            PositionError: if the positions are learned and too few.
        """
        if self.compiled and self.training:
            self.find_moves(src, tgt)
        shifted = tgt.ids.roll(1).where(tgt.positions > 0, self.first_id)
        embedded, output = self.embedding.look_up(torch.cat([src.ids, shifted]))
        of_src, of_tgt = embedded.split([len(src.ids), len(shifted)])
        memory = self.encode_embedded(of_src, src)
        x = dropout(of_tgt + self.tgt_positions.of(tgt), self.dropout, self.training)
        for layer in self.decoder:
            x = self.run(layer, x, tgt, memory, src)
        return x, output

    def forward(self, src: Int[Tensor, "B S"], tgt: Int[Tensor, "B T"]) -> Float[Tensor, "B T d_model"]:
        """Do `predict` with sentences padded at the end; the rows of padding mean nothing."""
        targets = Ragged.of(tgt, self.pad_id)
        hidden, _ = self.predict(Ragged.of(src, self.pad_id), targets)
        return hidden[targets.tokens]

    def logits(self, hidden: Float[Tensor, "*axes d_model"]) -> Float[Tensor, "*axes V"]:
        """Score the vocabulary with the embedding matrix; no bias (section 3.4)."""
        logits: Tensor = F.linear(hidden, self.embedding.weight)
        return logits
