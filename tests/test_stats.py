import math
import statistics

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from ablate.stats import (
    StatsError,
    equivalence,
    estimate,
    holm,
    paired_difference,
    pooled_sd,
)

SCORES = st.lists(st.floats(-100, 100), min_size=2, max_size=7)
REPEATS = 2000


def normal(n: int, mean: float, sd: float, seed: int) -> list[list[float]]:
    return np.random.default_rng(seed).normal(mean, sd, (REPEATS, n)).tolist()


def share(hits: list[bool]) -> float:
    return sum(hits) / len(hits)


# Four standard errors of a share of REPEATS draws: √(0.95 · 0.05 / 2000) = 0.0049.
NEAR = 0.02


# --- estimate


def test_an_interval_is_students():
    found = estimate([1.0, 2.0, 3.0, 4.0])
    # By hand: mean 2.5, variance 5/3, t(3, 97.5 %) = 3.182 from the table, half-width 3.182 · 1.29099 / 2 = 2.054.
    assert (found.n, found.mean) == (4, 2.5)
    assert found.sd == pytest.approx(math.sqrt(5 / 3))
    assert (found.low, found.high) == (pytest.approx(2.5 - 2.054, abs=1e-3), pytest.approx(2.5 + 2.054, abs=1e-3))


def test_another_confidence_is_another_interval():
    found = estimate([1.0, 2.0, 3.0, 4.0], confidence=0.9)  # t(3, 95 %) = 2.353
    assert found.high == pytest.approx(2.5 + 2.353 * math.sqrt(5 / 12), abs=1e-3)


def test_one_value_is_a_mean_and_no_more():
    found = estimate([26.4])
    assert (found.n, found.mean, found.sd, found.low, found.high) == (1, 26.4, None, None, None)


def test_no_values_are_no_estimate():
    assert estimate([]) is None


def test_equal_values_have_no_spread_at_all():
    found = estimate([0.1, 0.1, 0.1])  # whose floating-point sum is not 0.3
    assert (found.sd, found.low, found.high) == (0.0, 0.1, 0.1)


@given(SCORES, st.floats(-50, 50))
def test_an_interval_moves_with_its_values(values, shift):
    here, there = estimate(values), estimate([value + shift for value in values])
    assert there.low == pytest.approx(here.low + shift, abs=1e-6)
    assert there.high == pytest.approx(here.high + shift, abs=1e-6)


@given(SCORES)
def test_an_interval_agrees_with_scipy(values):
    low, high = scipy_stats.t.interval(
        0.95, len(values) - 1, statistics.mean(values), statistics.stdev(values) / math.sqrt(len(values)) or 1e-300
    )
    found = estimate(values)
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-9), pytest.approx(high, abs=1e-9))


@pytest.mark.parametrize("n", [2, 5])
def test_intervals_hold_the_mean_as_often_as_they_say(n):
    intervals = [estimate(values) for values in normal(n, 25.8, 0.3, seed=n)]
    assert share([found.low <= 25.8 <= found.high for found in intervals]) == pytest.approx(0.95, abs=NEAR)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_is_no_number_is_refused(value):
    with pytest.raises(StatsError, match="must be a finite number"):
        estimate([1.0, value])


@pytest.mark.parametrize("confidence", [0.0, 1.0, 95.0, math.nan])
def test_an_impossible_confidence_is_refused(confidence):
    with pytest.raises(StatsError, match=r"confidence=.*must be above 0 and below 1"):
        estimate([1.0, 2.0], confidence)


# --- paired_difference


def test_a_difference_is_paired_by_seed_whatever_their_order():
    # Differences 1, 2, 3 and 2: mean 2, sd √(2/3), t = 2 / √(1/6) = 4.899 with 3 degrees of freedom.
    ours = {3: 13.0, 1: 6.0, 2: 22.0, 4: 42.0, 9: 99.0}
    base = {1: 5.0, 2: 20.0, 3: 10.0, 4: 40.0, 8: -99.0}
    found = paired_difference(ours, base)
    assert (found.n, found.mean) == (4, 2.0)
    assert found.sd == pytest.approx(math.sqrt(2 / 3))
    assert found.low == pytest.approx(2 - 3.182 / math.sqrt(6), abs=1e-3)
    assert found.p == pytest.approx(scipy_stats.ttest_rel([6, 22, 13, 42], [5, 20, 10, 40]).pvalue)
    assert found.p == pytest.approx(0.0163, abs=5e-5)


def test_pairing_removes_what_a_seed_does_to_both():
    base = {1: 10.0, 2: 20.0, 3: 31.0}
    assert paired_difference({seed: value + 1 for seed, value in base.items()}, base).sd == 0


def test_one_common_seed_gives_a_difference_without_a_test():
    found = paired_difference({1: 26.0, 2: 25.0}, {2: 24.5, 3: 24.0})
    assert (found.n, found.mean, found.sd, found.low, found.high, found.p) == (1, 0.5, None, None, None, None)


def test_no_common_seed_gives_no_difference():
    assert paired_difference({1: 26.0}, {2: 24.5}) is None


def test_base_does_not_differ_from_itself():
    base = {1: 25.1, 2: 25.9, 3: 25.4}
    found = paired_difference(base, base)
    assert (found.mean, found.low, found.high, found.p) == (0.0, 0.0, 0.0, 1.0)


def test_the_same_difference_at_each_seed_leaves_no_doubt():
    assert paired_difference({1: 2.0, 2: 3.0}, {1: 1.0, 2: 2.0}).p == 0.0


