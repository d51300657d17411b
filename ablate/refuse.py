"""How a command says what its user can mend: in one line on standard error, with exit code 2."""

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec

P = ParamSpec("P")


def refuse(err: Exception) -> int:
    """Say what is wrong; gives the exit code."""
    print(f"error: {err}", file=sys.stderr)
    return 2


def refuses(*errors: type[Exception]) -> Callable[[Callable[P, int]], Callable[P, int]]:
    """Make a command's `main` refuse what raises one of these errors (`refuse`), instead of ending in a traceback."""

    def decorate(main: Callable[P, int]) -> Callable[P, int]:
        @functools.wraps(main)
        def command(*args: P.args, **kwargs: P.kwargs) -> int:
            try:
                return main(*args, **kwargs)
            except errors as err:
                return refuse(err)

        return command

    return decorate


@contextmanager
def brought_by(extra: str) -> Iterator[None]:
    """End a command that imports what only one of the project's extras brings, if it is not there, in one line, too."""
    try:
        yield
    except ModuleNotFoundError as err:
        pip = f"pip install 'ablate[{extra}]', or from a checkout pip install -c constraints.txt -e '.[{extra}]'"
        raise SystemExit(
            refuse(
                ImportError(f"{str(err.name).partition('.')[0]} is not installed; the extra {extra!r} brings it: {pip}")
            )
        ) from err
