"""Rows × seeds → runs: which run fills which cell, what is done, and what the rest will cost. Writes nothing.

A row's run is found by its fingerprint, whichever row's folder it lies in, so that equal rows run once and a run under
other settings never passes for the row.
"""

import argparse
import dataclasses
import itertools
import os
import platform
import re
import shlex
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ablate.check import check
from ablate.compose import compose, compose_rows
from ablate.config import Config, SlurmCluster
from ablate.data import corpus as corpora
from ablate.device import resolve_device
from ablate.errors import NOT_SAID, ConfigError
from ablate.estimate import Guess, Lengths, guess
from ablate.identity import diff, fingerprint, science
from ablate.params import count_parameters, params_paper, run_flops
from ablate.record import Record
from ablate.rundir import RunDir, read_json
from ablate.scale import scaled
from ablate.state import TO_DO, RunState, read_state


@dataclass
class PlannedRun:
    """One run, and the rows whose cells it fills."""

    cfg: Config  # scaled; device, precision and seed resolved
    science: dict[str, Any]
    fingerprint: str
    corpus: corpora.Corpus | None  # None: not prepared
    changes: dict[str, tuple[Any, Any]]  # settings on top of the row: (the row's, this run's); empty: it is the row
    run: RunDir
    state: RunState
    flops: float  # of its training
    guessed_s: float  # seconds of its training, as estimated before anything is measured
    memory_mb: float | None  # the most memory its training holds, as estimated; None where that is not known
    rows: list[str] = field(default_factory=list)  # more than one where rows are equal
    sweeps: list[str] = field(default_factory=list)  # those asked for that have one of these rows
    command: str = ""  # what does it again, and its row's seeds below its own

    @property
    def params_actual(self) -> int:
        """Parameters of the module that is trained."""
        return count_parameters(self.cfg.model, self.cfg.data.vocab_size)

    @property
    def params_paper(self) -> int:
        """Parameters by the paper's accounting."""
        return params_paper(self.cfg.model)


@dataclass
class Plan:
    """Everything asked for: a run for each row and seed, and what is known of each."""

    preset: str
    title: str  # of the sweeps; empty for a single row
    seeds: int
    runs_dir: Path
    configs: dict[str, Config]  # by row, at the preset's scale
    rows: dict[str, list[PlannedRun]]  # by row, one per seed; rows share runs where they are equal
    runs: list[PlannedRun]  # each once, in the order of the rows
    pace: float  # seconds measured on this machine ÷ seconds estimated; 1 until there are any
    time_source: str  # where estimates of hours come from, in words
    memory_source: str  # and of memory
    corpus: corpora.Corpus | None  # None: not prepared
    digests: dict[str, str]  # of the corpus, or by the records there are; empty: which runs are done cannot be told

    @property
    def to_run(self) -> list[PlannedRun]:
        """Runs that a launch would start: neither finished nor failed nor another process's."""
        return [planned for planned in self.runs if planned.state.name in TO_DO]

    @cached_property
    def measured_s(self) -> dict[str, float]:
        """Seconds of training, by fingerprint, that runs of the same science took on this machine: their median."""
        cfg = self.runs[0].cfg
        found: dict[str, list[float]] = {}
        for planned in self.runs:
            if planned.state.record is not None and done_here(planned.state.record, cfg):
                found.setdefault(planned.fingerprint, []).append(planned.state.record["timing"]["train_s"])
        return {identity: statistics.median(times) for identity, times in found.items()}

    def hours(self, planned: PlannedRun) -> float:
        """Tell a finished run's training time; else estimate it, from its row's other seeds or by the guess."""
        if planned.state.train_s is not None:
            return planned.state.train_s / 3600
        return self.measured_s.get(planned.fingerprint, planned.guessed_s * self.pace) / 3600


# What names, places or watches a row's runs, and cannot change what they are.
NOT_SETTINGS = (
    *("preset", "seeds", "plan_only", "runs_dir", "device", "tracking", "cluster"),
    *("keep_checkpoints", "log_every_steps"),
)


