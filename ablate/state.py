"""What a run is doing: from its own files, record → error → lock → heartbeat, and then from SLURM."""

import fcntl
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ablate import ledger
from ablate.rundir import RunDir, read_json

TO_DO = {"new": "to run", "stopped": "to continue"}  # states in which a launch would start a run
NEEDS_SYNC = "needs sync"  # stands behind what else a state says


@dataclass
class RunState:
    """One run as its files have it now. Numbers are None where nothing is known."""

    name: str  # new, stopped, queued, running, failed or done; queued only where SLURM was asked
    reason: str = ""  # of a failure, or what a running one is at; also: needs sync
    step: int | None = None  # updates done
    total: int | None = None  # updates in all
    steps_per_s: float | None = None  # updates
    tokens_per_s: float | None = None  # source and target, padding excluded
    loss: float | None = None
    dev_ppl: float | None = None
    bleu: float | None = None
    eta_s: float | None = None  # seconds of training left
    age_s: float | None = None  # seconds since an unfinished run last said something
    restarts: int | None = None  # how often it went on after an interruption
    train_s: float | None = None  # seconds of training of a finished run
    record: dict[str, Any] | None = field(default=None, repr=False)  # a finished run's, so that it is read only once

    @property
    def words(self) -> str:
        """Say the state and its reason."""
        return f"{self.name}: {self.reason}" if self.reason else self.name


def read_state(run: RunDir) -> RunState:
    """Read one run's state from its folder."""
    sync = NEEDS_SYNC if run.needs_sync.exists() else ""
    done = read_json(run.record)
    if done is not None:
        return RunState(
            "done",
            sync,
            step=done["train"]["steps"],
            total=done["train"]["steps"],
            steps_per_s=done["timing"]["steps_per_s"],
            tokens_per_s=done["timing"]["src_tgt_tokens_per_s"],
            loss=done["train"]["loss"],
            dev_ppl=done["dev"]["ppl"],
            bleu=done["dev"]["bleu"],
            train_s=done["timing"]["train_s"],
            restarts=len(done["provenance"]) - 1,
            record=done,
        )
    beat = last_beat(run)
    numbers = {
        "step": beat.get("step"),
        "total": beat.get("total"),
        "steps_per_s": beat.get("steps_per_s"),
        "tokens_per_s": beat.get("src_tgt_tokens_per_s"),
        "loss": beat.get("loss"),
        "dev_ppl": beat.get("dev_ppl"),
        "age_s": time.time() - beat["time"] if beat else None,
        "restarts": beat["attempt"] - 1 if "attempt" in beat else None,
    }
    if run.error.exists():
        return RunState("failed", join(run.error.read_text("utf-8").split("\n", 1)[0], sync), **numbers)
    if held(run.lock):
        if beat.get("steps_per_s"):
            numbers["eta_s"] = (beat["total"] - beat["step"]) / beat["steps_per_s"]
        at = beat.get("state", "stopped")
        at = "starting" if at == "stopped" else at  # what the last attempt said; this one has not said anything yet
        at = "stopping, cancelled" if run.cancelled.exists() else at
        return RunState("running", f"{at} {beat.get('sentences', '')}".strip(), **numbers)
    if run.cancelled.exists():
        return RunState("stopped", "cancelled", **numbers)
    if beat:
        said = beat.get("reason", "killed") if beat["state"] == "stopped" else "killed"
        return RunState("stopped", join(ledger.last_words(run, beat["time"]) or said, sync), **numbers)
    left = ledger.last_words(run, 0.0)  # of a job that ended before the run said anything
    return RunState("stopped", left) if left else RunState("new")


def with_fate(state: RunState, fate: ledger.Fate | None) -> RunState:
    """Say of an idle run that it is queued, or has only just begun, or why its last job left it so.

    One whose job was ended at its memory limit has failed: to go on would end the same way.
    """
    if fate is not None and state.name in TO_DO:
        if fate.alive:
            state.name, state.reason = ("running" if fate.state == "RUNNING" else "queued"), fate.words
        elif fate.state == "OUT_OF_MEMORY":
            state.name, state.reason = "failed", fate.words
        elif state.reason != "cancelled":
            state.name, state.reason = "stopped", fate.words
    return state


def join(*reasons: str) -> str:
    """Put reasons behind one another."""
    return "; ".join(reason for reason in reasons if reason)


def last_beat(run: RunDir) -> dict[str, Any]:
    """Read what a run's worker last said of itself; empty if it never did, or a power cut left the file empty."""
    try:
        beat: dict[str, Any] = read_json(run.heartbeat) or {}
    except ValueError:
        return {}  # it is written without a flush to the disk
    return beat


def held(lock: Path) -> bool:
    """Tell whether a process holds a lock file, by trying to share it for a moment."""
    try:
        with open(lock) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except FileNotFoundError:
        return False
    except BlockingIOError:
        return True
    return False
