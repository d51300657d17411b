import math

import pytest
from test_rows import TABLE3

from ablate.judge import (
    AS_CLAIMED,
    CLAIMS,
    OPPOSITE,
    Claim,
    Comparison,
    Judgement,
    better,
    compare,
    conclude,
    correct,
    equal,
    judge,
    more_seeds,
    spread,
    worse,
)
from ablate.power import seeds_needed, seeds_needed_for_equivalence

MARGINS = {"bleu": 0.3, "ppl": 0.015}
PAPERS = {
    "ppl": {row: float(line["ppl_dev"]) for row, line in TABLE3.items()},
    "bleu": {row: float(line["bleu_dev"]) for row, line in TABLE3.items()},
}


def ours(spread: float = 0.0, seeds: int = 3, **changed: float) -> dict[str, dict[str, dict[int, float]]]:
    """Give every row the paper's numbers, with base's moving by seed; `changed` moves a row's BLEU."""
    found: dict[str, dict[str, dict[int, float]]] = {"ppl": {}, "bleu": {}}
    for metric, rows in found.items():
        for i, row in enumerate(TABLE3):
            shift = changed.get(row, 0.0) if metric == "bleu" else 0.0
            rows[row] = {
                # The last term: no two rows move quite alike, for what has no spread at all shows nothing.
                seed: PAPERS[metric][row] + shift + 0.1 * seed + spread * ((seed + i) % 3 - 1) + 1e-6 * (seed * i % 7)
                for seed in range(1, seeds + 1)
            }
    return found


def verdicts(found) -> dict[str, str]:
    return {one.claim.name: one.verdict for one in judge(found, PAPERS, MARGINS)}


def test_the_claims_are_of_rows_that_there_are_and_quote_the_paper_shortly():
    assert {one.row for claim in CLAIMS for one in claim.comparisons} <= set(TABLE3)
    assert len({claim.name for claim in CLAIMS}) == len(CLAIMS)
    assert all(claim.says and len(claim.says.split()) < 15 for claim in CLAIMS)


def test_the_papers_own_numbers_with_hardly_any_spread_support_all_but_one_claim():
    # The paper's N = 8 has a lower BLEU than base, 25.5 against 25.8.
    expected = {claim.name: "supported" for claim in CLAIMS} | {"depth N": "contradicted"}
    assert verdicts(ours()) == expected
    against = [
        one.comparison
        for judgement in judge(ours(), PAPERS, MARGINS)
        for one in judgement.evidence
        if not one.paper_holds
    ]
    assert against == [Comparison("C_N8", "bleu", 1)]


def test_one_seed_decides_nothing_and_asks_for_two():
    found = judge(ours(seeds=1), PAPERS, MARGINS)
    assert {one.words for one in found} == {"undecided (needs at least 2 seeds)"}
    assert len(found) == len(CLAIMS)


def test_a_claim_whose_rows_are_not_asked_for_is_left_out():
    found = {metric: {row: rows[row] for row in ("base", "A_h1", "B_dk16")} for metric, rows in ours().items()}
    assert list(verdicts(found)) == ["one head"]


def test_a_row_without_records_leaves_its_claims_undecided():
    found = ours()
    found["ppl"]["A_h32"], found["bleu"]["A_h32"] = {}, {}
    (claim,) = (one for one in judge(found, PAPERS, MARGINS) if one.claim.name == "too many heads")
    assert claim.words == "undecided (no seed finished that base has too: A_h32)"
    found = ours()
    found["ppl"]["base"], found["bleu"]["base"] = {}, {}
    assert set(verdicts(found).values()) == {"undecided"}


def test_a_significant_difference_the_other_way_contradicts():
    assert verdicts(ours(A_h1=2.0))["one head"] == "contradicted"  # from -0.9 to +1.1
    assert verdicts(ours(E_learned=-2.0))["learned positions"] == "contradicted"


def test_models_that_hardly_translate_decide_nothing_about_bleu():
    found = ours()
    for row, seeds in found["bleu"].items():  # apart by far more than their spread, and both next to nothing
        found["bleu"][row] = {seed: (0.05 if row == "base" else 0.0) + 1e-4 * seed * len(row) for seed in seeds}
    assert verdicts(found)["one head"] == verdicts(found)["label smoothing, BLEU"] == "undecided"
    (claim,) = (one for one in judge(found, PAPERS, MARGINS) if one.claim.name == "one head")
    assert claim.words == "undecided (no number of seeds would decide A_h1 BLEU: no difference, or BLEU below 1)"


def test_models_that_all_score_the_same_are_not_shown_to_be_equal():
    found = ours()
    found["bleu"] = {row: dict.fromkeys(seeds, 0.0) for row, seeds in found["bleu"].items()}
    assert verdicts(found)["learned positions"] == "undecided"


def test_a_claim_with_one_open_comparison_is_undecided_with_the_most_seeds_needed():
    found = judge(ours(spread=0.3), PAPERS, MARGINS)
    (claim,) = (one for one in found if one.claim.name == "key size")
    opened = [one.seeds for one in claim.evidence if one.verdict == "undecided"]
    assert claim.verdict == "undecided"
    assert claim.needs == f"needs about {max(opened)} seeds"
    assert all(seeds > 3 for seeds in opened)


def test_perplexity_is_compared_as_a_ratio():
    found = ours()
    for row, values in found["ppl"].items():
        found["ppl"][row] = {seed: PAPERS["ppl"][row] * 10 * seed for seed in values}  # base moves, the ratio does not
    (claim,) = (one for one in judge(found, PAPERS, MARGINS) if one.claim.name == "dropout")
    ppl = claim.evidence[0]
    assert ppl.comparison.metric == "ppl"
    assert (ppl.effect, ppl.paper) == (pytest.approx(math.log(5.77 / 4.92)), pytest.approx(math.log(5.77 / 4.92)))


