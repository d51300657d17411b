"""What `train_speed.py` and `decode_speed.py` work on: shapes, the same sentences for all, models of a shape."""

from dataclasses import dataclass
from typing import Any

import numpy as np

FIRST_WORD = 4  # lower ids are the toolkits' control symbols, which differ

Sentences = list[np.ndarray]


@dataclass(frozen=True)
class Shape:
    """A Transformer with d_k = d_v = d_model / h, and the work that is measured on it."""

    d_model: int
    num_layers: int  # the paper's N
    num_heads: int
    d_ff: int
    vocab_size: int
    num_sentences: int  # at once
    shortest: int  # sentence, in subwords, end symbol included; lengths are uniform between the two
    longest: int
    rounds: int  # updates, or translations of all sentences, that are timed after one that is not


def sentences(shape: Shape, seed: int) -> Sentences:
    """Draw source or target sentences, without end symbols: the same ones for every contender."""
    rng = np.random.default_rng(seed)
    lengths = rng.integers(shape.shortest, shape.longest, shape.num_sentences, endpoint=True)
    return [rng.integers(FIRST_WORD, shape.vocab_size - 1, length - 1) for length in lengths]


def padded(sentences: Sentences, eos_id: int, pad_id: int) -> np.ndarray:
    """End every sentence and pad to a rectangle, in a toolkit's own ids."""
    rectangle = np.full((len(sentences), 1 + max(map(len, sentences))), pad_id, dtype=np.int64)
    for row, words in zip(rectangle, sentences, strict=True):
        row[: len(words) + 1] = [*words, eos_id]
    return rectangle


def num_tokens(sentences: Sentences) -> int:
    """Count subwords, end symbols included, padding not: the only way tokens are counted here."""
    return sum(len(words) + 1 for words in sentences)


def our_config(shape: Shape, *settings: str) -> Any:
    """Compose ablate's configuration of this shape, as the command does; the rest is the paper's."""
    from ablate.compose import compose

    d_head = shape.d_model // shape.num_heads
    sizes = {"num_layers": shape.num_layers, "d_model": shape.d_model, "d_ff": shape.d_ff, "d_k": d_head, "d_v": d_head}
    model = [f"model.{name}={value}" for name, value in {**sizes, "num_heads": shape.num_heads}.items()]
    return compose(["preset=paper", "data=synthetic", "device=cpu", "precision=fp32", *model, *settings])


def marian(shape: Shape, dropout: float) -> Any:
    """Build transformers' MarianMTModel of this shape; its end symbol is id 0, its padding the last id.

    It is the paper's Transformer: post-LN, sinusoids, one matrix for both embeddings and the output, dropout on
    sub-layers and embeddings only.
    """
    from transformers import MarianConfig, MarianMTModel

    layers, heads, ff = ("layers", shape.num_layers), ("attention_heads", shape.num_heads), ("ffn_dim", shape.d_ff)
    sizes: dict[str, Any] = {f"{side}_{what}": n for side in ("encoder", "decoder") for what, n in (layers, heads, ff)}
    last = shape.vocab_size - 1
    sizes |= {"vocab_size": shape.vocab_size, "pad_token_id": last, "eos_token_id": 0, "decoder_start_token_id": last}
    sizes |= {"d_model": shape.d_model, "activation_function": "relu", "scale_embedding": True, "dropout": dropout}
    return MarianMTModel(MarianConfig(**sizes, forced_eos_token_id=0))
