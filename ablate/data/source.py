"""What every corpus source offers, and what they share: languages, a place for data, locks, progress, digests."""

import hashlib
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import platformdirs

from ablate.config import DataConfig
from ablate.errors import ConfigError
from ablate.rundir import Held, lock

if TYPE_CHECKING:  # it stands on what is here
    from ablate.data.pieces import Pieces

SPLITS = ("train", "dev", "test")
SIDES = ("src", "tgt")
POLL_S = 0.5  # seconds between two looks at a lock that another process holds
TELL_S = 10  # seconds between two lines of progress


class CorpusError(ValueError):
    """Something about the text that the user can mend: says which file, line, field or size."""


class Unfinished(CorpusError):
    """What could not be done now, such as a download; what is done is kept, and the same command continues."""


@dataclass
class Counts:
    """What cleaning did, by reason; each reason begins with its split where it knows it."""

    dropped: Counter[str] = field(default_factory=Counter)  # pairs
    mended: Counter[str] = field(default_factory=Counter)  # lines


Say = Callable[[str], None]  # takes each line of progress
Pairs = Iterator[tuple[str, str, str]]  # (split, src, tgt); within a split in the corpus's order


@dataclass(frozen=True)
class Source:
    """Where a corpus's text comes from; making one reads no text and downloads nothing."""

    origin: str  # one line for people
    licence: str
    identity: dict[str, str]  # everything the text is made from that the configuration does not say
    # Cleaned pairs: counts what it drops, says what it waits for, may keep files in a folder that is there until then.
    read: Callable[[Counts, Say, Path], Pairs]
    pieces: "Pieces | None" = None  # the vocabulary of text that is segmented already; None: subwords are learned


def check_languages(data: DataConfig, languages: tuple[str, str]) -> None:
    """Make sure that a corpus is asked for in its own two languages, in either direction.

    Raises:
        ConfigError: for another one, or one on both sides.
    """
    if data.src_lang not in languages:
        raise ConfigError("data.src_lang", data.src_lang, f"must be {' or '.join(languages)}")
    if {data.src_lang, data.tgt_lang} != set(languages):
        raise ConfigError("data.tgt_lang", data.tgt_lang, f"must be the other of {' and '.join(languages)}")


def data_root() -> Path:
    """Give the folder of downloads and prepared corpora: `$ABLATE_DATA`, or the platform's cache folder."""
    chosen = os.environ.get("ABLATE_DATA")
    return Path(chosen).expanduser().absolute() if chosen else platformdirs.user_cache_path("ablate")


@contextmanager
def waiting_lock(path: Path, what: str, say: Say) -> Iterator[None]:
    """Hold a lock file; while another process holds it, say so once and wait for as long as that takes."""
    with ExitStack() as stack:
        waiting = False
        while True:
            try:
                stack.enter_context(lock(path))
                break
            except Held as holder:
                if not waiting:
                    say(f"waiting for {what}: {holder} is at it")
                waiting = True
                time.sleep(POLL_S)
        yield


def making(path: Path, say: Say) -> AbstractContextManager[None]:
    """Hold the lock of whoever makes a file or folder: `.NAME.lock` beside it; see `waiting_lock`."""
    return waiting_lock(path.with_name(f".{path.name}.lock"), path.name, say)


class Progress:
    """Counts what is done, and says so every `TELL_S` seconds, with speed and time left.

    Args:
        what: is done.
        total: how much there is; None: nobody knows.
        say: takes each line.
        done: how much was done before.
        unit: of what is counted, as people read it.
        per: how much makes a unit.
    """

    def __init__(self, what: str, total: int | None, say: Say, done: int = 0, unit: str = "pairs", per: int = 1):
        self.what, self.total, self.say, self.unit, self.per = what, total, say, unit, per
        self.first = self.done = done
        self.start_s = self.last_s = time.monotonic()

    def add(self, number: int) -> bool:
        """Count; True, every `TELL_S` seconds, after saying so."""
        self.done += number
        if number == 1 and self.done % 1000:  # a look at the clock costs more than counting
            return False
        now_s = time.monotonic()
        if now_s - self.last_s < TELL_S:
            return False
        self.last_s = now_s
        rate = (self.done - self.first) / (now_s - self.start_s)
        of, left = "", ""
        if self.total is not None:
            of, left = f" of {self.units(self.total)}", f", {max(0, self.total - self.done) / rate:.0f} s left"
        self.say(f"{self.what}: {self.units(self.done)}{of} {self.unit}, {self.units(rate)}/s{left}")
        return True

    def units(self, number: int | float) -> str:
        """Write a number of what is counted in its unit."""
        return f"{number / self.per:,.{0 if self.per == 1 else 2}f}"


def digest_of(path: Path, algorithm: str = "sha256") -> str:
    """Hash a file of any size."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def read_lines(path: Path) -> Iterator[str]:
    """Read lines as `corpus` wrote them: only the newline character ends one, not U+2028 or U+0085."""
    with open(path, encoding="utf-8", newline="\n") as file:
        for line in file:
            yield line.removesuffix("\n")
