import itertools
import math

import matplotlib
import pandas as pd
from matplotlib.colors import to_rgb

from ablate import draw

NAN = math.nan

# Four rows in two blocks: A_h1's interval goes on beyond the axis, A_h4 has one seed of two, B_dk16 is not run.
ROWS = pd.DataFrame(
    [
        ("base", "base", 8, 4, 2, 2, "done", 9.0, 21.5, NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, 4.92, 25.8),
        ("A_h1", "A", 1, 32, 2, 2, "done", 11.0, 18.5, 2.0, -6.0, 10.0, -3.0, -4.0, -2.0, 0.37, -0.9, 5.29, 24.9),
        ("A_h4", "A", 4, 8, 1, 2, "done new", 9.5, 20.5, 0.5, NAN, NAN, -1.0, NAN, NAN, 0.08, -0.3, 5.0, 25.5),
        ("B_dk16", "B", 8, 1, 0, 2, "new", NAN, NAN, NAN, NAN, NAN, NAN, NAN, NAN, 0.24, -0.7, 5.16, 25.1),
    ],
    columns=[
        *("row", "block", "h", "d_k", "n", "seeds", "states", "ppl", "bleu", "rel_ppl", "rel_ppl_low", "rel_ppl_high"),
        *("d_bleu", "d_bleu_low", "d_bleu_high", "paper_rel_ppl", "paper_d_bleu", "paper_ppl", "paper_bleu"),
    ],
)


def log_line(row: str, seed: int, step: float, **numbers: float) -> dict[str, object]:
    return {"row": row, "block": row.partition("_")[0], "seed": seed, "state": "", "step": step, **numbers}


# base: two seeds, of which the second stopped after update 2; A_h1 has not run.
LINES = pd.DataFrame(
    [
        *(log_line("base", 1, step, loss=8.0 - step, learning_rate=0.1 * step) for step in (1, 2, 3)),
        log_line("base", 1, 3, dev_ppl=40.0),
        *(log_line("base", 2, step, loss=10.0 - step, learning_rate=0.1 * step) for step in (1, 2)),
        log_line("A_h1", 1, NAN),
    ]
)


def drawn(ax, label: str):
    """Give the points that a legend's entry stands for."""
    return next(line for line in ax.lines if str(line.get_label()).startswith(label))


def texts(figure) -> str:
    return " ".join(text.get_text() for text in figure.findobj(matplotlib.text.Text))


def test_the_forest_has_every_row_in_the_tables_order_with_what_is_missing_marked():
    figure = draw.forest(ROWS, "at preset smoke")
    ppl = figure.axes[0]
    labels = [tick.get_text() for tick in ppl.get_yticklabels()]
    assert labels == ["base", "A_h1", "A_h4 (1/2 seeds)", "B_dk16 (not run)"]
    top, bottom = ppl.get_ylim()[1], ppl.get_ylim()[0]
    heights = list(ppl.get_yticks())
    assert top < heights[0] < heights[1] < heights[2] < heights[3] < bottom  # the axis points down
    assert heights[3] - heights[2] > heights[2] - heights[1]  # a gap between blocks
    assert "at preset smoke" in texts(figure)


def test_the_forest_sets_ours_beside_the_papers(tmp_path):
    ppl, bleu = draw.forest(ROWS, "").axes
    for ax, ours, papers in ((ppl, [2.0, 0.5], [0.37, 0.08, 0.24]), (bleu, [-3.0, -1.0], [-0.9, -0.3, -0.7])):
        assert [x for x in drawn(ax, "ours").get_xdata() if not math.isnan(x)] == ours
        assert [x for x in drawn(ax, "the paper's").get_xdata() if not math.isnan(x)] == papers
    assert "9.00, the paper's 4.92" in texts(draw.forest(ROWS, ""))
    assert "PPL" in ppl.get_xlabel() and "(%); left is better" in ppl.get_xlabel()
    assert "BLEU" in bleu.get_xlabel() and "(points); right is better" in bleu.get_xlabel()


def test_an_interval_beyond_the_axis_ends_in_an_arrow_head_and_hides_nothing():
    ppl, bleu = draw.forest(ROWS, "").axes
    # Points from 0 to 2, a quarter of that as room: the axis is -0.5 … 2.5, A_h1's interval -6 … 10.
    assert ppl.get_xlim() == (-0.5, 2.5)
    heads = {line.get_marker(): list(line.get_xdata()) for line in ppl.lines if line.get_marker() in ("<", ">")}
    assert heads == {"<": [-0.5], ">": [2.5]}
    assert not any(len(line.get_xdata()) for line in bleu.lines if line.get_marker() in (">",))


