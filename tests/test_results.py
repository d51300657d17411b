import math

import pytest
from records import finish

from ablate.bleu import score
from ablate.compose import session
from ablate.plan import Plan, look_again, plan_from
from ablate.record import RecordError
from ablate.results import MixedRecords, by_row, compared, correct, records_of, refuse_unlike
from ablate.rundir import write_json


@pytest.fixture(autouse=True)
def own_folder(workplace):
    return workplace


def planned(*overrides: str) -> Plan:
    with session():
        return plan_from(["preset=smoke", *overrides], prepare=True, say=lambda text: None)


def by_seed(*values: float) -> dict[int, float]:
    return dict(enumerate(values, 1))


def test_a_row_has_its_mean_and_its_difference_to_base_paired_by_seed():
    found = compared("bleu", {2: 19.0, 3: 20.0}, by_seed(20.0, 21.0, 22.0))
    # sd √½, and t(1) = 12.7062 at 97.5 % (any table of t): 19.5 ± 12.7062 / 2.
    assert [found[f"bleu{part}"] for part in ("", "_low", "_high")] == pytest.approx([19.5, 13.1469, 25.8531])
    # Against base's seeds 2 and 3, not against its mean of all three.
    assert [found[f"d_bleu{part}"] for part in ("", "_low", "_high", "_n", "_p")] == [-2.0, -2.0, -2.0, 2, 0.0]


def test_without_a_seed_of_base_s_there_is_no_difference_and_without_any_nothing():
    assert "d_ppl" not in compared("ppl", {1: 9.0}, {2: 9.0})
    assert compared("ppl", {}, {1: 9.0}) == {}


def test_a_perplexity_is_tested_as_a_ratio_and_given_in_per_cent_of_base_s():
    found = compared("ppl", by_seed(12.0, 30.0), by_seed(10.0, 20.0))
    # 1.2 and 1.5 times: the geometric mean is √1.8; half the interval of two values is t · |a - b| / 2, t(1) = 12.7062.
    half = math.exp(12.7062 * math.log(1.5 / 1.2) / 2)
    expected = [100 * (math.sqrt(1.8) * factor - 1) for factor in (1, 1 / half, half)]
    assert [found[f"rel_ppl{part}"] for part in ("", "_low", "_high")] == pytest.approx(expected, rel=1e-4)
    # One degree of freedom: p = 1 - 2/π · atan t, and of two differences a, b t is (a + b) / |a - b|.
    a, b = math.log(1.2), math.log(1.5)
    assert found["d_ppl_p"] == pytest.approx(1 - 2 / math.pi * math.atan((a + b) / (b - a)))


def test_of_a_seed_that_has_diverged_there_is_a_mean_but_no_interval_in_per_cent():
    found = compared("ppl", by_seed(math.e, math.exp(121)), by_seed(1.0, 1.0))  # the interval ends at 61 + 12.7 · 60
    assert found["rel_ppl"] == pytest.approx(100 * math.expm1(61))
    assert (found["rel_ppl_low"], found["rel_ppl_high"]) == (None, None)
    assert found["d_ppl_p"] == pytest.approx(1 - 2 / math.pi * math.atan(122 / 120))


def test_p_values_are_corrected_over_both_measures_of_all_rows():
    columns = {"base": {}, "X": {"d_ppl_p": 0.01, "d_bleu_p": 0.04}, "Y": {"d_ppl_p": 0.03}}
    correct(columns, {row: row for row in columns})  # three tests: times 3, 2 and 1
    assert [columns[row]["d_ppl_p_holm"] for row in columns] == [None, pytest.approx(0.03), pytest.approx(0.06)]
    assert columns["X"]["d_bleu_p_holm"] == pytest.approx(0.06)  # not below that of the smaller 0.03


