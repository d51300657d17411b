"""What SLURM knows of our jobs, and what a run's folder knows: `jobs.jsonl`, one line whenever something happened.

Every question to SLURM has a time limit. The lines of `jobs.jsonl` have `time` (seconds since 1970), `job` (such as
"12_3", task 3 of array 12, or "12") and `event`:

    submitting    name, task: about to be submitted under this name, as this task of the array (null: no array)
    submitted     name, task, folder (of the batch script), log (of the job; the run's own is log.txt)
    started       host, restart (0 at first), pid
    ended         code (as of `ablate.worker`, negative: killed by this signal), step, reason, and then: "" for good,
                  "requeued", or "left: …" to SLURM, which puts preempted jobs back by itself
    lost          state (SLURM's), reason: found to have ended without a word

Whoever submits writes the first two and `lost`, holding the submission lock; the job itself writes the others.
"""

import json
import math
import os
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.rundir import RunDir, write_text

ANSWER_S = 10.0  # time limit of one question
TRIES = 3  # a controller that is restarted is gone for seconds
PAUSE_S = 1.0  # before the second try, doubled before each further one
ASK_EVERY_S, ASK_SELDOM_S = 5.0, 60.0  # between two questions while somebody watches
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


def note(run: RunDir, event: str, **facts: Any) -> None:
    """Append a line to a run's `jobs.jsonl`, in one write."""
    run.path.mkdir(parents=True, exist_ok=True)
    line = json.dumps({"time": time.time(), "event": event, **facts}, ensure_ascii=False) + "\n"
    with open(run.jobs, "ab", buffering=0) as file:
        file.write(line.encode())


def history(run: RunDir) -> list[dict[str, Any]]:
    """Read a run's `jobs.jsonl`, oldest first; a line that a kill or a full disk cut short is left out."""
    if not run.jobs.exists():
        return []
    lines = []
    for text in run.jobs.read_text("utf-8").splitlines():
        try:
            lines.append(json.loads(text))
        except ValueError:
            continue
    return lines


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


@dataclass(frozen=True)
class Fate:
    """What became of a run's last job."""

    alive: bool  # it runs or will: to submit another would be one too many
    words: str
    state: str = ""  # SLURM's; empty where nobody knows
    job: str | None = None


def fates(
    runs: Iterable[RunDir], warn: Callable[[str], None] = lambda text: None, patience_s: float = math.inf
) -> dict[RunDir, Fate]:
    """Find out what became of the last jobs of these runs; runs that never had one, or whose job said it ended, are
    left out. At most one question to squeue and one to sacct; none where no job is open.

    A job that squeue does not know is over: the accounting, if there is one, says how. Where squeue does not answer
    nobody knows, and then a job counts as alive, so that nothing is ever submitted twice.

    Args:
        runs: of these.
        warn: told who did not answer, and what that means.
        patience_s: as of `ask`.
    """
    opened = {run: last for run in runs if (last := open_job(run))}
    if not opened:
        return {}
    if shutil.which("squeue") is None:
        return {run: Fate(False, "its job is unknown: no squeue here", job=last["job"]) for run, last in opened.items()}
    try:
        jobs = queue(patience_s)
    except Unreachable as err:
        warn(f"{err}; what is queued is not known, the rest is what the runs themselves have said")
        return {run: Fate(True, f"its job is unknown: {err}", job=last["job"]) for run, last in opened.items()}
    named = {(job.name, job.id.partition("_")[2]): job for job in jobs.values()}
    found: dict[RunDir, Fate] = {}
    missing: dict[RunDir, str] = {}
    for run, last in opened.items():
        task = "" if last["task"] is None else str(last["task"])
        job = jobs.get(last["job"] or "") or named.get((last["name"], task))
        if job:
            words = job.words if job.alive else REASONS[job.state]
            if job.alive and run.cancelled.exists():
                words = f"cancelled; {words}"  # it ends soon, or goes on with other runs
            found[run] = Fate(job.alive, words, job.state, job.id)
        else:
            missing[run] = last["job"] or ""
    try:
        states = accounted(filter(None, missing.values()))
    except Unreachable as err:
        warn(f"{err}; why jobs ended that left no word is not known")
        states = {}
    for run, job_id in missing.items():
        state = states.get(job_id, "")
        found[run] = Fate(False, REASONS.get(state, "killed" if job_id else "not submitted"), state, job_id or None)
    for run, fate in found.items():
        if not fate.alive and short_of_memory(Path(opened[run]["log"] or os.devnull)):
            found[run] = Fate(False, REASONS["OUT_OF_MEMORY"], "OUT_OF_MEMORY", fate.job)
    return found