def test_upright_intervals_beyond_the_axis_end_in_arrow_heads_too():
    ppl = draw.settings(ROWS, "").axes[0]
    assert ppl.get_ylim() == (-0.5, 2.5)
    heads = {
        line.get_marker(): (line.get_xdata()[0], line.get_ydata()[0])
        for line in ppl.lines
        if line.get_marker() in ("v", "^")
    }
    assert heads == {"v": (0, -0.5), "^": (0, 2.5)}  # A_h1 stands first on the axis of h


def test_a_base_without_printed_numbers_says_so():
    assert "9.00, the paper's —" in texts(draw.forest(ROWS.assign(paper_ppl=NAN, paper_bleu=NAN), ""))


def test_single_seeds_are_said_to_have_no_interval():
    single = ROWS.assign(**{name: NAN for name in ROWS.columns if name.endswith(("_low", "_high"))})
    assert "no interval" in texts(draw.forest(single, ""))
    assert "95 % interval over seeds" in texts(draw.forest(ROWS, ""))


def test_a_curve_is_the_mean_where_all_seeds_are_and_each_seed_stays_visible():
    loss = draw.learning_curves(LINES, "").axes[0]
    mean = drawn(loss, "base")
    assert list(mean.get_xdata()) == [1, 2]
    assert list(mean.get_ydata()) == [8.0, 7.0]  # (7 + 9) / 2, (6 + 8) / 2
    thin = [list(line.get_ydata()) for line in loss.lines if line.get_linewidth() < mean.get_linewidth()]
    assert [7.0, 6.0, 5.0] in thin
    assert [9.0, 8.0] in thin


def test_curves_keep_a_row_that_is_not_run_and_say_how_many_seeds_have_the_number():
    said = texts(draw.learning_curves(LINES, "at preset smoke"))
    assert "A_h1 (not run)" in said
    assert "at preset smoke" in said
    perplexity = draw.learning_curves(LINES, "").axes[1]
    assert drawn(perplexity, "base (1/2 seeds)").get_ydata() == [40.0]
    assert perplexity.get_yscale() == "log"


def test_every_axis_says_what_it_shows_and_in_which_unit():
    for curves in (draw.learning_curves, draw.rates):
        for ax in curves(LINES, "").axes:
            assert ax.get_ylabel()
        assert [ax.get_xlabel() for ax in curves(LINES, "").axes][-2:] == ["updates"] * 2
    for ax in [*draw.forest(ROWS, "").axes, *draw.settings(ROWS, "").axes]:
        assert ax.get_xlabel()
    assert "subwords/s" in texts(draw.rates(LINES, ""))


def test_rows_of_a_block_differ_without_colour_too():
    looks = [draw.look(i) for i in range(1, 8)]  # (C) has seven
    assert len({tuple(look.values()) for look in looks}) == 7
    # In grey, two rows of the same dashes differ in lightness by more than a tenth.
    grey = [(look["linestyle"], sum(to_rgb(look["color"])) / 3) for look in looks]
    same = [abs(a[1] - b[1]) for a, b in itertools.combinations(grey, 2) if a[0] == b[0]]
    assert min(same) > 0.1


def test_what_a_block_varies_is_on_its_axis_with_base_in_its_place():
    figure = draw.settings(ROWS, "")
    ppl = figure.axes[0]
    assert ppl.get_xlabel() == "(A)  h, at this preset"
    assert [tick.get_text() for tick in ppl.get_xticklabels()] == ["1", "4", "8"]
    assert list(drawn(ppl, "ours").get_ydata()) == [2.0, 0.5, 0.0]
    assert list(drawn(ppl, "the paper's").get_ydata()) == [0.37, 0.08, 0.0]
    below = figure.axes[2]
    assert below.get_xlabel() == "(B)  d_k, at this preset"
    assert [tick.get_text() for tick in below.get_xticklabels()] == ["1\nnot run", "4"]


def test_a_sweep_without_such_a_block_says_so():
    assert "no row of Table 3's blocks" in texts(draw.settings(ROWS[ROWS["row"] == "base"], ""))
