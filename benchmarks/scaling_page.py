"""What `scaling.py` makes of its measurements: the cost model's coefficients, a page about it, and its plots."""

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from scipy.optimize import nnls

from ablate import estimate
from ablate.estimate import COSTS, Load
from ablate.params import train_flops

HERE = Path(__file__).parent
STATED = 40e9  # operations per second: what the plan assumes where it has no cost model
KINDS = {
    "micro-batch": "a micro-batch (here one an update)",
    "layers": "a layer of encoder and decoder",
    "products": "an operation in products with weights",
    "output products": "an operation in the output layer",
    "attention matrices": "a matrix of attention weights (sentence, head, layer)",
    "attention weights": "an attention weight",
    "elements": "an element of a sub-layer's output or of d_ff",
    "dropped elements": "an element of a sub-layer's output, with dropout",
    "logits": "a logit",
    "parameters": "a parameter (Adam)",
    "process": "interpreter and libraries",
}
LABELS = {"tokens": "tokens per batch and side", "length": "length of a sentence"}
QUANTITIES = {"seconds": ("update_s", "work"), "memory_mb": ("peak_mb", "held")}
UNITS = {
    "seconds": {"ms": 1e-3, "µs": 1e-6, "ns": 1e-9, "ps": 1e-12},
    "memory_mb": {"MB": 1.0, "bytes": 1e-6},
}


@dataclass
class Measured:
    """One configuration with what an update of it took."""

    name: str
    sizes: dict[str, Any]  # by the names that the page uses; empty for a row
    science: dict[str, Any]
    load: dict[str, float]  # of a micro-batch, as `estimate.Load`
    update_s: float
    peak_mb: float

    @property
    def work(self) -> dict[str, float]:
        """Count the work of an update by kind."""
        return estimate.work(estimate.model_of(self.science), self.science["data.vocab_size"], Load(**self.load))

    @property
    def held(self) -> dict[str, float]:
        """Count what it holds in memory by kind."""
        return estimate.memory(estimate.model_of(self.science), self.science["data.vocab_size"], Load(**self.load))

    @property
    def flops(self) -> float:
        """Count its matrix products, as the plan does."""
        load = Load(**self.load)
        model, vocab_size = estimate.model_of(self.science), self.science["data.vocab_size"]
        return train_flops(model, vocab_size, load.src_tokens, load.tgt_tokens, load.src_len, load.tgt_len)


def fit(counts: list[dict[str, float]], measured: list[float]) -> dict[str, float]:
    """Fit coefficients of at least 0 to the relative errors: minimise Σ (predicted ÷ measured − 1)²."""
    matrix = np.array([list(count.values()) for count in counts]) / np.array(measured)[:, None]
    norms = np.linalg.norm(matrix, axis=0)
    coefficients, _ = nnls(matrix / norms, np.ones(len(measured)))
    return dict(zip(counts[0], map(float, coefficients / norms), strict=True))


def predict(costs: dict[str, float], counts: dict[str, float]) -> float:
    """Give what a fitted model says of one point."""
    return sum(costs[kind] * count for kind, count in counts.items())


def leave_one_out(counts: list[dict[str, float]], measured: list[float]) -> tuple[list[float], dict[str, float]]:
    """Fit without each point in turn.

    Returns:
        The relative error on the point left out; the jackknife's standard error of each coefficient (Efron 1982).
    """
    n = len(counts)
    fits = [fit(counts[:i] + counts[i + 1 :], measured[:i] + measured[i + 1 :]) for i in range(n)]
    errors = [predict(costs, counts[i]) / measured[i] - 1 for i, costs in enumerate(fits)]
    spread = {kind: float(np.std([costs[kind] for costs in fits]) * (n - 1) ** 0.5) for kind in counts[0]}
    return errors, spread


def fitted(points: list[Measured], rows: list[Measured]) -> dict[str, dict[str, Any]]:
    """Fit seconds and memory: coefficients, their standard errors, errors on points left out and on rows."""
    found = {}
    for quantity, (value, counts) in QUANTITIES.items():
        work, measured = [getattr(point, counts) for point in points], [getattr(point, value) for point in points]
        costs = fit(work, measured)
        left_out, spread = leave_one_out(work, measured)
        on_rows = [predict(costs, getattr(row, counts)) / getattr(row, value) - 1 for row in rows]
        found[quantity] = {"costs": costs, "spread": spread, "left_out": left_out, "rows": on_rows}
    return found


