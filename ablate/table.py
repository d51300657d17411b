"""The table: ours beside the paper's, and the difference to base in both. The one door to pandas.

`python -m ablate.table row_A [--format md|csv] [SETTING=VALUE …]`
"""

import argparse
import sys
from dataclasses import dataclass
from typing import Any

import pandas as pd

from ablate import record
from ablate.compose import session
from ablate.config import Config
from ablate.plan import Plan, PlannedRun, plan_from
from ablate.record import Record

FORMATS = ("md", "csv")
# The columns of Table 3 that say what a row is: header, and where the configuration has it.
SETTINGS = {
    "N": ("model", "num_layers"),
    "d_model": ("model", "d_model"),
    "d_ff": ("model", "d_ff"),
    "h": ("model", "num_heads"),
    "d_k": ("model", "d_k"),
    "d_v": ("model", "d_v"),
    "P_drop": ("model", "dropout"),
    "ε_ls": ("optim", "label_smoothing"),
    "steps": ("optim", "train_steps"),
    "positions": ("model", "positional"),
}
MISSING = "—"


@dataclass
class Table:
    """A table and what must be said beneath it."""

    title: str
    frame: pd.DataFrame  # one row per row, numbers as numbers; columns as `build` names them
    notes: list[str]


class MixedRecords(ValueError):
    """Records that do not belong into one table."""


def build(plan: Plan) -> Table:
    """Collect a plan's records into a table.

    Returns:
        A frame with `row`; the settings in which the rows differ, at the preset's scale; `params_m`; `ppl` and `bleu`,
        means over the finished seeds, with `d_ppl` and `d_bleu` to base; `n` as "finished/planned"; the paper's
        `paper_ppl`, `paper_bleu`, `paper_d_ppl`, `paper_d_bleu`. What is not there is NaN; a row is never left out.

    Raises:
        MixedRecords: if the records differ in corpus, vocabulary or decoding.
    """
    records = {row: read_records(runs) for row, runs in plan.rows.items()}
    finished = [done for found in records.values() for done in found]
    refuse_mixtures(finished)
    lines = [line(plan.configs[row], plan.rows[row], records[row]) for row in plan.rows]
    frame = pd.DataFrame(lines)
    varying = [name for name in SETTINGS if frame[name].nunique() > 1]
    frame = frame.drop(columns=[name for name in SETTINGS if name not in varying])
    for ours in ("ppl", "bleu", "paper_ppl", "paper_bleu"):
        delta = f"paper_d_{ours[6:]}" if ours.startswith("paper_") else f"d_{ours}"
        base = frame.loc[frame["row"] == "base", ours]
        frame[delta] = frame[ours] - base.iloc[0] if len(base) else float("nan")
        frame.loc[frame["row"] == "base", delta] = float("nan")
    order = ["row", *varying, "params_m", "ppl", "d_ppl", "bleu", "d_bleu", "n"]
    paper = ["paper_ppl", "paper_d_ppl", "paper_bleu", "paper_d_bleu"]
    title = f"Table 3, ours (preset {plan.preset}) beside the paper's"
    return Table(title, frame[[*order, *paper, "state"]], notes(plan, finished))


def read_records(runs: list[PlannedRun]) -> list[Record]:
    """Read the records of a row's finished runs."""
    return [done for planned in runs if (done := record.read(planned.run)) is not None]


def refuse_mixtures(records: list[Record]) -> None:
    """Make sure that numbers stand side by side only where they can be compared.

    Raises:
        MixedRecords: naming the key and the values.
    """
    for name, of in {
        "preset": lambda r: r["preset"],
        "corpus": lambda r: r["corpus"]["digests"]["corpus"],
        "vocabulary": lambda r: r["corpus"]["digests"]["vocab"],
        "beam and length penalty": lambda r: (
            f"{r['science']['decode.beam_size']}, {r['science']['decode.length_penalty']}"
        ),
        "BLEU": lambda r: r["dev"]["bleu_signature"],
    }.items():
        values = sorted({of(done) for done in records})
        if len(values) > 1:
            raise MixedRecords(f"{name}: one table cannot hold {' and '.join(values)}")


def line(cfg: Config, runs: list[PlannedRun], records: list[Record]) -> dict[str, Any]:
    """Make one row of the frame, without the differences to base."""
    settings = {name: getattr(getattr(cfg, section), key) for name, (section, key) in SETTINGS.items()}
    states = sorted({planned.state.words for planned in runs if planned.state.name != "done"})
    return {
        "row": cfg.row.name,
        **settings,
        "params_m": runs[0].params_actual / 1e6,
        "ppl": mean([done["dev"]["ppl"] for done in records]),
        "bleu": mean([done["dev"]["bleu"] for done in records]),
        "n": f"{len(records)}/{len(runs)}",
        "paper_ppl": number(cfg.row.paper.ppl_dev),
        "paper_bleu": number(cfg.row.paper.bleu_dev),
        "state": "; ".join(states),
    }


def mean(values: list[float]) -> float:
    """Average, NaN for none."""
    return sum(values) / len(values) if values else float("nan")


def number(value: float | None) -> float:
    """Turn None into NaN, which is how a frame says that there is nothing."""
    return float("nan") if value is None else value


