"""Check what runs need of the place where they happen, here or on SLURM: a probe goes there and reports."""

import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate import probe, slurm
from ablate.config import Config, SlurmCluster
from ablate.data.source import data_root
from ablate.errors import ConfigError
from ablate.finding import Finding
from ablate.params import count_parameters
from ablate.record import code_digest
from ablate.request import resolved
from ablate.rundir import lock, read_json, write_json
from ablate.sbatch import hand_in, need_slurm
from ablate.slurm import Unreachable
from ablate.submit import FOLDER

PATIENCE_S = 60.0  # for the probe to answer
POLL_S, ASK_EVERY_S = 0.2, 3.0
SKEW_S = 5.0  # more makes ages wrong; nothing worse
STATES_PER_CHECKPOINT = 3  # the parameters and Adam's two moments
BYTES = 4  # of each number in a checkpoint
WANDB = "https://api.wandb.ai"  # unless WANDB_BASE_URL names another server


@dataclass
class Answer:
    """What a probe found on one machine."""

    found: dict[str, Any]
    asked_at: float  # seconds since 1970, here
    seen_at: float


def check_cluster(cfg: Config) -> Iterator[Finding]:
    """Check the place where these settings would have runs done; takes a minute at most, more if SLURM is slow.

    Raises:
        ConfigError: as `request.resolved`.
    """
    cfg = resolved(cfg, cfg.device)
    runs = Path(cfg.runs_dir).absolute()
    folder = runs / FOLDER / f"doctor-{secrets.token_hex(4)}"
    try:
        folder.mkdir(parents=True)
        with lock(folder / probe.LOCK):
            wandb = os.environ.get("WANDB_BASE_URL", WANDB) if cfg.tracking.mode == "online" else None
            write_json(folder / probe.QUESTION, {"corpora": str(data_root()), "runs": str(runs), "wandb": wandb})
            yield from ask_there(cfg, folder) if isinstance(cfg.cluster, SlurmCluster) else ask_here(cfg, folder)
    except OSError as err:
        yield Finding("error", "folder of runs", str(err))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def ask_here(cfg: Config, folder: Path) -> Iterator[Finding]:
    """Ask a process on this machine, such as a worker is."""
    began = time.time()
    command = [sys.executable, "-m", "ablate.probe", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    except subprocess.TimeoutExpired:
        yield Finding("error", "worker", f"a process of {sys.executable} does not answer within {PATIENCE_S:.0f} s")
        return
    if done.returncode:
        yield Finding("error", "worker", f"a process of {sys.executable} fails: {done.stderr.strip()[-1000:]}")
    for path in folder.glob("answer.*.json"):
        yield from judge(cfg, Answer(read_json(path), began, time.time()))


def ask_there(cfg: Config, folder: Path) -> Iterator[Finding]:
    """Submit a job that asks for what a run would, and wait for it."""
    cluster, began, job = cfg.cluster, time.time(), ""
    try:
        need_slurm()
        (handed,) = hand_in(probe.answer, [str(folder)], folder.name, folder, cluster)
        job = handed.job_id
        yield requeueing(job)
        deadline, asked_at_s, state = time.monotonic() + PATIENCE_S, 0.0, None
        while len(paths := sorted(folder.glob("answer.*.json"))) < cluster.nodes and time.monotonic() < deadline:
            if time.monotonic() - asked_at_s > ASK_EVERY_S:
                state, asked_at_s = slurm.queue().get(job), time.monotonic()
                if state is None or not state.alive:
                    break
            time.sleep(POLL_S)
        if len(paths) < cluster.nodes:
            yield no_answer(handed, state)
            return
        yield Finding("ok", "job", f"started and answered after {time.time() - began:.0f} s; nodes: {cluster.nodes}")
        for path in paths:
            yield from judge(cfg, Answer(read_json(path), began, time.time()))
    except (ConfigError, Unreachable) as err:
        yield Finding("error", "SLURM", str(err))
    finally:
        if job:
            with suppress(Unreachable):  # it ends by itself
                slurm.cancel([job])


def requeueing(job: str) -> Finding:
    """Tell whether SLURM would put a job back."""
    if slurm.shown(job).get("Requeue") == "1":
        return Finding("ok", "requeue", "allowed: what is preempted, timed out or without its node goes on by itself")
    return Finding("warning", "requeue", "not allowed: a run that is interrupted stays so until ablate.retry --lost")


def no_answer(handed: Any, state: slurm.Job | None) -> Finding:
    """Say why a probe's job does not answer."""
    if state is not None and state.alive and state.state == "PENDING":
        why = f"{state.words}: it did not start within {PATIENCE_S:.0f} s, so the node could not be looked at"
        return Finding("warning", "job", why)
    log = Path(handed.paths.stdout)
    printed = log.read_text("utf-8", "replace").strip()[-1000:] if log.exists() else f"nothing: is {log.parent} shared?"
    word = state.words if state else "job is over"
    return Finding("error", "job", f"{word}, and no answer came; it printed\n{printed}")


def judge(cfg: Config, answer: Answer) -> Iterator[Finding]:
    """Judge what a probe found."""
    found, host, on_slurm = answer.found, answer.found["host"], isinstance(cfg.cluster, SlurmCluster)
    if found["locks"]:
        yield Finding("error", "folder of runs", f"locks do not work on {host}: {found['locks']}")
    else:
        yield Finding("ok", "folder of runs", f"{Path(cfg.runs_dir).absolute()} is seen on {host}, with its locks")
    if on_slurm:
        yield from judge_sharing(answer)
    yield judge_torch(cfg, found)
    yield judge_disk(cfg, found)
    if cfg.tracking.mode == "online":
        if found["wandb"]:
            yield Finding("warning", "W&B", f"not reached from {host}: {found['wandb']}; runs would go on offline")
        else:
            yield Finding("ok", "W&B", f"answers {host}")


def judge_sharing(answer: Answer) -> Iterator[Finding]:
    """Judge whether a node has our package, our corpora and our time."""
    found, host = answer.found, answer.found["host"]
    if found["code"] == code_digest():
        yield Finding("ok", "package", f"the same on {host}: {found['package']}, {found['python']}")
    else:
        yield Finding("error", "package", f"another one on {host}: {found['package']}; install into a shared folder")
    if data_root().is_dir() and not found["corpora"]:
        yield Finding("error", "corpora", f"{data_root()} is not seen on {host}; let ABLATE_DATA name a shared folder")
    early, late = answer.asked_at - found["time"], found["time"] - answer.seen_at  # its clock was read in between
    if (skew_s := max(early, late)) > SKEW_S:
        yield Finding("warning", "clock", f"{host}'s differs by {skew_s:.0f} s: ages in ablate.status are as wrong")
    else:
        yield Finding("ok", "clock", f"{host}'s agrees to {answer.seen_at - answer.asked_at:.0f} s or better")


def judge_torch(cfg: Config, found: dict[str, Any]) -> Finding:
    """Judge whether the device that is asked for is there, and torch can use it."""
    cluster, host, torch = cfg.cluster, found["host"], found["torch"]
    gpus = cluster.gpus // cluster.nodes if isinstance(cluster, SlurmCluster) else 0
    needed = gpus or (1 if cfg.device == "cuda" else 0)
    have = f"torch {torch} on {host} can use {len(found['gpus'])} GPUs" + "".join(f", {name}" for name in found["gpus"])
    if found["torch_error"]:
        return Finding("error", "torch", f"fails on {host}: {found['torch_error']}")
    if len(found["gpus"]) < needed:
        driver = "there" if found["driver"] else "not there"
        return Finding("error", "GPU", f"{have}, {needed} needed; NVIDIA's driver is {driver}")
    if found["driver"] and not found["gpus"]:
        return Finding("warning", "GPU", f"{have}, but NVIDIA's driver is there: is it a torch for CPUs?")
    return Finding("ok", "GPU" if needed else "torch", have)


def judge_disk(cfg: Config, found: dict[str, Any]) -> Finding:
    """Judge whether the checkpoints will fit: parameters and two moments of 4 bytes, as often as are kept."""
    rows = {"base", *(row for sweep in cfg.sweep.values() for row in sweep.rows)} if cfg.sweep else {cfg.row.name}
    runs = len(rows) * cfg.seeds
    numbers = count_parameters(cfg.model, cfg.data.vocab_size) * STATES_PER_CHECKPOINT
    needed, free = runs * numbers * BYTES * cfg.keep_checkpoints, found["free_bytes"]
    said = f"{runs} runs keep {needed / 1e9:,.2f} GB of checkpoints, {free / 1e9:,.2f} GB are free ({found['host']})"
    return Finding("ok" if free > needed else "error", "disk", said)
