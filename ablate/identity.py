"""What makes a run that run and no other: all that can change its result, and the fingerprint of that."""

import dataclasses
import hashlib
import json
from typing import Any

from ablate.config import Config, DownloadedData, FilesData, flatten
from ablate.errors import NOT_SAID, ConfigError

SCIENCE = ("model", "data", "optim", "decode", "precision")  # the sections that can change a result
PATHS = (  # where the text is found, not what it is
    *(f"data.{f.name}" for f in dataclasses.fields(FilesData) if f.name.endswith(("_src", "_tgt", "_tsv"))),
    *(f"data.{name}" for name in DownloadedData.__annotations__),
)


def science(cfg: Config, digests: dict[str, str]) -> dict[str, Any]:
    """Give everything that can change a result, as a flat dictionary of dotted keys.

    That is the model, the corpus and its segmentation, the optimiser, the decoder, the precision, and the digests of
    the prepared corpus and vocabulary; not the seed, paths, device, workers, cluster, tracker. `cfg` is scaled.
    """
    tree = dataclasses.asdict(cfg)
    flat = flatten({name: tree[name] for name in SCIENCE})
    flat = {name: value for name, value in flat.items() if name not in PATHS}
    del flat["model.sinusoid_layout" if cfg.model.positional == "learned" else "model.max_positions"]  # without effect
    if cfg.test_set:  # it adds to the result; without it the result is the one that it always was
        flat["test_set"] = True
    flat |= {f"digest.{name}": value for name, value in digests.items()}
    return {name: value + 0.0 if isinstance(value, float) else value for name, value in flat.items()}  # -0.0 is 0.0


def fingerprint(science: dict[str, Any]) -> str:
    """Hash a run's science (`science`) to 12 hexadecimal digits: equal science, equal fingerprint."""
    text = json.dumps(science, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def diff(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Give the keys on which two flat dictionaries differ, with both values; None where a key is missing."""
    keys = [*ours, *(key for key in theirs if key not in ours)]
    return {key: (ours.get(key), theirs.get(key)) for key in keys if ours.get(key) != theirs.get(key)}


def refuse_change(where: str, planned: dict[str, Any], present: dict[str, Any]) -> None:
    """Make sure that what was written under one science is used under the same.

    Raises:
        ConfigError: with both fingerprints and the keys that differ.
    """
    if changed := diff(planned, present):
        keys = "; ".join(f"{key}: {was!r} then, {now!r} now" for key, (was, now) in changed.items())
        raise ConfigError(
            where,
            NOT_SAID,
            f"was made under fingerprint {fingerprint(planned)}, this is {fingerprint(present)}: {keys}",
        )
