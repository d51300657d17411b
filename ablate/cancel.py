"""Stop runs, here or on SLURM, each at a checkpoint: `python -m ablate.cancel RUN …` or `--all`."""

import argparse
import sys
from pathlib import Path

from ablate import ledger, slurm
from ablate.ledger import Fate
from ablate.named import called, find, runs_folder, select
from ablate.refuse import refuse, refuses
from ablate.rundir import RunDir, write_text
from ablate.slurm import Unreachable
from ablate.state import RunState, read_state, with_fate

EPILOG = """RUN is a run's folder, or its row, fingerprint (its first digits will do) and seed: A_h4/2, 0123ab.
A cancelled run is "stopped: cancelled"; the command that started it continues it from its checkpoint."""


def cancel(runs: list[RunDir], others: list[RunDir]) -> None:
    """Ask whoever does these runs to stop, and cancel the jobs in which nothing else is left to do; say what was done.

    Args:
        runs: these.
        others: runs that may share a job with them; what is left of their jobs goes on.

    Raises:
        Unreachable: if SLURM does not answer; the runs that it has started stop by themselves.
    """
    fates = ledger.fates([*runs, *others], lambda text: print(f"warning: {text}"))
    shared = {fate.job for run, fate in fates.items() if run in others and fate.alive}
    ended = []
    for run in runs:
        state, fate = with_fate(read_state(run), fates.get(run)), fates.get(run)
        if state.name in ("done", "failed"):
            print(f"{called(run)}: {state.name}; nothing to cancel")
            continue
        write_text(run.cancelled, "ablate.cancel was given; the command that started this run continues it\n")
        if fate and fate.alive and fate.job and fate.job not in shared:
            ended.append(fate.job)
        print(f"{called(run)}: {state.words}; {consequence(state, fate, shared)}")
    slurm.cancel(ended)


def consequence(state: RunState, fate: Fate | None, shared: set[str | None]) -> str:
    """Say what becomes of a run that is cancelled."""
    if fate and fate.alive:
        left = (
            f"left out of job {fate.job}, which has other runs" if fate.job in shared else f"cancelling job {fate.job}"
        )
        return f"{left}; it stops at a checkpoint" if state.name == "running" else left
    if state.name == "running":
        return "asked to stop: it does at its next update, at a checkpoint"
    return "was not running, and is not started unless a command asks for it again"


@refuses(ValueError)
def main(argv: list[str] | None = None) -> int:
    """Cancel exactly what is named; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m ablate.cancel",
        description="Stop runs, here or on SLURM, each at a checkpoint.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="RUN", help="this one")
    parser.add_argument("--all", action="store_true", help="every run that is not over")
    parser.add_argument("--runs", default=runs_folder(), metavar="FOLDER", help="of runs (default: %(default)s)")
    arguments = parser.parse_args(argv)
    if bool(arguments.names) == arguments.all:
        parser.error("give either the runs to cancel or --all")
    root = Path(arguments.runs).absolute()
    there = find(root)
    try:
        chosen = (
            [run for run in there if not over(run)] if arguments.all else [select(root, x) for x in arguments.names]
        )
        if not chosen:
            print(f"nothing to cancel under {root}")
        cancel(chosen, [run for run in there if run not in chosen])
    except Unreachable as err:  # what it has started stops all the same
        refuse(err)
        return 1
    return 0


def over(run: RunDir) -> bool:
    """Tell whether there is nothing left to stop."""
    return read_state(run).name in ("done", "failed")


if __name__ == "__main__":
    sys.exit(main())
