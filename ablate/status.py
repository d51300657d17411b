"""Show what every run is doing, as far as its own files and SLURM tell.

`python -m ablate.status [--watch | --json] [RUNS]`
"""

import argparse
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console, Group
from rich.live import Live
from rich.segment import SegmentLines
from rich.table import Table
from rich.text import Text

from ablate import ledger
from ablate.named import called, find, runs_folder
from ablate.rundir import RunDir, read_json
from ablate.state import RunState, read_state, with_fate

REFRESH_S = 2.0  # of --watch
TRACEBACK_LINES = 4
COLOURS = {"done": "green", "failed": "red", "running": "cyan", "queued": "blue", "stopped": "yellow"}
IMPORTANCE = ("running", "failed", "stopped", "queued", "done", "new")  # which runs a live view shows, if not all fit

Key = TypeVar("Key", bound=Hashable)
Draw = Callable[[int | None], Group]  # lays out the most important runs, at most so many; all of them for None


def duration(seconds: float | None) -> str:
    """Write a duration as 1:02:03 or 2:03; empty for None."""
    if seconds is None:
        return ""
    minutes, secs = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


def ago(seconds: float | None) -> str:
    """Write how long ago something was; empty for None."""
    return f"{duration(seconds)} ago" if seconds is not None else ""


def number(value: float | None, digits: int) -> str:
    """Write a number with so many digits after the point; empty for None."""
    return "" if value is None else f"{value:,.{digits}f}"


def terminal() -> Console:
    """Open standard output: as wide as the terminal, or wide enough for every column where there is none."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 160
    return console


def render(states: dict[tuple[str, int], RunState], all_columns: bool = False) -> Table:
    """Lay out runs, by row and seed, as a table for the terminal; restarts and ages only if asked for."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    more = ("restarts", "heard") if all_columns else ()
    for title in ("row", "seed", "state", "step", "tokens/s", "loss", "dev PPL", "BLEU", "ETA", *more):
        left = title in ("row", "state")
        table.add_column(title, justify="left" if left else "right", no_wrap=title != "state", overflow="fold")
    for (row, seed), state in states.items():
        step = "" if state.step is None else f"{state.step}/{state.total}"
        numbers = [number(state.tokens_per_s, 0), number(state.loss, 3), number(state.dev_ppl, 2)]
        words = Text(state.words, style=COLOURS.get(state.name, ""))
        last = [str(state.restarts or ""), ago(state.age_s)] if all_columns else []
        table.add_row(row, str(seed), words, step, *numbers, number(state.bleu, 1), duration(state.eta_s), *last)
    return table


def choose(states: dict[Key, RunState], most: int | None) -> tuple[dict[Key, RunState], Counter[str]]:
    """Keep the most important runs, at most so many, in their order; count the others by state."""
    ranked = sorted(states, key=lambda key: IMPORTANCE.index(states[key].name))
    kept = set(ranked[:most])
    left_out = Counter(states[key].name for key in ranked if key not in kept)
    return {key: state for key, state in states.items() if key in kept}, left_out


def not_shown(left_out: Counter[str]) -> list[Text]:
    """Say in a line what is left out; in none if nothing is."""
    words = ", ".join(f"{count} {'to do' if name == 'new' else name}" for name, count in left_out.items())
    return [Text(f"… and {words} not shown")] if words else []


def listing(states: dict[tuple[str, int], RunState], most: int | None = None) -> Group:
    """Lay out runs, by row and seed, or the most important of them and how many are left out."""
    kept, left_out = choose(states, most)
    return Group(render(kept), *not_shown(left_out))