@given(SCORES, st.data())
def test_a_difference_turns_round_with_its_sides(values, data):
    others = data.draw(st.lists(st.floats(-100, 100), min_size=len(values), max_size=len(values)))
    ours, base = dict(enumerate(values)), dict(enumerate(others))
    there, back = paired_difference(ours, base), paired_difference(base, ours)
    assert (back.mean, back.low, back.high, back.p) == (-there.mean, -there.high, -there.low, there.p)
    assert 0 <= there.p <= 1


def test_paired_tests_err_as_often_as_they_say():
    rng = np.random.default_rng(7)
    of_seed = rng.normal(25, 2, (REPEATS, 4))  # which both share, and which must not matter
    ours, base = of_seed + rng.normal(0, 0.2, (REPEATS, 4)), of_seed + rng.normal(0, 0.3, (REPEATS, 4))
    pairs = zip(ours, base, strict=True)
    found = [paired_difference(dict(enumerate(a.tolist())), dict(enumerate(b.tolist()))) for a, b in pairs]
    assert share([one.low <= 0 <= one.high for one in found]) == pytest.approx(0.95, abs=NEAR)
    assert share([one.p < 0.05 for one in found]) == pytest.approx(0.05, abs=NEAR)


# --- holm


def test_holm_by_hand():
    # Sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1 is 0.02, 0.03, 0.06, 0.04; the last may not fall below 0.06.
    found = holm({"A": 0.01, "B": 0.04, "C": 0.03, "D": 0.005})
    assert list(found) == ["A", "B", "C", "D"]
    assert found == pytest.approx({"A": 0.03, "B": 0.06, "C": 0.06, "D": 0.02})


def test_a_row_without_a_test_stays_without_and_costs_nothing():
    assert holm({"A": None, "B": 0.03, "C": 0.02}) == {"A": None, "B": 0.04, "C": 0.04}


def test_one_test_needs_no_correction_and_none_none():
    assert holm({"A": 0.03}) == {"A": 0.03}
    assert holm({}) == {}


@given(st.dictionaries(st.text(max_size=3), st.floats(0, 1), max_size=20))
def test_holm_keeps_the_order_and_only_raises(p_values):
    found = holm(p_values)
    assert list(found) == list(p_values)
    assert all(p <= found[name] <= 1 for name, p in p_values.items())
    ranked = [found[name] for name in sorted(p_values, key=lambda name: p_values[name])]
    assert ranked == sorted(ranked)


def test_holm_keeps_false_differences_out_of_the_whole_table():
    tables = np.random.default_rng(3).random((REPEATS, 19)).tolist()
    false = [min(holm({str(i): p for i, p in enumerate(table)}).values()) < 0.05 for table in tables]
    assert share(false) == pytest.approx(0.05, abs=NEAR)


@pytest.mark.parametrize("p", [-0.1, 1.1, math.nan])
def test_an_impossible_p_is_refused_and_the_row_named(p):
    with pytest.raises(StatsError, match=r"p_values\['A_h1'\]=.*must be from 0 to 1"):
        holm({"base": 0.5, "A_h1": p})


# --- pooled_sd


def test_an_sd_is_pooled_by_degrees_of_freedom():
    # Squares about the means: 2 with 2 degrees of freedom, 8 with 1, none from a single value: √(10 / 3).
    assert pooled_sd([[1.0, 2.0, 3.0], [10.0, 14.0], [99.0]]) == pytest.approx(math.sqrt(10 / 3))


def test_single_values_have_no_pooled_sd():
    assert pooled_sd([[1.0], [], [2.0]]) is None


# --- equivalence


def test_equivalence_by_hand():
    # Mean 0.2, sd 0.2, n 3: standard error 0.11547, t(2, 95 %) = 2.920, so the 90 % interval is 0.2 ± 0.3372.
    found = equivalence([0.0, 0.2, 0.4], margin=0.6)
    assert (found.low, found.high) == (pytest.approx(-0.1372, abs=1e-4), pytest.approx(0.5372, abs=1e-4))
    # t = 0.4 / 0.11547 = 3.4641 = 2√3; with 2 degrees of freedom the tail is (1 - t / √(2 + t²)) / 2.
    assert found.p == pytest.approx((1 - math.sqrt(12 / 14)) / 2)
    assert found.equivalent
    assert not equivalence([0.0, 0.2, 0.4], margin=0.5).equivalent


@given(SCORES, st.floats(0.01, 100))
def test_equivalent_is_an_interval_within_the_margin(differences, margin):
    found = equivalence(differences, margin)
    inside = -margin < found.low and found.high < margin
    close = min(abs(found.low + margin), abs(found.high - margin)) < 1e-9 * margin
    assert found.equivalent == inside or close
    back = equivalence([-one for one in differences], margin)
    assert (back.p, back.equivalent) == (found.p, found.equivalent)


@pytest.mark.parametrize("n", [3, 10])
def test_a_difference_at_the_margin_passes_for_equivalent_no_more_often_than_said(n):
    found = [equivalence(values, 1.0) for values in normal(n, 1.0, 0.3, seed=n)]
    assert 0.03 < share([one.equivalent for one in found]) < 0.05 + NEAR


def test_one_difference_shows_no_equivalence():
    found = equivalence([0.0], 0.5)
    assert (found.p, found.low, found.high, found.equivalent) == (None, None, None, False)
    assert equivalence([], 0.5) is None


def test_the_same_difference_at_each_seed_is_within_the_margin_or_not():
    assert equivalence([0.1, 0.1], 0.2).equivalent
    assert not equivalence([0.25, 0.25], 0.25).equivalent
    assert equivalence([0.3, 0.3], 0.2).p == 1.0


@pytest.mark.parametrize("margin", [0.0, -0.5, math.nan, math.inf])
def test_a_margin_that_is_none_is_refused(margin):
    with pytest.raises(StatsError, match=r"margin=.*must be above 0"):
        equivalence([0.1, 0.2], margin)
