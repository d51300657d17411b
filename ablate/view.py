"""What the dashboard shows, as plain values for its template: table, claims, figures' numbers, translations, runs."""

import difflib
import math
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from ablate import claims, footnote, table
from ablate.cells import VARIED, row_label
from ablate.data.source import read_lines
from ablate.history import Curve, curves, histories
from ablate.judge import Judgement
from ablate.plan import Plan, PlannedRun
from ablate.record import Record
from ablate.results import records_of
from ablate.rundir import RunDir
from ablate.status import duration, number
from ablate.table import Table, lines_of

DRAWN = 300  # points of a curve: more than a panel has pixels for a line's turns
VERDICTS = ("supported", "contradicted", "undecided")  # in the order in which they are counted for the reader
LOGGED = ("loss", "dev_ppl")  # what the learning curves show

Link = Callable[[Path], str]  # gives a file's address, as seen from the page


class ViewError(ValueError):
    """Files of a run that do not fit together."""


def content(plan: Plan, link: Link, num_sentences: int) -> dict[str, Any]:
    """Collect everything that the page shows.

    Args:
        plan: whose records and logs are read.
        link: gives the address of a file in a run's folder.
        num_sentences: of the dev set whose translations are shown.

    Returns:
        Text as it is, unescaped: the template escapes it. `data` is for the figures and holds only what JSON can.

    Raises:
        RecordError, MixedRecords: as `results.records_of`.
        ViewError: as `samples`.
    """
    built = table.build(plan)
    judgements = claims.evaluate(plan)
    found = curves(histories(plan), LOGGED, DRAWN)
    return {
        "title": built.title,
        "states": Counter(planned.state.name for planned in plan.runs),
        "num_runs": len(plan.runs),
        "table": table_of(built),
        "verdicts": Counter(sorted((one.verdict for one in judgements), key=VERDICTS.index)),
        "claims": [claim_of(one) for one in judgements],
        "claim_notes": [*claims.left_out(judgements), *claims.JUDGED],
        "samples": samples(plan, num_sentences),
        "prepared": plan.corpus is not None,
        "thinning": thinning(found),
        "runs": [run_of(planned, link) for planned in plan.runs],
        "facts": facts(plan, records_of(plan)),
        "data": figures(built, found),
    }


def table_of(built: Table) -> dict[str, Any]:
    """Lay the table out with what its columns are sorted by: numbers or words, "" where nothing is."""
    grid, lines = table.grid(built), lines_of(built.frame)
    cells = [line for block in grid.blocks for line in block]
    rows = [
        {
            "name": line["row"],
            "block": line["block"],
            "cells": [(text, sort_key(line[column.key])) for text, column in zip(row, grid.columns, strict=True)],
        }
        for line, row in zip(lines, cells, strict=True)
    ]
    blocks = [list(block) for _, block in groupby(rows, key=lambda row: row["block"])]
    return {"columns": grid.columns, "spans": grid.spans, "blocks": blocks, "notes": grid.notes}


def sort_key(value: Any) -> Any:
    """Give what a cell is sorted by; "" for NaN, which is last."""
    return "" if isinstance(value, float) and math.isnan(value) else value


def claim_of(judgement: Judgement) -> dict[str, Any]:
    """Write a claim, its verdict and its comparisons."""
    return {
        "name": judgement.claim.name,
        "says": judgement.claim.says,
        "section": judgement.claim.section,
        "verdict": judgement.verdict,
        "needs": judgement.needs,
        "paper": claims.papers_own(judgement),
        "comparisons": [claims.comparison_line(one) for one in judgement.evidence],
    }


def figures(built: Table, found: Sequence[Curve]) -> dict[str, Any]:
    """Give the figures their numbers: the table's frame and the curves; None for NaN, which JSON does not have."""
    rows = [
        {name: None if sort_key(value) == "" else value for name, value in line.items()} | {"label": row_label(line)}
        for line in lines_of(built.frame)
    ]
    return {
        "rows": rows,
        "varied": [[block, name] for block, names in VARIED.items() for name in names],
        "curves": [
            {**vars(one), "points": [(step, *map(short, spread), n) for step, *spread, n in one.points]}
            for one in found
        ],
    }


def short(value: float) -> float:
    """Round to the six digits that a drawing can use."""
    return float(f"{value:.6g}")


def thinning(found: Sequence[Curve]) -> str:
    """Say how many of the logged points the curves show."""
    thinned = [one for one in found if len(one.points) < one.logged]
    if not thinned:
        return "Every logged point is drawn."
    most = max(thinned, key=lambda one: one.logged)
    return (
        f"Drawn thinned: of the longest curve's {most.logged:,} logged points {len(most.points):,}, evenly chosen, and "
        f"the last; none is averaged away. metrics.jsonl has all."
    )