def test_rows_that_share_their_runs_are_one_test_and_base_again_is_none():  # P9
    columns = {"base": {}, "again": {"d_ppl_p": 1.0}, "X": {"d_ppl_p": 0.01}, "Z": {"d_ppl_p": 0.01}}
    correct(columns, {"base": "base", "again": "base", "X": "X", "Z": "X"})
    assert [columns[row]["d_ppl_p_holm"] for row in columns] == [None, None, 0.01, 0.01]


def test_every_row_is_judged_whether_it_is_run_or_not():
    asked = planned("+sweep=row_B", "seeds=2")
    for row, ppl in (("base", 9.0), ("B_dk32", 18.0)):
        finish(asked.rows[row][0], ppl, 20.0)
    found = by_row(planned("+sweep=row_B", "seeds=2"))
    assert {row: (own["n"], own.get("ppl"), own.get("rel_ppl")) for row, own in found.items()} == {
        "base": (1, 9.0, None), "B_dk16": (0, None, None), "B_dk32": (1, 18.0, pytest.approx(100.0)),
    }  # fmt: skip


def test_rows_of_different_beams_are_refused_before_any_is_run(workplace):
    (workplace / "mine" / "row").mkdir(parents=True)
    (workplace / "mine" / "sweep").mkdir()
    (workplace / "mine" / "row" / "wide.yaml").write_text("# @package _global_\ndecode: {beam_size: 5}\n")
    (workplace / "mine" / "sweep" / "s.yaml").write_text("# @package sweep.s\n{title: s, rows: [wide]}\n")
    with session(str(workplace / "mine")):
        plan = plan_from(["preset=smoke", "+sweep=s"], prepare=False)
    with pytest.raises(
        MixedRecords, match=r"beam and length penalty: one table cannot hold 4, 0\.6 \(.*\) and 5, 0\.6 \("
    ):
        records_of(plan)


@pytest.mark.parametrize(
    ("section", "key", "other", "name"),
    [
        ("dev", "bleu_signature", "tok:intl", "BLEU"),
        ("corpus", "digests", {"corpus": "e" * 64, "vocab": "f" * 64}, "corpus"),
        ("science", "decode.beam_size", 5, "beam and length penalty"),
    ],
)
def test_numbers_that_do_not_compare_are_refused(section, key, other, name):
    asked = planned("seeds=2")
    record = finish(asked.runs[0], ppl=9.0, bleu=9.0)
    finish(asked.runs[1], 9.0, 9.0, **{section: {**record[section], key: other}})
    with pytest.raises(MixedRecords, match=f"{name}: one table cannot hold"):
        records_of(planned("seeds=2"))


def test_another_version_of_a_scorer_is_refused_before_the_rest_is_run():
    asked = planned("seeds=2")
    done = finish(asked.runs[0], ppl=9.0, bleu=9.0)
    here = score(["one"], ["one"], "de")
    signatures = {"bleu_signature": here.bleu_signature, "bleu_tok_signature": here.bleu_tok_signature}
    finish(asked.runs[0], 9.0, 9.0, dev={**done["dev"], **signatures})
    refuse_unlike(look_again(asked))
    finish(asked.runs[0], 9.0, 9.0, dev={**done["dev"], **signatures, "bleu_signature": "version:1.0"})
    half = look_again(asked)
    assert records_of(half)  # by itself one table
    with pytest.raises(MixedRecords, match=r"^BLEU: .* \(installed here\) and version:1\.0 \(base seed 1\)$"):
        refuse_unlike(half)
    finish(half.runs[1], 9.0, 9.0, dev={**done["dev"], **signatures, "bleu_signature": "version:1.0"})
    refuse_unlike(look_again(half))  # nothing would be run


def test_a_record_of_another_schema_is_refused_by_its_path():
    asked = planned()
    done = finish(asked.runs[0], ppl=9.0, bleu=9.0)
    write_json(asked.runs[0].run.record, {**done, "schema": 2})
    with pytest.raises(RecordError, match=r"record\.json: schema=2, this version of ablate reads 1"):
        records_of(planned())
