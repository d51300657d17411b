"""Do runs again that did not end well: `python -m ablate.retry --failed | --oom [--mem x2] | --lost [RUNS]`.

A run starts from its newest checkpoint, under its frozen configuration, where it was: here, or on SLURM, asking for
what it asked for.
"""

import argparse
import os
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from ablate import frozen, ledger
from ablate.config import ClusterConfig, Config, SlurmCluster
from ablate.errors import ConfigError
from ablate.launch import launch, num_workers
from ablate.named import called, find, runs_folder
from ablate.refuse import refuses
from ablate.rundir import RunDir
from ablate.slurm import Unreachable
from ablate.state import NEEDS_SYNC, RunState, read_state, with_fate
from ablate.status import terminal
from ablate.submit import submit_frozen, submitting

# Of the machine's memory; a GPU's (OutOfMemoryError) is not for --mem to enlarge.
OUT_OF_MEMORY = re.compile(r"OutOfMemory:|out of memory$|MemoryError|.*can't allocate memory")
ON_REQUEST = ("cancelled", "refused", "SIGINT", "SIGTERM")  # reasons of stops that somebody wanted


def kind(state: RunState) -> str:
    """Tell how a run ended: "failed", "oom" (without memory), "lost" (without a word); empty if none of these."""
    if state.name == "failed":
        return "oom" if OUT_OF_MEMORY.match(state.reason) else "failed"
    wanted = state.reason.removesuffix(f"; {NEEDS_SYNC}") in ON_REQUEST
    return "lost" if state.name == "stopped" and not wanted else ""


def judged(runs: list[RunDir], say: Callable[[str], None]) -> tuple[dict[RunDir, str], dict[RunDir, ledger.Fate]]:
    """Tell how these runs ended, and what became of their jobs."""
    fates = ledger.fates(runs, lambda text: say(f"warning: {text}"))
    return {run: kind(with_fate(read_state(run), fates.get(run))) for run in runs}, fates


def more_memory(cluster: ClusterConfig, mem: str) -> ClusterConfig:
    """Ask for more memory.

    Args:
        cluster: what was asked for.
        mem: GiB, such as "16"; or a factor, such as "x2".

    Raises:
        ConfigError: where that has no effect.
    """
    if not re.fullmatch(r"x?\d+(\.\d+)?", mem):
        raise ConfigError("--mem", mem, "give GiB, such as 16, or a factor, such as x2")
    if not isinstance(cluster, SlurmCluster):
        raise ConfigError("--mem", mem, "a run without memory was done on this machine, where nothing limits it")
    if mem.startswith("x") and not cluster.mem_gb:
        raise ConfigError("--mem", mem, "a run had the site's default (cluster.mem_gb=0); give GiB, such as 16")
    enough = cluster.mem_gb * float(mem[1:]) if mem.startswith("x") else float(mem)
    if enough <= cluster.mem_gb:
        raise ConfigError("--mem", mem, f"a run had {cluster.mem_gb:g} GiB, and that was too little")
    return replace(cluster, mem_gb=enough)


def resubmit(runs: list[RunDir], wanted: set[str], mem: str | None, root: Path, say: Callable[[str], None]) -> None:
    """Submit those of these runs to SLURM that ended as wanted, unless somebody else just has.

    Raises:
        ConfigError: as `more_memory`, before anything is done; or for what SLURM refuses.
        Unreachable: if SLURM does not answer.
    """
    with submitting(root, say):
        kinds, fates = judged(runs, say)
        before = {run: frozen.load(run.config) for run in runs if kinds[run] in wanted}
        todo = {run: again(cfg, kinds[run], mem) for run, cfg in before.items()}
        ledger.close(fates)
        failed = [run for run in todo if run.error.exists()]
        for run in failed:
            os.replace(run.error, old_error(run))
        for run, cfg in todo.items():
            frozen.save(cfg, run.config)
        try:
            submit_frozen({run: cfg.cluster for run, cfg in todo.items()}, root, say)
        except (ConfigError, Unreachable):
            for run in todo:
                if ledger.open_job(run) is None:  # as it was
                    frozen.save(before[run], run.config)
                    if run in failed:
                        os.replace(old_error(run), run.error)
            raise
    say("Watch them: python -m ablate.status --watch")


def again(cfg: Config, kind: str, mem: str | None) -> Config:
    """Give the configuration under which a run is done again."""
    return replace(cfg, cluster=more_memory(cfg.cluster, mem)) if mem and kind == "oom" else cfg


def old_error(run: RunDir) -> Path:
    """Name the file that keeps why a run had failed."""
    return run.error.with_suffix(".old.txt")


def relaunch(runs: dict[RunDir, Config], console: Console) -> int:
    """Do these runs here, as many at once as was asked for; gives the exit code."""
    groups: dict[str, dict[RunDir, Config]] = {}
    for run, cfg in runs.items():
        groups.setdefault(f"{cfg.device} {cfg.cluster!r}", {})[run] = cfg
    done = 0
    for group in groups.values():
        first = next(iter(group.values()))
        shown = {(f"{cfg.preset}/{cfg.row.name} ({run.path.parent.name})", cfg.seed): run for run, cfg in group.items()}
        outcome = launch(shown, num_workers(first.cluster, first.device), console)
        if outcome.interrupted:
            return 130
        done += len(outcome.done)
    return 0 if done == len(runs) else 1


@refuses(ValueError, Unreachable)
def main(argv: list[str] | None = None) -> int:
    """Do exactly the runs again that are asked for; returns the exit code: 0 if all are done, or submitted."""
    parser = argparse.ArgumentParser(
        prog="python -m ablate.retry",
        description="Do runs again, each from its newest checkpoint, under its frozen configuration, where it was.",
    )
    parser.add_argument("runs", nargs="?", default=runs_folder(), help="the folder of runs (default: %(default)s)")
    parser.add_argument("--failed", action="store_true", help="runs that failed, those without memory included")
    parser.add_argument("--oom", action="store_true", help="runs that were ended at their memory limit")
    parser.add_argument("--mem", metavar="GIB", help="for these, more memory: GiB, or x2 for twice as much")
    parser.add_argument("--lost", action="store_true", help="runs that ended without a word, and nobody asked them to")
    arguments = parser.parse_args(argv)
    ways = {"failed": arguments.failed, "oom": arguments.failed or arguments.oom, "lost": arguments.lost}
    wanted = {name for name, asked in ways.items() if asked}
    if not wanted:
        parser.error("which ones? --failed, --oom or --lost")
    if arguments.mem and "oom" not in wanted:
        parser.error("--mem is for runs without memory: --oom or --failed")
    root, console = Path(arguments.runs).absolute(), terminal()

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    there = find(root)
    kinds, fates = judged(there, say)
    chosen = {run: frozen.load(run.config) for run in there if kinds[run] in wanted}
    if not chosen:
        asked = [name for name in ("failed", "oom", "lost") if getattr(arguments, name)]
        say(f"no {' or '.join(asked)} runs under {arguments.runs}")
        return 0
    for run, cfg in chosen.items():
        again(cfg, kinds[run], arguments.mem)  # nothing is done if one of them cannot be
        say(f"{called(run)}: {with_fate(read_state(run), fates.get(run)).words}")
    submitted = [run for run, cfg in chosen.items() if isinstance(cfg.cluster, SlurmCluster)]
    if submitted:
        resubmit(submitted, wanted, arguments.mem, root, say)
    here = {run: cfg for run, cfg in chosen.items() if run not in submitted}
    return relaunch(here, console) if here else 0


if __name__ == "__main__":
    sys.exit(main())
