"""W&B's own files of a run, which `mirror` writes beside it, and which of them W&B has."""

import re
from pathlib import Path

from ablate.rundir import RunDir

# When W&B's run began, in UTC: seconds and nanoseconds (varints) of field 17 of its record, as W&B 0.31 writes it.
STARTED = re.compile(rb"\x8a\x01[\x06-\x0c]\x08([\x80-\xff]{4}[\x00-\x7f])(?:\x10([\x80-\xff]*[\x00-\x7f]))?")


def fragments(run: RunDir) -> list[Path]:
    """List W&B's files of a run, oldest first: one per attempt, two where W&B went away before its end.

    Those of attempts that were killed before they began are left out. The order is that in which W&B's own sync sends
    them: the folders' names hold the local time, which clocks that go back and other time zones put out of order.
    """
    found: dict[Path, tuple[list[int], str]] = {}
    for path in run.wandb.glob("*run-*/run-*.wandb"):
        with open(path, "rb") as file:
            head = file.read(65536)  # the id and the time are in its first record but one
        if path.stem.removeprefix("run-").encode() in head and not path.parent.is_symlink():
            started = STARTED.search(head)
            times = [number(varint) for varint in started.groups(b"")] if started else []
            found[path] = times, path.parent.name.removeprefix("offline-")  # …run-<date>_<time>-<id>
    return sorted(found, key=found.__getitem__)


def number(varint: bytes) -> int:
    """Read a number as protocol buffers write it: seven bits a byte, the lowest first."""
    return sum((byte & 127) << 7 * place for place, byte in enumerate(varint))


def unsent(run: RunDir) -> list[Path]:
    """List those of W&B's files of a run that were not sent to the end."""
    return [path for path in fragments(run) if not sign_of(path).exists()]


def sign_of(fragment: Path) -> Path:
    """Name the file by which W&B marks one of its files as sent to the end, and by which its own sync goes, too."""
    return Path(f"{fragment}.synced")
