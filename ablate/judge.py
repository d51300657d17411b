"""The paper's sentences on Table 3 as tests on our records: supported, contradicted or undecided.

A claim is a set of comparisons of a row with base, each in perplexity or BLEU. Perplexity is compared on the log scale,
as a ratio: what moves it moves it in proportion, so that 2 % means the same at 5 and at 50.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from ablate import power, stats

ALPHA = 0.05
LOWEST_BLEU = 1.0  # points; below, it is what sacreBLEU's smoothing makes of no matching words, not translation
AS_CLAIMED, OPPOSITE, UNDECIDED = "as claimed", "opposite", "undecided"
MOST_SEEDS = 1000  # a larger number says only: not by seeds
FEW_SEEDS = 5  # with fewer, the spread of all rows' differences is a better guess of a row's than its own

# The largest differences that still count as equal: what a seed alone moves, and below the smallest that the paper
# itself calls a loss (h = 32 and d_k = 32: 0.4 BLEU, 1.8 % of perplexity).
BLEU_MARGIN = 0.3
PPL_MARGIN = 0.015  # of base's

Key = TypeVar("Key")
Values = Mapping[str, Mapping[int, float]]  # row → seed → value


@dataclass(frozen=True)
class Comparison:
    """A row's difference to base in one metric, as the paper would have it."""

    row: str
    metric: str  # ppl or bleu
    sign: int  # 1: above base; -1: below; 0: equal, within a margin


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper and the comparisons it is made of."""

    name: str
    says: str  # in the paper's words
    section: str
    comparisons: tuple[Comparison, ...]


def worse(*rows: str) -> tuple[Comparison, ...]:
    """Claim that rows are of lower quality than base: higher perplexity, lower BLEU."""
    return tuple(Comparison(row, metric, sign) for row in rows for metric, sign in (("ppl", 1), ("bleu", -1)))


def better(*rows: str) -> tuple[Comparison, ...]:
    """Claim that rows are of higher quality than base."""
    return tuple(Comparison(one.row, one.metric, -one.sign) for one in worse(*rows))


def equal(row: str) -> tuple[Comparison, ...]:
    """Claim that a row is as good as base."""
    return Comparison(row, "ppl", 0), Comparison(row, "bleu", 0)


BIGGER = "bigger models are better"
CLAIMS = (
    # The best setting is base's: that of the paper's records, not of ours, which would favour a lucky row.
    Claim(
        "one head",
        "single-head attention is 0.9 BLEU worse than the best setting",
        "6.2",
        (Comparison("A_h1", "bleu", -1),),
    ),
    Claim("too many heads", "quality also drops off with too many heads", "6.2", worse("A_h32")),
    Claim("key size", "reducing the attention key size d_k hurts model quality", "6.2", worse("B_dk16", "B_dk32")),
    Claim("depth N", BIGGER, "6.2", (*worse("C_N2", "C_N4"), *better("C_N8"))),
    Claim("width d_model", BIGGER, "6.2", (*worse("C_d256"), *better("C_d1024"))),
    Claim("width d_ff", BIGGER, "6.2", (*worse("C_ff1024"), *better("C_ff4096"))),
    Claim("big", BIGGER, "6.2", better("big")),
    Claim("dropout", "dropout is very helpful in avoiding over-fitting", "6.2", worse("D_drop0")),
    Claim("label smoothing, PPL", "hurts perplexity", "5.4", (Comparison("D_ls0", "ppl", -1),)),
    Claim("label smoothing, BLEU", "improves accuracy and BLEU score", "5.4", (Comparison("D_ls0", "bleu", -1),)),
    Claim("learned positions", "nearly identical results to the base model", "6.2", equal("E_learned")),
)


@dataclass
class Evidence:
    """What records say about one comparison. Differences: row minus base, BLEU points or log perplexity."""

    comparison: Comparison
    margin: float  # within which a difference counts as none
    paper: float  # the paper's own difference, of single runs
    n: int  # seeds that row and base both have
    effect: float | None  # ours; None for n = 0
    low: float | None  # 95 % interval, 90 % where equality is claimed; None with fewer than two seeds
    high: float | None
    p: float | None  # of no difference, or of one beyond the margin; not corrected
    verdict: str  # as claimed, opposite or undecided
    seeds: int | None  # that would decide it, were the difference as measured; None: decided, or none would

    @property
    def paper_holds(self) -> bool:
        """Tell whether the paper's own numbers are as claimed; whether by more than chance they cannot tell."""
        sign = self.comparison.sign
        return self.paper * sign > 0 if sign else abs(self.paper) <= self.margin


@dataclass
class Judgement:
    """A claim and what is found about it."""

    claim: Claim
    verdict: str  # supported, contradicted or undecided
    needs: str  # what would decide an undecided one
    evidence: list[Evidence]

    @property
    def words(self) -> str:
        """Say the verdict, and what an undecided one needs."""
        return f"{self.verdict} ({self.needs})" if self.needs else self.verdict


