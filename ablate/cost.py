"""A plan in words: its rows, what is done and what is to do, and what it costs in hours and operations."""

import statistics

from ablate.estimate import ASSUMED_GFLOPS
from ablate.plan import Plan, PlannedRun, older_runs
from ablate.state import TO_DO

# What Table 2 counts as training cost: time × GPUs × sustained rate (section 6.1), 9.5 TFLOPS for a P100.
PAPER_HOURS = {"base": 12, "big": 3.5 * 24}
PAPER_GPUS = 8
PAPER_FLOPS_PER_S = 9.5e12


def describe(plan: Plan, workers: int) -> str:
    """Write the plan for a reader: one line per row, then the cost, and what does not count.

    Args:
        plan: what is asked for.
        workers: runs that go at once.
    """
    width = max(12, *(len(row) for row in plan.rows))
    lines = [
        f"{'row':<{width}} {'seeds':>5} {'parameters':>11} {'as the paper':>12} {'steps':>7} {'FLOPs':>8} {'hours':>8} "
        f"{'MB':>6}  state"
    ]
    for row, runs in plan.rows.items():
        if equals := plan.equals(row):
            lines.append(f"{row:<{width}} {equals}")
            continue
        one = runs[0]
        hours = statistics.mean(map(plan.hours, runs))
        memory = "?" if one.memory_mb is None else f"{one.memory_mb:,.0f}"
        state = states(runs) if plan.digests else "unknown: corpus not prepared"
        lines.append(
            f"{row:<{width}} {len(runs):>5} {one.params_actual:>11,} {one.params_paper:>12,} "
            f"{one.cfg.optim.train_steps:>7,} {one.flops:>8.1e} {hours:>8.3f} {memory:>6}  {state}"
        )
    lines += cost(plan, workers)
    lines += [plan.changed] if plan.changed else []
    for row in plan.rows:
        for other, differing in older_runs(plan, row).items() if plan.digests else ():
            keys = ", ".join(f"{key} {then!r} → {now!r}" for key, (then, now) in differing.items())
            lines.append(f"{row}: runs under {other} differ and are not used: {keys}")
    return "\n".join(lines)


def cost(plan: Plan, workers: int) -> list[str]:
    """Say what all runs cost and what is left to do: hours, and training FLOPs as counted and the paper's way."""
    hours, left = sum(map(plan.hours, plan.runs)), sum(map(plan.hours, plan.to_run))
    at_once = max(1, min(workers, len(plan.to_run)))
    counts = ", ".join(f"{number} {name}" for name, number in count_states(plan).items())
    if not plan.digests:
        counts = "which of them are done is unknown"
    sustained = plan.runs[0].cfg.cluster.sustained_gflops or ASSUMED_GFLOPS
    lines = [
        f"FLOPs and hours above are of one run. {len(plan.runs)} runs: {counts}. {hours:.3f} hours in all, "
        f"{left:.3f} to run ({left / at_once:.3f} with {at_once} at once).",
        f"Hours: measured where a seed of the row is done here, else {plan.time_source}.",
        f"Training FLOPs in all: {sum(planned.flops for planned in plan.runs):.1e}, matrix products counted; "
        f"{hours * 3600 * sustained * 1e9:.1e} the paper's way (section 6.1), hours × sustained rate of a run, "
        f"at {sustained:g} GFLOP/s (cluster.sustained_gflops).",
    ]
    if plan.runs[0].memory_mb is not None:
        memory = f"MB: the most that training holds, interpreter included, {plan.memory_source}"
        lines.insert(2, f"{memory}; evaluation and W&B come on top.")
    first = plan.runs[0].cfg.optim
    tokens = first.accumulate * first.batch_tokens
    lines.append(
        f"Tokens a side: at most {first.accumulate} × {first.batch_tokens:,} an update ({first.batch_counting}), "
        f"{tokens * first.train_steps:.1e} in all of a run."
    )
    if plan.preset == "paper":
        papers = ", ".join(
            f"{row} {hours:g} h × {PAPER_GPUS} P100 × {PAPER_FLOPS_PER_S / 1e12:g} TFLOPS = "
            f"{hours * 3600 * PAPER_GPUS * PAPER_FLOPS_PER_S:.1e}"
            for row, hours in PAPER_HOURS.items()
        )
        lines.append(f"The paper's own runs: {papers}.")
    return lines


def count_states(plan: Plan) -> dict[str, int]:
    """Count the runs by state, in the order they first come."""
    counts: dict[str, int] = {}
    for planned in plan.runs:
        name = TO_DO.get(planned.state.name, planned.state.name)
        counts[name] = counts.get(name, 0) + 1
    return counts


def states(runs: list[PlannedRun]) -> str:
    """Say what a row's runs are at, with the seeds where these differ: "done (seeds 1–2); failed: … (seed 3)"."""
    seeds: dict[str, list[int]] = {}
    for planned in runs:
        words = "to run" if planned.state.name == "new" else planned.state.words
        words = words.replace("; ", ", ")  # a semicolon is followed by the next state
        seeds.setdefault(words, []).append(planned.cfg.seed)
    if len(seeds) == 1:
        return next(iter(seeds))
    return "; ".join(f"{words} ({spans(found)})" for words, found in seeds.items())


def spans(seeds: list[int]) -> str:
    """Write ascending seeds shortly: "seed 4", "seeds 1–3, 7"."""
    parts: list[list[int]] = []
    for seed in seeds:
        if parts and seed == parts[-1][-1] + 1:
            parts[-1].append(seed)
        else:
            parts.append([seed])
    text = ", ".join(f"{part[0]}–{part[-1]}" if len(part) > 1 else str(part[0]) for part in parts)
    return f"seed {text}" if len(seeds) == 1 else f"seeds {text}"
