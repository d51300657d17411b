import math
import random

import numpy as np
import pytest
from scipy import stats as scipy_stats

from ablate.agreement import rank_agreement
from ablate.stats import StatsError

ROWS = [f"row{i}" for i in range(19)]


def ranked(values: list[float]) -> dict[str, float]:
    return dict(zip(ROWS, values, strict=False))


def test_tau_b_by_hand():
    # Of 6 pairs one is tied in ours, one other in the paper's; 3 agree, 1 does not: (3 - 1) / √(5 · 5).
    found = rank_agreement(ranked([1.0, 1.0, 2.0, 3.0]), ranked([1.0, 2.0, 3.0, 2.0]))
    assert (found.n, found.tau) == (4, pytest.approx(0.4))


def test_only_rows_that_both_have_are_compared():
    assert rank_agreement(ranked([1.0, 2.0, 3.0]) | {"GELU": 0.0}, ranked([4.0, 5.0, 6.0, 1.0])).n == 3


def test_agreement_is_scipys_with_ties_and_without():
    rng = random.Random(3)
    for _ in range(20):
        ours, papers = ([float(rng.randint(0, 9)) for _ in range(19)] for _ in range(2))
        expected = scipy_stats.kendalltau(ours, papers, variant="b").statistic
        assert rank_agreement(ranked(ours), ranked(papers)).tau == pytest.approx(expected)


def test_few_rows_have_no_interval():
    assert rank_agreement(ranked([1.0, 2.0, 3.0, 5.0, 4.0, 6.0, 7.0]), ranked(list(map(float, range(7))))).low is None
    assert rank_agreement(ranked([1.0, 2.0, 3.0, 5.0, 4.0, 6.0, 7.0, 8.0]), ranked(list(map(float, range(8))))).low


@pytest.mark.parametrize("ours", [[], [1.0], [2.0, 2.0, 2.0]])
def test_what_has_no_order_agrees_with_nothing(ours):
    found = rank_agreement(ranked(ours), ranked([1.0, 2.0, 3.0]))
    assert (found.n, found.tau, found.low, found.high) == (len(ours), None, None, None)


def test_agreement_is_of_ranks_and_turns_round_with_them():
    rng = random.Random(2)
    ours, papers = ([rng.gauss(0, 1) for _ in range(19)] for _ in range(2))
    here = rank_agreement(ranked(ours), ranked(papers))
    assert here == rank_agreement(ranked([math.exp(value) for value in ours]), ranked(papers))
    back = rank_agreement(ranked([-value for value in ours]), ranked(papers))
    assert back.tau == pytest.approx(-here.tau)
    assert (back.low, back.high) == (pytest.approx(-here.high), pytest.approx(-here.low))
    assert -1 <= here.low < here.tau < here.high <= 1


def test_an_interval_holds_the_true_agreement_as_often_as_it_says():
    # Normal pairs of correlation ρ have τ = 2/π · arcsin ρ (Kendall 1949).
    rng = np.random.default_rng(4)
    first, noise = rng.standard_normal((2, 200, 19))
    second = 0.8 * first + 0.6 * noise
    found = [rank_agreement(ranked(x.tolist()), ranked(y.tolist())) for x, y in zip(first, second, strict=True)]
    held = [one.low <= 2 / math.pi * math.asin(0.8) <= one.high for one in found]
    assert sum(held) / len(held) == pytest.approx(0.95, abs=0.04)  # some three standard errors of 200 draws


def test_a_missing_measure_is_refused_rather_than_ranked():
    with pytest.raises(StatsError, match="ours=nan"):
        rank_agreement({"base": math.nan, "A_h1": 1.0}, {"base": 1.0, "A_h1": 2.0})
