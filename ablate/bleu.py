"""Score translations, by sacreBLEU and as the paper did; tell whether two systems differ. No torch."""

import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import sacrebleu
from sacrebleu import significance

logging.getLogger("sacrebleu").setLevel(logging.WARNING)  # it reports every step of a significance test

FEWEST_SAMPLES = 40  # below, a resample's 2.5 % tail holds nothing
SUBWORD_MARKS = ("\u2581", "@@ ")  # SentencePiece's word boundary, subword-nmt's continuation


class ScoreError(ValueError):
    """Translations that cannot be scored as they are."""


@dataclass
class Scores:
    """Corpus scores, each with the signature without which it says nothing."""

    bleu: float
    bleu_signature: str
    bleu_tok: float  # the paper's: tokenised, compounds split
    bleu_tok_signature: str
    chrf: float
    chrf_signature: str
    num_sentences: int


@dataclass
class BleuDifference:
    """How far two systems' BLEU lies apart on the same sentences, with the signature of the test."""

    delta: float  # other - base, BLEU points
    p: float  # sacreBLEU's; see `paired_bootstrap` for what it is worth
    low: float  # 95 % interval of delta
    high: float
    signature: str


def score(hypotheses: list[str], references: list[str], lang: str) -> Scores:
    """Score detokenised translations with sacreBLEU's 13a BLEU and chrF, and with BLEU as the paper's authors took it.

    Args:
        hypotheses: one per sentence, in the corpus's order.
        references: the same number; empty ones are scored like any other.
        lang: of both, ISO 639-1: Moses's tokenizer knows its abbreviations.

    Raises:
        ScoreError: if the numbers differ, or the hypotheses are subwords rather than text.
    """
    refuse_unscorable(hypotheses, references)
    bleu_metric, chrf_metric = sacrebleu.BLEU(), sacrebleu.CHRF()
    bleu = bleu_metric.corpus_score(hypotheses, [references])
    chrf = chrf_metric.corpus_score(hypotheses, [references])
    bleu_tok, bleu_tok_signature = paper_bleu(hypotheses, references, lang)
    return Scores(
        bleu=bleu.score,
        bleu_signature=str(bleu_metric.get_signature()),
        bleu_tok=bleu_tok,
        bleu_tok_signature=bleu_tok_signature,
        chrf=chrf.score,
        chrf_signature=str(chrf_metric.get_signature()),
        num_sentences=len(references),
    )


def multi_bleu() -> sacrebleu.BLEU:
    """Give the metric that Moses's multi-bleu.perl computes: of tokens between spaces, case-sensitive, not smoothed."""
    return sacrebleu.BLEU(tokenize="none", smooth_method="none", force=True)


def paper_bleu(hypotheses: list[str], references: list[str], lang: str) -> tuple[float, str]:
    """Score as the authors' get_ende_bleu.sh (tensor2tensor) first did; gives the score and its signature.

    Both sides are tokenised as Moses's tokenizer.perl does it (by sacremoses 0.2.0, which gave its tokens on all 12,424
    lines of Home Assistant's German and of its English), compounds are split, and multi-bleu.perl counts. Their
    reference was tokenised before; ours is here, so that one rule holds for both. Later versions of the script replace
    Unicode punctuation first.

    Args:
        hypotheses: detokenised, one per sentence.
        references: the same number, detokenised.
        lang: of both.
    """
    import sacremoses  # a quarter of a second that only scoring shall cost

    tokenizer = sacremoses.MosesTokenizer(lang)
    metric = multi_bleu()
    ours, theirs = (
        [split_compounds(tokenizer.tokenize(text, return_str=True)) for text in side]
        for side in (hypotheses, references)
    )
    score = metric.corpus_score(ours, [theirs]).score
    how = f"tok:moses-{lang}-{sacremoses.__version__}|compounds:split"
    return score, str(metric.get_signature()).replace("tok:none", how)


