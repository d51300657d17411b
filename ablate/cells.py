"""What the cells of the table say to a reader: rounded, with interval and mark, blank where a setting equals base's."""

import math
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from ablate.typeset import Column, Grid

# The columns of Table 3 that say what a row is, and where the configuration has them.
SETTINGS = {
    "N": "model.num_layers",
    "d_model": "model.d_model",
    "d_ff": "model.d_ff",
    "h": "model.num_heads",
    "d_k": "model.d_k",
    "d_v": "model.d_v",
    "P_drop": "model.dropout",
    "ε_ls": "optim.label_smoothing",
    "steps": "optim.train_steps",
    "positions": "model.positional",
}
WORDS = {"positions", "other"}  # settings in words
# Which of them a block of Table 3 varies.
VARIED = {"A": ["h"], "B": ["d_k"], "C": ["N", "d_model", "d_ff"], "D": ["P_drop", "ε_ls"]}
LEVELS = (0.05, 0.01, 0.001)  # a mark for each that the corrected p is below
MARK = "∗"  # not the ASCII asterisk, which Markdown would take for emphasis
MISSING = "—"
WORST_FIRST = (
    "running",
    "failed",
    "stopped",
    "queued",
)  # what a cell without a number says, if a seed is
DIGITS = {"ppl": 2, "bleu": 1}  # as the paper prints them
HEADERS = {"ppl": "PPL", "bleu": "BLEU"}
DELTAS = (("", ""), ("Δ ", "d_"))  # a mean and its difference to base, as headed and as the frame has them

Line = Mapping[str, Any]  # one row of the table's frame


def grid(title: str, lines: Sequence[Line], notes: list[str]) -> Grid:
    """Lay out a table: the settings in which rows differ, ours, the paper's, and what is not finished.

    Args:
        title: its caption.
        lines: of the frame that `ablate.table.build` makes, NaN where nothing is.
        notes: beneath it.
    """
    base = next((line for line in lines if line["row"] == "base"), None)
    settings = [name for name in (*SETTINGS, "other") if len({line[name] for line in lines}) > 1]
    unfinished = any(line["state"] for line in lines)
    tokenised = any(known(line["bleu_tok"]) is not None for line in lines)
    columns = [Column("row", text=True, key="row")]
    columns += [Column(name, symbol=name not in {*WORDS, "steps"}, text=name in WORDS, key=name) for name in settings]
    columns.append(Column("params (M)", group="ours", key="params"))
    measured = [(f"{delta}{name}", f"{key}{metric}") for metric, name in HEADERS.items() for delta, key in DELTAS]
    columns += [Column(header, group="ours", key=key) for header, key in measured]
    if tokenised:
        columns.append(Column("BLEU tok", group="ours", key="bleu_tok"))
    columns.append(Column("n", group="ours", key="n"))
    for header, key in [*measured, ("params (M)", "params_m")]:
        columns.append(Column(header, group="paper", alone=f"paper {header}", key=f"paper_{key}"))
    if unfinished:
        columns.append(Column("", text=True, key="state"))
    laid = [
        [
            line["row"],
            *(setting(name, line, base) for name in settings),
            *ours(line, tokenised),
            *paper(line),
            *([line["state"]] if unfinished else []),
        ]
        for line in lines
    ]
    blocks = [
        [cells for _, cells in block]
        for _, block in groupby(zip(lines, laid, strict=True), key=lambda pair: pair[0]["block"])
    ]
    return Grid(title, columns, blocks, notes)


def row_label(line: Line) -> str:
    """Name a row, and say what of it is not there."""
    if line["n"] == line["seeds"]:
        return str(line["row"])
    why = ", ".join("not run" if name == "new" else name for name in line["states"].split())
    return f"{line['row']} ({line['n']}/{line['seeds']} seeds)" if line["n"] else f"{line['row']} ({why})"


def setting(name: str, line: Line, base: Line | None) -> str:
    """Write a setting; nothing where it equals base's."""
    value = line[name]
    if base is not None and line is not base and value == base[name]:
        return ""
    return f"{value:,}" if isinstance(value, int) else str(value)


def ours(line: Line, tokenised: bool) -> list[str]:
    """Write what our runs measured; `tokenised`: BLEU as the paper's authors took it, too."""
    cells = [f"{millions(line['params'])} ({millions(line['params_as_paper'])})"]
    for metric, digits in DIGITS.items():
        mean = known(line[metric])
        cells.append(missing(line["states"]) if mean is None else number(mean, digits) + half(line, metric))
        delta = known(line[f"d_{metric}"])
        if delta is None:
            cells.append("" if line["row"] == "base" else MISSING)
        else:
            cells.append(signed(delta, digits) + half(line, f"d_{metric}") + marks(known(line[f"d_{metric}_p_holm"])))
    if tokenised:
        mean = known(line["bleu_tok"])
        cells.append(missing(line["states"]) if mean is None else number(mean, DIGITS["bleu"]))
    return [*cells, f"{line['n']}/{line['seeds']}"]


def paper(line: Line) -> list[str]:
    """Write what the paper prints; nothing for a row it does not have."""
    cells = []
    for metric, digits in DIGITS.items():
        mean, delta = known(line[f"paper_{metric}"]), known(line[f"paper_d_{metric}"])
        cells += ["" if mean is None else number(mean, digits), "" if delta is None else signed(delta, digits)]
    params = known(line["paper_params_m"])
    return [*cells, "" if params is None else f"{params:g}"]


def known(value: float | None) -> float | None:
    """Give None for NaN, which is how a frame says that there is nothing."""
    return None if value is None or math.isnan(value) else value


def number(value: float, digits: int) -> str:
    """Write a number with a true minus, and no minus before a zero."""
    return f"{round(value, digits) + 0.0:,.{digits}f}".replace("-", "−")


def signed(value: float, digits: int) -> str:
    """Write a difference, always with its sign."""
    return f"{round(value, digits) + 0.0:+,.{digits}f}".replace("-", "−")


def half(line: Line, name: str) -> str:
    """Write half of a 95 % interval; nothing where there is none."""
    low, high = known(line[f"{name}_low"]), known(line[f"{name}_high"])
    if low is None or high is None:
        return ""
    return f" ± {number((high - low) / 2, DIGITS[name.removeprefix('d_')])}"


def marks(p: float | None) -> str:
    """Mark a corrected p-value, once for each of `LEVELS` it is below."""
    passed = 0 if p is None else sum(p < level for level in LEVELS)
    return f" {MARK * passed}" if passed else ""


def missing(states: str) -> str:
    """Say in a cell why there is no number, given the names of its runs' states."""
    return next((name for name in WORST_FIRST if name in states.split()), MISSING)


def millions(count: int) -> str:
    """Write a count in millions, to three digits or so."""
    return f"{count / 1e6:.{0 if count >= 1e8 else 1 if count >= 1e7 else 2}f}"
