"""Configurations that several tests change a field of."""

import copy
from pathlib import Path
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


def write_rows(folder: Path, rows: dict[str, str], sweep: list[str]) -> str:
    """Write rows of the user's own, each the text that changes base, and a sweep `s`; gives what `session` takes."""
    for group in ("row", "sweep"):
        (folder / "mine" / group).mkdir(parents=True, exist_ok=True)
    for row, change in rows.items():
        (folder / "mine" / "row" / f"{row}.yaml").write_text(f"# @package _global_\n{change}\n")
    sweep_file = folder / "mine" / "sweep" / "s.yaml"
    sweep_file.write_text(f"# @package sweep.s\ntitle: s\nrows: [{', '.join(sweep)}]\n")
    return str(folder / "mine")
