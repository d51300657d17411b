"""metrics.jsonl: the numbers of a run, complete and append-only; what logs them tells the mirror too."""

import json
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from ablate.mirror import Mirror
from ablate.rundir import RunDir
from ablate.spawn import STOPPED


class Tracker:
    """Write one line of metrics.jsonl per call of `log`, and tell the mirror where there is one.

    Each line holds `attempt`, `step`, `time` and the numbers. A resumed run logs steps again that the killed attempt
    had logged: both stay in the file, and `read_metrics` gives the last.
    """

    def __init__(self, run: RunDir, attempt: int, mirror: Mirror | None = None):
        """Open the log.

        Args:
            run: where the file lies.
            attempt: 1 for the first, one more for each resume.
            mirror: also told; see `ablate.mirror.start`.
        """
        self.attempt, self.mirror = attempt, mirror
        run.path.mkdir(parents=True, exist_ok=True)
        so_far = run.metrics.read_bytes() if run.metrics.exists() else b""
        self.file = open(run.metrics, "a", encoding="utf-8")  # noqa: SIM115 – closed by finish
        if so_far and not so_far.endswith(b"\n"):
            self.file.write("\n")  # a kill cut the last line off; ours must not continue it

    def log(self, step: int, **numbers: int | float) -> None:
        """Write the numbers of one step, such as loss=…, dev_ppl=…."""
        line = {"attempt": self.attempt, "step": step, "time": round(time.time(), 3), **numbers}
        self.file.write(json.dumps(line, allow_nan=False) + "\n")
        self.file.flush()
        if self.mirror is not None:
            self.mirror.log(step, numbers)

    def result(self, record: dict[str, Any], sentences: list[tuple[str, str, str]]) -> None:
        """Tell the mirror a finished run's record, and source, reference and translation of its dev set."""
        if self.mirror is not None:
            self.mirror.result(record, sentences)

    def stop(self) -> None:
        """Close the log of an attempt that was asked to stop; the run goes on later."""
        self.finish(STOPPED)

    def finish(self, exit_code: int) -> None:
        """Close the log, and tell the mirror how this attempt ended: 0 for done (W3)."""
        self.file.close()  # as often as one likes
        if self.mirror is not None:
            self.mirror.finish(exit_code)
            self.mirror = None

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish(0 if kind is None else 1)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read metrics.jsonl as the table uses it: where several attempts logged a step, the last one's line.

    A line that was cut off by a kill is left out.

    Returns:
        Lines in the order of their steps; one step can have several, of other numbers: training, dev perplexity, BLEU.
    """
    lines: dict[tuple[int, tuple[str, ...]], dict[str, Any]] = {}
    if not path.exists():
        return []
    for text in path.read_text("utf-8").split("\n"):
        try:
            line = json.loads(text)
        except json.JSONDecodeError:
            continue
        lines[line["step"], tuple(line)] = line
    return [lines[key] for key in sorted(lines, key=lambda key: key[0])]  # a stable sort: as logged within a step
