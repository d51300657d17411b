"""What a few seeds can say: intervals, differences to base, and whether these are differences.

Numbers in, numbers out: no torch, no pandas, no files. What the values there are cannot tell is None, never NaN.
"""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from scipy import special

Key = TypeVar("Key")


class StatsError(ValueError):
    """A value that no statistic can be made of."""

    def __init__(self, name: str, value: object, allowed: str) -> None:
        super().__init__(f"{name}={value!r}: {allowed}")


@dataclass
class Estimate:
    """A mean over seeds and how far it can be trusted."""

    n: int
    mean: float
    sd: float | None  # of the values, n - 1 in the denominator; None for n = 1, like the interval
    low: float | None
    high: float | None


@dataclass
class Difference:
    """Ours minus base, paired by seed."""

    n: int  # seeds that both have
    mean: float
    sd: float | None  # of the differences; None for n = 1, like the interval and p
    low: float | None
    high: float | None
    p: float | None  # two-sided, of no difference; not corrected (`holm` does)


@dataclass
class Equivalence:
    """Whether a difference is shown to be smaller than a margin."""

    low: float | None  # the 1 - 2·alpha interval: 90 % for alpha = 0.05; None for n = 1, like p
    high: float | None
    p: float | None  # of the difference being at or beyond the margin
    equivalent: bool  # shown; False says "not shown", not "different"


def estimate(values: Sequence[float], confidence: float = 0.95) -> Estimate | None:
    """Estimate a mean with Student's t interval, mean ± t(n-1) · sd / √n (Student 1908); None for no values.

    Raises:
        StatsError: for a value that is not finite, or a confidence outside (0, 1).
    """
    require_finite("values", values)
    require_share("confidence", confidence)
    if not values:
        return None
    mean, sd = mean_sd(values)
    if sd is None:
        return Estimate(len(values), mean, None, None, None)
    half = t_quantile(len(values) - 1, (1 + confidence) / 2) * sd / math.sqrt(len(values))
    return Estimate(len(values), mean, sd, mean - half, mean + half)


def paired_difference(ours: Mapping[int, float], base: Mapping[int, float]) -> Difference | None:
    """Compare a row with base by the paired t-test (Student 1908) over the seeds both have; None if there is none.

    Differences that are all the same leave no doubt to the test: p is 1 if they are 0, else 0.

    Args:
        ours: a row's values by seed.
        base: base's values by seed.

    Raises:
        StatsError: as `estimate` does.
    """
    differences = [ours[seed] - base[seed] for seed in ours if seed in base]
    found = estimate(differences)
    if found is None:
        return None
    p = None if found.sd is None else min(1.0, 2 * t_tail(abs(found.mean), found.sd, found.n))
    return Difference(found.n, found.mean, found.sd, found.low, found.high, p)


def holm(p_values: Mapping[Key, float | None]) -> dict[Key, float | None]:
    """Adjust p-values so that the chance of any false difference in the whole table stays below alpha.

    Step-down (Holm 1979): the i-th smallest of m is multiplied by m - i + 1; an adjusted value is never below that of
    a smaller p.

    Args:
        p_values: by whatever names a test; None, where there is no test, stays None and is not counted in m.

    Raises:
        StatsError: for a p-value outside [0, 1].
    """
    for name, p in p_values.items():
        if p is not None and not 0 <= p <= 1:
            raise StatsError(f"p_values[{name!r}]", p, "must be from 0 to 1")
    tested = sorted(((p, name) for name, p in p_values.items() if p is not None), key=lambda pair: pair[0])
    adjusted: dict[Key, float | None] = dict.fromkeys(p_values)
    highest = 0.0
    for i, (p, name) in enumerate(tested):
        highest = max(highest, min(1.0, (len(tested) - i) * p))
        adjusted[name] = highest
    return adjusted


def pooled_sd(groups: Iterable[Sequence[float]]) -> float | None:
    """Pool the sd over rows, √(Σ (n - 1) sd² / Σ (n - 1)): steadier than one row's where seeds are few.

    It assumes that the rows spread alike. None where no row has two values.

    Raises:
        StatsError: for a value that is not finite.
    """
    squares, freedom = 0.0, 0
    for values in groups:
        require_finite("groups", values)
        if len(values) > 1:
            squares += statistics.variance(values) * (len(values) - 1)
            freedom += len(values) - 1
    return math.sqrt(squares / freedom) if freedom else None


def equivalence(differences: Sequence[float], margin: float, alpha: float = 0.05) -> Equivalence | None:
    """Test whether a difference lies within ±margin, by two one-sided t-tests (Schuirmann 1987); None for no values.

    Equivalent is what has p below alpha: the same as the 1 - 2·alpha interval lying inside ±margin.

    Args:
        differences: ours minus base, one per seed.
        margin: the largest difference that does not matter; chosen before the results are seen.
        alpha: chance of calling a difference at the margin equivalent.

    Raises:
        StatsError: for a margin that is not above 0, or what `estimate` refuses.
    """
    require_margin(margin)
    require_share("alpha", alpha, below=0.5)
    found = estimate(differences, 1 - 2 * alpha)
    if found is None:
        return None
    if found.sd is None:
        return Equivalence(None, None, None, False)
    # The larger p of the two tests is that of the nearer margin.
    p = t_tail(margin - abs(found.mean), found.sd, found.n)
    return Equivalence(found.low, found.high, p, p < alpha)


def mean_sd(values: Sequence[float]) -> tuple[float, float | None]:
    """Give mean and sample sd, rounded only once, so that equal values have an sd of exactly 0; sd None for n = 1."""
    exact = [float(value) for value in values]
    return statistics.mean(exact), statistics.stdev(exact) if len(exact) > 1 else None


def t_quantile(freedom: int, share: float) -> float:
    """Give the value below which a share of Student's t distribution lies."""
    return float(special.stdtrit(freedom, share))


def t_tail(distance: float, sd: float, n: int) -> float:
    """Give the share of Student's t distribution above distance / (sd / √n); its limit for sd = 0."""
    if sd == 0:
        return 0.5 if distance == 0 else float(distance < 0)
    return float(special.stdtr(n - 1, -distance * math.sqrt(n) / sd))


def require_finite(name: str, values: Sequence[float]) -> None:
    """Refuse NaN and infinity: a missing value is left out, not passed."""
    for value in values:
        if not math.isfinite(value):
            raise StatsError(name, value, "must be a finite number; leave out what is missing")


def require_margin(margin: float) -> None:
    """Refuse a margin within which nothing lies, or everything."""
    if not 0 < margin < math.inf:
        raise StatsError("margin", margin, "must be above 0 and finite")


def require_share(name: str, value: float, below: float = 1.0) -> None:
    """Refuse what is not strictly between 0 and `below`."""
    if not 0 < value < below:
        raise StatsError(name, value, f"must be above 0 and below {below:g}")
