"""What a few seeds can say: intervals, differences to base, how many seeds would decide, agreement with the paper.

Numbers in, numbers out: no torch, no pandas, no files. What the values there are cannot tell is None, never NaN.
"""

import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from scipy import special

RESAMPLES = 2000  # of the rows, for the interval of a rank agreement
FEWEST_ROWS = 8  # with fewer, the bootstrap's 95 % interval holds τ far less often than it says (6 rows: down to 81 %)
QUANTILES = 1000  # of the sample sd, over which a power is averaged
MOST_SEEDS = 10**9  # a search that gets here has found that the difference is out of reach

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

    n: int
    mean: float
    low: float | None  # the 1 - 2·alpha interval: 90 % for alpha = 0.05; None for n = 1, like p
    high: float | None
    p: float | None  # of the difference being at or beyond the margin
    equivalent: bool  # shown; False says "not shown", not "different"


@dataclass
class Agreement:
    """How far two rankings of the same rows agree."""

    n: int  # rows that both have
    tau: float | None  # Kendall's τ-b, -1 … 1; None with fewer than two rows, or where all of one side are equal
    low: float | None  # None with fewer than `FEWEST_ROWS` rows
    high: float | None


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


def paired_difference(
    ours: Mapping[int, float], base: Mapping[int, float], confidence: float = 0.95
) -> Difference | None:
    """Compare a row with base by the paired t-test (Student 1908) over the seeds both have; None if there is none.

    Differences that are all the same leave no doubt to the test: p is 1 if they are 0, else 0.

    Args:
        ours: a row's values by seed.
        base: base's values by seed.
        confidence: of the interval.

    Raises:
        StatsError: as `estimate` does.
    """
    differences = [ours[seed] - base[seed] for seed in ours if seed in base]
    found = estimate(differences, confidence)
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


def seeds_needed(difference: float, sd: float, power: float = 0.8, alpha: float = 0.05) -> int | None:
    """Count the seeds with which the paired t-test finds a difference of this size, at least 2.

    For a sample sd s, the test finds it with probability Φ(shift - t · s / sd) + Φ(-shift - t · s / sd), where shift is
    √n · difference / sd; the power is the mean of that over s: the noncentral t distribution (Cohen 1988, section 2.5),
    of which SciPy 1.17's own function has gaps.

    Args:
        difference: the true one, of either sign; 0 is never found: None.
        sd: of the differences by seed, not of one row's values; 0 needs the fewest seeds a t-test takes.
        power: chance of finding it.
        alpha: two-sided level.

    Raises:
        StatsError: for values that are not finite, a negative sd, or shares outside (0, 1).
    """
    require_finite("difference", [difference])
    require_design(sd, power, alpha)

    def reached(n: int) -> bool:
        needed = t_quantile(n - 1, 1 - alpha / 2) * sample_spreads(n)
        shift = math.sqrt(n) * difference / sd
        return bool((special.ndtr(shift - needed) + special.ndtr(-shift - needed)).mean() >= power)

    if difference == 0:
        return None
    return 2 if sd == 0 else fewest(reached)


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
    if not 0 < margin < math.inf:
        raise StatsError("margin", margin, "must be above 0 and finite")
    require_share("alpha", alpha, below=0.5)
    found = estimate(differences, 1 - 2 * alpha)
    if found is None:
        return None
    if found.sd is None:
        return Equivalence(found.n, found.mean, None, None, None, False)
    # The larger p of the two tests is that of the nearer margin.
    p = t_tail(margin - abs(found.mean), found.sd, found.n)
    return Equivalence(found.n, found.mean, found.low, found.high, p, p < alpha)


def seeds_needed_for_equivalence(margin: float, sd: float, power: float = 0.8, alpha: float = 0.05) -> int | None:
    """Count the seeds with which `equivalence` succeeds when the true difference is 0, at least 2.

    For a sample sd s, it succeeds with probability 2Φ(√n · margin / sd - t · s / sd) - 1 or 0; the power is the mean of
    that over s (Phillips 1990). None if out of reach.

    Raises:
        StatsError: for a margin that is not above 0, a negative sd, or shares out of range.
    """
    if not 0 < margin < math.inf:
        raise StatsError("margin", margin, "must be above 0 and finite")
    require_design(sd, power, alpha)

    def reached(n: int) -> bool:
        room = math.sqrt(n) * margin / sd - t_quantile(n - 1, 1 - alpha) * sample_spreads(n)
        return bool(np.maximum(2 * special.ndtr(room) - 1, 0).mean() >= power)

    return 2 if sd == 0 else fewest(reached)


