"""One run, as `python -m ablate.worker RUN` does it, with a stopwatch on its parts; `sweep_speed.py` starts it.

Prints a line of JSON: wall and processor seconds by part, and at the beginning of the first update. A part's seconds
are its own: what another part takes within it is counted there alone. `STARTED`, in the environment, says when the
process was started. Nothing but the standard library is imported before the clock runs.
"""

import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

TRAINING, REST = "training", "the rest"


class Stopwatch:
    """Wall and processor seconds by part; a part that begins within another stops that one meanwhile."""

    def __init__(self) -> None:
        self.seconds: dict[str, list[float]] = {}
        self.running = [REST]
        self.last = (time.time(), time.process_time())
        self.first_update: list[float] = []

    def charge(self) -> None:
        """Charge what went by since the last time to the part that runs."""
        now = time.time(), time.process_time()
        spent = self.seconds.setdefault(self.running[-1], [0.0, 0.0])
        for i in (0, 1):
            spent[i] += now[i] - self.last[i]
        self.last = now

    @contextmanager
    def on(self, part: str) -> Iterator[None]:
        """Charge what happens inside to a part."""
        self.charge()
        if part == TRAINING and not self.first_update:
            self.first_update = [sum(spent[i] for spent in self.seconds.values()) for i in (0, 1)]
        self.running.append(part)
        try:
            yield
        finally:
            self.charge()
            self.running.pop()

    def watch(self, owner: Any, names: str, part: str) -> None:
        """Charge every call of these functions of a module or class to a part."""
        for name in names.split():
            setattr(owner, name, self.watched(getattr(owner, name), part))

    def watched(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        """Give a function that does the same, on the stopwatch."""

        @functools.wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.on(part):
                return function(*args, **kwargs)

        return timed


def main() -> int:
    """Do the run in the folder given and print where its time went."""
    watch = Stopwatch()
    watch.seconds["start Python"] = [watch.last[0] - float(os.environ["STARTED"]), watch.last[1]]
    with watch.on("import torch and all that trains"):
        from ablate import worker

        worker.load_libraries()
    from ablate import checkpoint, evaluate, frozen, mirror, record, rundir, track, train
    from ablate.data import corpus, packed
    from ablate.model import transformer

    opening = "open configuration, corpus and vocabulary"
    watch.watch(frozen, "load", opening)
    watch.watch(corpus, "reopen open_vocabulary", opening)
    watch.watch(packed.Packed, "open", opening)
    watch.watch(record, "attempt assemble write", "provenance and record")
    watch.watch(transformer.Transformer, "__init__", "build and initialise the model")
    watch.watch(train.Trainer, "update read_numbers", TRAINING)
    watch.watch(train, "perplexity", "dev perplexity")
    watch.watch(checkpoint, "save sweep newest", "checkpoints")
    watch.watch(evaluate, "perplexity", "dev perplexity")
    watch.watch(evaluate, "translate_all", "translate the dev set")
    watch.watch(evaluate, "score", "score the translations")
    watch.watch(mirror, "start", "W&B: import, start, finish")
    watch.watch(track.Tracker, "finish", "W&B: import, start, finish")
    watch.watch(track.Tracker, "log result", "log metrics, here and to W&B")
    watch.watch(rundir.RunDir, "beat", "heartbeat")
    code = worker.main(sys.argv[1:])
    watch.charge()
    print(json.dumps({"parts": watch.seconds, "first_update": watch.first_update}))
    return code


if __name__ == "__main__":
    sys.exit(main())
