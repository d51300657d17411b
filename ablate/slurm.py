"""Ask SLURM, and tell it: its commands, each with a time limit."""

import math
import os
import subprocess
import time
from collections.abc import Iterable
from dataclasses import dataclass

ANSWER_S = 10.0  # time limit of one question
TRIES = 3  # a controller that is restarted is gone for seconds
PAUSE_S = 1.0  # before the second try, doubled before each further one
REASONS = {  # SLURM's states of a job that is over: why, in words
    "COMPLETED": "killed",  # without a word of its own
    "FAILED": "killed",
    "OUT_OF_MEMORY": "out of memory",
    "TIMEOUT": "time limit",
    "NODE_FAIL": "node failure",
    "BOOT_FAIL": "node failure",
    "PREEMPTED": "preempted",
    "CANCELLED": "cancelled",
    "DEADLINE": "deadline",
    "REVOKED": "cancelled",
}


class Unreachable(RuntimeError):
    """SLURM does not answer; the message says which command and why."""


@dataclass(frozen=True)
class Job:
    """A job or a task of an array, as SLURM has it now."""

    id: str  # "12_3" is task 3 of array 12
    name: str
    state: str  # SLURM's: PENDING, RUNNING, COMPLETED …
    reason: str = ""  # why it is pending, or why it failed

    @property
    def alive(self) -> bool:
        """Tell whether it runs or will; true for states that this module does not know."""
        return self.state not in REASONS

    @property
    def words(self) -> str:
        """Say what it is and why."""
        why = f", {self.reason}" if self.reason not in ("", "None") and self.state == "PENDING" else ""
        return f"job {self.id} {self.state.lower()}{why}"


def ask(*command: str, tries: int = TRIES, patience_s: float = math.inf) -> str:
    """Ask SLURM something, again if it does not answer at once.

    Args:
        command: with its arguments.
        tries: how often, at most.
        patience_s: after so many seconds it is not asked again.

    Raises:
        Unreachable: if it does not answer.
    """
    deadline = time.monotonic() + patience_s
    for attempt in range(tries):
        if attempt:
            time.sleep(PAUSE_S * 2 ** (attempt - 1))
            if time.monotonic() > deadline:
                break
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S)
        except FileNotFoundError:
            raise Unreachable(f"{command[0]}: not found here") from None
        except subprocess.TimeoutExpired:
            why = f"no answer in {ANSWER_S:.0f} s"
            continue
        if done.returncode == 0:
            return done.stdout
        why = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
    raise Unreachable(f"{command[0]}: {why}")


def queue(patience_s: float = math.inf) -> dict[str, Job]:
    """List the user's jobs, those that ended a few minutes ago included; one question, however many there are.

    Raises:
        Unreachable: as `ask`.
    """
    options = ("--array", "--noheader", "--states=all", "--format=%i|%j|%T|%r")
    text = ask("squeue", f"--user={os.getuid()}", *options, patience_s=patience_s)
    lines = [line.split("|", 3) for line in text.splitlines()]
    return {fields[0]: Job(*fields) for fields in lines if len(fields) == 4}  # not a heading, as of several clusters


def accounted(ids: Iterable[str]) -> dict[str, str]:
    """Ask the accounting, in one question, how jobs ended: SLURM's state by job, those that it knows.

    It is asked about whole arrays: thousands of tasks would make too long a command.

    Raises:
        Unreachable: as `ask`; many sites have no accounting.
    """
    wanted = sorted({job.partition("_")[0] for job in ids})
    if not wanted:
        return {}
    text = ask("sacct", "-X", "-n", "-P", "-j", ",".join(wanted), "-o", "JobID,State", tries=1)
    pairs = [line.split("|", 1) for line in text.splitlines() if "|" in line]
    return {job: state.split()[0] for job, state in pairs if state}  # "CANCELLED by 1000"


def shown(job: str) -> dict[str, str]:
    """Ask the controller about one job: what it calls JobState, Requeue and so on.

    Raises:
        Unreachable: as `ask`; for a job that it has forgotten, too.
    """
    return dict(word.partition("=")[::2] for word in ask("scontrol", "show", "job", "-o", job).split())


def max_array_size() -> int:
    """Ask how many tasks an array may have here; 0: no arrays.

    Raises:
        Unreachable: as `ask`.
    """
    for line in ask("scontrol", "show", "config").splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "MaxArraySize":
            return int(value)
    return 0


def requeue(job: str, patience_s: float) -> str:
    """Put the job that this process is part of back into the queue, from where it goes on when there is room.

    Only a job that SLURM considers running: it requeues a preempted one by itself, and a cancelled one shall not come
    back.

    Args:
        job: its number.
        patience_s: how long to keep asking a controller that does not answer.

    Returns:
        "requeued", or "left" and why: to SLURM, which has ended the job.

    Raises:
        Unreachable: if it cannot be asked, or refuses.
    """
    deadline, asked = time.monotonic() + patience_s, False
    while True:
        try:
            if (state := shown(job).get("JobState")) != "RUNNING":
                return "requeued" if asked else f"left: SLURM has it as {state}"
            asked = True
            ask("scontrol", "requeue", job, tries=1)  # SLURM may end it with the job before it can tell
            return "requeued"
        except Unreachable:
            if time.monotonic() > deadline:
                raise
            time.sleep(PAUSE_S)


def cancel(jobs: Iterable[str]) -> None:
    """Cancel these jobs, in one command. A running one is asked to end and killed half a minute later.

    Raises:
        Unreachable: as `ask`.
    """
    if wanted := sorted(set(jobs)):
        ask("scancel", *wanted)


def choices(command: list[str]) -> list[str]:
    """List the words that a question gives, such as a site's partitions; none if it has no answer."""
    try:
        return sorted(set(ask(*command, tries=1).replace(",", " ").split()))
    except Unreachable:
        return []
