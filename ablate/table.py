"""The table: ours beside the paper's. A door to pandas.

`python -m ablate.table table3 [--preset smoke] [--seeds 3] [--format md|tex|csv|html] [SETTING=VALUE …]`
"""

import sys
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ablate import cells, footnote, results
from ablate.ask import plan_of, reader
from ablate.cells import SETTINGS
from ablate.cost import states
from ablate.identity import diff
from ablate.plan import Plan, PlannedRun
from ablate.record import Record
from ablate.refuse import refuses
from ablate.results import METRICS, records_of
from ablate.typeset import FORMATS, Grid, typeset

WORDS = ("preset", "row", "block", "positions", "other", "state", "states")
COLUMNS = [
    *("preset", "row", "block", *SETTINGS, "other", "params", "params_as_paper", "seeds", "n"),
    *(f"{metric}{part}" for metric in METRICS for part in ("", "_sd", "_low", "_high")),
    *(f"d_{metric}{part}" for metric in METRICS for part in ("", "_low", "_high", "_n", "_p", "_p_holm")),
    *("bleu_tok", "rel_ppl", "rel_ppl_low", "rel_ppl_high"),
    *("paper_params_m", "paper_ppl", "paper_d_ppl", "paper_rel_ppl", "paper_bleu", "paper_d_bleu", "state", "states"),
]


@dataclass
class Table:
    """A table and what must be said beneath it."""

    title: str
    frame: pd.DataFrame  # one line per row, numbers as numbers; columns as `build` names them
    notes: list[str]


def measurements(plan: Plan) -> pd.DataFrame:
    """Collect what every run measured, one line per row and seed, for an analysis of one's own.

    Returns:
        row, block, seed, state, reason; params, params_as_paper; fingerprint; folder, the run's; and, NaN where the run
        is not finished: ppl, bleu, chrf, best_ppl of the dev set; steps, epochs; train_s, evaluate_s,
        src_tgt_tokens_per_s, peak_memory_mb; host, commit.

    Raises:
        RecordError, MixedRecords: as `records_of`.
    """
    records_of(plan)
    return pd.DataFrame([measured(plan, row, one) for row, runs in plan.rows.items() for one in runs])


def measured(plan: Plan, row: str, planned: PlannedRun) -> dict[str, Any]:
    """Make one line of `measurements`."""
    done: Record = planned.state.record or {}
    sections = {
        "dev": ("ppl", "bleu", "chrf", "best_ppl"),
        "train": ("steps", "epochs"),
        "timing": ("train_s", "evaluate_s", "src_tgt_tokens_per_s", "peak_memory_mb"),
    }
    last = done.get("provenance", [{}])[-1]
    return {
        "row": row,
        "block": plan.configs[row].row.block,
        "seed": planned.cfg.seed,
        "state": planned.state.name,
        "reason": planned.state.reason,
        **{name: done.get(section, {}).get(name) for section, names in sections.items() for name in names},
        "params": planned.params_actual,
        "params_as_paper": planned.params_paper,
        "host": last.get("host"),
        "commit": last.get("commit"),
        "fingerprint": planned.fingerprint,
        "folder": str(planned.run.path),
    }