class Enquiry:
    """Asks SLURM about runs while somebody watches, ever more seldom while nothing happens."""

    def __init__(self, patience_s: float = math.inf) -> None:
        self.patience_s = patience_s  # as of `ask`
        self.fates: dict[RunDir, Fate] = {}
        self.warnings: list[str] = []
        self.asked_at_s = -math.inf  # monotonic
        self.pause_s = ASK_EVERY_S

    @property
    def due(self) -> bool:
        """Tell whether it is time to ask."""
        return time.monotonic() - self.asked_at_s > self.pause_s

    @property
    def age_s(self) -> float | None:
        """Tell for how many seconds its answers have been known; None where there was nothing to ask."""
        return time.monotonic() - self.asked_at_s if self.fates else None

    def ask(self, runs: Iterable[RunDir]) -> dict[RunDir, Fate]:
        """Ask now, as `fates` does."""
        before, self.warnings = self.fates, []
        self.fates = fates(runs, self.warnings.append, self.patience_s)
        self.pause_s = ASK_EVERY_S if self.fates != before else min(1.5 * self.pause_s, ASK_SELDOM_S)
        self.asked_at_s = time.monotonic()
        return self.fates


def short_of_memory(log: Path) -> bool:
    """Tell whether SLURM says in a job's log that it exceeded its memory limit; it does not always in its state."""
    if not log.is_file():
        return False
    with open(log, "rb") as file:
        file.seek(max(0, log.stat().st_size - 10_000))
        return re.search(rb"oom[-_ ]kill|exceeded (?:job )?memory limit", file.read(), re.IGNORECASE) is not None


def close(found: dict[RunDir, Fate]) -> None:
    """Write down, for runs whose jobs ended without a word, what became of them; nobody has to ask again.

    A run whose job was ended at its memory limit has failed: to go on would end the same way.
    """
    for run, fate in found.items():
        if not fate.alive:
            note(run, "lost", job=fate.job, state=fate.state, reason=fate.words)
            if fate.state == "OUT_OF_MEMORY":
                write_text(run.error, f"OutOfMemory: SLURM ended job {fate.job} at its memory limit\n")


def open_job(run: RunDir) -> dict[str, Any] | None:
    """Give a run's last submission if its job is not known to have ended: its name, task and, maybe, job and log."""
    last: dict[str, Any] | None = None
    for line in history(run):
        if line["event"] == "submitting":
            last = {"job": None, "log": None, **line}
        elif last is None or (line["event"] != "submitted" and last["job"] not in (None, line["job"])):
            continue  # an earlier job speaks up late
        elif line["event"] in ("submitted", "started"):
            last = {**last, "job": line["job"], "log": line.get("log", last["log"])}
        elif line["event"] == "lost" or not line["then"]:
            last = None
    return last


def last_words(run: RunDir, since: float) -> str:
    """Give the reason for which a run's last job ended after that time (seconds since 1970); empty if none did."""
    lines = history(run)
    ended = lines and lines[-1]["event"] in ("ended", "lost") and lines[-1]["time"] >= since
    return lines[-1]["reason"] if ended else ""


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
