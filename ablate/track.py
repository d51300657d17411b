"""metrics.jsonl, complete and append-only; and W&B as its mirror. The one door to wandb."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from ablate.config import TrackingConfig
from ablate.rundir import RunDir, write_text

INIT_TIMEOUT_S = 20  # how long W&B's server may take to answer before the run goes on offline


class Tracker:
    """Write one line of metrics.jsonl per call of `log`, and mirror it to W&B where that is wanted.

    Each line holds `attempt`, `step`, `time` and the numbers. A resumed run logs steps again that the killed attempt
    had logged: both stay in the file, and `read_metrics` gives the last.
    """

    def __init__(
        self,
        run: RunDir,
        tracking: TrackingConfig,
        identity: dict[str, Any],
        config: dict[str, Any],
        attempt: int,
        say: Callable[[str], None] = print,
    ):
        """Open the log.

        Args:
            run: where the files lie.
            tracking: where the mirror goes.
            identity: row, block, preset, seed and fingerprint: W&B's names, group, tags and id.
            config: what W&B shows as the run's configuration.
            attempt: 1 for the first, one more for each resume.
            say: told when the mirror is not what was asked for.
        """
        self.attempt = attempt
        run.path.mkdir(parents=True, exist_ok=True)
        so_far = run.metrics.read_bytes() if run.metrics.exists() else b""
        self.file = open(run.metrics, "a", encoding="utf-8")  # noqa: SIM115 – closed by finish
        if so_far and not so_far.endswith(b"\n"):
            self.file.write("\n")  # a kill cut the last line off; ours must not continue it
        self.mirror = None if tracking.mode == "none" else start_wandb(run, tracking, identity, config, say)

    def log(self, step: int, **numbers: int | float) -> None:
        """Write the numbers of one step, such as loss=…, dev_ppl=…."""
        line = {"attempt": self.attempt, "step": step, "time": round(time.time(), 3), **numbers}
        self.file.write(json.dumps(line, allow_nan=False) + "\n")
        self.file.flush()
        if self.mirror is not None:
            self.mirror.log({"trainer_step": step, "attempt": self.attempt, **numbers})

    def summary(self, **numbers: Any) -> None:
        """Put the final numbers where W&B shows them in its table of runs."""
        if self.mirror is not None:
            self.mirror.summary.update(numbers)

    def finish(self, exit_code: int) -> None:
        """Close the log; W&B marks the run failed for any exit code but 0 (W3)."""
        self.file.close()  # as often as one likes
        if self.mirror is not None:
            self.mirror.finish(exit_code=exit_code)
            self.mirror = None

    def __enter__(self) -> "Tracker":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish(0 if kind is None else 1)


def start_wandb(
    run: RunDir,
    tracking: TrackingConfig,
    identity: dict[str, Any],
    config: dict[str, Any],
    say: Callable[[str], None],
) -> Any:
    """Start W&B's run; offline, with a word, if the server does not answer in time."""
    import wandb  # here: it takes half a second, and tracking=none does without

    def start(mode: Any) -> Any:
        run.wandb.mkdir(parents=True, exist_ok=True)
        mirror = wandb.init(
            mode=mode,
            dir=str(run.path),
            project=tracking.project,
            entity=tracking.entity,
            id=f"{identity['fingerprint']}-{identity['seed']}",
            name=f"{identity['row']} seed {identity['seed']}",
            group=identity["row"],
            job_type="train",
            tags=[identity["preset"], identity["block"], f"seed{identity['seed']}"],
            config=config,
            resume="allow" if mode == "online" else None,
            reinit="create_new",  # several runs in one process are several runs
            settings=wandb.Settings(
                init_timeout=INIT_TIMEOUT_S, silent=True, console="off", x_disable_stats=True, disable_git=True
            ),
        )
        # Our own step is the axis: a resumed run logs earlier steps again, which W&B's own counter would drop.
        mirror.define_metric("*", step_metric="trainer_step")
        return mirror

    try:
        return start(tracking.mode)
    except wandb.errors.Error as err:
        if tracking.mode == "offline":
            raise
        say(f"W&B did not answer ({err}); going on offline: this run needs sync")
        return start("offline")


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


def download(run: RunDir, fingerprint: str, seed: int, tracking: TrackingConfig) -> bool:
    """Write a run's metrics.jsonl, and its record.json if it is finished, from what W&B has of it.

    The history is scanned, every line of it: W&B's `history()` would give a sample of 500.

    Args:
        run: where to write.
        fingerprint: with the seed, W&B's id of the run.
        seed: as above.
        tracking: the entity and the project; its mode is ignored.

    Returns:
        Whether W&B has such a run; if not, nothing is written.
    """
    import wandb

    name = f"{fingerprint}-{seed}"
    try:
        found = wandb.Api().run("/".join(part for part in (tracking.entity, tracking.project, name) if part))
    except ValueError as err:
        if "Could not find run" not in str(err):
            raise
        return False
    lines = []
    for row in found.scan_history():
        numbers = {key: value for key, value in row.items() if value is not None and not key.startswith("_")}
        line = {"attempt": numbers.pop("attempt"), "step": numbers.pop("trainer_step"), "time": row.get("_timestamp")}
        lines.append(json.dumps({**line, **numbers}) + "\n")
    write_text(run.metrics, "".join(lines))
    if text := found.summary.get("record"):
        write_text(run.record, text)
    return True
