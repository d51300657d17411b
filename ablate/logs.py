"""Print what a run prints, and follow it: `python -m ablate.logs RUN [-f]`."""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

from ablate import ledger
from ablate.named import called, runs_folder, select
from ablate.refuse import refuses
from ablate.rundir import RunDir
from ablate.state import RunState, read_state, with_fate

POLL_S = 0.5


def job_log(run: RunDir) -> Path | None:
    """Name the file in which SLURM keeps what the run's last job printed; None where there was none."""
    named = [line["log"] for line in ledger.history(run) if line.get("log")]
    return Path(named[-1]) if named else None


def text_of(run: RunDir) -> Path:
    """Choose the file that tells most: the run's own, or its job's if the run never got to say anything."""
    of_job = job_log(run)
    return run.log if run.log.exists() or of_job is None or not of_job.exists() else of_job


def look(run: RunDir, enquiry: ledger.Enquiry) -> RunState:
    """Tell a run's state; SLURM is asked, too, if it is time to."""
    if enquiry.due:
        enquiry.ask([run])
    return with_fate(read_state(run), enquiry.fates.get(run))


def show(run: RunDir, write: Callable[[bytes], object], following: bool, lines: int | None = None) -> None:
    """Copy what a run has printed.

    Args:
        run: any.
        write: called with it, piece by piece.
        following: also copy what it prints from now on, until it is over.
        lines: so many of the last; None: all.
    """
    path, enquiry = text_of(run), ledger.Enquiry(ledger.PATIENCE_S)
    at = 0 if lines is None else last_lines(path, lines)
    while True:
        # Asked before reading, so that its last words are not missed.
        more = following and look(run, enquiry).name in ("new", "queued", "running")
        if (now := text_of(run)) != path:
            path, at = now, 0
        at += copy(path, at, write)
        if not more:
            return
        time.sleep(POLL_S)


def copy(path: Path, start: int, write: Callable[[bytes], object]) -> int:
    """Copy a file from a byte on, if it is there; gives how many bytes there were."""
    if not path.exists():
        return 0
    with open(path, "rb") as file:
        file.seek(start)
        data = file.read()
    write(data)
    return len(data)


def last_lines(path: Path, count: int) -> int:
    """Find the byte at which the last lines of a file begin."""
    lines = path.read_bytes().splitlines(keepends=True) if path.exists() else []
    return sum(map(len, lines[: max(0, len(lines) - count)]))


def to_terminal(data: bytes) -> None:
    """Write to standard output at once."""
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


@refuses(ValueError)
def main(argv: list[str] | None = None) -> int:
    """Print a run's log; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m ablate.logs",
        description="Print what a run prints.",
        epilog="RUN is its folder, or its row, fingerprint (the first digits will do) and seed: A_h4/2, 0123ab.",
    )
    parser.add_argument("name", metavar="RUN")
    parser.add_argument("-f", "--follow", action="store_true", help="until it is over, or Ctrl-C")
    parser.add_argument("-n", "--lines", type=int, metavar="K", help="only the last K lines")
    parser.add_argument("--runs", default=runs_folder(), metavar="FOLDER", help="of runs (default: %(default)s)")
    arguments = parser.parse_args(argv)
    run = select(Path(arguments.runs).absolute(), arguments.name)
    path = text_of(run)
    print(f"{called(run)}: {look(run, ledger.Enquiry(ledger.PATIENCE_S)).words}; {path}", file=sys.stderr, flush=True)
    if (of_job := job_log(run)) not in (None, path):
        print(f"what its job printed: {of_job}", file=sys.stderr, flush=True)
    try:
        show(run, to_terminal, arguments.follow, arguments.lines)
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
