"""Submit runs to SLURM: job arrays of equal resources, each run once, through submitit. The one door to it."""

import os
import re
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

import submitit
from rich.console import Console
from submitit.core.utils import FailedJobError

from ablate import job, ledger, slurm
from ablate.config import NOT_SAID, ConfigError, SlurmCluster, nearest
from ablate.data.source import waiting_lock
from ablate.launch import freeze, look_in_queue, on_interrupt, view
from ablate.plan import Plan, PlannedRun
from ablate.rundir import RunDir
from ablate.status import TO_DO, RunState, read_state, with_fate

POLL_S = 0.5
MAX_LISTED = 20
FOLDER = "slurm"  # in the folder of runs: batch scripts, pickles, what jobs print
# Of the environment: a job that is submitted from inside another one must not take over its size, and no variable may
# say otherwise than our fields.
NOT_PASSED_ON = ("SLURM_", "SRUN_", "SBATCH_", "SUBMITIT_", "PMI_", "PMIX_", "ABLATE_RANKS")
PASSED_ON = ("SLURM_CONF", "SLURM_CLUSTERS")
DEFAULTS = {  # the user's own, for fields that say nothing
    "SBATCH_PARTITION": "partition",
    "SBATCH_ACCOUNT": "account",
    "SBATCH_QOS": "qos",
    "SBATCH_CONSTRAINT": "constraint",
}
# Words of sbatch when the controller does not answer it, who may have taken the jobs all the same.
NO_ANSWER = re.compile("timed out|unable to contact|zero bytes|communications|connection", re.IGNORECASE)
CHOICES = {  # words of sbatch's refusal: the field that it is about, and how to list what there is
    "invalid partition": ("partition", ["sinfo", "-h", "-o", "%R"]),
    "invalid account": ("account", ["sacctmgr", "-n", "-P", "show", "account", "format=account"]),
    "invalid qos": ("qos", ["sacctmgr", "-n", "-P", "show", "qos", "format=name"]),
    "feature": ("constraint", ["sinfo", "-h", "-o", "%f"]),
    "time limit": ("timeout_min", ["sinfo", "-h", "-o", "%R:%l"]),
    "node configuration|node count|processors|cpu count|memory spec|generic resource": (
        "nodes, gpus, gpu_type, cpus or mem_gb",
        ["sinfo", "-h", "-o", "%R:%Dx%cCPUs:%mMB:%G"],
    ),
}


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


@contextmanager
def submitting(runs_dir: Path, say: Callable[[str], None]) -> Iterator[None]:
    """Hold the lock of those who submit runs in this folder; nobody else submits them meanwhile.

    Raises:
        ConfigError: if there is no SLURM here.
    """
    need_slurm()
    with waiting_lock(runs_dir / FOLDER / "lock", "the submission", say):
        yield


def need_slurm() -> None:
    """Make sure that jobs can be submitted from here.

    Raises:
        ConfigError: if there is no SLURM here.
    """
    if shutil.which("sbatch") is None:
        raise ConfigError("cluster.name", "slurm", "needs SLURM's commands, and there is no sbatch here")


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


def hand_in(
    function: Callable[[T], object],
    arguments: list[T],
    name: str,
    folder: Path,
    cluster: SlurmCluster,
    after: str | None = None,
) -> list[Any]:
    """Hand an array of jobs in, one for each argument, that ask for what the fields say; gives submitit's jobs.

    Args:
        function: of a module; with its argument it is what a job does.
        arguments: one of each job.
        name: of the jobs.
        folder: for the batch script and what the jobs print.
        cluster: what they ask for.
        after: number of a job that must have ended before.

    Raises:
        ConfigError: for what SLURM refuses, with what it has.
        slurm.Unreachable: if it does not answer; it may have taken the jobs.
    """
    executor = submitit.AutoExecutor(folder, cluster="slurm")
    executor.update_parameters(name=name, **parameters(cluster), slurm_dependency=after and f"afterany:{after}")
    try:
        with environment(cluster), redirect_stderr(StringIO()):  # submitit prints the complaint, too
            return executor.map_array(function, arguments)
    except FailedJobError as err:
        if NO_ANSWER.search(str(err)):
            raise slurm.Unreachable(f"{str(err).strip()}; the same command later finds out what was submitted") from err
        raise explain(str(err), cluster) from err


def parameters(cluster: SlurmCluster) -> dict[str, Any]:
    """Say in submitit's words what a job asks for; None: the site's default."""
    tasks = cluster.ranks // cluster.nodes
    cpus = cluster.cpus or cluster.threads * cluster.runs_per_job
    extra: dict[str, Any] = {"requeue": True}
    if cluster.gpus and cluster.gpu_type:
        extra["gpus-per-node"] = f"{cluster.gpu_type}:{cluster.gpus // cluster.nodes}"
    for line in cluster.sbatch:
        key, given, value = line.removeprefix("--").partition("=")
        extra[key] = value if given else True
    return {
        "timeout_min": cluster.timeout_min,
        "nodes": cluster.nodes,
        "tasks_per_node": tasks,
        "cpus_per_task": cpus,
        "gpus_per_node": cluster.gpus // cluster.nodes if cluster.gpus and not cluster.gpu_type else None,
        "mem_gb": cluster.mem_gb or None,
        "stderr_to_stdout": True,
        "slurm_partition": cluster.partition,
        "slurm_account": cluster.account,
        "slurm_qos": cluster.qos,
        "slurm_constraint": cluster.constraint,
        "slurm_setup": cluster.setup or None,
        "slurm_signal_delay_s": cluster.stop_before_s,
        "slurm_array_parallelism": cluster.max_parallel or sys.maxsize,
        "slurm_srun_args": [f"--cpus-per-task={cpus}"],  # since SLURM 22.05 srun does not ask the job
        "slurm_additional_parameters": extra,
    }


@contextmanager
def environment(cluster: SlurmCluster) -> Iterator[None]:
    """Hide from sbatch, and so from the job, what must not be passed on."""
    kept = {*PASSED_ON, *(name for name, field in DEFAULTS.items() if getattr(cluster, field) is None)}
    hidden = {name: value for name, value in os.environ.items() if name.startswith(NOT_PASSED_ON) and name not in kept}
    for name in hidden:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(hidden)


def explain(refusal: str, cluster: SlurmCluster) -> ConfigError:
    """Turn what sbatch says into an error that names the field, its value, and what this site has."""
    for words, (field, command) in CHOICES.items():
        if re.search(words, refusal, re.IGNORECASE):
            value = getattr(cluster, field, NOT_SAID)
            there = slurm.choices(command)
            if isinstance(value, str):
                return ConfigError(f"cluster.{field}", value, f"{nearest(value, there)} ({refusal.strip()})")
            return ConfigError(f"cluster.{field}", value, f"{refusal.strip()}; there is: {', '.join(there)}")
    return ConfigError("cluster.name", "slurm", refusal.strip() or "sbatch refuses and does not say why")


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
    size = f"an array of {len(submitted.jobs)}" if len(submitted.jobs) > 1 else "one"
    limit = f", at most {cluster.max_parallel} at once" if cluster.max_parallel and len(submitted.jobs) > 1 else ""
    return f"submitted {runs} runs as job {submitted.id} ({size}{limit}), named {submitted.name}"


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