def evidence(sign: int, deltas: list[float], margin: float = 0.3, pooled: float | None = None):
    values = {"base": dict.fromkeys(range(len(deltas)), 20.0), "X": {i: 20 + delta for i, delta in enumerate(deltas)}}
    return compare(Comparison("X", "bleu", sign), values, {"base": 25.0, "X": 26.0}, margin, pooled)


@pytest.mark.parametrize(
    ("sign", "deltas", "verdict"),
    [
        (1, [0.9, 1.0, 1.1], AS_CLAIMED),
        (-1, [0.9, 1.0, 1.1], OPPOSITE),
        (1, [-1.0, 1.0, 1.1], "undecided"),
        (0, [0.01, -0.02, 0.0], AS_CLAIMED),
        (0, [0.9, 1.0, 1.1], OPPOSITE),
        (0, [0.2, 0.3, 0.4], "undecided"),  # at the margin
        (0, [0.1, 0.5, -0.4], "undecided"),  # no difference found, which is not equality shown
    ],
)
def test_a_comparison_is_judged_by_its_interval(sign, deltas, verdict):
    found = evidence(sign, deltas, pooled=0.5)
    assert found.verdict == verdict
    assert (found.seeds is None) == (verdict != "undecided")
    assert found.low <= found.effect <= found.high


def test_the_spread_of_all_rows_stands_in_for_that_of_few_seeds():
    assert evidence(1, [-1.0, 3.0], pooled=0.5).seeds == seeds_needed(1.0, 0.5)
    assert evidence(0, [-1.0, 3.0], pooled=0.5).seeds == seeds_needed_for_equivalence(0.3, 0.5)
    assert evidence(1, [0.4], pooled=0.5).seeds == seeds_needed(0.4, 0.5)
    deltas = [-1.0, 3.0, -1.0, 3.0, 0.0]  # five of its own: mean 0.8, variance (3.24 + 4.84 + 3.24 + 4.84 + 0.64) / 4
    assert evidence(1, deltas, pooled=9.9).seeds == seeds_needed(0.8, math.sqrt(16.8 / 4))


def test_rows_that_share_runs_do_not_narrow_the_spread():
    base, moved = {1: 20.0, 2: 21.0}, {1: 21.0, 2: 24.0}  # differences 1 and 3: variance 2
    other = {1: 20.0, 2: 25.0}  # 0 and 4: variance 8
    assert spread({"base": base, "X": moved, "Y": other}) == pytest.approx(math.sqrt(5))
    assert spread({"base": base, "X": moved, "Y": other, "again": base, "Z": moved}) == pytest.approx(math.sqrt(5))


def test_rows_without_the_papers_numbers_are_no_claims_of_the_papers():
    papers = {metric: {row: value for row, value in rows.items() if row != "A_h32"} for metric, rows in PAPERS.items()}
    assert "too many heads" not in [one.claim.name for one in judge(ours(), papers, MARGINS)]
    assert len(judge(ours(), papers, MARGINS)) == len(CLAIMS) - 1
    assert judge(ours(), {"ppl": {}, "bleu": {}}, MARGINS) == []


def test_seeds_needed_are_more_than_there_are():
    assert more_seeds(effect=100.0, sd=0.1, sign=1, margin=0.3, n=7) == 8
    assert more_seeds(effect=0.3, sd=None, sign=1, margin=0.3, n=1) == 2
    assert more_seeds(effect=0.0, sd=1.0, sign=1, margin=0.3, n=3) is None


def test_no_difference_at_all_is_decided_by_no_number_of_seeds():
    claim = Claim("c", "s", "6.2", better("X")[:1])
    judged = conclude(claim, [evidence(1, [0.0, 0.0, 0.0], pooled=0.2)])
    assert judged.words == "undecided (no number of seeds would decide X BLEU: no difference, or BLEU below 1)"
    judged = conclude(claim, [evidence(1, [0.0, 0.0, 0.0], pooled=0.2), evidence(1, [1.0, -1.0, 0.8], pooled=0.1)])
    assert judged.needs == "needs about 4 seeds; no number of seeds would decide X BLEU: no difference, or BLEU below 1"
    assert conclude(claim, [evidence(1, [0.001, -0.9, 0.9], pooled=1.0)]).needs == "needs more than 1,000 seeds"


def test_of_many_comparisons_one_is_not_opposite_by_chance():
    # Two degrees of freedom, t = 5: p = 1 - 5 / √27 = 0.038; of four comparisons, Holm's is 0.15.
    deltas = [-0.5 + 0.1 * math.sqrt(3) * step for step in (-1, 0, 1)]
    opposite, others = evidence(1, deltas, pooled=0.3), [evidence(1, [0.9, 1.0, 1.1]) for _ in range(3)]
    assert opposite.p == pytest.approx(1 - 5 / math.sqrt(27))
    claim = Claim("c", "s", "6.2", ())
    assert conclude(claim, correct([opposite])).verdict == "contradicted"
    judged = conclude(claim, correct([opposite, *others, evidence(1, [0.4, -0.4, 0.1], pooled=0.3)]))
    assert judged.verdict == "undecided"
    assert opposite.seeds == 4


def test_worse_and_better_are_of_both_measures():
    assert worse("X") == (Comparison("X", "ppl", 1), Comparison("X", "bleu", -1))
    assert better("X") == (Comparison("X", "ppl", -1), Comparison("X", "bleu", 1))
    assert equal("X") == (Comparison("X", "ppl", 0), Comparison("X", "bleu", 0))
    assert Judgement(CLAIMS[0], "supported", "", []).words == "supported"
