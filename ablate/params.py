"""Parameters and floating-point operations, from the configuration alone: the plan and the table need no torch."""

import dataclasses

from ablate.config import ModelConfig, OptimConfig

PAPER_ROWS = 40_960  # of the embedding matrix in the authors' program; the real BPE vocabulary is about 37,000
PAPER_TARGET_SPACES = 32  # rows of width d_model that the authors' program also holds
MEAN_LENGTH = 20.0  # subwords of a sentence, where only the cost of attention depends on it


def attention_weights(model: ModelConfig) -> int:
    """Count the weights of one multi-head attention: queries, keys, values, and the output projection."""
    return model.d_model * model.num_heads * (2 * model.d_k + 2 * model.d_v)


def attention_biases(model: ModelConfig) -> int:
    """Count the biases of one multi-head attention; 0 without `attention_bias`."""
    return model.num_heads * (2 * model.d_k + model.d_v) + model.d_model if model.attention_bias else 0


def body_parameters(model: ModelConfig) -> int:
    """Count the parameters of encoder and decoder, without embeddings and positions."""
    attention = attention_weights(model) + attention_biases(model)
    feed_forward = 2 * model.d_model * model.d_ff + model.d_ff + model.d_model
    norm = 2 * model.d_model
    encoder_layer = attention + feed_forward + 2 * norm
    decoder_layer = 2 * attention + feed_forward + 3 * norm
    return model.num_layers * (encoder_layer + decoder_layer)  # post-LN: no final norms


def count_parameters(model: ModelConfig, vocab_size: int) -> int:
    """Count the parameters of `Transformer(model, vocab_size)`; the one embedding matrix counts once.

    Learned positions add two tables of `max_positions` rows, one for the source and one for the target.
    """
    positions = 2 * model.max_positions * model.d_model if model.positional == "learned" else 0
    return body_parameters(model) + vocab_size * model.d_model + positions


def params_paper(model: ModelConfig) -> int:
    """Count as the authors' program did for Table 3's last column, whatever our vocabulary is.

    40,960 embedding rows, biases on the attention projections, and a 32 × d_model target-space embedding. With it
    every printed cell is exact after rounding but big's: 218.3 where the paper prints 213.
    """
    biased = dataclasses.replace(model, attention_bias=True)
    return count_parameters(biased, PAPER_ROWS) + PAPER_TARGET_SPACES * model.d_model


def train_flops(
    model: ModelConfig,
    vocab_size: int,
    num_src_tokens: float,
    num_tgt_tokens: float,
    mean_src_len: float,
    mean_tgt_len: float,
) -> float:
    """Estimate the floating-point operations of training on so many tokens: 3 × the forward pass's multiplications.

    A multiply-add is 2 operations; the backward pass costs twice the forward one. Counted are the matrix products:
    projections, feed-forward, output layer, and attention's scores and weighted sums (whole matrices, though causal
    ones are half empty). Norms, softmax, dropout and Adam are not.

    Args:
        model: scaled to the preset.
        vocab_size: rows of the output layer.
        num_src_tokens: source tokens in all, padding included if it is computed on.
        num_tgt_tokens: target tokens in all.
        mean_src_len: tokens of a source sentence, for attention's cost.
        mean_tgt_len: tokens of a target sentence.
    """
    feed_forward = 2 * model.d_model * model.d_ff
    keys_values = model.d_model * model.num_heads * (model.d_k + model.d_v)  # of the cross-attention: per source token
    per_key = model.num_heads * (model.d_k + model.d_v)  # one query against one key: score and weighted sum
    src = attention_weights(model) + feed_forward + mean_src_len * per_key + keys_values
    tgt = 2 * attention_weights(model) - keys_values + feed_forward + (mean_tgt_len + mean_src_len) * per_key
    per_src_token = model.num_layers * src
    per_tgt_token = model.num_layers * tgt + vocab_size * model.d_model
    return 3 * 2 * (num_src_tokens * per_src_token + num_tgt_tokens * per_tgt_token)


def run_flops(model: ModelConfig, optim: OptimConfig, vocab_size: int) -> float:
    """Estimate the operations of a whole training, each batch full on both sides: padding is computed on too."""
    tokens = float(optim.batch_tokens) * optim.accumulate * optim.train_steps
    return train_flops(model, vocab_size, tokens, tokens, MEAN_LENGTH, MEAN_LENGTH)
