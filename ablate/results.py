"""What a plan's finished runs came to, row by row: means over seeds, differences to base, and how sure these are."""

import math
from collections.abc import Callable, Mapping

from ablate import record
from ablate.plan import Plan, PlannedRun
from ablate.record import Record
from ablate.stats import estimate, holm, paired_difference

METRICS = ("ppl", "bleu")

Columns = dict[str, float | int | None]  # of the table's frame
Scores = dict[str, dict[str, dict[int, float]]]  # metric → row → seed → value

# What must be the same in all of a table's records.
COMMON: dict[str, Callable[[Record], str | None]] = {
    "preset": lambda done: done["preset"],
    "corpus": lambda done: done["corpus"]["digests"]["corpus"],
    "vocabulary": lambda done: done["corpus"]["digests"]["vocab"],
    "beam and length penalty": lambda done: (
        f"{done['science']['decode.beam_size']}, {done['science']['decode.length_penalty']}"
    ),
    "BLEU": lambda done: done["dev"]["bleu_signature"],
    "BLEU tok": lambda done: done["dev"].get("bleu_tok_signature"),  # None in records of before it was taken
}


class MixedRecords(ValueError):
    """Records that do not belong into one table."""


def records_of(plan: Plan) -> list[Record]:
    """Give the records of the plan's finished runs, each once, if they can stand side by side.

    Raises:
        RecordError: for a record of another schema.
        MixedRecords: if they differ in preset, corpus, vocabulary, decoding or signature.
    """
    done = [(planned.run, planned.state.record) for planned in plan.runs]
    records = [record.accept(run, found) for run, found in done if found is not None]
    refuse_mixtures(plan, records)
    return records


def refuse_unlike(plan: Plan) -> None:
    """Make sure, before the rest of a plan is run, that its results will stand beside those there are.

    Raises:
        RecordError, MixedRecords: as `records_of`; the latter also for another version of a scorer than theirs.
    """
    records = records_of(plan)
    unfinished = [one for one in plan.runs if one.state.name not in ("done", "failed")]
    if records and unfinished and plan.corpus:
        from ablate.bleu import score  # loads sacreBLEU, which no other command needs

        scored = score(["one"], ["one"], plan.corpus.manifest["languages"]["tgt"])
        refuse_mixtures(plan, records, {"BLEU": scored.bleu_signature, "BLEU tok": scored.bleu_tok_signature})


def refuse_mixtures(plan: Plan, records: list[Record], here: Mapping[str, str] | None = None) -> None:
    """Make sure that numbers stand side by side only where they can be compared; a plan has one corpus by itself.

    Args:
        plan: whose decoding counts, too.
        records: of its runs.
        here: what this installation would write.

    Raises:
        MixedRecords: naming what differs, with the values and the runs that have them.
    """
    decodes = {f"{cfg.decode.beam_size}, {cfg.decode.length_penalty}": "as asked for" for cfg in plan.configs.values()}
    others = {
        "beam and length penalty": decodes,
        **{name: {value: "installed here"} for name, value in (here or {}).items()},
    }
    for name, of in COMMON.items():
        found = {value: [who] for value, who in others.get(name, {}).items()}
        for done in records:
            if (value := of(done)) is not None:
                found.setdefault(value, []).append(f"{done['row']} seed {done['seed']}")
        if len(found) > 1:
            said = [f"{value} ({', '.join(who[:2])}{' …' if who[2:] else ''})" for value, who in sorted(found.items())]
            raise MixedRecords(f"{name}: one table cannot hold {' and '.join(said)}")


def scores(plan: Plan) -> Scores:
    """Collect dev perplexity and BLEU of the finished runs; every row is there, if only with no seed."""
    return {
        metric: {
            row: {one.cfg.seed: one.state.record["dev"][metric] for one in runs if one.state.record is not None}
            for row, runs in plan.rows.items()
        }
        for metric in METRICS
    }


def by_row(plan: Plan) -> dict[str, Columns]:
    """Judge every row: the columns of `table.build` that our runs fill, from `n` to Holm's p-values."""
    found = scores(plan)
    columns: dict[str, Columns] = {
        row: {"n": len(found["ppl"][row]), "bleu_tok": bleu_tok(runs)} for row, runs in plan.rows.items()
    }
    for metric, values in found.items():
        for row, own in columns.items():
            own |= compared(metric, values[row], values.get("base", {}) if row != "base" else {})
    correct(columns, {row: runs[0].rows[0] for row, runs in plan.rows.items()})
    return columns


def bleu_tok(runs: list[PlannedRun]) -> float | None:
    """Give a row's mean BLEU as the paper's authors took it; None unless all its finished runs have it."""
    values = [one.state.record["dev"].get("bleu_tok") for one in runs if one.state.record is not None]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def compared(metric: str, ours: Mapping[int, float], base: Mapping[int, float]) -> Columns:
    """Estimate a row's mean and its difference to base, with intervals.

    Args:
        metric: names the columns.
        ours: the row's values by seed.
        base: base's; empty for base itself.
    """
    columns: Columns = {}
    if mean := estimate(list(ours.values())):
        own = {"": mean.mean, "_sd": mean.sd, "_low": mean.low, "_high": mean.high}
        columns |= {f"{metric}{part}": value for part, value in own.items()}
    if delta := paired_difference(ours, base):
        own = {"": delta.mean, "_low": delta.low, "_high": delta.high, "_n": delta.n, "_p": delta.p}
        columns |= {f"d_{metric}{part}": value for part, value in own.items()}
        if metric == "ppl":
            columns |= relative(ours, base)
    return columns


def relative(ours: Mapping[int, float], base: Mapping[int, float]) -> Columns:
    """Estimate a row's perplexity in per cent above base's, on the log scale, and the p of its test there.

    There is no interval where a float cannot hold its upper end.

    Args:
        ours: the row's perplexities by seed.
        base: base's, of which one has a seed of these.
    """
    logs = [{seed: math.log(value) for seed, value in values.items()} for values in (ours, base)]
    found = paired_difference(logs[0], logs[1])
    assert found is not None
    ends = {"": found.mean, "_low": found.low, "_high": found.high}
    if found.high is not None and found.high > 700:  # a seed has diverged; e^710 is no float
        ends |= {"_low": None, "_high": None}
    percent = {f"rel_ppl{part}": None if end is None else 100 * math.expm1(end) for part, end in ends.items()}
    return {**percent, "d_ppl_p": found.p}


def correct(columns: Mapping[str, Columns], first: Mapping[str, str]) -> None:
    """Add p-values corrected over all tests of the table: of both metrics, and of rows that share their runs only one.

    A row that shares base's runs has none: its difference is 0 whatever the seed.

    Args:
        columns: by row, as `compared` gives them.
        first: by row, the first of those that share its runs.
    """
    corrected = holm({(metric, row): columns[row].get(f"d_{metric}_p") for metric in METRICS for row in first.values()})
    for row, own in columns.items():
        own |= {f"d_{metric}_p_holm": corrected[metric, first[row]] for metric in METRICS}
