"""Send to W&B what runs wrote for it and could not or should not send themselves: each attempt once, in their order.

`python -m ablate.sync [RUNS] [--dry-run]`
"""

import argparse
import os
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ablate.fragments import fragments, unsent
from ablate.named import find, runs_folder
from ablate.refuse import refuses
from ablate.rundir import Held, RunDir, lock, write_text
from ablate.state import held

AT_ONCE = 4  # runs; the attempts of one are sent one after the other
LAST_LINES = 5  # of what W&B said, where a run was not sent
# W&B's own settings would try for an hour: the same command can be given again.
TRIES = {f"WANDB__{what}_RETRY_MAX": "3" for what in ("GRAPHQL", "FILE_STREAM", "FILE_TRANSFER")}
ALOUD = {"WANDB_SILENT": "false", "WANDB_QUIET": "false"}  # what it says is read here


def due(run: RunDir) -> list[Path]:
    """List what is to be sent of a run: from the first of W&B's files that is not there yet to the last.

    Those after it are sent again, which changes no number on W&B, so that the run ends there as the last one did.
    """
    files, missing = fragments(run), unsent(run)
    return files[files.index(missing[0]) :] if missing else []


def send(run: RunDir) -> str:
    """Send what is due of one run by W&B's own command; gives what it said if that failed, else nothing."""
    run.wandb.mkdir(exist_ok=True)
    try:
        with lock(run.wandb / "sync.lock"):
            files = due(run)
            done = subprocess.run(
                [sys.executable, "-m", "wandb", "sync", "--include-online", "--include-synced", *map(str, files)],
                stdin=subprocess.DEVNULL,  # it must not ask for a key: four at once would
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env={**TRIES, **os.environ, **ALOUD, "WANDB_DIR": str(run.path)},  # where W&B puts its own log
            )
            if done.returncode or set(files) & set(unsent(run)):
                return "\n".join(done.stdout.splitlines()[-LAST_LINES:]) or f"exit code {done.returncode}"
            run.needs_sync.unlink(missing_ok=True)
            name = re.escape(files[-1].stem.removeprefix("run-"))
            if shown := re.search(rf"https?://\S+/runs/{name}\b", done.stdout):
                write_text(run.wandb_url, shown[0])
    except Held as err:
        return f"{err} is sending this run"
    return ""


def sync(root: Path, dry_run: bool) -> int:
    """Send what is due of every run under a folder; gives the exit code: 0 all sent, 1 not all."""
    every = find(root)
    running = [run for run in every if held(run.lock)]
    waiting = {run: files for run in every if run not in running and (files := due(run))}
    for run, files in waiting.items():
        again = len(files) - len(set(files) & set(unsent(run)))
        print(
            f"{run.path.relative_to(root)}: {len(files)} attempt{'s' * (len(files) > 1)} to send"
            f"{f', {again} of them again' * (again > 0)}, {sum(path.stat().st_size for path in files) / 1e6:.2f} MB"
        )
    if running:
        print(f"{len(running)} running, left alone")
    if dry_run or not waiting:
        print(f"{len(waiting)} of {len(every)} runs have something to send" + "; nothing was sent" * dry_run)
        return 0
    with ThreadPoolExecutor(AT_ONCE) as pool:
        results = dict(zip(waiting, pool.map(send, waiting), strict=True))
    failed = {run: words for run, words in results.items() if words}
    for run, words in failed.items():
        print(f"{run.path.relative_to(root)} was not sent to the end:\n{words}")
    print(
        f"sent: {len(waiting) - len(failed)} runs; not sent: {len(failed)}"
        + "; the same command tries again" * bool(failed)
    )
    return 1 if failed else 0


@refuses(ValueError)
def main(argv: list[str] | None = None) -> int:
    """Send what is due, or show it; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m ablate.sync",
        description="Send W&B the runs that it does not have yet, each attempt once and in order.",
    )
    parser.add_argument("runs", nargs="?", default=runs_folder(), help="the folder of runs (default: %(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="only show what would be sent")
    arguments = parser.parse_args(argv)
    root = Path(arguments.runs).absolute()
    if not root.is_dir():
        raise ValueError(f"RUNS={arguments.runs!r}: no such folder")
    return sync(root, arguments.dry_run)


if __name__ == "__main__":
    sys.exit(main())