def build(plan: Plan) -> Table:
    """Collect a plan's records into a table.

    Returns:
        A frame with preset, row, block; the settings at the preset's scale, and in `other` those that differ from
        base's besides; `params` of the trained module, `params_as_paper` by the paper's accounting; `seeds` planned and
        `n` finished. For ppl and bleu: the mean over seeds, its `_sd`, the 95 % interval from `_low` to `_high`; d_…,
        the difference to base paired by seed, with its interval, `_n`, `_p` and Holm's `_p_holm`; rel_ppl, the same of
        PPL in per cent of base's, from the mean difference of logarithms, which is also what d_ppl_p tests: only
        relative differences compare across presets; bleu_tok, the mean of BLEU taken as the authors did. The paper's
        paper_params_m, paper_ppl, paper_bleu and differences paper_d_…, paper_rel_ppl; `state`, in words, if a run is
        not finished; `states`, the names of its runs' states. What is not there is NaN; a row is never left out.

    Raises:
        RecordError, MixedRecords: as `records_of`.
    """
    records = records_of(plan)
    ours = results.by_row(plan)
    lines = [
        {
            "preset": plan.preset,
            **described(plan, row),
            "seeds": len(runs),
            **ours[row],
            **papers(plan, row),
            "state": "" if all(one.state.name == "done" for one in runs) else states(runs),
            "states": " ".join(dict.fromkeys(one.state.name for one in runs)),
        }
        for row, runs in plan.rows.items()
    ]
    frame = pd.DataFrame(lines, columns=COLUMNS)
    numbers = [name for name in COLUMNS if name not in (*WORDS, *SETTINGS, "params", "params_as_paper", "seeds", "n")]
    frame = frame.astype(dict.fromkeys(numbers, float))
    whole = all(cfg.row.paper.ppl_dev is not None for cfg in plan.configs.values())
    named = plan.title or ("Table 3" if whole else "Rows of our own")
    title = f"{named}: ours (preset {plan.preset}) beside the paper's"
    return Table(title, frame, footnote.notes(plan, records, lines_of(frame)))


def described(plan: Plan, row: str) -> dict[str, Any]:
    """Say what a row is, at the preset's scale."""
    planned = plan.rows[row][0]
    known = SETTINGS.values()
    changed = diff(plan.rows["base"][0].science, planned.science) if "base" in plan.rows else {}
    changed = {key: now for key, (then, now) in changed.items() if None not in (then, now)}  # what both rows have
    return {
        "row": row,
        "block": plan.configs[row].row.block,
        **{name: planned.science[key] for name, key in SETTINGS.items()},
        "other": ", ".join(f"{key.partition('.')[2]}={now}" for key, now in changed.items() if key not in known),
        "params": planned.params_actual,
        "params_as_paper": planned.params_paper,
    }


def papers(plan: Plan, row: str) -> dict[str, float | None]:
    """Give what the paper prints for a row, and its difference to the paper's base, if that is in the plan."""
    printed = plan.configs[row].row.paper
    found = {"paper_params_m": printed.params_m, "paper_ppl": printed.ppl_dev, "paper_bleu": printed.bleu_dev}
    if "base" in plan.rows and row != "base":
        base = plan.configs["base"].row.paper
        for metric, ours, bases in (
            ("ppl", printed.ppl_dev, base.ppl_dev),
            ("bleu", printed.bleu_dev, base.bleu_dev),
        ):
            # Decimals as printed: 5.29 - 4.92 is 0.37, not 0.3700000000000001.
            found[f"paper_d_{metric}"] = None if ours is None or bases is None else round(ours - bases, 2)
        if printed.ppl_dev is not None and base.ppl_dev is not None:
            found["paper_rel_ppl"] = 100 * (printed.ppl_dev / base.ppl_dev - 1)
    return found


def grid(table: Table) -> Grid:
    """Lay a table out for readers: settings that equal base's are blank, as in the paper."""
    return cells.grid(table.title, lines_of(table.frame), table.notes)


def lines_of(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Give a frame's lines as dictionaries of Python's own numbers."""
    return [{str(name): value for name, value in line.items()} for line in frame.to_dict("records")]


def write(table: Table, form: str) -> str:
    """Write a table as text.

    Args:
        table: as `build` makes it.
        form: "md", "tex" or "html" for people; "csv" for programs: every column of the frame, every digit.
    """
    if form == "csv":
        return table.frame.to_csv(index=False)
    return typeset([grid(table)], form)


@refuses(ValueError)
def main(argv: list[str] | None = None) -> int:
    """Print the table of one or more sweeps from the records there are; returns the exit code."""
    parser = reader("table", "Print the table of a sweep from the records there are, beside the paper's.", FORMATS)
    arguments = parser.parse_intermixed_args(argv)
    print(write(build(plan_of(arguments)), arguments.format))
    return 0


if __name__ == "__main__":
    sys.exit(main())
