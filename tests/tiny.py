"""Tiny runs, planned and frozen as the command does it: for the tests of what trains, launches and reads runs."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import jaxtyping
import pytest

from ablate import record
from ablate.launch import freeze
from ablate.plan import Plan, plan_from
from ablate.rundir import RunDir
from ablate.worker import DONE, StopFlag, take

STEPS, EVERY = 12, 4  # updates; between two checkpoints and between two evaluations
TINY = [
    "preset=smoke",
    "device=cpu",
    "tracking=none",
    "data.vocab_size=340",
    "data.num_train=60",
    "data.num_dev=5",
    "data.num_test=1",
    f"optim.train_steps={STEPS * 10000 // 6}",  # in the paper's units; smoke's scale.steps is 0.0006
    f"optim.eval_every_steps={EVERY}",
    f"optim.checkpoint_every_steps={EVERY}",
    "decode.beam_size=2",
    "decode.max_extra=2",
    "log_every_steps=2",
]


def quiet(text: str) -> None:
    pass


def planned(*overrides: str) -> Plan:
    """Plan tiny runs and freeze them under the working directory's `runs/`."""
    plan = plan_from([*TINY, *overrides], prepare=True, say=quiet)
    for run in plan.runs:
        freeze(run)
    return plan


def tiny_run(*overrides: str) -> RunDir:
    """Plan and freeze one tiny run."""
    return planned(*overrides).runs[0].run


class StopAt(StopFlag):
    """Asks for a stop when it is asked for the n-th time: after update n, or in a later step of the search."""

    def __init__(self, asks: int) -> None:
        super().__init__()
        self.asks = asks

    def __call__(self) -> bool:
        self.asks -= 1
        if self.asks == 0:
            self.set("SIGTERM")
        return super().__call__()


_undisturbed: dict[tuple[str, ...], record.Record] = {}


def undisturbed(*overrides: str) -> record.Record:
    """Give what a tiny run that nobody interrupts says of itself; done once per process and kind of run.

    Every shape and type in a signature is checked in it.
    """
    if overrides not in _undisturbed:
        with pytest.MonkeyPatch.context() as monkeypatch:
            monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", False)
            run = tiny_run(*overrides, "runs_dir=undisturbed")
            assert take(run, StopFlag()) == DONE, run.error.read_text()
        _undisturbed[overrides] = record.comparable(record.read(run))
    return _undisturbed[overrides]


def wait_until(true: Callable[[], object], what: str, timeout_s: float = 600) -> None:
    """Wait for something that must come; the time limit only keeps a broken test from hanging."""
    deadline = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < deadline, f"waited {timeout_s} s in vain: {what}"
        time.sleep(0.01)


def alive(pid: int) -> bool:
    """Tell whether a process is still there, and not only its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def end(pid: int) -> None:
    """Make sure that a process of this test does not outlive it."""
    if alive(pid):
        os.kill(pid, signal.SIGKILL)


def tree(*roots: Path) -> list[tuple[Path, int, int]]:
    """Take down every path under some folders with its size and its time of change."""
    found = [path for root in roots for path in (root, *root.rglob("*")) if path.exists()]
    return sorted((path, path.stat().st_size, path.stat().st_mtime_ns) for path in found)
