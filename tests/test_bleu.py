import logging
import math
import os
import random

import numpy as np
import pytest
import sacrebleu

from ablate.bleu import ScoreError, paired_bootstrap, score

SENTENCES = ["Das rote Haus steht auf dem Berg.", "Sie ruft den alten Mann heute an.", "Ein Hund schläft."]


def test_the_references_themselves_score_a_hundred():  # D4
    scores = score(SENTENCES, SENTENCES)
    assert scores.bleu == pytest.approx(100.0)
    assert scores.chrf == pytest.approx(100.0)
    assert scores.num_sentences == 3


def test_the_signatures_say_how_it_was_scored():
    scores = score(SENTENCES, SENTENCES)
    assert "tok:13a" in scores.bleu_signature
    assert "case:mixed" in scores.bleu_signature
    assert "nc:6" in scores.chrf_signature


def test_bleu_is_of_the_corpus():
    # Papineni et al. 2002 by hand: 7 of 8 unigrams, 5/6 bigrams, 3/4 trigrams, 1/2 four-grams, no brevity penalty.
    hypotheses, references = ["a b c d", "e f g x"], ["a b c d", "e f g h"]
    by_hand = 100 * math.exp((math.log(7 / 8) + math.log(5 / 6) + math.log(3 / 4) + math.log(1 / 2)) / 4)
    assert score(hypotheses, references).bleu == pytest.approx(by_hand)


def test_case_counts():
    assert score([text.lower() for text in SENTENCES], SENTENCES).bleu < 100


@pytest.mark.parametrize("text", ["▁Das ▁rote ▁Haus", "Das ro@@ te Haus"])
def test_subwords_are_refused_and_a_sentence_shown(text):  # D4
    with pytest.raises(ScoreError, match=r"2 of 3 hypotheses hold .*: scores are of text, not of subwords"):
        score([SENTENCES[0], text, text], SENTENCES)


def test_a_model_may_write_the_sign_of_a_subword_now_and_then():
    assert score([SENTENCES[0], "▁Das Haus", SENTENCES[2]], SENTENCES).bleu > 0


def test_a_sign_that_the_text_itself_has_is_no_subword():
    references = ["Das Zeichen ▁ trennt.", SENTENCES[1]]
    assert score(references, references).bleu == pytest.approx(100.0)


def test_an_empty_reference_is_scored():  # T8
    with_empty = score(["Das rote Haus steht.", "Zu viel."], ["Das rote Haus steht.", ""])
    assert with_empty.num_sentences == 2
    assert 0 < with_empty.bleu < 100


def test_an_empty_translation_is_scored():
    assert score(["", *SENTENCES[1:]], SENTENCES).bleu < 100


@pytest.mark.parametrize(("hypotheses", "references"), [(2, 3), (3, 2), (0, 1)])
def test_other_numbers_of_sentences_are_refused_with_both(hypotheses, references):  # T8
    with pytest.raises(ScoreError, match=f"{hypotheses} hypotheses for {references} references"):
        score(SENTENCES[:hypotheses], SENTENCES[:references])


def test_nothing_to_score_is_refused():
    with pytest.raises(ScoreError, match="0 sentences"):
        score([], [])


WORDS = [f"Wort{i}" for i in range(40)]


