"""Figures of frames: ours beside the paper's, and how the runs went. The one door to matplotlib."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from ablate.cells import DIGITS, MISSING, VARIED, row_label

WIDTH_IN = 7.1  # the text of an A4 page
# Okabe & Ito's colours (2008), told apart by colour-blind readers; with line styles and markers also in grey.
OURS, PAPER, BASE, FAINT = "#0072B2", "#D55E00", "#000000", "#767676"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#999999")
DASHES = ("-", "--", "-.", ":")
STYLE: dict[Any, Any] = {
    "font.size": 8,
    "axes.titlesize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#e5e5e5",
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
    "legend.fontsize": 7,
    "savefig.dpi": 200,
    "svg.hashsalt": "ablate",  # the same numbers give the same file
}


@dataclass(frozen=True)
class Quantity:
    """What an axis shows."""

    column: str
    label: str
    scale: str = "linear"


LOSS = Quantity("loss", "training loss (nats per subword)")
DEV_PPL = Quantity("dev_ppl", "dev perplexity (per subword)", "log")
RATE = Quantity("learning_rate", "learning rate")
SPEED = Quantity("src_tgt_tokens_per_s", "throughput (subwords/s)")
# Perplexities are drawn in per cent of base's: the paper's 4.92 and a small model's 15 share no other scale.
DELTAS = {
    "ppl": Quantity("rel_ppl", "Δ PPL to base (%)"),
    "bleu": Quantity("d_bleu", "Δ BLEU to base (points)"),
}


def forest(frame: pd.DataFrame, title: str) -> Figure:
    """Draw every row's difference to base, ours with its interval over seeds and the paper's, in the table's order.

    Args:
        frame: a line per row, as `table.build` makes it: row, block, states, n of seeds, rel_ppl and d_bleu with their
            `_low` and `_high`, paper_… the same. What is NaN is not drawn; the row stays, marked.
        title: names the preset.
    """
    heights, y = [], 0.0
    for previous, block in zip([None, *frame["block"]], frame["block"], strict=False):
        y += 1.0 if previous in (None, block) else 1.7  # a gap between blocks
        heights.append(y)
    with matplotlib.rc_context(STYLE):
        fig = Figure(figsize=(WIDTH_IN, 1.3 + 0.2 * heights[-1]), layout="constrained")
        axes = fig.subplots(1, 2, sharey=True)
        for ax, (metric, delta) in zip(axes, DELTAS.items(), strict=True):
            ax.axvline(0, color=BASE, linewidth=0.8)
            ours, papers = frame[delta.column], frame[f"paper_{delta.column}"]
            ax.set_xlim(*around([*ours, *papers]))
            ax.plot(papers, heights, "D", markersize=4.5, color=PAPER, fillstyle="none", label="the paper's, one run")
            draw_intervals(ax, frame, delta.column, heights)
            ax.plot(ours, heights, "o", markersize=4, color=OURS, label=f"ours{seeds_in(frame)}")
            say_base(ax, frame, metric, heights)
            ax.set_xlabel(f"{delta.label}; {'left' if metric == 'ppl' else 'right'} is better")
            ax.locator_params(axis="x", nbins=6)  # more would touch
            ax.grid(visible=False, axis="y")
        labels = [row_label({str(name): value for name, value in line.items()}) for _, line in frame.iterrows()]
        axes[0].set_yticks(heights, labels)
        axes[0].set_ylim(heights[-1] + 0.7, heights[0] - 0.7)  # the table's first row on top
        for tick, value in zip(axes[0].get_yticklabels(), frame["ppl"], strict=True):
            tick.set_color(FAINT if math.isnan(value) else BASE)
        fig.suptitle(title, fontsize=9, fontweight="bold")
        fig.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return fig


def draw_intervals(
    ax: Axes, frame: pd.DataFrame, column: str, at: Sequence[float] | range, upright: bool = False
) -> None:
    """Draw the rows' intervals within the axis's limits, with an arrow head where one goes on beyond."""
    low, high = (frame[f"{column}_{end}"] for end in ("low", "high"))
    limits = ax.get_ylim() if upright else ax.get_xlim()
    lines = ax.vlines if upright else ax.hlines
    lines(at, low.clip(*limits), high.clip(*limits), color=OURS, linewidth=1.2)
    for cut, edge, head in zip((low < limits[0], high > limits[1]), limits, "v^" if upright else "<>", strict=True):
        for place in itertools.compress(at, cut):
            point = (place, edge) if upright else (edge, place)
            ax.plot(*point, head, markersize=4, color=OURS, clip_on=False)


def say_base(ax: Axes, frame: pd.DataFrame, column: str, heights: list[float]) -> None:
    """Write base's own numbers, to which all others are differences, on its line."""
    for y, row, *values in zip(heights, frame["row"], frame[column], frame[f"paper_{column}"], strict=True):
        if row == "base":
            ours, papers = (MISSING if math.isnan(value) else f"{value:.{DIGITS[column]}f}" for value in values)
            where: dict[str, Any] = {"transform": ax.get_yaxis_transform(), "ha": "center", "va": "center"}
            ax.text(0.5, y, f"{ours}, the paper's {papers}", **where, fontsize=7, bbox={"color": "white", "pad": 1})


