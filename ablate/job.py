"""What a SLURM job does: start its runs' workers, pass requests to stop on to them, put itself back into the queue.

The work is done in processes of their own, so that one that is killed takes neither its job nor the other runs along:
it goes on, in the same job put back, when the others have ended.
"""

import os
import platform
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, cast

from ablate import frozen, ledger, slurm
from ablate.ranks import Ranks
from ablate.rundir import RunDir, say, write_text
from ablate.slurm import Unreachable
from ablate.spawn import DONE, FAILED, HELD, STOPPED, note_crash, start
from ablate.state import held, last_beat
from ablate.stop import StopFlag

POLL_S = 0.1
HELD_PATIENCE_S = 120.0  # a node that was cut off keeps its locks until the file system gives it up
REQUEUE_PATIENCE_S = 60.0  # a controller is restarted faster
FRUITLESS = 3  # so many ends of one kind in a row, at the same checkpoint, and the run has failed
REASONS = {"SIGUSR2": "time limit", "SIGTERM": "preempted"}  # the first because the batch script asks SLURM for it


def work(folders: list[str]) -> None:
    """Do these runs, frozen in their folders, at once; what submitit is given.

    Raises:
        SystemExit: with the exit code, the worst of the runs': 1 failed, 75 stopped, 3 held by others; 0: all done.
    """
    stop = StopFlag()
    stop.listen()  # in place of submitit's handlers, which would requeue in the middle of an update
    sys.exit(do([RunDir(Path(folder)) for folder in folders], Ranks.of_slurm(), stop))


def do(runs: list[RunDir], ranks: Ranks, stop: StopFlag) -> int:
    """Do what is not done yet of these runs; gives the exit code."""
    job = job_id()
    open_runs = [run for run in runs if not any(path.exists() for path in (run.record, run.error, run.cancelled))]
    kills = oom_kills()
    codes = attend(open_runs, job, ranks, stop)
    if ranks.rank > 0:
        return DONE  # rank 0 speaks for all; some sites end a job when one of its processes fails
    out_of_memory = oom_kills() > kills
    ends = {run: judge(run, code, stop.reason, out_of_memory) for run, code in codes.items()}
    then = put_back(job) if STOPPED in [code for code, _ in ends.values()] else ""
    for run, (code, reason) in ends.items():
        say(f"{run.path}: {code} {reason} {then if code == STOPPED else ''}".strip())
        with suppress(OSError):  # a full disk; the run's state does not hang on it
            facts = {"code": codes[run], "reason": reason, "step": checkpointed(run)}
            ledger.note(run, "ended", job=job, **facts, then=then if code == STOPPED else "")
    return next((code for code in (FAILED, STOPPED, HELD) if code in [end for end, _ in ends.values()]), DONE)


def attend(runs: list[RunDir], job: str, ranks: Ranks, stop: StopFlag) -> dict[RunDir, int]:
    """Start the runs' workers and wait until all have ended, asking them to stop when this job is; gives exit codes."""
    workers = {}
    for run in runs:
        if ranks.rank == 0:
            deadline = time.monotonic() + HELD_PATIENCE_S
            while held(run.lock) and time.monotonic() < deadline and not stop():
                time.sleep(1)
            restart = int(os.environ.get("SLURM_RESTART_COUNT", 0))
            ledger.note(run, "started", job=job, host=node(), restart=restart, pid=os.getpid())
        workers[run] = start(run, frozen.load(run.config).cluster.threads, ranks)
    asked = False
    going = dict(workers)
    while going:
        for run, worker in list(going.items()):
            if (code := worker.poll()) is not None:
                del going[run]
                if ranks.rank == 0 and not run.record.exists():
                    with suppress(OSError):  # a full disk
                        note_crash(run, code)  # at once: before the others have ended, another job may do it again
        if stop() and not asked:
            asked = True
            for worker in workers.values():
                worker.terminate()
        time.sleep(POLL_S)
    for worker in workers.values():
        cast(IO[bytes], worker.stdin).close()
    return {run: worker.returncode for run, worker in workers.items()}


