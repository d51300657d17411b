"""How many seeds would decide: the power of `stats`'s paired test, and of its test of equivalence."""

import math
from collections.abc import Callable

import numpy as np
from scipy import special

from ablate.stats import StatsError, require_finite, require_margin, require_share, t_quantile

QUANTILES = 1000  # of the sample sd, over which a power is averaged
OUT_OF_REACH = 10**9  # seeds, at which a search ends


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


def seeds_needed_for_equivalence(margin: float, sd: float, power: float = 0.8, alpha: float = 0.05) -> int | None:
    """Count the seeds with which `stats.equivalence` succeeds when the true difference is 0, at least 2.

    For a sample sd s, it succeeds with probability 2Φ(√n · margin / sd - t · s / sd) - 1 or 0; the power is the mean of
    that over s (Phillips 1990). None if out of reach.

    Raises:
        StatsError: for a margin that is not above 0, a negative sd, or shares out of range.
    """
    require_margin(margin)
    require_design(sd, power, alpha)

    def reached(n: int) -> bool:
        room = math.sqrt(n) * margin / sd - t_quantile(n - 1, 1 - alpha) * sample_spreads(n)
        return bool(np.maximum(2 * special.ndtr(room) - 1, 0).mean() >= power)

    return 2 if sd == 0 else fewest(reached)


def fewest(reached: Callable[[int], bool]) -> int | None:
    """Find the smallest n ≥ 2 at which a condition that stays true holds; None if not by `OUT_OF_REACH`."""
    high = 2
    while not reached(high):
        if high >= OUT_OF_REACH:
            return None
        high *= 2
    low = max(1, high // 2)  # not reached there, or below 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def sample_spreads(n: int) -> np.ndarray:
    """Give what a sample sd of n normal values may be, in units of the true one: √(χ²(n - 1) / (n - 1)).

    A mean over these evenly spaced quantiles is an expectation to 4 digits or more.
    """
    upper_tails = (np.arange(QUANTILES) + 0.5) / QUANTILES
    spreads: np.ndarray = np.sqrt(special.chdtri(n - 1, upper_tails) / (n - 1))
    return spreads


def require_design(sd: float, power: float, alpha: float) -> None:
    """Refuse a study that cannot be planned."""
    if not 0 <= sd < math.inf:
        raise StatsError("sd", sd, "must be at least 0 and finite")
    require_share("power", power)
    require_share("alpha", alpha, below=0.5)
