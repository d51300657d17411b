"""What a table's numbers are of: without it they say nothing."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ablate.agreement import FEWEST_ROWS, rank_agreement
from ablate.cells import LEVELS, MARK
from ablate.plan import Plan
from ablate.record import Record

PAPERS = "Paper: newstest2013, beam 4, length penalty 0.6, one run, no checkpoint averaging."


def notes(plan: Plan, records: list[Record], lines: Sequence[Mapping[str, Any]]) -> list[str]:
    """Write what stands beneath the table.

    Args:
        plan: of which the table is.
        records: its finished runs'.
        lines: of the table's frame.
    """
    return [
        f"{setting(plan)} n: finished of planned seeds; means over them. Δ: to base, ours paired by seed, ours and the "
        "paper's each to its own. Perplexities of different vocabularies do not compare; their Δ do.",
        PAPERS,
        legend(lines),
        "Parameters: the trained module's; in parentheses as the paper counts, with 40,960 embedding rows.",
        "Rank agreement with the paper (Kendall's τ, 95 % interval): "
        f"{agreement('PPL', lines, 'ppl')}; {agreement('BLEU', lines, 'bleu')}.",
        *exceptions(plan),
        *provenance(records),
    ]


def setting(plan: Plan) -> str:
    """Say in a sentence under what ours were made: preset, corpus, vocabulary, decoding."""
    cfg = next(iter(plan.configs.values()))
    return (
        f"Ours: preset {plan.preset}, corpus {cfg.data.name} ({cfg.data.src_lang}-{cfg.data.tgt_lang}), its dev set; "
        f"PPL per subword of a vocabulary of {cfg.data.vocab_size:,}, without smoothing; beam {cfg.decode.beam_size}, "
        f"length penalty {cfg.decode.length_penalty:g}."
    )


def legend(lines: Sequence[Mapping[str, Any]]) -> str:
    """Explain intervals and marks, or say why there are none."""
    if not any(line["n"] > 1 for line in lines):
        return "No interval and no test: they take two finished seeds (seeds=2 or more)."
    levels = ", ".join(f"{MARK * (i + 1)} below {level:g}" for i, level in enumerate(LEVELS))
    return (
        "±: half of the 95 % interval over seeds (Student's t). Marks: p of no difference to base (paired t-test over "
        f"the seeds both have, of BLEU and of log PPL), corrected over all tests of this table (Holm): {levels}."
    )


def agreement(name: str, lines: Sequence[Mapping[str, Any]], metric: str) -> str:
    """Say how far our means rank the rows as the paper's numbers do.

    Args:
        name: the metric's, for the reader.
        lines: of the table's frame, NaN where nothing is.
        metric: its column.
    """
    ours, papers = (
        {line["row"]: line[column] for line in lines if not math.isnan(line[column])}
        for column in (metric, f"paper_{metric}")
    )
    found = rank_agreement(ours, papers)
    if found.tau is None:
        return f"{name} none, with {found.n} of its rows" if found.n < 2 else f"{name} none, all rows are equal"
    few = f"; an interval takes {FEWEST_ROWS}"
    interval = few if found.low is None or found.high is None else f", [{found.low:+.2f}, {found.high:+.2f}]"
    return f"{name} {found.tau:+.2f} over {found.n} rows{interval}".replace("-", "−")


def exceptions(plan: Plan) -> list[str]:
    """Say what keeps rows from being the rows as they stand: settings on top, rows that are equal."""
    said = [plan.changed] if plan.changed else []
    said += [f"{row} {equals}." for row in plan.rows if (equals := plan.equals(row))]
    return said


def provenance(records: list[Record]) -> list[str]:
    """Say by what the records were made: signature, checkpoint rule, versions, commit; several values if there are."""
    if not records:
        return []
    last = [done["provenance"][-1] for done in records]
    versions = [
        f"{name} {listed(entry['versions'][name] for entry in last)}" for name in ("ablate", "torch", "sentencepiece")
    ]
    commits = listed(
        (entry["commit"][:12] if entry["commit"] else "none (no checkout)")
        + (" with changes" if entry["uncommitted_changes"] else "")
        for entry in last
    )
    said = [
        f"BLEU: sacreBLEU {listed(done['dev']['bleu_signature'] for done in records)}; checkpoint: "
        f"{listed(done['checkpoint']['rule'] for done in records)}.",
        f"{', '.join(versions)}; commit {commits}.",
    ]
    if tokenised := [done["dev"]["bleu_tok_signature"] for done in records if "bleu_tok_signature" in done["dev"]]:
        said.insert(
            1, f"BLEU tok: as the authors took the paper's, tokenised and with compounds split: {listed(tokenised)}."
        )
    if tested := [done for done in records if "test" in done]:
        scores = (
            f"{done['row']} seed {done['seed']} {done['test']['bleu']:.1f} ({done['test']['bleu_tok']:.1f})"
            for done in tested
        )
        said.append(f"BLEU (BLEU tok) of the test set, which no choice was made by: {', '.join(scores)}.")
    if any(entry["code_changed"] for done in records for entry in done["provenance"]):
        said.append("Some runs were done by other code than they were planned with: see their records.")
    return said


def listed(values: Iterable[Any]) -> str:
    """List the different values there are."""
    return ", ".join(sorted(set(map(str, values))))
