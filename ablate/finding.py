"""What a check found: the one shape in which `ablate.doctor` prints it."""

from dataclasses import dataclass
from typing import Literal

Level = Literal["ok", "warning", "error"]


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    level: Level  # error: results would be wrong, or nothing would run; warning: look at it yourself
    what: str  # a word or two
    said: str  # what was found, with numbers, and what to do about it; may have several lines

    def __str__(self) -> str:
        sign = {"ok": "ok     ", "warning": "WARNING", "error": "ERROR  "}[self.level]
        return f"{sign} {self.what}: " + self.said.replace("\n", "\n        ")