def noisy(texts: list[str], share: float, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [" ".join(rng.choice(WORDS) if rng.random() < share else word for word in text.split()) for text in texts]


REFERENCES = [" ".join(random.Random(i).choices(WORDS, k=4 + i % 9)) for i in range(90)]
BETTER, WORSE = noisy(REFERENCES, 0.2, 1), noisy(REFERENCES, 0.35, 2)


def test_the_bootstrap_agrees_with_one_made_of_the_counts_of_each_sentence():
    def corpus(counts):
        stats = counts.sum(0)
        smooth = {"smooth_method": "exp"}
        return sacrebleu.BLEU.compute_bleu(list(stats[2:6]), list(stats[6:]), int(stats[0]), int(stats[1]), **smooth)

    metric = sacrebleu.BLEU(effective_order=True)  # only its counts are used, which are the same
    sides = []
    for system in (WORSE, BETTER):
        of_each = [metric.sentence_score(text, [ref]) for text, ref in zip(system, REFERENCES, strict=True)]
        sides.append(np.array([[one.sys_len, one.ref_len, *one.counts, *one.totals] for one in of_each]))
    drawn = np.random.default_rng(7).choice(90, size=(60, 90))
    differences = np.array([corpus(sides[1][picked]).score - corpus(sides[0][picked]).score for picked in drawn])
    delta = corpus(sides[1]).score - corpus(sides[0]).score
    moses = np.abs(differences) - np.abs(differences).mean()

    found = paired_bootstrap(WORSE, BETTER, REFERENCES, num_samples=60, seed=7)
    assert found.delta == pytest.approx(delta)
    assert (found.low, found.high) == pytest.approx(np.quantile(differences, [0.025, 0.975]))
    assert found.p == (1 + (moses > abs(delta)).sum()) / 61


def test_a_better_system_is_better_by_the_difference_of_the_scores():
    found = paired_bootstrap(WORSE, BETTER, REFERENCES, num_samples=200)
    assert found.delta == pytest.approx(score(BETTER, REFERENCES).bleu - score(WORSE, REFERENCES).bleu)
    assert 0 < found.low < found.delta < found.high
    assert found.p == pytest.approx(1 / 201)
    assert "bs:200|seed:12345" in found.signature
    assert "tok:13a" in found.signature


def test_the_bootstrap_turns_round_with_its_systems():
    there, back = (paired_bootstrap(*pair, REFERENCES, num_samples=50) for pair in ((WORSE, BETTER), (BETTER, WORSE)))
    assert (back.delta, back.low, back.high) == pytest.approx((-there.delta, -there.high, -there.low))
    assert back.p == there.p


def test_a_system_does_not_differ_from_itself():
    found = paired_bootstrap(WORSE, WORSE, REFERENCES, num_samples=50)
    assert (found.delta, found.p, found.low, found.high) == (0.0, 1.0, 0.0, 0.0)


def test_the_seed_decides_the_resamples_whatever_the_environment_says(monkeypatch):
    first = paired_bootstrap(WORSE, BETTER, REFERENCES, num_samples=50, seed=3)
    assert "SACREBLEU_SEED" not in os.environ
    monkeypatch.setenv("SACREBLEU_SEED", "none")
    assert paired_bootstrap(WORSE, BETTER, REFERENCES, num_samples=50, seed=3) == first
    assert paired_bootstrap(WORSE, BETTER, REFERENCES, num_samples=50, seed=4) != first
    assert os.environ["SACREBLEU_SEED"] == "none"


def test_the_bootstrap_says_nothing(caplog, capfd):
    caplog.set_level(logging.INFO)
    many = [f"{text} ." for text in REFERENCES] * 2  # over 100 tokenised periods, of which sacreBLEU warns
    paired_bootstrap(many, many, many, num_samples=40)
    assert not caplog.records
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(("wrong", "message"), [({"num_samples": 39}, "num_samples=39"), ({"seed": 0}, "seed=0")])
def test_resampling_that_tells_nothing_or_has_no_seed_is_refused(wrong, message):
    with pytest.raises(ScoreError, match=message):
        paired_bootstrap(WORSE, BETTER, REFERENCES, **wrong)


def test_both_systems_must_have_every_sentence():
    with pytest.raises(ScoreError, match="89 hypotheses for 90 references"):
        paired_bootstrap(WORSE, BETTER[1:], REFERENCES)
    with pytest.raises(ScoreError, match="89 hypotheses for 90 references"):
        paired_bootstrap(WORSE[1:], BETTER, REFERENCES)
