"""The paper's sentences on Table 3, judged on our records: what they say, what came out, and what would decide.

`python -m ablate.claims [SWEEP …] [--preset quick] [--seeds 3] [--sentences] [--format md|tex|csv|html]`
"""

import csv
import io
import math
import sys
from collections.abc import Mapping

from ablate import footnote
from ablate.ask import plan_of, reader
from ablate.cells import HEADERS, MISSING, signed
from ablate.data.source import read_lines
from ablate.errors import ConfigError
from ablate.judge import AS_CLAIMED, BLEU_MARGIN, CLAIMS, PPL_MARGIN, Comparison, Evidence, Judgement, judge
from ablate.plan import Plan
from ablate.refuse import refuses
from ablate.results import records_of, scores
from ablate.typeset import FORMATS, Column, Grid, typeset

CLAIMED = {1: "higher", -1: "lower", 0: "equal"}
Sentences = Mapping[Comparison, str]  # what other sentences would say
JUDGED = (  # how a reader is to take the verdicts
    "Supported: every comparison significant as claimed (paired t-test over seeds, 5 %, two-sided). Contradicted: "
    "one is the other way (Holm within the claim). Equal: shown to lie within the margin (two one-sided t-tests). "
    "Seeds needed: for 80 % power in the claim's hardest comparison, were differences as measured, or none where "
    "that is claimed; below 5 seeds with the spread of all rows together. Of 20 claims about nothing, one would look "
    "decided: each is judged by itself.",
    "The paper's own numbers are of single runs: they show a direction, not whether chance would.",
)


def evaluate(plan: Plan, bleu_margin: float = BLEU_MARGIN, ppl_margin: float = PPL_MARGIN) -> list[Judgement]:
    """Judge the paper's claims on a plan's records; those whose rows are not all in the plan are left out.

    Args:
        plan: of the whole table, or of some of its sweeps.
        bleu_margin: the largest difference in BLEU points that counts as none.
        ppl_margin: the largest in perplexity, as a share of base's.

    Raises:
        ConfigError: for a margin that is not above 0.
        RecordError, MixedRecords: as `records_of`.
    """
    for name, margin in (("--bleu-margin", bleu_margin), ("--ppl-margin", ppl_margin)):
        if not 0 < margin < math.inf:
            raise ConfigError(name, margin, "must be above 0 and finite")
    records_of(plan)
    printed = {row: cfg.row.paper for row, cfg in plan.configs.items()}
    papers = {
        "ppl": {row: paper.ppl_dev for row, paper in printed.items() if paper.ppl_dev is not None},
        "bleu": {row: paper.bleu_dev for row, paper in printed.items() if paper.bleu_dev is not None},
    }
    return judge(scores(plan), papers, {"bleu": bleu_margin, "ppl": ppl_margin})


def other_sentences(plan: Plan, judgements: list[Judgement]) -> Sentences:
    """Say of each comparison in BLEU for how many seeds it would hold on other sentences: sacreBLEU's paired bootstrap.

    It holds where the whole 95 % interval over sentences is on the claimed side of 0, or within the margin. A seed's
    luck is still in it: the verdict goes by seeds.

    Args:
        plan: with its corpus.
        judgements: as `evaluate` gives them.

    Raises:
        ConfigError: if the corpus is not prepared here, which has the references.
        ScoreError: for translations that do not fit the corpus.
    """
    from ablate.bleu import paired_bootstrap  # sacreBLEU takes time to import, which only this function is worth

    if plan.corpus is None:
        raise ConfigError("--sentences", True, "takes the corpus, which is not prepared here: python -m ablate.prepare")
    references = plan.corpus.text("dev", "tgt")
    said = {}
    for evidence in (one for judgement in judgements for one in judgement.evidence):
        comparison = evidence.comparison
        pairs = [
            (base.run.hypotheses("dev"), other.run.hypotheses("dev"))
            for base, other in zip(plan.rows["base"], plan.rows[comparison.row], strict=True)
            if base.state.record is not None and other.state.record is not None
        ]
        if comparison.metric != "bleu" or not pairs:
            continue
        holds = 0
        for base, other in pairs:
            found = paired_bootstrap(list(read_lines(base)), list(read_lines(other)), references)
            if comparison.sign:
                holds += min(found.low * comparison.sign, found.high * comparison.sign) > 0
            else:
                holds += -evidence.margin < found.low and found.high < evidence.margin
        said[comparison] = f"{holds}/{len(pairs)}"
    return said