def around(values: list[float]) -> tuple[float, float]:
    """Give limits that hold these values and 0 with room; not the intervals: those of two seeds would hide them."""
    known = [0.0, *(value for value in values if not math.isnan(value))]
    room = 0.25 * (max(known) - min(known)) or 1.0
    return min(known) - room, max(known) + room


def seeds_in(frame: pd.DataFrame) -> str:
    """Say what ours are: means with intervals, or single runs."""
    return (
        ", mean and 95 % interval over seeds" if frame["rel_ppl_low"].notna().any() else ", no interval: single seeds"
    )


def learning_curves(lines: pd.DataFrame, title: str) -> Figure:
    """Draw training loss and dev perplexity against updates, a panel per block, base in each.

    Args:
        lines: as `history.histories` makes it.
        title: names the preset.
    """
    return panels(lines, (LOSS, DEV_PPL), title)


def rates(lines: pd.DataFrame, title: str) -> Figure:
    """Draw learning rate and throughput against updates, a panel per block, base in each.

    Args:
        lines: as `history.histories` makes it.
        title: names the preset.
    """
    return panels(lines, (RATE, SPEED), title)


def panels(lines: pd.DataFrame, quantities: tuple[Quantity, ...], title: str) -> Figure:
    """Draw what was logged: blocks downwards, quantities across, rows told apart by colour and dashes."""
    blocks = [block for block in lines["block"].unique() if block != "base"] or ["base"]
    with matplotlib.rc_context(STYLE):
        fig = Figure(figsize=(WIDTH_IN, 0.8 + 1.65 * len(blocks)), layout="constrained")
        axes = fig.subplots(len(blocks), len(quantities), sharex="row", sharey="col", squeeze=False)
        for across, block in zip(axes, blocks, strict=True):
            shown = lines[lines["block"].isin(["base", block])]
            for ax, quantity in zip(across, quantities, strict=True):
                for i, row in enumerate(shown["row"].unique()):
                    style: dict[str, Any] = {"color": BASE} if row == "base" else look(i)
                    draw_row(ax, shown[shown["row"] == row], quantity.column, row, style)
                ax.set_yscale(quantity.scale)
                ax.xaxis.set_major_formatter("{x:,g}")
                ax.yaxis.set_major_formatter("{x:,g}")
                if quantity.scale == "log":
                    ax.yaxis.set_major_formatter(LogFormatter())
                    ax.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(1.5, 0.5)))  # 20, 30 …: within a decade
                    ax.grid(which="minor", axis="y")
                ax.set_ylabel(quantity.label.replace(" (", "\n("))
            across[0].set_title(block if block == "base" else f"block {block}", loc="left")
            across[-1].legend(*across[0].get_legend_handles_labels(), loc="center left", bbox_to_anchor=(1, 0.5))
        for ax in axes[-1]:
            ax.set_xlabel("updates")
        fig.suptitle(title, fontsize=9, fontweight="bold")
    return fig


