"""What is said to a user who can mend it: the field, its value, what is allowed, and where the value came from."""

import difflib
from enum import Enum


class NotSaid(Enum):
    """Stands for the value in an error about a field that has none; an Enum's member stays itself across processes."""

    NOT_SAID = "not said"


NOT_SAID = NotSaid.NOT_SAID


class ConfigError(ValueError):
    """A setting the user can mend: names the field, the value, what is allowed, and where it came from."""

    def __init__(self, field: str, value: object, allowed: str, source: str = ""):
        super().__init__(field, value, allowed, source)  # its arguments, so that it can come from another process
        self.field = field

    def __str__(self) -> str:
        field, value, allowed, source = self.args
        where = f" (from {source})" if source else ""
        named = field if value is NOT_SAID else f"{field}={value!r}"
        return f"{named}{where}: {allowed}"


def nearest(name: str, valid: list[str]) -> str:
    """Say which valid name is closest to a misspelt one, and list them all: the tail of an error message."""
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    return (f"did you mean {close[0]!r}? " if close else "") + "valid: " + ", ".join(valid)
