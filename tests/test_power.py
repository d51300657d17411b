import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats as scipy_stats

from ablate.power import seeds_needed, seeds_needed_for_equivalence
from ablate.stats import StatsError, paired_difference


@pytest.mark.parametrize(
    ("d", "power", "seeds"), [(0.2, 0.8, 199), (0.5, 0.8, 34), (0.8, 0.8, 15), (0.5, 0.95, 54), (1.0, 0.8, 10)]
)
def test_seeds_needed_are_those_of_the_power_tables(d, power, seeds):
    # G*Power 3.1, "means: difference between two dependent means", two-sided, alpha 0.05.
    assert seeds_needed(d, 1.0, power) == seeds
    assert seeds_needed(-d * 0.3, 0.3, power) == seeds


def test_seeds_needed_find_the_difference_as_often_as_asked():
    seeds = seeds_needed(0.3, 0.25)
    assert seeds == 8
    zero = dict.fromkeys(range(seeds), 0.0)
    drawn = np.random.default_rng(5).normal(0.3, 0.25, (2000, seeds)).tolist()
    found = [paired_difference(dict(enumerate(values)), zero).p < 0.05 for values in drawn]
    assert 0.76 < sum(found) / len(found) < 0.9  # four standard errors of a share of 2,000 draws below 0.8


def test_a_difference_of_nothing_is_never_found():
    assert seeds_needed(0.0, 1.0) is None
    assert seeds_needed(0.0, 0.0) is None
    assert seeds_needed(1e-9, 1.0) is None  # nor one that would take 10^19 seeds


def test_what_does_not_vary_needs_the_fewest_seeds_of_a_test():
    assert seeds_needed(0.1, 0.0) == 2
    assert seeds_needed(1e9, 1.0) == 2


@settings(max_examples=25)
@given(st.floats(0.05, 50), st.floats(0.05, 5))
def test_a_larger_difference_needs_no_more_seeds(difference, sd):
    assert seeds_needed(difference * 1.5, sd) <= seeds_needed(difference, sd)


@pytest.mark.parametrize("wrong", [{"sd": -0.1}, {"sd": math.nan}, {"power": 1.0}, {"alpha": 0.0}, {"alpha": 0.5}])
def test_a_study_that_cannot_be_planned_is_refused(wrong):
    name, value = next(iter(wrong.items()))
    with pytest.raises(StatsError, match=f"{name}={value}"):
        seeds_needed(**({"difference": 0.5, "sd": 1.0} | wrong))
    with pytest.raises(StatsError, match=f"{name}={value}"):
        seeds_needed_for_equivalence(**({"margin": 0.5, "sd": 1.0} | wrong))


def test_seeds_needed_for_equivalence_reach_the_power_and_one_fewer_do_not():
    seeds = seeds_needed_for_equivalence(0.5, 0.4)
    for n, enough in [(seeds, True), (seeds - 1, False)]:
        # The power again by drawing sample means and variances (their distributions: normal, χ²), 400,000 of each.
        rng = np.random.default_rng(n)
        error = np.sqrt(0.4**2 * rng.chisquare(n - 1, 400_000) / (n - 1) / n)
        mean = rng.normal(0, 0.4 / math.sqrt(n), 400_000)
        inside = np.abs(mean) + scipy_stats.t.ppf(0.95, n - 1) * error < 0.5
        assert (inside.mean() >= 0.8) == enough


def test_equivalence_within_a_wide_margin_needs_the_fewest_seeds_and_within_none_never_comes():
    assert seeds_needed_for_equivalence(0.5, 0.0) == 2
    assert seeds_needed_for_equivalence(100.0, 1.0) == 2
    assert seeds_needed_for_equivalence(1e-9, 1.0) is None


@pytest.mark.parametrize("margin", [0.0, -0.5, math.nan, math.inf])
def test_a_margin_that_is_none_is_refused(margin):
    with pytest.raises(StatsError, match=r"margin=.*must be above 0"):
        seeds_needed_for_equivalence(margin, 1.0)
