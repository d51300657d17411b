"""A configuration as a file: what was planned is written down, and read again with its types."""

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ablate.config import KINDS, Config
from ablate.errors import ConfigError, nearest
from ablate.rundir import write_text

LATER: dict[str, Any] = {"compile": False}  # fields that files of 0.1.0 lack, and what it did


def from_dict(tree: dict[str, Any]) -> Config:
    """Build a typed configuration from nested dictionaries; types are checked and unknown keys refused.

    Raises:
        ConfigError: for an unknown kind of corpus or cluster.
        omegaconf.errors.OmegaConfBaseException: for a key or a type the schema does not have.
    """
    schema = OmegaConf.structured(Config)
    for section, kinds in KINDS.items():
        name = tree.get(section, {}).get("name")
        if name not in kinds:
            raise ConfigError(f"{section}.name", name, nearest(str(name), list(kinds)))
        schema[section] = OmegaConf.structured(kinds[name])
    cfg: Config = OmegaConf.to_object(OmegaConf.merge(schema, tree))  # type: ignore[assignment]
    return cfg


def save(cfg: Config, path: Path) -> None:
    """Freeze a configuration into a YAML file, every field in it, as `rundir.write_bytes` does."""
    write_text(path, OmegaConf.to_yaml(OmegaConf.structured(cfg)))


def load(path: Path) -> Config:
    """Read a frozen configuration; one that an older version wrote, as that version meant it."""
    tree: dict[str, Any] = OmegaConf.to_container(OmegaConf.load(path))  # type: ignore[assignment]
    return from_dict({**LATER, **tree})
