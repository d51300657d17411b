"""Submit runs to SLURM: job arrays of equal resources, each run once."""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rich.console import Console

from ablate import job, ledger, slurm
from ablate.config import SlurmCluster
from ablate.data.source import waiting_lock
from ablate.errors import ConfigError
from ablate.launch import freeze, on_interrupt, view
from ablate.plan import Plan, PlannedRun
from ablate.rundir import RunDir
from ablate.sbatch import hand_in, need_slurm
from ablate.state import TO_DO, RunState, read_state, with_fate

POLL_S = 0.5
MAX_LISTED = 20
FOLDER = "slurm"  # in the folder of runs: batch scripts, pickles, what jobs print

T = TypeVar("T")


@dataclass(frozen=True)
class Submitted:
    """A job array, or a single job."""

    id: str  # SLURM's number
    name: str
    jobs: list[list[RunDir]]  # the runs of each


def submit(plan: Plan, say: Callable[[str], None]) -> list[Submitted]:
    """Submit the runs that are neither finished nor failed nor running nor queued, and write down that they are.

    `plan`'s states are brought up to date.

    Args:
        plan: with its corpus.
        say: told what was submitted, and whom this waits for.

    Raises:
        ConfigError: for what SLURM refuses, with what it has; arrays that were submitted before stay.
        slurm.Unreachable: if SLURM does not answer.
    """
    with submitting(plan.runs_dir, say):
        for planned in plan.runs:
            planned.state = read_state(planned.run)
        ledger.close(look_in_queue(plan.runs))
        todo = [planned for planned in plan.runs if planned.state.name in TO_DO]
        for planned in todo:
            freeze(planned)
        done = submit_frozen({planned.run: planned.cfg.cluster for planned in todo}, plan.runs_dir, say)
        look_in_queue(plan.runs)
    return done


def look_in_queue(runs: list[PlannedRun]) -> dict[RunDir, ledger.Fate]:
    """Bring the states of idle runs up to date with what SLURM says of those that have a job; gives what it says."""
    idle = {planned.run: planned for planned in runs if planned.state.name in TO_DO}
    fates = ledger.fates(idle)
    for run, fate in fates.items():
        with_fate(idle[run].state, fate)
    return fates


@contextmanager
def submitting(runs_dir: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of those who submit runs in this folder; nobody else submits them meanwhile.

    Raises:
        ConfigError: if there is no SLURM here.
    """
    need_slurm()
    with waiting_lock(runs_dir / FOLDER / "lock", "the submission", say):
        yield


def submit_frozen(runs: dict[RunDir, SlurmCluster], runs_dir: Path, say: Callable[[str], None]) -> list[Submitted]:
    """Submit these runs, frozen and without a job, each as it asks; whoever calls this is `submitting`.

    Raises:
        ConfigError: for what SLURM refuses, with what it has; arrays that were submitted before stay.
        slurm.Unreachable: if SLURM does not answer.
    """
    done: list[Submitted] = []
    limit = slurm.max_array_size() if runs else 0
    for cluster, group in by_resources(runs):
        for array in chunks(list(chunks(group, cluster.runs_per_job)), max(limit, 1)):
            after = done[-1].id if done and cluster.max_parallel else None
            done.append(submit_array(array, cluster, runs_dir, after))
            say(describe(done[-1], cluster))
    return done


def by_resources(runs: dict[RunDir, SlurmCluster]) -> Iterator[tuple[SlurmCluster, list[RunDir]]]:
    """Group runs that ask for the same, in their order; a row's file may ask for more than the others."""
    groups: dict[str, list[RunDir]] = {}
    for run, cluster in runs.items():
        groups.setdefault(f"{run.path.parts[-4]} {cluster!r}", []).append(run)
    for group in groups.values():
        yield runs[group[0]], group


def chunks(items: list[T], size: int) -> Iterator[list[T]]:
    """Cut a list into pieces of at most this size."""
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]


def submit_array(jobs: list[list[RunDir]], cluster: SlurmCluster, runs_dir: Path, after: str | None) -> Submitted:
    """Submit the jobs of these runs, all of one preset, as one array."""
    name = f"ablate-{jobs[0][0].path.parts[-4]}-{secrets.token_hex(4)}"
    folder = runs_dir / FOLDER / name
    for task, runs in enumerate(jobs):
        for run in runs:
            run.cancelled.unlink(missing_ok=True)  # from now on it means this job
            ledger.note(run, "submitting", name=name, task=task if len(jobs) > 1 else None)
    try:
        submitted = hand_in(job.work, [[str(run.path) for run in runs] for runs in jobs], name, folder, cluster, after)
    except ConfigError:
        for run in (run for runs in jobs for run in runs):
            ledger.note(run, "lost", job=None, state="", reason="refused")
        raise
    for one, runs in zip(submitted, jobs, strict=True):
        for run in runs:
            ledger.note(run, "submitted", job=one.job_id, folder=str(folder), log=str(one.paths.stdout))
    return Submitted(submitted[0].job_id.partition("_")[0], name, jobs)


def how_to_watch(going: list[PlannedRun]) -> str:
    """Say which runs have a job now, and what to do about them."""
    lines = [f"{one.rows[0]} seed {one.cfg.seed}: {one.state.words}" for one in going]
    if len(lines) > MAX_LISTED:
        lines[MAX_LISTED:] = [f"… and {len(lines) - MAX_LISTED} more"]
    lines += [
        "Watch them: python -m ablate.status --watch, or squeue --me. What one prints: python -m ablate.logs RUN",
        "The same command submits nothing twice, and prints the table when all are done; cluster.wait=true waits.",
    ]
    return "\n".join(lines)


def describe(submitted: Submitted, cluster: SlurmCluster) -> str:
    """Say what was submitted."""
    runs = sum(map(len, submitted.jobs))
    count = "1 run" if runs == 1 else f"{runs} runs"
    size = f"an array of {len(submitted.jobs)}" if len(submitted.jobs) > 1 else "one"
    limit = f", at most {cluster.max_parallel} at once" if cluster.max_parallel and len(submitted.jobs) > 1 else ""
    return f"submitted {count} as job {submitted.id} ({size}{limit}), named {submitted.name}"


def wait(going: list[PlannedRun], console: Console) -> bool:
    """Show runs that have jobs until each is finished, failed or without a job; Ctrl-C ends the waiting only.

    Files tell most; SLURM is asked ever more seldom while nothing happens.

    Returns:
        Whether all of them came to an end.
    """
    runs = {(planned.rows[0], planned.cfg.seed): planned.run for planned in going}
    enquiry = ledger.Enquiry()
    interrupts: list[int] = []

    def states() -> dict[tuple[str, int], RunState]:
        return {key: with_fate(read_state(run), enquiry.fates.get(run)) for key, run in runs.items()}

    with on_interrupt(interrupts), view(states, console) as show:
        while not interrupts:
            if enquiry.due:
                enquiry.ask(runs.values())
            show()
            if not any(state.name in ("queued", "running") for state in states().values()):
                return True
            time.sleep(POLL_S)
    return False
