"""How fast this machine is: the training times of runs that were finished here, beside what was estimated."""

import platform
import statistics
from collections.abc import Iterable

from ablate.config import Config
from ablate.estimate import Guess
from ablate.record import Record


def measured_pace(
    guessed: Guess, planned: Iterable[Record | None], others: Iterable[Record | None], cfg: Config
) -> tuple[float, str]:
    """Give measured ÷ estimated seconds of training, the median of the records made here in this way, else 1.

    Args:
        guessed: what estimates.
        planned: the records of the plan's runs; None for runs without one.
        others: other records of the preset; read only if none of the plan's tells.
        cfg: says on what device and in how many processes.

    Returns:
        That, and where estimates come from, in words.
    """
    paces = paces_here(guessed, planned, cfg) or paces_here(guessed, others, cfg)
    if not paces:
        return 1.0, f"{guessed.source}; nothing measured here yet"
    pace = statistics.median(paces)
    return pace, f"{guessed.source}, times {pace:.2f}, the median of {len(paces)} finished runs here"


def paces_here(guessed: Guess, records: Iterable[Record | None], cfg: Config) -> list[float]:
    """List measured ÷ estimated seconds of those runs that were finished here in this way."""
    found = []
    for done in records:
        if done is not None and done_here(done, cfg):
            train_s, flops_per_s = done["timing"]["train_s"], done["timing"]["flops_per_s"]
            found.append(train_s / guessed.train_s(done["science"], train_s * flops_per_s))
    return found


def done_here(done: Record, cfg: Config) -> bool:
    """Tell whether a run was finished on this machine, by such a device and as many: its time tells of others'."""
    last = done["provenance"][-1]
    same = last["device"].startswith(f"{cfg.device}:") and last.get("ranks", 1) == cfg.cluster.ranks
    return same and last["host"] == platform.node()
