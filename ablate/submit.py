"""Submit runs to SLURM: job arrays of equal resources, each run once, through submitit. The one door to it."""

import math
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass
from io import StringIO
from typing import Any, TypeVar

import submitit
from rich.console import Console
from submitit.core.utils import FailedJobError

from ablate import job, slurm
from ablate.config import NOT_SAID, ConfigError, SlurmCluster, nearest
from ablate.data.source import waiting_lock
from ablate.launch import freeze, look_in_queue, on_interrupt, view, with_fate
from ablate.plan import TO_DO, Plan, PlannedRun
from ablate.rundir import RunDir
from ablate.status import RunState, read_state

POLL_S = 0.5
ASK_EVERY_S, ASK_SELDOM_S = 5.0, 60.0  # between two questions to SLURM while waiting
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
CHOICES = {  # words of sbatch's refusal: the field that it is about, and how to list what there is
    "invalid partition": ("partition", ["sinfo", "-h", "-o", "%R"]),
    "invalid account": ("account", ["sacctmgr", "-n", "-P", "show", "account", "format=account"]),
    "invalid qos": ("qos", ["sacctmgr", "-n", "-P", "show", "qos", "format=name"]),
    "feature": ("constraint", ["sinfo", "-h", "-o", "%f"]),
    "time limit": ("timeout_min", ["sinfo", "-h", "-o", "%R:%l"]),
    "node configuration": ("nodes, gpus, gpu_type, cpus or mem_gb", ["sinfo", "-h", "-o", "%R:%Dx%cCPUs:%mMB:%G"]),
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
    if shutil.which("sbatch") is None:
        raise ConfigError("cluster.name", "slurm", "needs SLURM's commands, and there is no sbatch here")
    done: list[Submitted] = []
    with waiting_lock(plan.runs_dir / FOLDER / "lock", "the submission", say):
        for planned in plan.runs:
            planned.state = read_state(planned.run)
        slurm.close(look_in_queue(plan.runs))
        todo = [planned for planned in plan.runs if planned.state.name in TO_DO]
        limit = slurm.max_array_size() if todo else 0
        for cluster, runs in by_resources(todo):
            for array in chunks(list(chunks(runs, cluster.runs_per_job)), max(limit, 1)):
                after = done[-1].id if done and cluster.max_parallel else None
                done.append(submit_array(plan, cluster, array, after))
                say(describe(done[-1], cluster))
        look_in_queue(plan.runs)
    return done


def by_resources(runs: list[PlannedRun]) -> Iterator[tuple[SlurmCluster, list[PlannedRun]]]:
    """Group runs that ask for the same, in their order; a row's file may ask for more than the others."""
    groups: dict[str, list[PlannedRun]] = {}
    for planned in runs:
        groups.setdefault(repr(planned.cfg.cluster), []).append(planned)
    for group in groups.values():
        yield group[0].cfg.cluster, group


def chunks(items: list[T], size: int) -> Iterator[list[T]]:
    """Cut a list into pieces of at most this size."""
    for begin in range(0, len(items), size):
        yield items[begin : begin + size]


def submit_array(plan: Plan, cluster: SlurmCluster, jobs: list[list[PlannedRun]], after: str | None) -> Submitted:
    """Freeze these runs and submit their jobs as one array."""
    name = f"ablate-{plan.preset}-{secrets.token_hex(4)}"
    folder = plan.runs_dir / FOLDER / name
    for task, runs in enumerate(jobs):
        for planned in runs:
            freeze(planned)
            slurm.note(planned.run, "submitting", name=name, task=task if len(jobs) > 1 else None)
    executor = submitit.AutoExecutor(folder, cluster="slurm")
    executor.update_parameters(name=name, **parameters(cluster), slurm_dependency=after and f"afterany:{after}")
    complaint = StringIO()  # submitit prints it, too
    try:
        with environment(cluster), redirect_stderr(complaint):
            submitted = executor.map_array(job.work, [[str(planned.run.path) for planned in runs] for runs in jobs])
    except FailedJobError as err:
        for planned in (planned for runs in jobs for planned in runs):
            slurm.note(planned.run, "lost", job=None, state="", reason="refused")
        raise explain(str(err), cluster) from err
    for one, runs in zip(submitted, jobs, strict=True):
        for planned in runs:
            paths = {"folder": str(folder), "log": str(one.paths.stdout)}
            slurm.note(planned.run, "submitted", job=one.job_id, **paths)
    return Submitted(submitted[0].job_id.partition("_")[0], name, [[planned.run for planned in runs] for runs in jobs])


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
        if words in refusal.lower():
            value = getattr(cluster, field, NOT_SAID)
            there = slurm.choices(command)
            if isinstance(value, str):
                return ConfigError(f"cluster.{field}", value, f"{nearest(value, there)} ({refusal.strip()})")
            return ConfigError(f"cluster.{field}", value, f"{refusal.strip()}; there is: {', '.join(there)}")
    return ConfigError("cluster.name", "slurm", refusal.strip() or "sbatch refuses and does not say why")


def how_to_watch(going: list[PlannedRun]) -> str:
    """Say which runs have a job now, and what to do about them."""
    lines = [f"{one.rows[0]} seed {one.cfg.seed}: {one.state.words}" for one in going]
    return "\n".join(
        [
            *lines,
            "Watch them: python -m ablate.status --watch, or squeue --me. What each prints: log.txt in its folder.",
            "The same command submits nothing twice, and prints the table when all are done; cluster.wait=true waits.",
        ]
    )


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
    fates: dict[RunDir, slurm.Fate] = {}
    interrupts: list[int] = []
    pause_s, asked_at_s = ASK_EVERY_S, -math.inf

    def states() -> dict[tuple[str, int], RunState]:
        found = {key: read_state(run) for key, run in runs.items()}
        return {key: with_fate(found[key], fates[run]) if run in fates else found[key] for key, run in runs.items()}

    with on_interrupt(interrupts), view(states, console) as show:
        while not interrupts:
            if time.monotonic() - asked_at_s > pause_s:
                before, fates = fates, slurm.fates(runs.values())
                slurm.close(fates)
                pause_s = ASK_EVERY_S if fates != before else min(1.5 * pause_s, ASK_SELDOM_S)
                asked_at_s = time.monotonic()
            show()
            if not any(state.name in ("queued", "running") for state in states().values()):
                return True
            time.sleep(POLL_S)
    return False
