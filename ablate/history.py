"""What the notebooks read: a plan on records from here or from W&B, and how its runs went, line by line."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from ablate.account import download
from ablate.errors import ConfigError, nearest
from ablate.plan import Plan, plan_from
from ablate.track import read_metrics

SOURCES = ("local", "wandb")


def plan_for(
    sweep: str, preset: str, seeds: int, runs: str, source: str = "local", settings: Sequence[str] = ()
) -> Plan:
    """Plan what a notebook shows; nothing is trained, prepared or fetched but W&B's copy of runs.

    Args:
        sweep: a sweep, or several: "row_A,row_B".
        preset: at which the runs were done.
        seeds: how many per row.
        runs: the folder of runs, as seen from the working directory. What comes from W&B goes to `<runs>-wandb`, so
            that it is never taken for what was done here.
        source: "local", or "wandb" for full histories and records from there; finished runs are fetched once.
        settings: more overrides the runs were started with, such as "data=files".

    Raises:
        ConfigError: for an unknown source, as `plan_from`, and where no run can be told to be of a row: the corpus is
            not prepared here, and there is no record of a run on it.
    """
    if source not in SOURCES:
        raise ConfigError("source", source, nearest(source, list(SOURCES)))
    folder = runs if source == "local" else f"{runs.rstrip('/')}-wandb"
    overrides = [f"+sweep=[{sweep}]", f"preset={preset}", f"seeds={seeds}", f"runs_dir={folder}", *settings]
    plan = plan_from(overrides, prepare=False)
    if not plan.digests:
        raise ConfigError(
            "data", next(iter(plan.configs.values())).data.name, "is not prepared here: python -m ablate.prepare"
        )
    if source == "local":
        return plan
    for planned in plan.runs:
        if not planned.run.record.exists():
            download(planned.run, planned.fingerprint, planned.cfg.seed, planned.cfg.tracking)
    return plan_from(overrides, prepare=False)


def histories(plan: Plan) -> pd.DataFrame:
    """Collect what the runs logged: every line of every metrics.jsonl, never a sample.

    Returns:
        A line per row, seed and logged line, in this order, with `row`, `block`, `seed`, `state`, `step`, and NaN where
        that line does not have the number: `loss` and `nll` (per target subword, of the updates since the line before),
        `learning_rate`, `src_tgt_tokens_per_s` …, `dev_ppl`, `dev_bleu`. A run that logged nothing has one line without
        a step. Where rows share a run, each has its lines.
    """
    lines = []
    for row, runs in plan.rows.items():
        for planned in runs:
            names = {"row": row, "block": plan.configs[row].row.block, "seed": planned.cfg.seed}
            names["state"] = planned.state.words
            lines += [{**names, **line} for line in read_metrics(planned.run.metrics) or [{"step": float("nan")}]]
    return pd.DataFrame(lines)


@dataclass
class Curve:
    """How a number went in a row's runs, thinned for drawing."""

    row: str
    block: str
    column: str  # of `histories`
    logged: int  # steps at which it was logged, of which `points` has some
    points: list[tuple[int, float, float, float, int]]  # step; mean, lowest, highest of the seeds there; how many


def curves(lines: pd.DataFrame, columns: Sequence[str], most: int) -> list[Curve]:
    """Summarise over seeds how numbers went, row by row; a row that did not log a number has no curve of it.

    Of more than `most` steps every k-th and the last are given, for a drawing; the others are left out, not averaged.

    Args:
        lines: as `histories` makes them.
        columns: of them.
        most: points of a curve, at least 1, the last not counted.
    """
    found = []
    for (row, block), own in lines.groupby(["row", "block"], sort=False):
        for column in columns:
            if column not in own or not own[column].notna().any():
                continue
            steps = own.dropna(subset=[column]).groupby("step")[column].agg(["mean", "min", "max", "count"])
            every = math.ceil(len(steps) / most)
            kept = steps[[i % every == 0 or i == len(steps) - 1 for i in range(len(steps))]]
            points = [(int(step), mean, low, high, int(n)) for step, mean, low, high, n in kept.itertuples()]
            found.append(Curve(str(row), str(block), column, len(steps), points))
    return found
