"""Rows × seeds → runs: which run fills which cell, what is done, and what the rest will cost. Writes nothing.

A row's run is found by its fingerprint, whichever row's folder it lies in, so that equal rows run once and a run under
other settings never passes for the row.
"""

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ablate.config import Config
from ablate.data import corpus as corpora
from ablate.estimate import Lengths, guess
from ablate.identity import diff, fingerprint, science
from ablate.named import find
from ablate.pace import done_here, measured_pace
from ablate.params import count_parameters, params_paper, run_flops
from ablate.request import Request, check_corpus, read
from ablate.rundir import RunDir, read_json
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

    asked: Request  # what this plans
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

    @property
    def changed(self) -> str:
        """Say which settings are on top of every row; empty if none."""
        changes: dict[str, tuple[list[str], list[str]]] = {}  # rows may have had, or be given, different values
        for planned in self.runs:
            for key, change in planned.changes.items():
                for values, value in zip(changes.setdefault(key, ([], [])), map(repr, change), strict=True):
                    if value not in values:
                        values.append(value)
        listed = ", ".join(f"{key}={' or '.join(n)} instead of {' or '.join(t)}" for key, (t, n) in changes.items())
        return f"Changed on top of every row, so these are not the rows as they stand: {listed}." if listed else ""

    def equals(self, row: str) -> str:
        """Say which row before it a row equals, whose runs fill its cells, too; empty if none."""
        first = self.rows[row][0].rows[0]
        return "" if first == row else f"equals {first} at this preset: the same runs fill both"

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


def plan_from(
    overrides: list[str], prepare: bool, say: Callable[[str], None] = print, every_seed: bool = False
) -> Plan:
    """Plan what these overrides ask for: one row, or base and the rows of the sweeps named.

    Args:
        overrides: in Hydra's grammar, such as ["+sweep=row_A", "preset=smoke", "seeds=2"].
        prepare: make the corpus ready if it is not; otherwise a missing one leaves open which runs are done.
        say: told about the corpus.
        every_seed: unless the overrides say how many, plan as many seeds as there are runs of, whatever the default.

    Raises:
        ConfigError: as `request.read`, before anything is fetched or written; and as `check_corpus`.
    """
    asked = read(overrides)
    data = next(iter(asked.rows.values())).data
    corpus = corpora.prepare(data, say) if prepare else corpora.find(data)
    if corpus is not None:
        for row, cfg in asked.rows.items():
            check_corpus(row, cfg, corpus)
    return make_plan(asked, corpus, every_seed and not any(text.startswith("seeds=") for text in overrides))


def make_plan(asked: Request, corpus: corpora.Corpus | None, every_seed: bool) -> Plan:
    """Plan the runs that are asked for.

    Args:
        asked: rows and seeds.
        corpus: prepared; None if it is not.
        every_seed: plan more seeds if there are runs of them.
    """
    first = next(iter(asked.rows.values()))
    root = Path(first.runs_dir).absolute()
    there = runs_there(root, first.preset)
    all_there = list(itertools.chain.from_iterable(there.values()))
    digests = corpus.digests if corpus else digests_told(all_there, first)
    lengths = Lengths.of(corpus.split("train")) if corpus else Lengths()
    guessed = guess(lengths, first.device, first.cluster.sustained_gflops)
    sciences = {row: science(cfg, digests) for row, cfg in asked.rows.items()}
    fingerprints = {row: fingerprint(facts) for row, facts in sciences.items()}
    seeds = asked.seeds
    if every_seed:
        seeds = max([seeds, *(seed for identity, seed in there if identity in fingerprints.values())])
    planned: dict[tuple[str, int], PlannedRun] = {}
    rows: dict[str, list[PlannedRun]] = {}
    for row, cfg in asked.rows.items():
        facts, identity = sciences[row], fingerprints[row]
        changes = changed(science(asked.plain[row], digests), facts)
        flops = run_flops(cfg.model, cfg.optim, cfg.data.vocab_size)
        for seed in range(1, seeds + 1):
            if (identity, seed) not in planned:
                run = choose(there.get((identity, seed), []), RunDir.of(root, cfg.preset, row, identity, seed))
                planned[identity, seed] = PlannedRun(
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
                    command=asked.command(row, seed),
                )
            planned[identity, seed].rows.append(row)
        rows[row] = [planned[identity, seed] for seed in range(1, seeds + 1)]
    runs = list(planned.values())
    for one in runs:
        one.sweeps = [name for name, sweep in asked.sweeps.items() if {"base", *sweep.rows} & set(one.rows)]
    pace, source = measured_pace(
        guessed, (one.state.record for one in runs), (read_json(run.record) for run in all_there), first
    )
    return Plan(
        asked=asked,
        preset=first.preset,
        title="; ".join(sweep.title for sweep in asked.sweeps.values()),
        seeds=seeds,
        runs_dir=root,
        configs=asked.rows,
        rows=rows,
        runs=runs,
        pace=pace,
        time_source=source,
        memory_source=guessed.model.said("memory_mb"),
        corpus=corpus,
        digests=digests,
    )


def look_again(plan: Plan) -> Plan:
    """Plan the same runs as they are now, whatever has become of the configuration's files meanwhile."""
    return make_plan(dataclasses.replace(plan.asked, seeds=plan.seeds), plan.corpus, every_seed=False)


def changed(plain: dict[str, Any], ours: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Give the settings that differ from the row's own; what only one of two kinds of corpus has needs no mention."""
    changes = diff(plain, ours)
    if "data.name" in changes:
        return {key: values for key, values in changes.items() if None not in values}
    return changes


def runs_there(root: Path, preset: str) -> dict[tuple[str, int], list[RunDir]]:
    """Find a preset's runs by fingerprint and seed, whichever row's folder they lie in."""
    found: dict[tuple[str, int], list[RunDir]] = {}
    for run in find(root, preset):
        identity, seed = run.path.parts[-2:]
        found.setdefault((identity, int(seed.removeprefix("seed"))), []).append(run)
    return found


def digests_told(runs: Iterable[RunDir], cfg: Config) -> dict[str, str]:
    """Give the digests of a corpus that is not prepared here by the records of runs on it; none if they differ."""
    data = {key: value for key, value in science(cfg, {}).items() if key.startswith("data.")}
    told = set()
    source = None
    for run in runs:
        done = read_json(run.record) or {}
        facts = done.get("science", {})
        if facts and all(facts.get(key) == value for key, value in data.items()):
            source = source or corpora.SOURCES[cfg.data.name](cfg.data).identity  # reads the user's files: only once
            if done["corpus"].get("source", source) != source:
                continue  # they were edited since
            told.add((facts["digest.corpus"], facts["digest.vocab"]))
    return dict(zip(("corpus", "vocab"), told.pop(), strict=True)) if len(told) == 1 else {}


def choose(found: list[RunDir], own: RunDir) -> RunDir:
    """Choose a row's run among those of its fingerprint and seed: a finished one, its own, any; else its own, new."""
    finished = [run for run in found if run.record.exists()]
    return (finished or [run for run in found if run == own] or found or [own])[0]


def older_runs(plan: Plan, row: str) -> dict[str, dict[str, tuple[Any, Any]]]:
    """Find the runs in a row's folder that do not count for it now, with what differs: (then, now) by key."""
    planned = plan.rows[row][0]
    others: dict[str, dict[str, tuple[Any, Any]]] = {}
    for run in find(plan.runs_dir, plan.preset, row):
        then = run.path.parts[-2]
        if then not in (planned.fingerprint, *others):
            facts = read_json(run.identity) or read_json(run.record)
            others[then] = diff(facts["science"], planned.science)
    return others
