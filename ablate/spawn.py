"""A run's worker processes: start them, and tell what their exit codes mean. Imports neither Hydra nor torch."""

import math
import os
import subprocess
import sys
import time
from typing import IO, cast

from ablate import frozen
from ablate.ranks import ALONE, Ranks
from ablate.rundir import RunDir, write_text

DONE, FAILED, HELD, STOPPED = 0, 1, 3, 75  # exit codes of `ablate.worker`
PATIENCE_S = 120.0  # for the other processes of a run to write their checkpoint and end, when one has ended


def start(run: RunDir, threads: int, ranks: Ranks = ALONE, gpus: str = "") -> subprocess.Popen[bytes]:
    """Start one process of a run, in a session of its own: Ctrl-C reaches only this process, which then asks it to end.

    Its standard input is a pipe whose other end only this process has: it ends when this process does, however it ends.
    """
    environment = {**os.environ, **ranks.environment(), "ABLATE_WATCH_PARENT": "1", "OMP_NUM_THREADS": str(threads)}
    if gpus:
        environment["CUDA_VISIBLE_DEVICES"] = gpus
    with open(run.log, "ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "ablate.worker", str(run.path)],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


class Worker:
    """The processes of one run, one per rank."""

    def __init__(self, run: RunDir, gpus: str = "") -> None:
        """Start them, as many as the frozen configuration says, each with as many threads.

        Args:
            run: frozen.
            gpus: the only ones they see, as in CUDA_VISIBLE_DEVICES; empty: all that this process sees.
        """
        cluster = frozen.load(run.config).cluster
        self.processes = [start(run, cluster.threads, ranks, gpus) for ranks in Ranks.on_this_machine(cluster.ranks)]
        self.patience_ends_s = math.inf

    def poll(self) -> int | None:
        """Give the exit code, once all have ended: an error's if there was one, else rank 0's."""
        codes = [process.poll() for process in self.processes]
        if None in codes:
            if any(codes):  # the others have noticed, unless they still wait to meet it, or on a GPU
                self.terminate()
                self.patience_ends_s = min(self.patience_ends_s, time.monotonic() + PATIENCE_S)
            if time.monotonic() > self.patience_ends_s:
                self.kill()
            return None
        for process in self.processes:
            cast(IO[bytes], process.stdin).close()
        return next((code for code in codes if is_error(code)), codes[0])

    def terminate(self) -> None:
        """Ask them to stop at a checkpoint."""
        for process in self.processes:
            process.terminate()

    def kill(self) -> None:
        """End them."""
        for process in self.processes:
            process.kill()


def is_error(code: int | None) -> bool:
    """Tell whether an exit code stands for a failure: not for the end, a kill, or a run that is to go on."""
    return code is not None and code > 0 and code not in (HELD, STOPPED)


def note_crash(run: RunDir, code: int) -> None:
    """Mark a run as failed whose worker ended in an error before it could say so itself, such as a broken import."""
    if is_error(code) and not run.error.exists():
        write_text(run.error, f"the worker ended with exit code {code}; see {run.log}\n")