def plan_from(
    overrides: list[str], prepare: bool, say: Callable[[str], None] = print, every_seed: bool = False
) -> Plan:
    """Compose and plan what these overrides ask for: one row, or base and the rows of the sweeps named.

    Args:
        overrides: in Hydra's grammar, such as ["+sweep=row_A", "preset=smoke", "seeds=2"].
        prepare: make the corpus ready if it is not; otherwise a missing one leaves open which runs are done.
        say: told about the corpus.
        every_seed: unless the overrides say how many, plan as many seeds as there are runs of, whatever the default.

    Raises:
        ConfigError: as `compose` and `resolved`, for a device that is not there, rows of different corpora, and both a
            row and a sweep. Nothing has been fetched or written then.
    """
    asked = compose(overrides)
    named = [text.partition("=")[2] for text in overrides if text.startswith("+row=")]
    if without_effect := [text for text in overrides if re.match(r"\+*(seed|row\.name)=", text)]:
        raise ConfigError(
            without_effect[0], NOT_SAID, "is the plan's to set; seeds=3 gives seeds 1 to 3, +row=NAME another row"
        )
    if named and asked.sweep:
        raise ConfigError("row", named[0], "cannot go with a sweep; +sweep='[...]' takes several sweeps")
    rows = named or ["base"]
    if asked.sweep:
        rows = list(dict.fromkeys(["base", *(row for sweep in asked.sweep.values() for row in sweep.rows)]))
    settings = [text for text in overrides if not text.startswith(("+row=", "+sweep="))]
    device = asked.device if isinstance(asked.cluster, SlurmCluster) else resolve_device(asked.device)
    composed = compose_rows(rows, settings)
    own_base = bool(asked.sweep) and dataclasses.replace(asked, sweep={}) != composed["base"]
    sweeps = [text for text in overrides if text.startswith("+sweep=")]
    if own_base:  # a sweep's file says more than its rows: they stand on that
        composed = compose_rows(rows, [*sweeps, *settings])
    configs = {row: resolved(cfg, device) for row, cfg in composed.items()}
    plain_settings = [text for text in settings if re.split(r"[=.]", text.lstrip("+~"))[0] in NOT_SETTINGS]
    plain = configs
    if plain_settings != settings or own_base:
        composed = compose_plain(rows, settings, plain_settings)
        plain = {row: resolved(cfg, device) for row, cfg in composed.items()}
    data = configs[rows[0]].data
    for row, cfg in configs.items():
        if cfg.data != data:
            raise ConfigError("row", row, f"has another corpus (data.*) than {rows[0]}: one table has one corpus")
    # Only now, with every row known to be valid, may a corpus be fetched.
    corpus = corpora.prepare(data, say) if prepare else corpora.find(data)
    if corpus is not None:
        for row, cfg in configs.items():
            check_corpus(row, cfg, corpus)
    title = "; ".join(sweep.title for sweep in asked.sweep.values())
    every_seed = every_seed and not any(text.startswith("seeds=") for text in overrides)
    plan = make_plan(configs, plain, corpus, asked.seeds, title, every_seed)
    for planned in plan.runs:
        planned.sweeps = [name for name, sweep in asked.sweep.items() if {"base", *sweep.rows} & set(planned.rows)]
        planned.command = command([*(sweeps if own_base else [f"+row={planned.rows[0]}"]), *settings], planned.cfg.seed)
    return plan


def command(overrides: list[str], seed: int) -> str:
    """Write what does a run again, wherever it is done: its row, the user's settings, and its seed as the last."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("--config-dir", "-cd")
    folder = parser.parse_known_args()[0].config_dir  # Hydra's option: rows of the user's own
    kept = [text for text in overrides if not text.startswith(("seeds=", "plan_only=", "runs_dir="))]
    named = ["--config-dir", folder] if folder else []
    return shlex.join(["python", "-m", "ablate.run", *named, *kept, f"seeds={seed}"])


def check_corpus(row: str, cfg: Config, corpus: corpora.Corpus) -> None:
    """Make sure that every sentence fits into a batch and has positions.

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


def compose_plain(rows: list[str], settings: list[str], plain_settings: list[str]) -> dict[str, Config]:
    """Compose the rows without the user's settings; a preset that names no corpus has the user's."""
    try:
        return compose_rows(rows, plain_settings)
    except ConfigError as err:
        if err.field != "data":
            raise
    data = [text for text in settings if text.startswith(("data=", "data."))]
    return compose_rows(rows, [*plain_settings, *data])