def typical(errors: list[float]) -> float:
    """Give the median of relative errors without their signs."""
    return statistics.median(map(abs, errors))


def worst(errors: list[float]) -> float:
    """Give the largest of relative errors without their signs."""
    return max(map(abs, errors))


def draw(points: list[Measured], costs: dict[str, dict[str, float]], path: Path) -> None:
    """Draw seconds and memory against each size, the others as in the centre; points measured, line the model's."""
    style = {"svg.fonttype": "none", "svg.hashsalt": "ablate", "font.size": 8, "axes.spines.top": False}
    centre = points[0].sizes
    names = [name for name in centre if name != "dropout"]
    with matplotlib.rc_context({**style, "axes.spines.right": False}):
        fig = Figure(figsize=(11, 4), layout="constrained")
        axes = fig.subplots(2, len(names), sharey="row", sharex="col")
        for column, name in zip(axes.T, names, strict=True):
            shown = [p for p in points if all(p.sizes[key] == centre[key] for key in centre if key != name)]
            shown.sort(key=lambda point, name=name: point.sizes[name])
            at = [point.sizes[name] for point in shown]
            for ax, (quantity, (value, counts)) in zip(column, QUANTITIES.items(), strict=True):
                scale = 1000 if quantity == "seconds" else 1
                ax.loglog(at, [scale * getattr(p, value) for p in shown], "o", color="#2a6f97", markersize=4)
                model = [scale * predict(costs[quantity], getattr(p, counts)) for p in shown]
                ax.loglog(at, model, "-", color="#bc4749", linewidth=1)
                ax.set_xticks(at, [str(x) for x in at], rotation=45, minor=False)
                ax.minorticks_off()
            column[1].set_xlabel(LABELS.get(name, name))
        axes[0][0].set_ylabel("ms per update")
        axes[1][0].set_ylabel("peak memory (MB)")
        fig.savefig(path, metadata={"Date": None})


