"""Evaluate a trained model: perplexity of a split, and the scores of its translations."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ablate.bleu import ScoreError, score
from ablate.config import DecodeConfig
from ablate.data.batch import eval_batches
from ablate.data.corpus import Corpus
from ablate.data.packed import Packed
from ablate.decode import translate_all
from ablate.loss import smoothed_loss
from ablate.model.inference import Decoder
from ablate.model.ragged import Ragged
from ablate.model.transformer import Transformer


@dataclass
class Perplexity:
    """Perplexity per subword: exp(Σ NLL / Σ target tokens), the end symbol counted, padding not."""

    ppl: float
    nll_per_token: float  # nats
    num_tokens: int


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
        src, tgt = (Ragged.of(torch.from_numpy(ids), model.pad_id).to(device) for ids in (batch.src, batch.tgt))
        with torch.autocast(device, enabled=False):
            hidden, output = model.predict(src, tgt)  # (N, d_model), (V, d_model)
            _, nll = smoothed_loss(hidden, output, tgt.ids, 0.0, "uniform")
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


def evaluate(
    model: Transformer,
    corpus: Corpus,
    split: str,
    decode: DecodeConfig,
    batch_tokens: int,
    device: str,
    on_progress: Callable[[int, int], None] = lambda done, total: None,
    should_stop: Callable[[], bool] = lambda: False,
    measured: Perplexity | None = None,
) -> tuple[dict[str, Any], str]:
    """Measure a split's perplexity, translate it, and score the translations.

    Args:
        model: holds the parameters to be judged; is left in evaluation mode.
        corpus: prepared.
        split: dev or test.
        decode: beam search's settings.
        batch_tokens: see `perplexity`.
        device: where the model is.
        on_progress: told how many sentences are translated, and of how many.
        should_stop: True leads to `ablate.stop.Stopped`.
        measured: the split's perplexity, if it is known for these very parameters.

    Returns:
        The record's section for the split; and the translations, a line each, in the corpus's order.
    """
    model.eval()
    packed, subwords = corpus.split(split), corpus.subwords
    measured = measured or perplexity(model, packed, batch_tokens, device)
    sources = [packed.src(i) for i in range(len(packed))]
    found = translate_all(Decoder(model), sources, decode, device, on_progress=on_progress, should_stop=should_stop)
    hypotheses = [clean(subwords.decode(hypothesis.ids)) for hypothesis in found]
    scores = score(hypotheses, corpus.text(split, "tgt"), corpus.manifest["languages"]["tgt"])
    text = "".join(f"{hypothesis}\n" for hypothesis in hypotheses)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return {**asdict(measured), **asdict(scores), "hypotheses_sha256": digest}, text