def rank_agreement(ours: Mapping[str, float], papers: Mapping[str, float], seed: int = 1) -> Agreement:
    """Measure how far our rows rank as the paper's do: Kendall's τ-b (Kendall 1945) over the rows that both have.

    The interval is the percentile bootstrap over rows (Efron 1979), 95 %, which unlike Fisher's z with Fieller's
    variance keeps its coverage where agreement is strong, and assumes no distribution; τ = ±1 leaves it no width.

    Args:
        ours: a measure by row.
        papers: the paper's, by row.
        seed: of the resampling: same values, same interval.

    Raises:
        StatsError: for a value that is not finite.
    """
    rows = [row for row in ours if row in papers]
    x, y = np.array([ours[row] for row in rows]), np.array([papers[row] for row in rows])
    require_finite("ours", x.tolist())
    require_finite("papers", y.tolist())
    n = len(rows)
    if len(set(x)) < 2 or len(set(y)) < 2:
        return Agreement(n, None, None, None)
    tau = float(tau_b(x, y, np.ones((1, n), int))[0])
    if n < FEWEST_ROWS:
        return Agreement(n, tau, None, None)
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), RESAMPLES)
    low, high = np.quantile(tau_b(x, y, drawn), [0.025, 0.975])
    return Agreement(n, tau, float(low), float(high))


def tau_b(x: np.ndarray, y: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Compute Kendall's τ-b of several samples of the same rows; 0 for one in which a side is all equal.

    SciPy's own would take half a second to import, and samples one at a time.

    Args:
        x, y: two measures, (n,).
        counts: how often each sample has each row, (samples, n).
    """
    order_x, order_y = (np.sign(side[:, None] - side[None, :]) for side in (x, y))  # (n, n)

    def over_pairs(matrix: np.ndarray) -> np.ndarray:
        sums: np.ndarray = ((counts @ matrix) * counts).sum(1)
        return sums

    untied = np.sqrt(over_pairs(order_x**2) * over_pairs(order_y**2))
    tau: np.ndarray = np.divide(over_pairs(order_x * order_y), untied, out=np.zeros(len(counts)), where=untied > 0)
    return tau


def mean_sd(values: Sequence[float]) -> tuple[float, float | None]:
    """Give mean and sample sd, rounded only once, so that equal values have an sd of exactly 0; sd None for n = 1."""
    exact = [float(value) for value in values]
    return statistics.mean(exact), statistics.stdev(exact) if len(exact) > 1 else None


def sample_spreads(n: int) -> np.ndarray:
    """Give what a sample sd of n normal values may be, in units of the true one: √(χ²(n - 1) / (n - 1)).

    A mean over these evenly spaced quantiles is an expectation to 4 digits or more.
    """
    upper_tails = (np.arange(QUANTILES) + 0.5) / QUANTILES
    spreads: np.ndarray = np.sqrt(special.chdtri(n - 1, upper_tails) / (n - 1))
    return spreads


def t_quantile(freedom: int, share: float) -> float:
    """Give the value below which a share of Student's t distribution lies."""
    return float(special.stdtrit(freedom, share))


def t_tail(distance: float, sd: float, n: int) -> float:
    """Give the share of Student's t distribution above distance / (sd / √n); its limit for sd = 0."""
    if sd == 0:
        return 0.5 if distance == 0 else float(distance < 0)
    return float(special.stdtr(n - 1, -distance * math.sqrt(n) / sd))


def fewest(reached: Callable[[int], bool]) -> int | None:
    """Find the smallest n ≥ 2 at which a condition that stays true holds; None if not by `MOST_SEEDS`."""
    high = 2
    while not reached(high):
        if high >= MOST_SEEDS:
            return None
        high *= 2
    low = max(1, high // 2)  # not reached there, or below 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def require_finite(name: str, values: Sequence[float]) -> None:
    """Refuse NaN and infinity: a missing value is left out, not passed."""
    for value in values:
        if not math.isfinite(value):
            raise StatsError(name, value, "must be a finite number; leave out what is missing")


def require_share(name: str, value: float, below: float = 1.0) -> None:
    """Refuse what is not strictly between 0 and `below`."""
    if not 0 < value < below:
        raise StatsError(name, value, f"must be above 0 and below {below:g}")


def require_design(sd: float, power: float, alpha: float) -> None:
    """Refuse a study that cannot be planned."""
    if not 0 <= sd < math.inf:
        raise StatsError("sd", sd, "must be at least 0 and finite")
    require_share("power", power)
    require_share("alpha", alpha, below=0.5)
