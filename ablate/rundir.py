"""Every path in a run's folder, the writes that are whole or not there, and the lock that makes a run run once."""

import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEETING_S = 3600.0  # longer than any meeting of an attempt's processes lasts


def write_bytes(path: Path, data: bytes, durable: bool = True) -> None:
    """Write a file aside and rename it, so that a reader sees the old file or the new one, never a part.

    Args:
        path: the file; its folder is made if missing.
        data: its whole content.
        durable: also flush it to the disk, so that it survives a power cut; False for what is soon written again.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with open(aside, "wb") as file:
        file.write(data)
        file.flush()
        if durable:
            os.fsync(file.fileno())
    os.replace(aside, path)
    if durable:
        sync_folder(path.parent)


def write_text(path: Path, text: str, durable: bool = True) -> None:
    """Write a UTF-8 text file as `write_bytes` does."""
    write_bytes(path, text.encode(), durable)


def write_json(path: Path, value: Any, durable: bool = True) -> None:
    """Write a JSON file as `write_bytes` does; NaN and infinity are refused."""
    write_text(path, json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False) + "\n", durable)


def read_json(path: Path) -> Any:
    """Read a JSON file; None where there is none.

    Raises:
        ValueError: naming the file, if it holds something else.
    """
    try:
        return json.loads(path.read_text("utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except ValueError as err:
        raise ValueError(f"{path}: is not JSON ({err})") from err


def sync_folder(folder: Path) -> None:
    """Flush a folder's entries to the disk, so that a rename in it survives a power cut."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class Held(RuntimeError):
    """A lock that another process holds; the message says which one."""


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """Hold an exclusive lock file; the operating system frees it when the process ends, however it ends.

    Raises:
        Held: if another process has it, with its host and process number.
        OSError: if the file system has no locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            file.seek(0)
            raise Held(file.read().strip() or "another process") from err
        except OSError as err:  # such as ENOLCK on some network file systems: nobody has it, and waiting would not help
            raise OSError(err.errno, f"{err.strerror}; its file system must support flock", str(path)) from err
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


@dataclass(frozen=True)
class RunDir:
    """The folder of one run; the one class that knows what is called what in it."""

    path: Path

    @classmethod
    def of(cls, root: Path, preset: str, row: str, fingerprint: str, seed: int) -> "RunDir":
        """Name a run's folder: `<root>/<preset>/<row>/<fingerprint>/seed<k>`."""
        return cls(root / preset / row / fingerprint / f"seed{seed}")

    @property
    def config(self) -> Path:
        """The frozen configuration."""
        return self.path / "config.yaml"

    @property
    def identity(self) -> Path:
        """The fingerprint, the digests and the science it was made of."""
        return self.path / "identity.json"

    @property
    def provenance(self) -> Path:
        """Commit, versions, host, command, digests; one entry per attempt."""
        return self.path / "provenance.json"

    @property
    def heartbeat(self) -> Path:
        """What the worker last said of itself."""
        return self.path / "heartbeat"

    @property
    def metrics(self) -> Path:
        """One JSON object a line, append-only, of every attempt."""
        return self.path / "metrics.jsonl"

    @property
    def checkpoints(self) -> Path:
        """The folder of `step-000400/` folders."""
        return self.path / "checkpoints"

    @property
    def log(self) -> Path:
        """What the worker printed."""
        return self.path / "log.txt"

    @property
    def record(self) -> Path:
        """What the finished run says of itself; its existence means finished."""
        return self.path / "record.json"

    @property
    def error(self) -> Path:
        """The traceback of a failed run; its existence means failed, until `ablate.retry` moves it away."""
        return self.path / "error.txt"

    @property
    def cancelled(self) -> Path:
        """Its existence asks whoever does the run to stop, until a command starts it again."""
        return self.path / "cancelled"

    @property
    def lock(self) -> Path:
        """Held by the worker while it runs."""
        return self.path / "lock"

    def meeting(self, name: str) -> Path:
        """Where the processes of one attempt learn how to reach the one that leads them."""
        return self.path / f".meeting.{name}"

    @property
    def jobs(self) -> Path:
        """What became of its jobs on a cluster, append-only: see `ledger`."""
        return self.path / "jobs.jsonl"

    @property
    def wandb(self) -> Path:
        """W&B's own files."""
        return self.path / "wandb"

    @property
    def wandb_url(self) -> Path:
        """The address at which W&B shows this run; there once W&B has a part of it."""
        return self.wandb / "url.txt"

    @property
    def needs_sync(self) -> Path:
        """Says that W&B, which was to have all of this run, may lack a part of it; `ablate.sync` removes it."""
        return self.path / "needs-sync.txt"

    def sweep(self) -> None:
        """Remove what killed workers left, half-written heartbeats and meetings; only the holder of the lock may.

        Not what planners write: they hold no lock, and may be writing now.
        """
        for left in self.path.glob(f".{self.heartbeat.name}.*.tmp"):
            left.unlink(missing_ok=True)
        for place in self.path.glob(".meeting.*"):
            if time.time() - place.stat().st_mtime > MEETING_S:  # another attempt may be turning back just now
                place.unlink()

    def hypotheses(self, split: str) -> Path:
        """The translations of a split, one line per sentence, in the corpus's order."""
        return self.path / f"hypotheses.{split}.txt"

    def beat(self, **numbers: Any) -> None:
        """Write the run's sign of life; not flushed to the disk, for the next one comes within seconds."""
        write_json(self.heartbeat, {**numbers, "time": time.time(), "pid": os.getpid()}, durable=False)


def say(text: str) -> None:
    """Print a line of the run's log."""
    print(time.strftime("%H:%M:%S"), text, flush=True)