def grids(plan: Plan, judgements: list[Judgement], sentences: Sentences | None = None) -> list[Grid]:
    """Lay out the verdicts, and the comparisons they rest on.

    Args:
        plan: for the notes.
        judgements: as `evaluate` gives them.
        sentences: as `other_sentences` does; None: not asked for.
    """
    verdicts = Grid(
        f"What the paper says of Table 3, on our records (preset {plan.preset})",
        [Column(name, text=True) for name in ("claim", "the paper", "section", "the paper's own numbers", "ours")],
        [[[one.claim.name, one.claim.says, one.claim.section, papers_own(one), one.words] for one in judgements]],
        [*left_out(judgements), *verdict_notes(plan)],
    )
    columns = [Column(name, text=True) for name in ("claim", "row − base", "in", "claimed")]
    columns += [Column(name) for name in ("paper", "ours", "interval", "n")] + [Column("found", text=True)]
    columns += [Column("other sentences")] if sentences is not None else []
    blocks = []
    for judgement in judgements:
        lines = [comparison_line(one) for one in judgement.evidence]
        if sentences is not None:
            for line, one in zip(lines, judgement.evidence, strict=True):
                line.append(sentences.get(one.comparison, ""))
        blocks.append([[judgement.claim.name if i == 0 else "", *line] for i, line in enumerate(lines)])
    notes = ["PPL as a ratio: its test is of the logarithm. 95 % intervals over seeds; 90 % where equality is claimed."]
    if sentences is not None:
        notes.append("Other sentences: for how many seeds the claim holds over resampled sentences (paired bootstrap).")
    return [verdicts, Grid("The comparisons", columns, blocks, notes)]


def left_out(judgements: list[Judgement]) -> list[str]:
    """Name the claims that are not judged."""
    judged = [one.claim for one in judgements]
    names = [claim.name for claim in CLAIMS if claim not in judged]
    return [f"Not judged, since their rows are not all in this sweep: {'; '.join(names)}."] if names else []


def verdict_notes(plan: Plan) -> list[str]:
    """Say how the verdicts are made and of what records."""
    return [
        *JUDGED,
        footnote.setting(plan),
        *footnote.exceptions(plan),
        *footnote.provenance(records_of(plan)),
    ]


def papers_own(judgement: Judgement) -> str:
    """Say whether the paper's own differences are as it says."""
    against = [one for one in judgement.evidence if not one.paper_holds]
    named = (f"{one.comparison.row} {HEADERS[one.comparison.metric]} {shown(one, one.paper, 1)}" for one in against)
    return f"all but {', '.join(named)}" if against else AS_CLAIMED


def comparison_line(evidence: Evidence) -> list[str]:
    """Write one comparison's cells."""
    comparison, margin = evidence.comparison, evidence.margin
    claimed = CLAIMED[comparison.sign]
    if not comparison.sign:
        claimed += f" ±{margin:g}" if comparison.metric == "bleu" else f" ±{100 * math.expm1(margin):.3g} %"
    interval = MISSING
    if evidence.low is not None and evidence.high is not None:
        interval = f"{shown(evidence, evidence.low, 2)} … {shown(evidence, evidence.high, 2)}"
    return [
        comparison.row,
        HEADERS[comparison.metric],
        claimed,
        shown(evidence, evidence.paper, 1),
        MISSING if evidence.effect is None else shown(evidence, evidence.effect, 2),
        interval,
        str(evidence.n),
        evidence.verdict,
    ]


def shown(evidence: Evidence, difference: float, digits: int) -> str:
    """Write a difference: BLEU points, or per cent of base's perplexity."""
    if evidence.comparison.metric == "bleu":
        return signed(difference, digits)
    return f"{signed(100 * math.expm1(difference), 1)} %" if difference < 5 else "> 10,000 %"


def table_of_numbers(judgements: list[Judgement], sentences: Sentences | None) -> str:
    """Write every comparison with its numbers as CSV; differences in BLEU points or log perplexity."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    names = "claim verdict row metric claimed margin paper ours low high p n found seeds_needed"
    out.writerow([*names.split(), *([] if sentences is None else ["other_sentences"])])
    for judgement in judgements:
        for one in judgement.evidence:
            claimed = CLAIMED[one.comparison.sign]
            margin = "" if one.comparison.sign else one.margin
            place = [judgement.claim.name, judgement.verdict, one.comparison.row, one.comparison.metric]
            ours = [one.effect, one.low, one.high, one.p, one.n, one.verdict, one.seeds]
            also = [] if sentences is None else [sentences.get(one.comparison, "")]
            out.writerow([*place, claimed, margin, round(one.paper, 6), *ours, *also])
    return text.getvalue()


def write(plan: Plan, judgements: list[Judgement], form: str, sentences: Sentences | None = None) -> str:
    """Write the verdicts as text: "md", "tex" or "html" for people, "csv" with every number for programs."""
    if form == "csv":
        return table_of_numbers(judgements, sentences)
    return typeset(grids(plan, judgements, sentences), form)


@refuses(ValueError)
def main(argv: list[str] | None = None) -> int:
    """Print the verdicts; returns the exit code."""
    parser = reader("claims", "Judge the paper's sentences on Table 3 on the records there are.", FORMATS)
    parser.add_argument(
        "--bleu-margin", type=float, default=BLEU_MARGIN, help="BLEU points that count as equal (default: %(default)s)"
    )
    parser.add_argument(
        "--ppl-margin", type=float, default=PPL_MARGIN, help="share of perplexity that does (default: %(default)s)"
    )
    parser.add_argument(
        "--sentences", action="store_true", help="also ask whether other sentences would change BLEU: takes a while"
    )
    arguments = parser.parse_intermixed_args(argv)
    plan = plan_of(arguments)
    judgements = evaluate(plan, arguments.bleu_margin, arguments.ppl_margin)
    sentences = other_sentences(plan, judgements) if arguments.sentences else None
    print(write(plan, judgements, arguments.format, sentences))
    return 0


if __name__ == "__main__":
    sys.exit(main())
