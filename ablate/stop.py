"""How a run is asked to stop: by a signal, its parent process's end, another of its processes, or `ablate.cancel`."""

import os
import signal
import threading
import time
from pathlib import Path

LOOK_EVERY_S = 1.0  # for a file that asks to stop


class Stopped(Exception):
    """Work that was asked to stop has; what it had to keep is kept."""


class StopFlag:
    """Set by SIGTERM, SIGUSR2, SIGINT, the parent process's end or a file; read at update boundaries only."""

    def __init__(self) -> None:
        self.reason = ""

    def __call__(self) -> bool:
        """Tell whether the run was asked to stop."""
        return bool(self.reason)

    def listen(self) -> None:
        """Listen to signals."""
        for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
            signal.signal(number, lambda received, frame: self.set(signal.Signals(received).name))

    def watch_parent(self) -> None:
        """Stop when standard input ends: the pool holds its other end, so even a killed pool leaves no orphans."""

        def wait() -> None:
            while os.read(0, 1024):
                pass
            self.set("the parent process ended")

        threading.Thread(target=wait, daemon=True).start()

    def watch_file(self, path: Path) -> None:
        """Stop when there is a file of this name; its name is the reason."""

        def wait() -> None:
            while not path.exists():
                time.sleep(LOOK_EVERY_S)
            self.set(path.name)

        threading.Thread(target=wait, daemon=True).start()

    def set(self, reason: str) -> None:
        """Ask the run to stop."""
        self.reason = self.reason or reason

    def heed(self, rank: int | None) -> bool:
        """Stop if a process of the run says so; tells whether one does.

        Args:
            rank: which one; None: none does.
        """
        if rank is not None:
            self.set(f"rank {rank} was asked to stop")
        return rank is not None
