"""Hand job arrays to sbatch, through submitit, the one door to it; say what a site has instead of what it refuses."""

import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr
from io import StringIO
from pathlib import Path
from typing import Any, TypeVar

import submitit
from submitit.core.utils import FailedJobError

from ablate import slurm
from ablate.config import SlurmCluster
from ablate.errors import NOT_SAID, ConfigError, nearest

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


def need_slurm() -> None:
    """Make sure that jobs can be submitted from here.

    Raises:
        ConfigError: if there is no SLURM here.
    """
    if shutil.which("sbatch") is None:
        raise ConfigError("cluster.name", "slurm", "needs SLURM's commands, and there is no sbatch here")


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
