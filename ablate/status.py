"""What every run is doing, from its own files: record → error → lock → heartbeat → frozen configuration.

`python -m ablate.status [--watch] [RUNS]`
"""

import argparse
import fcntl
import os
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from ablate import slurm
from ablate.rundir import RunDir, read_json

COLOURS = {"done": "green", "failed": "red", "running": "cyan", "queued": "blue", "stopped": "yellow"}


@dataclass
class RunState:
    """One run as its files have it now. Numbers are None where nothing is known."""

    name: str  # new, stopped, queued, running, failed or done; queued only where SLURM was asked
    reason: str = ""  # of a failure, or what a running one is at
    step: int | None = None  # updates done
    total: int | None = None  # updates in all
    tokens_per_s: float | None = None  # source and target, padding excluded
    loss: float | None = None
    dev_ppl: float | None = None
    bleu: float | None = None
    eta_s: float | None = None  # seconds of training left
    age_s: float | None = None  # seconds since the run last said something
    train_s: float | None = None  # seconds of training of a finished run
    record: dict[str, Any] | None = field(default=None, repr=False)  # a finished run's, so that it is read only once

    @property
    def words(self) -> str:
        """Say the state and its reason."""
        return f"{self.name}: {self.reason}" if self.reason else self.name


def read_state(run: RunDir) -> RunState:
    """Read one run's state from its folder."""
    done = read_json(run.record)
    if done is not None:
        return RunState(
            "done",
            step=done["train"]["steps"],
            total=done["train"]["steps"],
            tokens_per_s=done["timing"]["src_tgt_tokens_per_s"],
            loss=done["train"]["loss"],
            dev_ppl=done["dev"]["ppl"],
            bleu=done["dev"]["bleu"],
            train_s=done["timing"]["train_s"],
            record=done,
        )
    beat = last_beat(run)
    numbers = {
        "step": beat.get("step"),
        "total": beat.get("total"),
        "tokens_per_s": beat.get("src_tgt_tokens_per_s"),
        "loss": beat.get("loss"),
        "dev_ppl": beat.get("dev_ppl"),
        "age_s": time.time() - beat["time"] if beat else None,
    }
    if run.error.exists():
        return RunState("failed", run.error.read_text("utf-8").split("\n", 1)[0], **numbers)
    if held(run.lock):
        if beat.get("steps_per_s"):
            numbers["eta_s"] = (beat["total"] - beat["step"]) / beat["steps_per_s"]
        at = beat.get("state", "starting")
        return RunState("running", f"{at} {beat.get('sentences', '')}".strip(), **numbers)
    if beat:
        said = beat.get("reason", "killed") if beat["state"] == "stopped" else "killed"
        return RunState("stopped", slurm.last_words(run, beat["time"]) or said, **numbers)
    return RunState("new")


def last_beat(run: RunDir) -> dict[str, Any]:
    """Read what a run's worker last said of itself; empty if it never did, or a power cut left the file empty."""
    try:
        beat: dict[str, Any] = read_json(run.heartbeat) or {}
    except ValueError:
        return {}  # it is written without a flush to the disk
    return beat


def held(lock: Path) -> bool:
    """Tell whether a process holds a lock file, by trying to share it for a moment."""
    try:
        with open(lock) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False


def duration(seconds: float | None) -> str:
    """Write a duration as 1:02:03 or 2:03; empty for None."""
    if seconds is None:
        return ""
    minutes, secs = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{secs:02}" if hours else f"{minutes}:{secs:02}"


def number(value: float | None, digits: int) -> str:
    """Write a number with so many digits after the point; empty for None."""
    return "" if value is None else f"{value:,.{digits}f}"


def terminal() -> Console:
    """Open standard output: as wide as the terminal, or wide enough for every column where there is none."""
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = 160
    return console


def render(states: dict[tuple[str, int], RunState]) -> Table:
    """Lay out runs, by row and seed, as a table for the terminal."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("row", "seed", "state", "step", "tokens/s", "loss", "dev PPL", "BLEU", "ETA"):
        left = title in ("row", "state")
        table.add_column(title, justify="left" if left else "right", no_wrap=title != "state", overflow="fold")
    for (row, seed), state in states.items():
        step = "" if state.step is None else f"{state.step}/{state.total}"
        numbers = [number(state.tokens_per_s, 0), number(state.loss, 3), number(state.dev_ppl, 2)]
        words = Text(state.words, style=COLOURS.get(state.name, ""))
        table.add_row(row, str(seed), words, step, *numbers, number(state.bleu, 1), duration(state.eta_s))
    return table


def runs_folder() -> str:
    """Name the folder of runs as `conf/config.yaml` does where nothing else is said."""
    return os.environ.get("ABLATE_RUNS", "runs")


def find(root: Path) -> dict[str, list[RunDir]]:
    """Find all runs under a folder, by preset."""
    runs: dict[str, list[RunDir]] = {}
    for path in sorted(root.glob("*/*/*/seed*/identity.json")):
        runs.setdefault(path.relative_to(root).parts[0], []).append(RunDir(path.parent))
    return runs


def page(root: Path) -> Group:
    """Lay out every run under a folder, preset by preset."""
    parts: list[Any] = []
    for preset, runs in find(root).items():
        states = {}
        for run in runs:
            row, identity, seed = run.path.relative_to(root / preset).parts
            changed = bool(read_json(run.identity).get("changes"))
            states[f"{row}{' + changes' if changed else ''} ({identity})", int(seed.removeprefix("seed"))] = read_state(
                run
            )
        ages = [state.age_s for state in states.values() if state.name == "running" and state.age_s is not None]
        heard = f"; running ones last heard of up to {max(ages):.0f} s ago" if ages else ""
        parts += [Text(f"preset {preset}: {len(runs)} runs{heard}", style="bold"), render(states), Text()]
    return Group(*parts) if parts else Group(Text(f"no runs under {root}"))


def main(argv: list[str] | None = None) -> int:
    """Show every run; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m ablate.status", description="Show every run: state, step, speed, loss, dev PPL, BLEU, ETA."
    )
    parser.add_argument("runs", nargs="?", default=runs_folder(), help="the folder of runs (default: %(default)s)")
    parser.add_argument("--watch", action="store_true", help="refresh every two seconds until Ctrl-C")
    arguments = parser.parse_args(argv)
    root = Path(arguments.runs).absolute()
    console = terminal()
    if not arguments.watch:
        console.print(page(root))
        return 0
    try:
        with Live(page(root), console=console, refresh_per_second=1) as live:
            while True:
                time.sleep(2)
                live.update(page(root))
    except KeyboardInterrupt:
        return 0


if __name__ == "__main__":
    sys.exit(main())
