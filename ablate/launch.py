"""Start runs: a pool of worker processes on this machine, and what the terminal shows meanwhile."""

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from types import FrameType

import psutil
from rich.console import Console

from ablate import frozen, record
from ablate.config import LocalCluster
from ablate.device import visible_gpus
from ablate.plan import PlannedRun
from ablate.rundir import RunDir, write_json
from ablate.spawn import DONE, HELD, STOPPED, Worker, note_crash
from ablate.state import RunState, read_state
from ablate.status import duration, listing, live, number

POLL_S = 0.25
LINE_EVERY_S = 30.0  # between two plain lines of one run, without a terminal


@dataclass
class Outcome:
    """How the launched runs ended."""

    done: list[RunDir]
    failed: list[RunDir]
    held: list[RunDir]  # another process has them
    stopped: list[RunDir]  # by Ctrl-C; or killed
    interrupted: bool = False


def num_workers(cluster: LocalCluster, device: str) -> int:
    """Decide how many runs go at once: as asked, or as many as the GPUs or else the physical cores carry."""
    if cluster.workers:
        return cluster.workers
    if device == "cuda":
        return max(1, len(visible_gpus()) // cluster.ranks)
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    return max(1, cores // (cluster.ranks * cluster.threads))


def gpus_of(run: RunDir, place: int) -> str:
    """Choose the GPUs of a run, one for each of its processes, as in CUDA_VISIBLE_DEVICES; empty without any.

    Args:
        run: frozen.
        place: its number among the runs that go at once, from 0; more than there are GPUs for share them.
    """
    cfg = frozen.load(run.config)
    gpus = visible_gpus() if cfg.device == "cuda" else []
    ranks = cfg.cluster.ranks
    if len(gpus) < ranks:
        return ""
    first = place % (len(gpus) // ranks) * ranks
    return ",".join(gpus[first : first + ranks])


def freeze(planned: PlannedRun) -> None:
    """Write the finished configuration into the run's folder; the worker reads it and composes nothing."""
    assert planned.corpus is not None, "a plan without its corpus cannot be launched"
    write_json(
        planned.run.identity,
        {
            "fingerprint": planned.fingerprint,
            "digests": planned.corpus.digests,
            "corpus": str(planned.corpus.folder),
            "changes": planned.changes,
            "sweeps": planned.sweeps,
            "command": planned.command,
            "code": record.code_digest(),
            "science": planned.science,
        },
    )
    frozen.save(planned.cfg, planned.run.config)


def launch(runs: dict[tuple[str, int], RunDir], workers: int, console: Console) -> Outcome:
    """Do these runs, some at once, showing all of them; a failing one does not stop the others.

    Args:
        runs: frozen runs by row and seed, in the order to start them.
        workers: how many at once.
        console: where to show them: a live table on a terminal, plain lines elsewhere.

    Returns:
        How they ended. After Ctrl-C every worker has written a checkpoint and ended.
    """
    waiting = list(runs.values())
    going: dict[RunDir, Worker] = {}
    places: dict[RunDir, int] = {}
    ended: dict[RunDir, int] = {}
    for run in waiting:
        run.cancelled.unlink(missing_ok=True)  # from now on it means this launch
    interrupts: list[int] = []

    def states() -> dict[tuple[str, int], RunState]:
        found = {key: read_state(run) for key, run in runs.items()}
        for key, run in runs.items():
            if ended.get(run) == HELD:
                found[key].reason = "by another process, " + run.lock.read_text("utf-8").strip()
        return found

    with on_interrupt(interrupts), view(states, console) as show:
        while waiting or going:
            while waiting and len(going) < workers and not interrupts:
                run = waiting.pop(0)
                if not run.cancelled.exists():
                    taken = {places[other] for other in going}
                    places[run] = next(place for place in range(workers) if place not in taken)
                    going[run] = Worker(run, gpus_of(run, places[run]))
            if interrupts:
                waiting.clear()
                for worker in going.values():
                    worker.terminate() if len(interrupts) < 3 else worker.kill()
            for run, worker in list(going.items()):
                if (code := worker.poll()) is not None:
                    ended[run] = code
                    del going[run]
                    note_crash(run, code)
            show()
            time.sleep(POLL_S)
        show()
    outcome = Outcome([], [], [], [], bool(interrupts))
    kinds = {DONE: outcome.done, HELD: outcome.held, STOPPED: outcome.stopped}
    for run in runs.values():
        code = ended.get(run, STOPPED)
        kinds.get(code, outcome.stopped if code < 0 and not run.error.exists() else outcome.failed).append(run)
    return outcome


@contextmanager
def on_interrupt(received: list[int]) -> Iterator[None]:
    """Collect SIGINT and SIGTERM in a list instead of dying of them, so that workers can finish their checkpoints."""

    def note(signal_number: int, frame: FrameType | None) -> None:
        received.append(signal_number)

    before = {number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for signal_number, handler in before.items():
            signal.signal(signal_number, handler)


@contextmanager
def view(states: Callable[[], dict[tuple[str, int], RunState]], console: Console) -> Iterator[Callable[[], None]]:
    """Show runs by row and seed: a live table where there is a terminal, else a line whenever a run has news."""
    if console.is_terminal:
        with live(console) as show:
            show(partial(listing, states()))
            yield lambda: show(partial(listing, states()))
        return
    said: dict[tuple[str, int], tuple[str, float]] = {}

    def lines() -> None:
        now = time.monotonic()
        for (row, seed), state in states().items():
            words = state.words if state.name != "running" else " ".join(state.words.split()[:2])  # without counts
            last, at_s = said.get((row, seed), ("new", now))
            if words != last or (state.name == "running" and now - at_s > LINE_EVERY_S):
                said[row, seed] = words, now
                console.print(plain(row, seed, state), highlight=False, markup=False, soft_wrap=True)

    yield lines


def plain(row: str, seed: int, state: RunState) -> str:
    """Write one run's state as a line."""
    parts = [f"{row} seed {seed}: {state.words}"]
    if state.step is not None:
        parts.append(f"step {state.step}/{state.total}")
    for name, value, digits in (
        ("tokens/s", state.tokens_per_s, 0),
        ("loss", state.loss, 3),
        ("dev PPL", state.dev_ppl, 2),
        ("BLEU", state.bleu, 1),
    ):
        if value is not None:
            parts.append(f"{name} {number(value, digits)}")
    if state.eta_s is not None:
        parts.append(f"ETA {duration(state.eta_s)}")
    return ", ".join(parts)
