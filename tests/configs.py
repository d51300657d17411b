"""Configurations that several tests change a field of."""

import copy
from typing import Any

from ablate.compose import compose
from ablate.config import Config

SMOKE = compose(["preset=smoke"])  # in the paper's units
ON_SLURM = compose(["preset=smoke", "cluster=slurm"])
FILES = compose(["preset=paper", "data=files", "data.train_src=a.en"])


def with_value(cfg: Config, name: str, value: Any) -> Config:
    """Copy a configuration with one dotted field changed."""
    changed = copy.deepcopy(cfg)
    *sections, field = name.split(".")
    place: Any = changed
    for section in sections:
        place = getattr(place, section)
    assert hasattr(place, field)
    setattr(place, field, value)
    return changed
