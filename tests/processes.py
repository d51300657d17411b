"""Processes that a test starts to do something together."""

import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ablate.parallel import Group, meet
from ablate.ranks import Ranks
from ablate.rundir import RunDir


def together(count: int | list[int], function: Callable[[Group, Path], None], folder: Path) -> None:
    """Call a function of a test module in so many processes that have met; what one of them raises fails the test.

    Several numbers are done one after the other.
    """
    counts = [count] if isinstance(count, int) else count
    codes = fresh(meet_and_call, counts, function.__module__, function.__name__, str(folder))
    assert codes == [[0] * count for count in counts]


def fresh(function: Callable[..., Any], *arguments: Any) -> Any:
    """Call a function of a test module in a process that may fork: it has no threads. All values travel as JSON."""
    code = (
        f"import conftest, json, {function.__module__} as module\n"
        f"print('RESULT', json.dumps(module.{function.__name__}(*json.loads({json.dumps(arguments)!r}))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    print(done.stdout, done.stderr)
    return json.loads(done.stdout.rsplit("RESULT ", 1)[1])


def fork(*tasks: Callable[[], int]) -> list[int]:
    """Do each task in a process of its own, one thread each; gives their exit codes, negative for a signal."""
    torch.set_num_threads(1)
    sys.stdout.flush()
    children = []
    for task in tasks:
        children.append(os.fork())
        if not children[-1]:
            code = 99
            try:
                code = task()
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                os._exit(code)
    return [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]


def meet_and_call(counts: list[int], module: str, function: str, folder: str) -> list[list[int]]:
    """Do what `together` says, in the fresh process."""
    call = getattr(importlib.import_module(module), function)

    def task(ranks: Ranks) -> int:
        with meet(RunDir(Path(folder)), ranks, "cpu", lambda: False) as group:
            call(group, Path(folder))
        return 0

    return [fork(*(partial(task, ranks) for ranks in Ranks.on_this_machine(count))) for count in counts]