@contextmanager
def live(console: Console) -> Iterator[Callable[[Draw], None]]:
    """Open a live view; what it gives draws in it as many runs as fit the terminal. At its end all of them stay."""
    last: Draw = lambda most: Group()  # noqa: E731 – replaced by each drawing
    most = console.height

    def show(draw: Draw) -> None:
        nonlocal last, most
        last = draw
        while (count := len(lines := console.render_lines(draw(most), pad=False))) > console.height and most:
            most = min(most - 1, most * console.height // count)
        view.update(SegmentLines(lines, new_lines=True), refresh=True)
        most = min(console.height, most + console.height - count)  # the next drawing mostly fits at once: it is slow

    with Live(console=console, auto_refresh=False) as view:
        try:
            yield show
        finally:
            view.update(last(None))


@dataclass
class Survey:
    """Every run under a folder, and how much of it SLURM has confirmed."""

    root: Path
    runs: dict[RunDir, RunState]  # in the order of their names, so that those of a preset follow each other
    enquiry: ledger.Enquiry


def survey(root: Path, enquiry: ledger.Enquiry) -> Survey:
    """Read the state of every run under a folder; ask SLURM about those that have a job, if it is time to.

    However many runs there are: one question to squeue, and one to sacct if squeue has forgotten one of them.
    """
    states = {run: read_state(run) for run in find(root)}
    if enquiry.due:
        enquiry.ask(run for run, state in states.items() if state.name not in ("done", "failed"))
    return Survey(root, {run: with_fate(state, enquiry.fates.get(run)) for run, state in states.items()}, enquiry)


def page(found: Survey, most: int | None = None) -> Group:
    """Lay out every run, preset by preset; beneath, what is known of the failed ones, and who did not answer.

    Args:
        most: how many runs, the most important ones, with about as many lines of tracebacks; None for everything.
    """
    parts: list[Any] = []
    kept, left_out = choose(found.runs, most)
    failed = [run for run, state in kept.items() if state.name == "failed"]
    tails = failed if most is None else failed[: -(-most // (1 + TRACEBACK_LINES))]
    left_out += Counter(tracebacks=len(failed) - len(tails))
    sizes = Counter(run.path.parts[-4] for run in found.runs)
    for preset, group in groupby(kept, lambda run: run.path.parts[-4]):
        runs, states = list(group), {}
        for run in runs:
            row, identity, seed = run.path.parts[-3:]
            changed = (read_json(run.identity) or {}).get("changes")
            title = f"{row}{' + changes' if changed else ''} ({identity})"
            states[title, int(seed.removeprefix("seed"))] = found.runs[run]
        logs = RunDir(found.root / preset / "ROW" / "FINGERPRINT" / "seedK").log
        parts += [Text(f"preset {preset}: {sizes[preset]} runs; logs: {logs}", style="bold"), render(states, True)]
        parts += [Text(f"{called(run)}: {tail(run)}", "red") for run in runs if run in tails]
        parts.append(Text())
    parts += not_shown(left_out)
    if (age_s := found.enquiry.age_s) is not None:
        parts.append(Text(f"SLURM was asked {age_s:.0f} s ago"))
    parts += [Text(f"warning: {warning}", style="yellow") for warning in found.enquiry.warnings]
    return Group(*parts) if found.runs else Group(Text(f"no runs under {found.root}"))


def tail(run: RunDir) -> str:
    """Give the end of a failed run's traceback, and where all of it is."""
    lines = run.error.read_text("utf-8").rstrip().splitlines() if run.error.exists() else []
    return "\n  ".join([str(run.log), *lines[1:][-TRACEBACK_LINES:]])


def as_json(found: Survey) -> dict[str, Any]:
    """Say the same for programs: numbers in the units of their names, null where nothing is known."""
    runs = []
    for run, state in found.runs.items():
        preset, row, identity, seed = run.path.parts[-4:]
        fate = found.enquiry.fates.get(run)
        runs.append(
            {
                "run": str(run.path),
                **{"preset": preset, "row": row, "fingerprint": identity, "seed": int(seed.removeprefix("seed"))},
                "state": state.name,
                **{key: value for key, value in vars(state).items() if key not in ("name", "record")},
                "job": fate.job if fate else None,
                "log": str(run.log),
                "error": run.error.read_text("utf-8") if run.error.exists() else None,
            }
        )
    slurm_facts = {"slurm_age_s": found.enquiry.age_s, "warnings": found.enquiry.warnings}
    return {"time": time.time(), **slurm_facts, "runs": runs}


def main(argv: list[str] | None = None) -> int:
    """Show every run; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m ablate.status",
        description="Show every run: state and why, step, speed, scores, ETA, restarts, and when it was last heard of.",
    )
    parser.add_argument("runs", nargs="?", default=runs_folder(), help="the folder of runs (default: %(default)s)")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--watch", action="store_true", help="refresh every two seconds until Ctrl-C")
    how.add_argument("--json", action="store_true", help="for programs")
    arguments = parser.parse_args(argv)
    root, console = Path(arguments.runs).absolute(), terminal()
    enquiry = ledger.Enquiry(ledger.PATIENCE_S)
    if arguments.json:
        print(json.dumps(as_json(survey(root, enquiry)), indent=1, ensure_ascii=False))
        return 0
    if not arguments.watch:
        console.print(page(survey(root, enquiry)))
        return 0
    try:
        with live(console) as show:
            while True:
                show(partial(page, survey(root, enquiry)))
                time.sleep(REFRESH_S)
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