def table(head: list[str], lines: list[list[str]]) -> str:
    """Write a Markdown table, numbers to the right."""
    rule = ["---", *["--:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *lines))


def with_unit(value: float, error: float, quantity: str) -> str:
    """Write a coefficient and its error in the unit that suits it."""
    units = UNITS[quantity]
    unit = next((unit for unit, size in units.items() if max(value, error) >= size), list(units)[-1])
    return f"{value / units[unit]:.3g} ± {error / units[unit]:.2g} {unit}"


def coefficients(found: dict[str, dict[str, Any]], centre: Measured) -> str:
    """Write both models' coefficients, their errors, and each kind's share of the centre's cost."""
    parts = []
    for quantity, (_, counts) in QUANTITIES.items():
        costs, spread, count = found[quantity]["costs"], found[quantity]["spread"], getattr(centre, counts)
        total = predict(costs, count)
        lines = [
            [KINDS[kind], with_unit(cost, spread[kind], quantity), f"{cost * count[kind] / total:.0%}"]
            for kind, cost in costs.items()
        ]
        parts.append(table(["", quantity.replace("_mb", ""), "share of the centre's"], lines))
    return "\n\n".join(parts)


def errors(found: dict[str, dict[str, Any]], rows: list[Measured], flat: float) -> str:
    """Write how far the model, and flat rates, are from each row's measured update."""
    rated = {rate: [row.flops / rate / row.update_s - 1 for row in rows] for rate in (STATED, flat)}
    columns = [found["seconds"]["rows"], rated[STATED], rated[flat], found["memory_mb"]["rows"]]
    lines = [
        [
            row.name,
            f"{1000 * row.update_s:.1f}",
            *(f"{column[i]:+.0%}" for column in columns[:3]),
            f"{row.peak_mb:.0f}",
            f"{columns[3][i]:+.0%}",
        ]
        for i, row in enumerate(rows)
    ]
    for words, summary in (("**median, without sign**", typical), ("**largest**", worst)):
        cells = [f"**{summary(column):.0%}**" for column in columns]
        lines.append([words, "", *cells[:3], "", cells[3]])
    scaled = {}
    for name, predicted in (("model", columns[0]), ("flat", columns[1])):
        bases = {
            row.name.split()[0]: 1 + e for row, e in zip(rows, predicted, strict=True) if row.name.endswith("base")
        }
        others = [(row, e) for row, e in zip(rows, predicted, strict=True) if not row.name.endswith("base")]
        scaled[name] = [(1 + e) / bases[row.name.split()[0]] - 1 for row, e in others]
    head = ["row", "ms", "cost model", f"{STATED / 1e9:.0f} GFLOP/s", f"{flat / 1e9:.0f} GFLOP/s", "MB", "cost model"]
    return (
        f"{table(head, lines)}\n\n"
        "Once base has been run here, the plan scales its estimates to that. Then the other rows' error is\n"
        f"{typical(scaled['model']):.0%} (median; largest {worst(scaled['model']):.0%}) by the cost model and "
        f"{typical(scaled['flat']):.0%} ({worst(scaled['flat']):.0%}) by a flat rate."
    )


def write_page(measured: dict[str, Any]) -> None:
    """Fit, and write the coefficients, the page and the plots."""
    points, rows = ([Measured(**one) for one in measured[kind]] for kind in ("fit", "rows"))
    found = fitted(points, rows)
    about, libraries = measured["machine"], measured["versions"]
    where = f"{about['processor']}, one thread, float32, torch {libraries['torch']}"
    costs = {quantity: one["costs"] for quantity, one in found.items()}
    error = {quantity: round(typical(one["rows"]), 4) for quantity, one in found.items()}
    COSTS.write_text(json.dumps({"machine": where, **costs, "error": error}, indent=1) + "\n")
    draw(points, costs, HERE / "scaling.svg")
    flat = statistics.median(point.flops / point.update_s for point in points)
    left_out = {quantity: one["left_out"] for quantity, one in found.items()}
    text = TEMPLATE.format(
        where=where,
        memory=about["memory_gb"],
        load=about["load_1_min"],
        commit=measured["commit"],
        centre=", ".join(f"{key} {value}" for key, value in points[0].sizes.items()),
        number=len(points),
        coefficients=coefficients(found, points[0]),
        left_out="; ".join(
            f"{quantity.replace('_mb', '')}: {typical(off):.1%} (median; largest {worst(off):.0%})"
            for quantity, off in left_out.items()
        ),
        rows=errors(found, rows, flat),
    )
    (HERE / "scaling.md").write_text(text)


TEMPLATE = """# Scaling

How long an update of a run's training takes and how much memory it needs, against each size. Written by `scaling.py`,
which says what is measured; the numbers are in `results/scaling.json`.

{where}; {memory} GB; load {load} when it began; commit {commit}. Seconds are processor time.

![Milliseconds per update and peak memory against six sizes](scaling.svg)

Points: measured. Lines: the cost model. All but the size below are as in the centre: {centre}
(tokens per batch and side; length of a sentence; d_ff is 4 × d_model, d_k = d_v = d_model / h).

## The cost model

Seconds of an update, and memory, are sums over kinds of work, each with a coefficient of at least 0, fitted to {number}
points by least squares on relative errors. What is counted is in `ablate/estimate.py`. ± is the jackknife's standard
error; kinds that grow together (elements, dropped elements, products) trade with each other, so single coefficients are
less certain than what they add up to. 0 says that the points do not show such a cost beside the others.

{coefficients}

How far a point is off when it is predicted from all others: {left_out}.

## On rows it has not seen

Rows of Table 3 on their presets' own corpora, which the cost model knows by their mean lengths only. Beside it, flat
rates of counted matrix products: the one that was assumed before there was a cost model, and the median of the points
above. Errors are predicted ÷ measured − 1.

{rows}

The model speaks of this kind of machine, one thread and float32. `plan_only=true` uses it on a CPU until a run is
finished there, and says so; then scaled to what was measured. Memory is that of training, with all that a run imports.
"""
