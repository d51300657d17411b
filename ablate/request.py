"""What is asked for: overrides → each row's finished configuration, with and without the user's settings on top."""

import argparse
import dataclasses
import re
import shlex
from dataclasses import dataclass

from ablate.check import check
from ablate.compose import compose, compose_rows
from ablate.config import Config, SlurmCluster, Sweep
from ablate.data.corpus import Corpus
from ablate.device import resolve_device
from ablate.errors import NOT_SAID, ConfigError
from ablate.scale import scaled

# What names, places or watches a row's runs, and cannot change what they are.
NOT_SETTINGS = (
    *("preset", "seeds", "plan_only", "runs_dir", "device", "compile", "tracking", "cluster"),
    *("keep_checkpoints", "log_every_steps"),
)


@dataclass
class Request:
    """One row, or base and the rows of the sweeps named, each `resolved`."""

    rows: dict[str, Config]  # by row, with the user's settings on top; in order
    plain: dict[str, Config]  # the same without the user's settings: what the row is
    seeds: int
    sweeps: dict[str, Sweep]  # those named
    settings: list[str]  # overrides under which each row was composed, but its own
    on_sweeps: bool  # whether these name the sweeps, whose files say more than their rows

    def command(self, row: str, seed: int) -> str:
        """Write what does a run again, wherever it is done: its row, the user's settings, and its seed as the last."""
        parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
        parser.add_argument("--config-dir", "-cd")
        folder = parser.parse_known_args()[0].config_dir  # Hydra's option: rows of the user's own
        named = ["--config-dir", folder] if folder else []
        kept = [text for text in self.settings if not text.startswith(("seeds=", "plan_only=", "runs_dir="))]
        chosen = [] if self.on_sweeps else [f"+row={row}"]
        return shlex.join(["python", "-m", "ablate.run", *named, *chosen, *kept, f"seeds={seed}"])


def read(overrides: list[str]) -> Request:
    """Compose what these overrides ask for; fetches and writes nothing.

    Args:
        overrides: in Hydra's grammar, such as ["+sweep=row_A", "preset=smoke", "seeds=2"].

    Raises:
        ConfigError: as `compose` and `resolved`, for a device that is not there, rows of different corpora, and both a
            row and a sweep.
    """
    # The row last, as `compose_row` has it: Hydra merges added groups in their order.
    asked = compose(sorted(overrides, key=lambda text: text.startswith("+row=")))
    named = [text.partition("=")[2] for text in overrides if text.startswith("+row=")]
    if without_effect := [text for text in overrides if re.match(r"\+*(seed|row\.name)=", text)]:
        raise ConfigError(
            without_effect[0], NOT_SAID, "is the plan's to set; seeds=3 gives seeds 1 to 3, +row=NAME another row"
        )
    if named and asked.sweep:
        raise ConfigError("row", named[0], "cannot go with a sweep; +sweep='[...]' takes several sweeps")
    names = named or list(dict.fromkeys(["base", *(row for sweep in asked.sweep.values() for row in sweep.rows)]))
    own = [text for text in overrides if not text.startswith(("+row=", "+sweep="))]
    settings = own
    composed = compose_rows(names, own) if asked.sweep else {names[0]: asked}
    on_sweeps = bool(asked.sweep) and dataclasses.replace(asked, sweep={}) != composed["base"]
    if on_sweeps:
        settings = [*(text for text in overrides if text.startswith("+sweep=")), *own]
        composed = compose_rows(names, settings)
    device = asked.device if isinstance(asked.cluster, SlurmCluster) else resolve_device(asked.device)
    rows = plain = {row: resolved(cfg, device) for row, cfg in composed.items()}
    plain_settings = [text for text in own if re.split(r"[=.]", text.lstrip("+~"))[0] in NOT_SETTINGS]
    if plain_settings != settings:
        plain = {row: resolved(cfg, device) for row, cfg in compose_plain(names, own, plain_settings).items()}
    for row, cfg in rows.items():
        if cfg.data != rows[names[0]].data:
            raise ConfigError("row", row, f"has another corpus (data.*) than {names[0]}: one table has one corpus")
    return Request(rows, plain, asked.seeds, asked.sweep, settings, on_sweeps)


def compose_plain(rows: list[str], settings: list[str], plain_settings: list[str]) -> dict[str, Config]:
    """Compose the rows without the user's settings; a preset that names no corpus has the user's."""
    try:
        return compose_rows(rows, plain_settings)
    except ConfigError as err:
        if err.field != "data":
            raise
    data = [text for text in settings if text.startswith(("data=", "data."))]
    return compose_rows(rows, [*plain_settings, *data])


def resolved(cfg: Config, device: str) -> Config:
    """Apply the preset's scale and settle what "auto" means, for the device and the precision.

    A job's device is what it asks SLURM for, whatever this machine has; the worker makes sure that it is there.

    Raises:
        ConfigError: if the row does not fit the preset or the device.
    """
    cluster = cfg.cluster
    if isinstance(cluster, SlurmCluster):
        cluster = dataclasses.replace(cluster, ranks=cluster.gpus) if cluster.gpus else cluster
        device = device if device != "auto" else "cuda" if cluster.gpus else "cpu"
    precision = ("bf16" if device == "cuda" else "fp32") if cfg.precision == "auto" else cfg.precision
    try:
        done = dataclasses.replace(scaled(cfg), cluster=cluster, device=device, precision=precision)
        check(done)
    except ConfigError as err:
        raise ConfigError("row", cfg.row.name, f"does not fit preset {cfg.preset} here: {err}") from err
    return done


def check_corpus(row: str, cfg: Config, corpus: Corpus) -> None:
    """Make sure that the corpus has what is judged, and that every sentence fits into a batch and has positions.

    Raises:
        ConfigError: naming the field, the longest sentence, and the row.
    """
    where = f"row {row}"
    judged = ["dev", "test"] if cfg.test_set else ["dev"]
    if not set(judged) <= set(corpus.manifest["pairs"]):
        raise ConfigError("test_set", True, f"data={cfg.data.name} has no test set here", where)
    train, sets = corpus.split("train"), [corpus.split(name) for name in judged]
    longest = int(max(train.src_lengths.max(), train.tgt_lengths.max()))
    if longest > cfg.optim.batch_tokens:
        raise ConfigError(
            "optim.batch_tokens", cfg.optim.batch_tokens, f"a training sentence has {longest} subwords", where
        )
    for one in sets:
        longest = int(max(longest, one.tgt_lengths.max(), one.src_lengths.max() + cfg.decode.max_extra))
    if cfg.model.positional == "learned" and longest > cfg.model.max_positions:
        raise ConfigError(
            "model.max_positions", cfg.model.max_positions, f"sequences may have {longest} subwords here", where
        )