def make_plan(
    rows: dict[str, Config],
    plain: dict[str, Config],
    corpus: corpora.Corpus | None,
    seeds: int,
    title: str = "",
    every_seed: bool = False,
) -> Plan:
    """Plan the runs for these rows.

    Args:
        rows: each row's `resolved` configuration, with the user's settings on top; in order.
        plain: the same without the user's settings: what the row is.
        corpus: prepared; None if it is not.
        seeds: runs per row.
        title: of the sweeps asked for.
        every_seed: plan more seeds if there are runs of them.
    """
    first = next(iter(rows.values()))
    root = Path(first.runs_dir).absolute()
    there = runs_on_disk(root / first.preset)
    digests = corpus.digests if corpus else digests_told(itertools.chain.from_iterable(there.values()), first)
    lengths = Lengths.of(corpus.split("train")) if corpus else Lengths()
    guessed = guess(lengths, first.device, first.cluster.sustained_gflops)
    facts_of = {row: science(cfg, digests) for row, cfg in rows.items()}
    if every_seed:
        identities = {fingerprint(facts) for facts in facts_of.values()}
        seeds = max([seeds, *(seed for identity, seed in there if identity in identities)])
    by_identity: dict[tuple[str, int], PlannedRun] = {}
    planned_rows: dict[str, list[PlannedRun]] = {}
    for row, cfg in rows.items():
        facts = facts_of[row]
        changes = diff(science(plain[row], digests), facts)
        if "data.name" in changes:  # what only one of two kinds of corpus has needs no mention
            changes = {key: values for key, values in changes.items() if None not in values}
        identity = fingerprint(facts)
        flops = run_flops(cfg.model, cfg.optim, cfg.data.vocab_size)
        planned_rows[row] = []
        for seed in range(1, seeds + 1):
            if (identity, seed) not in by_identity:
                run = choose(there.get((identity, seed), []), root, cfg.preset, row, identity, seed)
                by_identity[identity, seed] = PlannedRun(
                    cfg=dataclasses.replace(cfg, seed=seed, sweep={}),
                    science=facts,
                    fingerprint=identity,
                    corpus=corpus,
                    changes=changes,
                    run=run,
                    state=read_state(run),
                    flops=flops,
                    guessed_s=guessed.train_s(facts, flops),
                    memory_mb=guessed.model.peak_mb(facts, lengths) if first.device == "cpu" else None,
                )
            by_identity[identity, seed].rows.append(row)
            planned_rows[row].append(by_identity[identity, seed])
    runs = list(by_identity.values())
    pace, source = measured_pace(guessed, runs, root / first.preset, first)
    return Plan(
        first.preset,
        title,
        seeds,
        root,
        rows,
        planned_rows,
        runs,
        pace,
        source,
        guessed.model.said("memory_mb"),
        corpus,
        digests,
    )


def digests_told(runs: Iterable[RunDir], cfg: Config) -> dict[str, str]:
    """Give the digests of a corpus that is not prepared here by the records of runs on it; none if they differ."""
    data = {key: value for key, value in science(cfg, {}).items() if key.startswith("data.")}
    told = set()
    for run in runs:
        facts = (read_json(run.record) or {}).get("science", {})
        if facts and all(facts.get(key) == value for key, value in data.items()):
            told.add((facts["digest.corpus"], facts["digest.vocab"]))
    return dict(zip(("corpus", "vocab"), told.pop(), strict=True)) if len(told) == 1 else {}


def runs_on_disk(folder: Path) -> dict[tuple[str, int], list[RunDir]]:
    """Find a preset's runs by fingerprint and seed, whichever row's folder they lie in."""
    found: dict[tuple[str, int], list[RunDir]] = {}
    for row in folders(str(folder)):
        for identity in folders(row.path):
            for seed in folders(identity.path):
                if (number := seed.name.removeprefix("seed")).isdecimal():
                    found.setdefault((identity.name, int(number)), []).append(RunDir(Path(seed.path)))
    return found


def folders(folder: str) -> list[os.DirEntry[str]]:
    """List the folders in a folder by name; none if it is not there. Unlike `Path.glob` quick for thousands."""
    try:
        with os.scandir(folder) as entries:
            return sorted((entry for entry in entries if entry.is_dir()), key=lambda entry: entry.name)
    except FileNotFoundError:
        return []


def choose(found: list[RunDir], root: Path, preset: str, row: str, identity: str, seed: int) -> RunDir:
    """Choose a row's run among those of its fingerprint and seed: a finished one, its own, any; else name its own."""
    if len(found) == 1:
        return found[0]
    own = RunDir.of(root, preset, row, identity, seed)
    finished = [run for run in found if run.record.exists()]
    return (finished or [run for run in found if run.path == own.path] or found or [own])[0]


def measured_pace(guessed: Guess, runs: list[PlannedRun], folder: Path, cfg: Config) -> tuple[float, str]:
    """Give measured ÷ estimated seconds of training, the median of the records made here in this way, else 1.

    Args:
        guessed: what estimates.
        runs: the plan's; only if none of them tells, the other records of the preset are read.
        folder: the preset's.
        cfg: says on what device and in how many processes.

    Returns:
        That, and where estimates come from, in words.
    """
    paces = paces_here(guessed, (planned.state.record for planned in runs), cfg)
    if not paces:
        paces = paces_here(guessed, (read_json(path) for path in folder.glob("*/*/seed*/record.json")), cfg)
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


def older_runs(plan: Plan, row: str) -> dict[str, dict[str, tuple[Any, Any]]]:
    """Find the runs in a row's folder that do not count for it now, with what differs: (then, now) by key."""
    planned = plan.rows[row][0]
    others = {}
    for path in sorted((plan.runs_dir / plan.preset / row).glob("*/seed*/identity.json")):
        identity = read_json(path)
        if identity["fingerprint"] != planned.fingerprint:
            others[identity["fingerprint"]] = diff(identity["science"], planned.science)
    return others