def samples(plan: Plan, num_sentences: int) -> list[dict[str, Any]]:
    """Choose sentences evenly from the dev set, with every row's translation by its first finished seed.

    Returns:
        Per sentence its number (from 1), src, reference, and the translations, each with the rows that have it and
        its words in stretches, true for those that the reference has too.

    Raises:
        ViewError: for translations that are not as many as the corpus has sentences.
    """
    first = {row: next((one for one in runs if one.state.record is not None), None) for row, runs in plan.rows.items()}
    if plan.corpus is None or not any(first.values()):
        return []
    src, references = plan.corpus.text("dev", "src"), plan.corpus.text("dev", "tgt")
    translations = {}
    for row, planned in first.items():
        if planned is not None and (file := planned.run.hypotheses("dev")).exists():
            translations[row] = list(read_lines(file))
            if len(translations[row]) != len(src):
                raise ViewError(f"{file}: {len(translations[row])} translations of {len(src)} sentences")
    count = min(num_sentences, len(src))
    chosen = []
    for i in [(2 * k + 1) * len(src) // (2 * count) for k in range(count)]:
        by_text: dict[str, list[str]] = {}
        for row, lines in translations.items():
            by_text.setdefault(lines[i], []).append(row)
        own = [{"rows": rows, "stretches": compared(text, references[i])} for text, rows in by_text.items()]
        chosen.append({"number": i + 1, "src": src[i], "reference": references[i], "translations": own})
    return chosen


def compared(text: str, reference: str) -> list[tuple[str, bool]]:
    """Split a translation into stretches of words, with whether the reference has them in this order."""
    words = text.split()
    found = difflib.SequenceMatcher(None, words, reference.split(), autojunk=False).get_opcodes()
    return [(" ".join(words[i:j]), what == "equal") for what, i, j, _, _ in found if j > i]


def run_of(planned: PlannedRun, link: Link) -> dict[str, Any]:
    """Write a line of the list of runs."""
    state = planned.state
    last = (state.record or {}).get("provenance", [{}])[-1]
    if state.name == "running":
        took = f"{duration(state.eta_s)} left" if state.eta_s is not None else ""
    else:
        took = duration(state.train_s)
    return {
        "rows": planned.rows,
        "seed": planned.cfg.seed,
        "state": state.name,
        "reason": state.reason,
        "heard": f"heard of {state.age_s:.0f} s ago" if state.name == "running" and state.age_s is not None else "",
        "step": "" if state.step is None else f"{state.step:,}/{state.total:,}",
        "share": (state.step or 0) / (state.total or 1),
        "numbers": [
            *(number(state.loss, 3), number(state.dev_ppl, 2), number(state.bleu, 1)),
            *(number(state.tokens_per_s, 0), took),
        ],
        "where": last.get("host", ""),
        "fingerprint": planned.fingerprint if "digest.corpus" in planned.science else "",  # else it is not final
        "links": [(file.name, link(file)) for file in files(planned.run) if file.exists()] + on_wandb(planned.run),
    }


def on_wandb(run: RunDir) -> list[tuple[str, str]]:
    """Give the link to where W&B shows a run; none before W&B has a part of it."""
    address = run.wandb_url.read_text("utf-8").strip() if run.wandb_url.exists() else ""
    return [("W&B", address)] if address.startswith(("https://", "http://")) else []


def files(run: RunDir) -> list[Path]:
    """List the files of a run that the page links to, whether or not they are there yet."""
    return [run.log, run.error, run.record, run.config, run.metrics, run.hypotheses("dev")]


def facts(plan: Plan, records: list[Record]) -> list[tuple[str, list[str]]]:
    """List where the numbers come from, term by term."""
    said = [
        ("Ours", [footnote.setting(plan), *footnote.exceptions(plan)]),
        ("The paper's", ["Vaswani et al. (2017), Attention Is All You Need, Table 3.", footnote.PAPERS]),
    ]
    if plan.corpus is not None:
        said.append(("Corpus", plan.corpus.describe().split("\n")[:-1]))  # but its folder
    if records:
        last = [done["provenance"][-1] for done in records]
        hosts = footnote.listed(f"{one['host']} ({one['device']}, {one['threads']} threads)" for one in last)
        hours = sum(done["timing"]["train_s"] for done in records) / 3600
        said += [
            ("Made by", footnote.provenance(records)),
            ("Where", [f"{hosts}; {hours:.2f} h of training in {len(records)} runs."]),
        ]
    return said
