"""A few processes that work through tasks, whose results come in the tasks' order, a bounded number ahead."""

import multiprocessing
import os
import signal
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from ablate.data.source import Unfinished

Task = TypeVar("Task")
Result = TypeVar("Result")
AHEAD = 2  # tasks per process that are given out before their results are wanted


def cores() -> int:
    """Count the CPU cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def in_order(
    function: Callable[[Task], Result], tasks: Iterable[Task], processes: int, prepare: Callable[..., None], *given: Any
) -> Iterator[Result]:
    """Call a function for each task, in this process or in several, and give the results in the tasks' order.

    Args:
        function: of a module, so that another process can be told to call it.
        tasks: taken one by one, at most `AHEAD` per process before their results are given.
        processes: 1: this one.
        prepare: called once in each process before its first task.
        given: what `prepare` takes.

    Raises:
        Unfinished: if a process is killed, as systems do that run out of memory.
    """
    if processes == 1:
        prepare(*given)
        yield from map(function, tasks)
        return
    # A fork needs no second import of everything; other systems than Linux may not survive one.
    context = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
    waiting: deque[Future[Result]] = deque()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of a fork beside threads: the child uses none of theirs
        pool = ProcessPoolExecutor(processes, context, _begin, (os.getpid(), prepare, given))
        try:
            for task in tasks:
                waiting.append(pool.submit(function, task))
                if len(waiting) > AHEAD * processes:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        except BrokenProcessPool as err:
            raise Unfinished(
                "a process that encoded was killed (is there enough memory?); what is done is kept"
            ) from err
        finally:
            pool.shutdown(cancel_futures=True)


def _begin(parent: int, prepare: Callable[..., None], given: tuple[Any, ...]) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to answer
    threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    prepare(*given)


def _end_with(parent: int) -> None:
    """End this process when its parent has ended, however that was: a killed one cannot tell its children."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)
