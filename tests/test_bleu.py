import functools
import logging
import math
import os
import random
import shutil
import subprocess

import numpy as np
import pytest
import sacrebleu
from hypothesis import given, settings
from hypothesis import strategies as st

from ablate import bleu
from ablate.bleu import ScoreError, multi_bleu, paired_bootstrap, paper_bleu, split_compounds

score = functools.partial(bleu.score, lang="de")
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


# sacreBLEU's own tests (test/test_bleu.py of 2.x): one system, two references, with the scores published there.
DOG = ["The dog bit the man.", "It wasn't surprising.", "The man had just bitten him."]
DOG_REFERENCES = [
    ["The dog bit the man.", "It was not unexpected.", "The man bit him first."],
    ["The dog had bit the man.", "No one was surprised.", "The man had bitten the dog."],
]


def test_sacrebleu_gives_the_scores_that_it_publishes():
    assert sacrebleu.BLEU().corpus_score(DOG, DOG_REFERENCES).score == pytest.approx(48.530827, abs=1e-6)
    assert sacrebleu.BLEU().corpus_score(["", "", ""], DOG_REFERENCES).score == 0.0
    # tokenize=none there; every n-gram order has a match, so that smoothing does nothing
    assert multi_bleu().corpus_score(DOG, DOG_REFERENCES).score == pytest.approx(49.1919566, abs=1e-6)


def test_without_a_four_gram_the_papers_bleu_is_zero():
    # multi-bleu.perl takes log 0 for -9999999999; sacreBLEU's own smooths, so that it is not
    scores = score(["a b c x", "e f g"], ["a b c d", "e f g"])
    assert scores.bleu_tok == 0.0
    assert scores.bleu > 10


COMPOUNDS = {
    "a-b": "a ##AT##-##AT## b",
    "rich-text format": "rich ##AT##-##AT## text format",  # the example of the script's comment
    "a-b-c": "a ##AT##-##AT## b-c",  # b is in the first match, and matches do not overlap
    "ab-cd-ef": "ab ##AT##-##AT## cd ##AT##-##AT## ef",
    "a-ü-c": "a ##AT##-##AT## ü ##AT##-##AT## c",  # two matches: each takes a byte of ü
    "a-b-c-d": "a ##AT##-##AT## b-c ##AT##-##AT## d",
    "a--b": "a ##AT##-##AT## -b",
    "a---b": "a ##AT##-##AT## --b",
    "- b": "- b",
    "-b": "-b",
    "a-": "a-",
    "a - b": "a - b",
    "über-älter": "über ##AT##-##AT## älter",
    "1-2": "1 ##AT##-##AT## 2",
    "a\u00a0-b": "a\u00a0 ##AT##-##AT## b",  # no space to Perl, which reads bytes
    "a–b": "a–b",  # a dash is no hyphen
    "": "",
}


@pytest.mark.parametrize(("text", "expected"), list(COMPOUNDS.items()))
def test_compounds_are_split_as_by_the_authors_script(text, expected):
    assert split_compounds(text) == expected


@pytest.mark.skipif(shutil.which("perl") is None, reason="there is no perl here")
@settings(max_examples=20, deadline=None)
@given(st.lists(st.text(alphabet="ab- \tü\u00a0\u2009–", max_size=12), max_size=40))
def test_compounds_are_split_as_perl_does_it(lines):
    text = "".join(f"{line}\n" for line in lines)
    command = ["perl", "-ple", "s{(\\S)-(\\S)}{$1 ##AT##-##AT## $2}g"]  # a line of get_ende_bleu.sh
    done = subprocess.run(command, input=text.encode(), capture_output=True, check=True)
    assert "".join(f"{split_compounds(line)}\n" for line in lines) == done.stdout.decode()


def test_both_sides_are_tokenised_and_split_before_they_are_counted():
    hypotheses, references = (
        ['Das "E-Mail-Konto", z.B. von Dr. Müller & Co.'],
        ['Das "E-Mail-Konto" z.B. von Dr. Müller & Co.'],
    )
    # By hand: German abbreviations keep their stops, quotes and & are escaped, and the comma is a token that the
    # reference lacks: Das &quot; E ##AT##-##AT## Mail ##AT##-##AT## Konto &quot; , z.B. von Dr. Müller &amp; Co.
    n = 15  # tokens; 1 unigram, 2 bigrams, 3 trigrams, 4 four-grams hold the comma
    precisions = [(n - 1) / n, (n - 3) / (n - 1), (n - 5) / (n - 2), (n - 7) / (n - 3)]
    by_hand = 100 * math.exp(sum(map(math.log, precisions)) / 4)  # longer than the reference: no brevity penalty
    assert paper_bleu(hypotheses, references, "de")[0] == pytest.approx(by_hand)


def test_the_papers_bleu_has_a_signature_of_its_own():
    _, signature = paper_bleu(SENTENCES, SENTENCES, "de")
    for part in ("case:mixed", "tok:moses-de-", "|compounds:split|", "smooth:none"):
        assert part in signature
    assert "tok:moses-fr-" in paper_bleu(SENTENCES, SENTENCES, "fr")[1]
    assert score(SENTENCES, SENTENCES).bleu_tok_signature == signature
    assert score(SENTENCES, SENTENCES).bleu_tok == pytest.approx(100.0)


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
