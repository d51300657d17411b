"""Beam search with the length penalty of Wu et al. 2016 (section 6.1 of the paper: beam 4, α 0.6, source + 50).

Axes: B sentences still searched, k beam, N = B · k rows, sentence by sentence, V vocabulary, S source length.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from ablate.stop import Stopped

BLOCK = 64  # of the vocabulary, that `best_extensions` takes together


@runtime_checkable
class State(Protocol):
    """What a model keeps between steps: N rows, the same number for each of its sentences, one at first."""

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        """Let row i continue what row `rows[i]` was; keep only the sentences named, all if None."""


@runtime_checkable
class Model(Protocol):
    """What the search asks of a model; `ablate.model.inference.Decoder` answers it."""

    pad_id: int
    eos_id: int
    first_id: int  # what the decoder reads first
    training: bool  # must be False: dropout would be on
    large: bool  # whether a step is so long that threads can share it

    def check_length(self, longest: int) -> None:
        """Raise if sequences of `longest` subwords are too long for the model."""

    def start(self, src: Tensor) -> Any:
        """Read the sources and give a `State`."""

    def step(self, state: Any, ids: Tensor) -> Tensor:
        """Append one id to every row and score the next, (N, V), in logits or log-probabilities."""


@dataclass
class Hypothesis:
    """A translation."""

    ids: list[int]  # without the end symbol
    score: float  # log_prob over the length penalty
    log_prob: float  # of the ids and the end symbol, in nats


def penalty(length: Any, alpha: float) -> Any:
    """Give ((5 + n) / 6)^α, by which a log-probability is divided (Wu et al. 2016, equation 14).

    Args:
        length: n, in subwords, the end symbol included; a number or a tensor of them.
        alpha: α; 0 leaves log-probabilities as they are.
    """
    return ((5 + length) / 6) ** alpha


def best_extensions(
    live: Float[Tensor, "B k"], log_probs: Float[Tensor, "N V"], count: int
) -> tuple[Float[Tensor, "B count"], Int[Tensor, "B count"], Int[Tensor, "B count"]]:
    """Find the likeliest one-subword extensions of each sentence's hypotheses, likeliest first.

    They lie in the `count` blocks of `BLOCK` columns with the largest maxima. Only these are looked through, which on a
    CPU is many times as fast as `topk` of all.

    Args:
        live: log-probabilities of the hypotheses.
        log_probs: of what may follow each, N = B · k.
        count: how many are wanted.

    Returns:
        Their log-probabilities, −∞ for those that there are not; which hypothesis each extends; by which subword.
    """
    vocab_size = log_probs.shape[1]
    num_whole = vocab_size // BLOCK
    maxima = log_probs[:, : num_whole * BLOCK].unflatten(1, (num_whole, BLOCK)).amax(2)
    if vocab_size % BLOCK:
        maxima = torch.cat([maxima, log_probs[:, num_whole * BLOCK :].amax(1, keepdim=True)], dim=1)  # (N, blocks)
    num_blocks = maxima.shape[1]
    reached = (maxima + live.view(-1, 1)).view(len(live), -1)  # (B, k · blocks)
    chosen = reached.topk(min(count, reached.shape[1])).indices[:, :, None]  # (B, chosen, 1)
    parent = (chosen // num_blocks).expand(-1, -1, BLOCK).flatten(1)  # (B, chosen · BLOCK)
    token = (chosen % num_blocks * BLOCK + torch.arange(BLOCK, device=live.device)).flatten(1)
    beyond, token = token >= vocab_size, token.clamp(max=vocab_size - 1)
    totals = live.gather(1, parent) + log_probs.view(len(live), -1).gather(1, parent * vocab_size + token)
    top, best = totals.masked_fill_(beyond, -torch.inf).topk(min(count, totals.shape[1]))
    parent, token = parent.gather(1, best), token.gather(1, best)
    if missing := count - top.shape[1]:
        parent, token = F.pad(parent, (0, missing)), F.pad(token, (0, missing))
        top = F.pad(top, (0, missing), value=-torch.inf)
    return top, parent, token


class Beams:
    """The search over a batch: live hypotheses, best first, apart from the best finished one of each sentence."""

    def __init__(self, src_lengths: Int[Tensor, "B"], beam_size: int, alpha: float, max_extra: int) -> None:
        """Begin each sentence with one empty live hypothesis."""
        self.beam_size, self.alpha = beam_size, alpha
        self.best: list[Hypothesis | None] = [None] * len(src_lengths)  # of the whole batch
        # The rest speaks of the sentences still searched only.
        self.sentence = torch.arange(len(src_lengths), device=src_lengths.device)  # (B,): which of the batch
        self.max_length = src_lengths + max_extra  # (B,)
        self.prefixes = src_lengths.new_empty(len(src_lengths), 1, 0)  # (B, k, n), but before the first step (B, 1, 0)
        self.log_probs = torch.zeros(len(src_lengths), 1, device=src_lengths.device)  # (B, k); −∞: there is none
        self.best_score = self.log_probs.new_full((len(src_lengths),), -torch.inf)  # of the finished ones

    def extend(self, log_probs: Float[Tensor, "N V"], eos_id: int) -> Int[Tensor, "B k"]:
        """Lengthen the live hypotheses by one subword and take out those that end.

        Of the 2k best extensions at most k end, so at least k go on. Only the k best may end: a beam of 1 is greedy.

        Returns:
            Which live hypothesis each new one continues.
        """
        k = self.beam_size
        top, parent, token = best_extensions(self.log_probs, log_probs, 2 * k)
        ends = token == eos_id
        self.finish(top[:, :k].masked_fill(~ends[:, :k], -torch.inf), parent)
        going_on = ends.int().argsort(dim=1, stable=True)[:, :k]  # those that do not end, still best first
        self.log_probs, parent, token = (x.gather(1, going_on) for x in (top, parent, token))
        continued = self.prefixes.gather(1, parent[:, :, None].expand(-1, -1, self.prefixes.shape[2]))
        self.prefixes = torch.cat([continued, token[:, :, None]], dim=2)
        return parent

    def finish(self, ended: Float[Tensor, "B k"], parent: Int[Tensor, "B 2*k"]) -> None:
        """Keep the best of the hypotheses that end now, where it is better than those that ended before.

        Args:
            ended: log-probabilities, the end symbol's included; −∞ for an extension that does not end.
            parent: which live hypothesis each extends.
        """
        log_prob, which = ended.max(1)  # all are of one length, so the likeliest also scores best
        score = log_prob / penalty(self.prefixes.shape[2] + 1, self.alpha)
        better = torch.nonzero(score > self.best_score)[:, 0]
        ids = self.prefixes[better, parent[better, which[better]]]
        found = (x.tolist() for x in (self.sentence[better], ids, score[better], log_prob[better]))
        for sentence, *hypothesis in zip(*found, strict=True):
            self.best[sentence] = Hypothesis(*hypothesis)
        self.best_score = torch.maximum(self.best_score, score)

    def done(self) -> Bool[Tensor, "B"]:
        """Say which sentences are: at their length limit, or with a finished hypothesis no live one can beat.

        Log-probabilities only fall, so a live one can reach at most its own over the largest penalty. A sentence
        without a finished hypothesis at the limit gets its best live one.
        """
        length = self.prefixes.shape[2]
        reachable = self.log_probs[:, 0] / penalty(self.max_length, self.alpha)
        at_limit = self.max_length <= length
        for i in torch.nonzero(at_limit & self.best_score.isneginf())[:, 0].tolist():
            log_prob = float(self.log_probs[i, 0])
            hypothesis = Hypothesis(self.prefixes[i, 0].tolist(), log_prob / penalty(length, self.alpha), log_prob)
            self.best[int(self.sentence[i])] = hypothesis
        done: Tensor = at_limit | (self.best_score >= reachable)
        return done

    def keep(self, sentences: Int[Tensor, "kept"]) -> None:
        """Go on with some of the sentences only."""
        self.sentence, self.max_length = self.sentence[sentences], self.max_length[sentences]
        self.prefixes, self.log_probs = self.prefixes[sentences], self.log_probs[sentences]
        self.best_score = self.best_score[sentences]


def compacted(done: Bool[Tensor, "B"]) -> Int[Tensor, "kept"]:
    """List the places that are not done, the last ones where others have left, so that few move."""
    left = torch.nonzero(~done)[:, 0]
    kept = torch.arange(len(left), device=done.device)
    kept[done[: len(left)]] = left[left >= len(left)]
    return kept


@torch.inference_mode()
def beam_search(
    model: Model,
    src: Int[Tensor, "B S"],
    beam_size: int,
    length_penalty: float,
    max_extra: int,
    should_stop: Callable[[], bool] = lambda: False,
) -> list[Hypothesis]:
    """Translate a batch: find the best-scored hypothesis of each sentence.

    A hypothesis scores log p / ((5 + n) / 6)^α, n its subwords with the end symbol. It has at most as many as its own
    source (end symbol counted, padding not) plus `max_extra`. A sentence's search ends when no live hypothesis can
    still beat its best finished one, and then leaves the batch. Padding is never produced. What else is in the batch
    changes a sentence's result by rounding only.

    Args:
        model: a `Decoder` of a Transformer in evaluation mode, or another `Model`.
        src: source ids, each sentence ended by EOS and padded at the end.
        beam_size: live hypotheses of a sentence; 1 is greedy.
        length_penalty: α, at least 0.
        max_extra: at least 0.
        should_stop: asked before every step.

    Returns:
        One hypothesis per sentence, in the order of `src`.

    Raises:
        ValueError: if the model is in training mode.
        PositionError: before anything is computed, if the model's learned positions are too few.
        Stopped: when `should_stop` says so.
    """
    if model.training:
        raise ValueError("training=True: put the model in evaluation mode, dropout would change its translations")
    beams = Beams((src != model.pad_id).sum(1), beam_size, length_penalty, max_extra)
    model.check_length(max(src.shape[1], int(beams.max_length.max())))
    state: State = model.start(src)
    ids = src.new_full((len(src),), model.first_id)  # one row per sentence at first, then k
    while len(ids):
        if should_stop():
            raise Stopped
        logits = model.step(state, ids).float()
        log_probs = torch.log_softmax(logits, -1, out=logits)  # N · V numbers: fresh memory costs as much as the work
        log_probs[:, model.pad_id] = -torch.inf
        parent = beams.extend(log_probs, model.eos_id)  # (B, k)
        rows = parent + torch.arange(0, len(log_probs), len(log_probs) // len(parent), device=src.device)[:, None]
        done = beams.done()
        if done.any():
            kept = compacted(done)
            beams.keep(kept)
            state.select(rows[kept].flatten(), kept)
        elif beam_size > 1:
            state.select(rows.flatten())
        ids = beams.prefixes[:, :, -1].flatten()
    return [hypothesis for hypothesis in beams.best if hypothesis is not None]