def split_compounds(tokenised: str) -> str:
    """Split at hyphens between characters, as the authors' script does: "a-b" becomes "a ##AT##-##AT## b".

    Its matches do not overlap, so that "a-b-c" is split once. Perl reads bytes there, and so do we: "a-ü-c" is split
    twice, for ü has two of them.
    """
    return re.sub(rb"(\S)-(\S)", rb"\1 ##AT##-##AT## \2", tokenised.encode()).decode()


def refuse_unscorable(hypotheses: list[str], references: list[str]) -> None:
    """Make sure that translations are text, one for each reference.

    Raises:
        ScoreError: if they are not.
    """
    if len(hypotheses) != len(references):
        raise ScoreError(f"{len(hypotheses)} hypotheses for {len(references)} references")
    if not references:
        raise ScoreError("0 sentences: there is nothing to score")
    for mark in SUBWORD_MARKS:
        marked = [text for text in hypotheses if mark in text]
        # A model may write the mark now and then; subwords have it nearly everywhere.
        if len(marked) > len(hypotheses) / 2 and not any(mark in text for text in references):
            raise ScoreError(
                f"{len(marked)} of {len(hypotheses)} hypotheses hold {mark!r}: scores are of text, not of subwords: "
                f"{marked[0]!r}"
            )


def paired_bootstrap(
    base: list[str], other: list[str], references: list[str], num_samples: int = 1000, seed: int = 12345
) -> BleuDifference:
    """Compare two systems' BLEU by sacreBLEU's paired bootstrap over sentences (Koehn 2004).

    It tells whether other sentences would change the verdict, not whether other seeds would. Judge by the interval
    (percentiles, Efron 1979). p is the Moses script's: it takes a resampled difference's absolute value before it
    centres it, and so falls below 0.05 for two equal systems on 11 of 100 test sets. Where no resample differs
    sacreBLEU would say 1 / (num_samples + 1); here p is 1.

    Args:
        base: detokenised translations, one per sentence.
        other: those of the system compared with it.
        references: the same number.
        num_samples: resamples of the sentences.
        seed: of the resampling, at least 1: sacreBLEU takes 0 for no seed.

    Raises:
        ScoreError: for translations that `score` refuses, fewer than `FEWEST_SAMPLES` resamples, or a seed below 1.
    """
    refuse_unscorable(base, references)
    refuse_unscorable(other, references)
    if num_samples < FEWEST_SAMPLES:
        raise ScoreError(f"num_samples={num_samples}: must be at least {FEWEST_SAMPLES}")
    if seed < 1:
        raise ScoreError(f"seed={seed}: must be at least 1")
    metric = sacrebleu.BLEU(force=True)  # no warning of a tokenised period; the score is the same
    systems = [("base", base), ("other", other)]
    with sacrebleu_seed(seed):
        test = significance.PairedTest(systems, {"BLEU": metric}, [references], test_type="bs", n_samples=num_samples)
        signatures, results = test()
        # The test keeps its resamples to itself; under the same seed these are the same sentences (sacreBLEU 2.6).
        resampled = [bootstrap_scores(metric, system, references, num_samples) for _, system in systems]
    before, after = results["BLEU"]
    differences = resampled[1] - resampled[0]
    low, high = np.quantile(differences, [0.025, 0.975])
    p = after.p_value if differences.any() else 1.0
    return BleuDifference(after.score - before.score, p, float(low), float(high), str(signatures["BLEU"]))


def bootstrap_scores(metric: sacrebleu.BLEU, system: list[str], references: list[str], num_samples: int) -> np.ndarray:
    """Score a system on resampled sentences: (num_samples,), drawn by sacreBLEU under the seed it is given."""
    statistics = metric._extract_corpus_statistics(system, [references])
    _, scores = significance._bootstrap_resample(statistics, metric, num_samples)
    return np.array([score.score for score in scores])


@contextmanager
def sacrebleu_seed(seed: int) -> Iterator[None]:
    """Give sacreBLEU its seed, for which it has no argument: it reads the environment."""
    before = os.environ.get("SACREBLEU_SEED")
    os.environ["SACREBLEU_SEED"] = str(seed)
    try:
        yield
    finally:
        if before is None:
            del os.environ["SACREBLEU_SEED"]
        else:
            os.environ["SACREBLEU_SEED"] = before
