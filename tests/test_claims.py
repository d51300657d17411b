import csv
import io

import pytest
from records import finish

from ablate.claims import evaluate, grids, main, other_sentences, write
from ablate.compose import session
from ablate.errors import ConfigError
from ablate.judge import CLAIMS, Comparison
from ablate.plan import Plan, look_again, plan_from
from ablate.rundir import write_text


@pytest.fixture(autouse=True)
def own_folder(workplace):
    return workplace


def planned(*overrides: str) -> Plan:
    with session():
        return plan_from(["preset=smoke", *overrides], prepare=True, say=lambda text: None)


@pytest.fixture
def heads() -> Plan:
    """Plan base and (A), two seeds: one head is worse in BLEU by 1 in both; the others are not run."""
    asked = planned("+sweep=row_A", "seeds=2")
    for row, bleu in (("base", 20.0), ("A_h1", 19.0)):
        for i, run in enumerate(asked.rows[row]):
            finish(run, ppl=9.0, bleu=bleu + i)
    return look_again(asked)


def test_every_claim_has_a_verdict_with_no_records_at_all(capsys):
    assert main(["--preset", "smoke"]) == 0
    out = capsys.readouterr().out
    lines = [line for line in out.splitlines() if " undecided (no seed finished" in line]
    assert [line.split("|")[1].strip() for line in lines] == [claim.name for claim in CLAIMS]


def test_a_verdict_stands_beside_the_papers_words_and_its_own_numbers(heads):
    verdicts, comparisons = grids(heads, evaluate(heads))
    one, many = verdicts.blocks[0]
    says = "single-head attention is 0.9 BLEU worse than the best setting"
    assert one == ["one head", says, "6.2", "as claimed", "supported"]
    assert many[-1] == "undecided (no seed finished that base has too: A_h32)"
    # No spread: the differences are -1 in both seeds.
    assert comparisons.blocks[0] == [
        ["one head", "A_h1", "BLEU", "lower", "−0.9", "−1.00", "−1.00 … −1.00", "2", "as claimed"]
    ]
    assert comparisons.blocks[1][0] == [
        "too many heads",
        "A_h32",
        "PPL",
        "higher",
        "+1.8 %",
        "—",
        "—",
        "0",
        "undecided",
    ]
    assert any("preset smoke" in note for note in verdicts.notes)


def test_a_claim_that_is_not_judged_is_named(heads, capsys):
    notes = grids(heads, evaluate(heads))[0].notes
    assert notes[0].startswith("Not judged, since their rows are not all in this sweep: key size; depth N; ")
    assert main(["preset=smoke"]) == 0
    assert "Not judged" not in capsys.readouterr().out


def test_a_row_of_ones_own_under_a_name_of_the_papers_is_no_claim_of_its(own_folder, capsys):
    for group in ("row", "sweep"):
        (own_folder / "mine" / group).mkdir(parents=True)
    (own_folder / "mine" / "row" / "A_h1.yaml").write_text("# @package _global_\nmodel: {activation: gelu}\n")
    assert main(["row_A", "preset=smoke", "--config-dir", "mine"]) == 0
    assert "one head" in next(line for line in capsys.readouterr().out.splitlines() if "Not judged" in line)


def test_where_the_papers_own_numbers_are_not_as_it_says_it_is_said():
    plan = planned("+sweep=row_C")
    (depth, *_) = grids(plan, evaluate(plan))[0].blocks[0]
    assert depth[3] == "all but C_N8 BLEU −0.3"  # 25.5 against base's 25.8


def test_equality_is_claimed_within_a_margin_that_can_be_set(capsys):
    plan = planned("+sweep=row_E")
    ppl, bleu = grids(plan, evaluate(plan))[1].blocks[0]
    assert (ppl[3], bleu[3]) == ("equal ±1.5 %", "equal ±0.3")
    ppl, bleu = grids(plan, evaluate(plan, bleu_margin=0.5, ppl_margin=0.02))[1].blocks[0]
    assert (ppl[3], bleu[3]) == ("equal ±2 %", "equal ±0.5")
    with pytest.raises(ConfigError, match=r"--bleu-margin=0\.0: must be above 0"):
        evaluate(plan, bleu_margin=0.0)
    assert main(["row_E", "preset=smoke", "--ppl-margin", "-1"]) == 2
    assert capsys.readouterr().err.startswith("error: --ppl-margin=-1.0")


def test_csv_has_every_comparison_with_its_numbers(heads):
    lines = list(csv.DictReader(io.StringIO(write(heads, evaluate(heads), "csv"))))
    assert [(line["row"], line["metric"], line["claimed"]) for line in lines] == [
        ("A_h1", "bleu", "lower"),
        ("A_h32", "ppl", "higher"),
        ("A_h32", "bleu", "lower"),
    ]
    first, second, _ = lines
    assert (first["verdict"], float(first["paper"]), float(first["ours"]), first["n"]) == ("supported", -0.9, -1.0, "2")
    assert (second["ours"], second["seeds_needed"]) == ("", "2")


def test_every_format_has_every_claim(heads):
    judged = evaluate(heads)
    for form in ("md", "tex", "csv", "html"):
        text = write(heads, judged, form)
        assert "one head" in text and "too many heads" in text


def test_other_sentences_would_say_the_same_where_most_of_them_do(heads, capsys):
    references = heads.corpus.text("dev", "tgt")
    for base, row in zip(heads.rows["base"], heads.rows["A_h1"], strict=True):
        write_text(base.run.hypotheses("dev"), "\n".join(references) + "\n")
        # Half of the words: a lower BLEU on whichever sentences.
        write_text(row.run.hypotheses("dev"), "\n".join(" ".join(text.split()[:-2]) for text in references) + "\n")
    write_text(heads.rows["A_h1"][1].run.hypotheses("dev"), "\n".join(references) + "\n")  # the second seed is as base
    said = other_sentences(heads, evaluate(heads))
    assert said == {Comparison("A_h1", "bleu", -1): "1/2"}
    assert main(["row_A", "preset=smoke", "seeds=2", "--sentences"]) == 0
    out = capsys.readouterr().out
    assert "other sentences" in out
    assert "|             1/2 |" in out


def test_without_the_corpus_the_verdicts_are_the_same_but_no_other_sentences_are_drawn(heads, capsys, monkeypatch):
    asked = ["row_A", "preset=smoke", "seeds=2"]
    assert main(asked) == 0
    out = capsys.readouterr().out
    monkeypatch.setenv("ABLATE_DATA", "nothing")
    assert main(asked) == 0
    assert capsys.readouterr().out == out
    assert main([*asked, "--sentences"]) == 2
    assert "--sentences=True: takes the corpus, which is not prepared here" in capsys.readouterr().err