def look(i: int) -> dict[str, Any]:
    """Give the i-th row of a block its colour and dashes, from 1."""
    return {"color": COLOURS[(i - 1) % len(COLOURS)], "linestyle": DASHES[(i - 1) % len(DASHES)]}


def draw_row(ax: Axes, lines: pd.DataFrame, column: str, row: str, style: dict[str, Any]) -> None:
    """Draw a row's curve: the mean where every seed has the number, and thinly each seed where there are several."""
    known = lines.dropna(subset=["step", column]) if column in lines else lines.iloc[:0]
    by_seed = known.pivot_table(index="step", columns="seed", values=column) if len(known) else pd.DataFrame()
    if by_seed.empty:
        ax.plot([], [], label=f"{row} (not run)", alpha=0.3, **style)
        return
    if by_seed.shape[1] > 1:
        for seed in by_seed:
            ax.plot(by_seed[seed].dropna(), linewidth=0.6, alpha=0.4, **style)
    planned, there = lines["seed"].nunique(), by_seed.shape[1]
    label = row if there == planned else f"{row} ({there}/{planned} seeds)"
    ax.plot(by_seed.dropna().mean(axis=1), linewidth=1.4, label=label, **style)


def settings(frame: pd.DataFrame, title: str) -> Figure:
    """Draw the differences to base against what a block of Table 3 varies, ours and the paper's.

    Args:
        frame: as for `forest`, with the columns of the settings; a block or setting that is not in it has no panel.
        title: names the preset.
    """
    shown = [(block, name) for block, names in VARIED.items() for name in names if varied(frame, block, name).any()]
    with matplotlib.rc_context(STYLE):
        fig = Figure(figsize=(WIDTH_IN, 0.9 + 1.5 * max(1, len(shown))), layout="constrained")
        if not shown:
            fig.text(0.5, 0.5, "no row of Table 3's blocks A to D is in this sweep", ha="center")
        axes: Any = fig.subplots(len(shown), 2, squeeze=False) if shown else []
        for across, (block, name) in zip(axes, shown, strict=True):
            rows = frame[varied(frame, block, name) | (frame["row"] == "base")].sort_values(name)
            ticks = [
                f"{v:g}" + ("\nnot run" if math.isnan(p) else "")
                for v, p in rows[[name, "ppl"]].itertuples(index=False)
            ]
            for ax, delta in zip(across, DELTAS.values(), strict=True):
                at = range(len(rows))  # evenly spaced: they are powers of two, mostly
                ax.axhline(0, color=BASE, linewidth=0.8)
                papers = rows[f"paper_{delta.column}"].where(rows["row"] != "base", 0.0)
                ours = rows[delta.column].where((rows["row"] != "base") | rows["ppl"].isna(), 0.0)
                ax.plot(at, papers, "D--", color=PAPER, fillstyle="none", markersize=4.5, label="the paper's")
                ax.set_ylim(*around([*ours, *papers]))
                draw_intervals(ax, rows, delta.column, at, upright=True)
                ax.plot(at, ours, "o-", color=OURS, markersize=4, label=f"ours{seeds_in(frame)}")
                ax.set_xticks(list(at), ticks)
                ax.set_xlabel(f"({block})  {name}, at this preset")
                ax.set_ylabel(delta.label.replace(" (", "\n("))
        fig.suptitle(title, fontsize=9, fontweight="bold")
        if shown:
            fig.legend(*axes[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return fig


def varied(frame: pd.DataFrame, block: str, name: str) -> "pd.Series[bool]":
    """Tell which rows of a block have another value of a setting than base."""
    if name not in frame or not (frame["row"] == "base").any():
        return pd.Series(False, index=frame.index)
    base = frame.loc[frame["row"] == "base", name].iloc[0]
    return (frame["block"] == block) & (frame[name] != base)


def save(figure: Figure, path: Path) -> None:
    """Write a figure in the format of the path's suffix; without dates, so that the same figure is the same file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    dates = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}
    with matplotlib.rc_context(STYLE):
        figure.savefig(path, metadata=dates.get(path.suffix))
