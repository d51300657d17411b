"""W&B's service: whether this machine may use it, and what it has of a run. Beside `mirror` the door to wandb."""

import json

from ablate.config import TrackingConfig
from ablate.errors import ConfigError
from ablate.mirror import run_id
from ablate.rundir import RunDir, write_text


def log_in(mode: str) -> None:
    """Make sure that there is a key for W&B if runs are to go there; asks for one on a terminal.

    Raises:
        ConfigError: if there is none.
    """
    if mode != "online":
        return
    import wandb

    try:
        there = wandb.login()
    except wandb.errors.Error as err:
        raise ConfigError("tracking.mode", "online", f"W&B has no key here ({err})") from err
    if not there:
        raise ConfigError("tracking.mode", "online", "needs a key: `wandb login`, or WANDB_API_KEY; offline needs none")


def default_entity() -> str:
    """Ask W&B for the user or team that the account logs to if none is named.

    Raises:
        ConfigError: if there is no key for W&B here, or the account has none.
    """
    log_in("online")
    import wandb

    entity: str | None = wandb.Api().default_entity
    if not entity:
        raise ConfigError("tracking.entity", entity, "must be named: the account has no default")
    return entity


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

    name = run_id(fingerprint, seed)
    try:
        found = wandb.Api().run("/".join(part for part in (tracking.entity, tracking.project, name) if part))
    except ValueError as err:
        if "Could not find run" not in str(err):
            raise
        return False
    lines = []
    for row in found.scan_history():
        numbers = {
            key: value for key, value in row.items() if isinstance(value, int | float) and not key.startswith("_")
        }
        line = {"attempt": numbers.pop("attempt"), "step": numbers.pop("trainer_step"), "time": row.get("_timestamp")}
        if numbers:  # not where the translations were shown
            lines.append({**line, **numbers})
    lines.sort(key=lambda line: line["attempt"])  # an attempt that was sent late must not count as the last
    write_text(run.metrics, "".join(json.dumps(line) + "\n" for line in lines))
    if text := found.summary.get("record"):
        write_text(run.record, text)
    return True