def judge(run: RunDir, code: int, asked: str, out_of_memory: bool) -> tuple[int, str]:
    """Decide what the end of a run's worker means.

    Args:
        run: its worker has ended.
        code: the worker's exit code; negative: the signal that killed it.
        asked: the signal that asked this job to stop; empty if none did.
        out_of_memory: whether the kernel killed a process of this job for its memory.

    Returns:
        0 done or cancelled, 1 failed, 3 held by another process, or 75 to go on later; and why.
    """
    if code == DONE or run.record.exists():  # a signal may come between the record and the worker's end
        return DONE, ""
    if code == HELD:
        return HELD, "another process has it"
    if code > 0 and code != STOPPED:
        # Gone where the run is being done again already.
        return FAILED, run.error.read_text("utf-8").split("\n", 1)[0] if run.error.exists() else f"exit code {code}"
    if run.cancelled.exists():
        return DONE, run.cancelled.name
    if code in (STOPPED, -signal.SIGTERM):  # the latter before it could listen
        reason = asked or last_beat(run).get("reason", "SIGTERM")
        reason = REASONS.get(reason, reason)
    else:
        reason = f"killed by {signal.Signals(-code).name}"
        if out_of_memory:
            return fail(run, "OutOfMemory", "the kernel ended it at the job's memory limit; cluster.mem_gb sets it")
    if reason != "preempted" and fruitless(run, reason) >= FRUITLESS - 1:
        hint = "cluster.timeout_min is too short" if reason == "time limit" else "perhaps it was out of memory"
        return fail(run, "NoProgress", f"{reason}, {FRUITLESS} times after update {checkpointed(run)}; {hint}")
    return STOPPED, reason


def fail(run: RunDir, kind: str, why: str) -> tuple[int, str]:
    """Mark a run as failed whose worker could not do so itself."""
    write_text(run.error, f"{kind}: {why}\n\njob {job_id()} on {node()}; see {run.log}\n")
    return FAILED, f"{kind}: {why}"


def fruitless(run: RunDir, reason: str) -> int:
    """Count the run's last ends in a row that had this reason and no newer checkpoint than there is now."""
    ends = [line for line in ledger.history(run) if line["event"] == "ended"]
    count = 0
    while count < len(ends) and (ends[-1 - count]["reason"], ends[-1 - count]["step"]) == (reason, checkpointed(run)):
        count += 1
    return count


def checkpointed(run: RunDir) -> int:
    """Tell after which update the newest checkpoint is; 0: there is none."""
    return max((int(path.name.removeprefix("step-")) for path in run.checkpoints.glob("step-*")), default=0)


def oom_kills(proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")) -> int:
    """Count the processes of this job that the kernel killed because its memory limit was reached; 0 if unknown."""
    lines = proc.read_text("utf-8").splitlines() if proc.exists() else []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):  # version 2, version 1
            file = root / controllers / path.lstrip("/") / ("memory.oom_control" if controllers else "memory.events")
            if file.exists():
                words = dict(entry.split() for entry in file.read_text("utf-8").splitlines())
                return int(words.get("oom_kill", 0))
    return 0


def put_back(job: str) -> str:
    """Requeue this job; says what came of it, as `slurm.requeue` or why it could not be."""
    try:
        return slurm.requeue(job, REQUEUE_PATIENCE_S)
    except Unreachable as err:
        return f"left: {err}"


def job_id() -> str:
    """Name the job that this process is part of, as SLURM does: "12", or "12_3" for task 3 of an array."""
    array, task = os.environ.get("SLURM_ARRAY_JOB_ID"), os.environ.get("SLURM_ARRAY_TASK_ID")
    return f"{array}_{task}" if array else os.environ["SLURM_JOB_ID"]


def node() -> str:
    """Name the node as SLURM does."""
    return os.environ.get("SLURMD_NODENAME", platform.node())