def judge(
    found: Mapping[str, Values], papers: Mapping[str, Mapping[str, float]], margins: Mapping[str, float]
) -> list[Judgement]:
    """Judge every claim whose rows are all asked for, and are the paper's.

    Supported: every comparison is significant in the claimed direction, two-sided at `ALPHA`, or shown equal; since all
    must be, that needs no correction (Berger 1982). Contradicted: one is significant the other way, corrected for the
    claim's comparisons (Holm), or shown to be beyond the margin. Else undecided.

    Args:
        found: metric → row → seed → value, of ours.
        papers: metric → row → value, of the paper.
        margins: of equality: BLEU points for bleu, a share of base's for ppl.
    """
    ours = {"bleu": found["bleu"], "ppl": {row: logs(values) for row, values in found["ppl"].items()}}
    printed = {"bleu": papers["bleu"], "ppl": logs(papers["ppl"])}
    limits = {"bleu": margins["bleu"], "ppl": math.log1p(margins["ppl"])}
    pooled = {metric: spread(rows) for metric, rows in ours.items()}
    judgements = []
    for claim in CLAIMS:
        if all({one.row, "base"} <= found[one.metric].keys() & printed[one.metric].keys() for one in claim.comparisons):
            evidence = [
                compare(one, ours[one.metric], printed[one.metric], limits[one.metric], pooled[one.metric])
                for one in claim.comparisons
            ]
            judgements.append(conclude(claim, correct(evidence)))
    return judgements


def logs(values: Mapping[Key, float]) -> dict[Key, float]:
    """Take perplexities to the log scale, where a difference is a ratio."""
    return {key: math.log(value) for key, value in values.items()}


def differences(row: str, values: Values) -> list[float]:
    """Give a row's differences to base, seed by seed."""
    return [ours - values["base"][seed] for seed, ours in values[row].items() if seed in values["base"]]


def spread(values: Values) -> float | None:
    """Pool the sd of the differences to base over all rows; None where no row has two seeds.

    Rows that share their runs count once, and those that share base's do not: their difference is 0 whatever the seed.
    """
    different = {tuple(found.items()): row for row, found in values.items() if found != values["base"]}
    return stats.pooled_sd(differences(row, values) for row in different.values())


def compare(
    comparison: Comparison, ours: Values, papers: Mapping[str, float], margin: float, pooled: float | None
) -> Evidence:
    """Test one comparison.

    Args:
        comparison: what is claimed.
        ours: row → seed → value.
        papers: row → value.
        margin: within which a difference counts as none.
        pooled: sd of a difference to base, over all rows.
    """
    row, sign = comparison.row, comparison.sign
    deltas = differences(row, ours)
    found = stats.paired_difference(ours[row], ours["base"])
    paper = papers[row] - papers["base"]
    if found is None:
        return Evidence(comparison, margin, paper, 0, None, None, None, None, UNDECIDED, 2)
    if comparison.metric == "bleu" and max(*ours[row].values(), *ours["base"].values()) < LOWEST_BLEU:
        return Evidence(comparison, margin, paper, found.n, found.mean, found.low, found.high, None, UNDECIDED, None)
    low, high, p = found.low, found.high, found.p
    verdict = UNDECIDED
    if sign and p is not None and p < ALPHA:
        verdict = AS_CLAIMED if found.mean * sign > 0 else OPPOSITE
    if not sign and low is not None and high is not None:
        shown = stats.equivalence(deltas, margin, ALPHA)
        assert shown is not None
        beyond = low > margin or high < -margin
        # Seeds without any spread, such as models that all score 0, show nothing about equality.
        verdict = UNDECIDED if not found.sd else AS_CLAIMED if shown.equivalent else OPPOSITE if beyond else UNDECIDED
        low, high, p = shown.low, shown.high, shown.p
    seeds = None
    if verdict == UNDECIDED:
        sd = found.sd if found.sd is not None and found.n >= FEW_SEEDS else pooled
        seeds = more_seeds(found.mean, sd, sign, margin, found.n)
    return Evidence(comparison, margin, paper, found.n, found.mean, low, high, p, verdict, seeds)


def more_seeds(effect: float, sd: float | None, sign: int, margin: float, n: int) -> int | None:
    """Count the seeds that would decide, at 80 % power; more than there are. 2 if the spread is not known yet.

    None if no number would: a claimed difference that is measured as 0. Equality that is claimed is taken to be
    true: the true difference is 0.
    """
    if sd is None:
        return 2
    needed = power.seeds_needed(effect, sd) if sign else power.seeds_needed_for_equivalence(margin, sd)
    return None if needed is None else max(needed, n + 1)


def correct(evidence: list[Evidence]) -> list[Evidence]:
    """Take back what is opposite to a claim only because it has many comparisons (Holm)."""
    adjusted = stats.holm({i: one.p for i, one in enumerate(evidence) if one.comparison.sign})
    for i, one in enumerate(evidence):
        p = adjusted.get(i)
        if one.verdict == OPPOSITE and p is not None and p >= ALPHA:
            one.verdict, one.seeds = UNDECIDED, one.n + 1
    return evidence


def conclude(claim: Claim, evidence: list[Evidence]) -> Judgement:
    """Put a claim's evidence together."""
    if any(one.verdict == OPPOSITE for one in evidence):
        return Judgement(claim, "contradicted", "", evidence)
    open_ones = [one for one in evidence if one.verdict == UNDECIDED]
    if not open_ones:
        return Judgement(claim, "supported", "", evidence)
    without = list(dict.fromkeys(one.comparison.row for one in open_ones if one.n == 0))
    if without:
        return Judgement(claim, UNDECIDED, f"no seed finished that base has too: {', '.join(without)}", evidence)
    needs = []
    if seeds := [one.seeds for one in open_ones if one.seeds is not None]:
        about = "at least" if any(one.n == 1 for one in open_ones) else "about"
        needed = f"{about} {max(seeds)}" if max(seeds) <= MOST_SEEDS else f"more than {MOST_SEEDS:,}"
        needs.append(f"needs {needed} seeds")
    same = [f"{one.comparison.row} {one.comparison.metric.upper()}" for one in open_ones if one.seeds is None]
    if same:
        needs.append(f"no number of seeds would decide {', '.join(same)}: no difference, or BLEU below {LOWEST_BLEU:g}")
    return Judgement(claim, UNDECIDED, "; ".join(needs), evidence)
