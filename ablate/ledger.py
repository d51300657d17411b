"""What became of runs' jobs: what their folders say, in `jobs.jsonl`, and what SLURM says.

A line whenever something happened, with `time` (seconds since 1970), `job` (such as "12_3", task 3 of array 12, or
"12") and `event`:

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
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ablate.rundir import RunDir, write_text
from ablate.slurm import REASONS, Unreachable, accounted, queue

ASK_EVERY_S, ASK_SELDOM_S = 5.0, 60.0  # between two questions while somebody watches
PATIENCE_S = 5.0  # of who only looks, with a SLURM that does not answer


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
