"""Score a model: perplexity of a split, and BLEU and chrF of its translations. The one door to sacreBLEU."""

import math
from dataclasses import dataclass

import sacrebleu
import torch

from ablate.data.batch import eval_batches
from ablate.data.packed import Packed
from ablate.loss import smoothed_loss
from ablate.model.transformer import Transformer

SUBWORD_MARKS = ("\u2581", "@@ ")  # SentencePiece's word boundary, subword-nmt's continuation


class ScoreError(ValueError):
    """Translations that cannot be scored as they are."""


@dataclass
class Perplexity:
    """Perplexity per subword: exp(Σ NLL / Σ target tokens), the end symbol counted, padding not."""

    ppl: float
    nll_per_token: float  # nats
    num_tokens: int


@dataclass
class Scores:
    """Corpus scores, each with the signature without which it says nothing."""

    bleu: float
    bleu_signature: str
    chrf: float
    chrf_signature: str
    num_sentences: int


@torch.no_grad()
def perplexity(model: Transformer, packed: Packed, batch_tokens: int, device: str) -> Perplexity:
    """Measure the perplexity of a whole split: no smoothing, no dropout, float32.

    Args:
        model: left in the mode (training or not) it came in.
        packed: every pair of it counts, of whatever length.
        batch_tokens: sentences × longest side at once; changes speed only up to rounding.
        device: where the model is.

    Raises:
        ScoreError: if the perplexity is beyond what a float can hold: the model has diverged.
    """
    was_training = model.training
    model.eval()
    total, num_tokens = 0.0, 0
    for batch in eval_batches(packed, batch_tokens):
        src, tgt = torch.from_numpy(batch.src).to(device), torch.from_numpy(batch.tgt).to(device)
        with torch.autocast(device, enabled=False):
            hidden = model(src, tgt)  # (B, T, d_model)
            _, nll, _ = smoothed_loss(hidden, model.embedding.weight, tgt, 0.0, "uniform", model.pad_id)
            total += float(nll)
        num_tokens += batch.num_tgt_tokens
    model.train(was_training)
    mean = total / num_tokens
    if not mean < 700:
        raise ScoreError(f"NLL per token is {mean}: the model has diverged")
    return Perplexity(math.exp(mean), mean, num_tokens)


def clean(text: str) -> str:
    """Keep a translation on one line: bytes the model spelt out may be line ends."""
    return text.replace("\n", " ").replace("\r", " ")


def score(hypotheses: list[str], references: list[str]) -> Scores:
    """Score detokenised translations with sacreBLEU's 13a BLEU and chrF.

    Args:
        hypotheses: one per sentence, in the corpus's order.
        references: the same number; empty ones are scored like any other.

    Raises:
        ScoreError: if the numbers differ, or the hypotheses are subwords rather than text.
    """
    if len(hypotheses) != len(references):
        raise ScoreError(f"{len(hypotheses)} hypotheses for {len(references)} references")
    if not references:
        raise ScoreError("0 sentences: there is nothing to score")
    for mark in SUBWORD_MARKS:
        marked = next((i for i, text in enumerate(hypotheses) if mark in text), None)
        if marked is not None and not any(mark in text for text in references):
            raise ScoreError(
                f"hypothesis {marked + 1} holds {mark!r}: scores are of text, not of subwords: {hypotheses[marked]!r}"
            )
    bleu_metric, chrf_metric = sacrebleu.BLEU(), sacrebleu.CHRF()
    bleu = bleu_metric.corpus_score(hypotheses, [references])
    chrf = chrf_metric.corpus_score(hypotheses, [references])
    return Scores(
        bleu=bleu.score,
        bleu_signature=str(bleu_metric.get_signature()),
        chrf=chrf.score,
        chrf_signature=str(chrf_metric.get_signature()),
        num_sentences=len(references),
    )
