"""Do failed runs again, from their frozen configurations: `python -m ablate.retry --failed [RUNS]`."""

import argparse
import os
import sys
from pathlib import Path

from ablate import config
from ablate.config import SlurmCluster
from ablate.launch import launch, num_workers
from ablate.status import find, read_state, runs_folder, terminal


def main(argv: list[str] | None = None) -> int:
    """Start exactly the runs that failed, or make way for submitting them again; returns 0 if all of them finish."""
    parser = argparse.ArgumentParser(
        prog="python -m ablate.retry",
        description="Do failed runs again. A run starts from its newest checkpoint, under its frozen configuration.",
    )
    parser.add_argument("runs", nargs="?", default=runs_folder(), help="the folder of runs (default: %(default)s)")
    parser.add_argument("--failed", action="store_true", required=True, help="the runs that failed")
    arguments = parser.parse_args(argv)
    console = terminal()
    found = [run for runs in find(Path(arguments.runs).absolute()).values() for run in runs]
    failed = {run: config.load(run.config) for run in found if read_state(run).name == "failed"}
    for run in failed:
        console.print(f"{run.path}: {read_state(run).words}", markup=False, soft_wrap=True)
    if not failed:
        console.print(f"no failed runs under {arguments.runs}")
        return 0
    for run, cfg in list(failed.items()):
        if isinstance(cfg.cluster, SlurmCluster):
            os.replace(run.error, run.error.with_suffix(".old.txt"))
            console.print(f"{run.path}: the command that submitted it submits it again", soft_wrap=True)
            del failed[run]
    if not failed:
        return 0
    cluster = next(iter(failed.values())).cluster
    runs = {(f"{cfg.preset}/{cfg.row.name} ({run.path.parent.name})", cfg.seed): run for run, cfg in failed.items()}
    outcome = launch(runs, num_workers(cluster), cluster.threads, console)
    return 0 if len(outcome.done) == len(failed) else 1


if __name__ == "__main__":
    sys.exit(main())