def notes(plan: Plan, records: list[Record]) -> list[str]:
    """Say what the numbers are of: without it they say nothing."""
    cfg = next(iter(plan.configs.values()))
    decode = cfg.decode
    said = [
        f"Ours: preset {plan.preset}, corpus {cfg.data.name} ({cfg.data.src_lang}-{cfg.data.tgt_lang}), its dev set; "
        f"PPL per subword of a vocabulary of {cfg.data.vocab_size:,}, without smoothing; beam {decode.beam_size}, "
        f"length penalty {decode.length_penalty:g}. n: finished of planned seeds; means over them. Δ: to base, "
        "ours and the paper's each to its own. Perplexities of different vocabularies do not compare; their Δ do.",
        "Paper: newstest2013, beam 4, length penalty 0.6, one run, no checkpoint averaging.",
    ]
    changes = {key: change for planned in plan.runs for key, change in planned.changes.items()}
    if changes:
        listed = ", ".join(f"{key}={now!r} instead of {then!r}" for key, (then, now) in changes.items())
        said.append(f"Changed on top of every row, so these are not the rows as they stand: {listed}.")
    for row, runs in plan.rows.items():
        if runs[0].rows[0] != row:
            said.append(f"{row} equals {runs[0].rows[0]} at this preset: the same runs fill both.")
    if records:
        last = records[-1]
        versions = last["provenance"][-1]["versions"]
        said.append(f"BLEU: {last['dev']['bleu_signature']}; checkpoint: {last['checkpoint']['rule']}.")
        commits = sorted({str(done["provenance"][-1]["commit"] or "no checkout")[:12] for done in records})
        said.append(f"ablate {versions['ablate']}, torch {versions['torch']}, commit {', '.join(commits)}.")
        if any(entry["code_changed"] for done in records for entry in done["provenance"]):
            said.append("Some runs were done by other code than they were planned with: see their records.")
    return said


HEADERS = {
    "params_m": "params (M)",
    "ppl": "PPL",
    "d_ppl": "Δ PPL",
    "bleu": "BLEU",
    "d_bleu": "Δ BLEU",
    "paper_ppl": "paper PPL",
    "paper_d_ppl": "Δ",
    "paper_bleu": "paper BLEU",
    "paper_d_bleu": "Δ ",
    "state": "",
}
DIGITS = {"params_m": "{:.2f}", "ppl": "{:.2f}", "bleu": "{:.1f}", "paper_ppl": "{:.2f}", "paper_bleu": "{:.1f}"}
DIGITS |= {"d_ppl": "{:+.2f}", "d_bleu": "{:+.1f}", "paper_d_ppl": "{:+.2f}", "paper_d_bleu": "{:+.1f}"}


def write(table: Table, form: str) -> str:
    """Write a table as text.

    Args:
        table: as `build` makes it.
        form: "md" for Markdown, for people: settings that equal base's are blank, as in the paper; "csv" for programs:
            every cell filled, every digit.
    """
    if form == "csv":
        return table.frame.to_csv(index=False)
    frame = table.frame.copy().astype(object)
    for name in frame.columns.intersection(list(SETTINGS)):
        base = table.frame.loc[table.frame["row"] == "base", name]
        if len(base):
            same = (table.frame[name] == base.iloc[0]) & (table.frame["row"] != "base")
            frame.loc[same, name] = ""
    for name, pattern in DIGITS.items():
        blank = "" if "d_" in name or name.startswith("paper") else MISSING
        frame[name] = [blank if pd.isna(value) else pattern.format(value) for value in table.frame[name]]
    if not table.frame["state"].any():
        frame = frame.drop(columns="state")
    text = frame.rename(columns=HEADERS).to_markdown(index=False, disable_numparse=True)
    return f"{table.title}\n\n{text}\n\n" + "\n".join(f"- {note}" for note in table.notes)


def main(argv: list[str] | None = None) -> int:
    """Print the table of one or more sweeps from the records there are; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m ablate.table",
        description="Print the table of a sweep from the records there are, beside the paper's.",
        epilog="Rows without records stay in the table. Settings must be those of the runs, such as preset=smoke.",
    )
    parser.add_argument("sweep", help="a sweep, such as row_A; or several: row_A,row_B")
    parser.add_argument("settings", nargs="*", help="as given to ablate.run: preset=smoke seeds=3 data=files …")
    parser.add_argument("--preset", help="short for the setting preset=…")
    parser.add_argument("--seeds", type=int, help="short for the setting seeds=…")
    parser.add_argument("--runs", help="the folder of runs; short for the setting runs_dir=…")
    parser.add_argument("--format", choices=FORMATS, default="md", help="md for people (default), csv for programs")
    parser.add_argument("--config-dir", help="a folder with rows and sweeps of your own")
    arguments = parser.parse_intermixed_args(argv)
    short = {"preset": arguments.preset, "seeds": arguments.seeds, "runs_dir": arguments.runs}
    settings = [*arguments.settings, *(f"{name}={value}" for name, value in short.items() if value is not None)]
    try:
        with session(arguments.config_dir):
            plan = plan_from([f"+sweep=[{arguments.sweep}]", *settings], prepare=False)
        if plan.corpus is None:
            print("note: the corpus is not prepared here, so no run can be told to be of these rows", file=sys.stderr)
        print(write(build(plan), arguments.format))
    except ValueError as err:
        print(f"error: {err}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
