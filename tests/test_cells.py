import math

import pytest

from ablate.cells import grid, known, marks, millions, missing, number, row_label, signed
from ablate.table import COLUMNS

NAN = math.nan
BASE = {
    **dict.fromkeys(COLUMNS, NAN),
    **{"preset": "smoke", "row": "base", "block": "base", "other": "", "state": "", "states": "done"},
    **{"N": 6, "d_model": 512, "d_ff": 2048, "h": 8, "d_k": 64, "d_v": 64, "P_drop": 0.1, "ε_ls": 0.1},
    **{"steps": 100_000, "positions": "sinusoid", "params": 63_082_496, "params_as_paper": 65_126_400},
    **{"seeds": 3, "n": 3, "ppl": 4.925, "ppl_low": 4.9, "ppl_high": 4.95, "bleu": 25.84, "paper_ppl": 4.92},
}


def cells(line, *others):
    laid = grid("title", [BASE, line, *others], [])
    return dict(zip([column.alone or column.header for column in laid.columns], laid.blocks[1][0], strict=True))


def test_every_column_names_what_its_cells_are_made_of():
    laid = grid("title", [BASE, {**BASE, "row": "big", "block": "big", "steps": 300_000, "state": "1 running"}], [])
    assert len(laid.columns) == 14
    assert [column.key for column in laid.columns if column.key not in COLUMNS] == []
    keys = {column.alone or column.header: column.key for column in laid.columns}
    assert (keys["row"], keys["steps"], keys["params (M)"], keys["n"]) == ("row", "steps", "params", "n")
    assert (keys["PPL"], keys["Δ BLEU"], keys["paper Δ PPL"], keys[""]) == ("ppl", "d_bleu", "paper_d_ppl", "state")


def test_a_row_is_named_with_what_of_it_is_not_there():
    assert row_label({"row": "A_h1", "n": 3, "seeds": 3, "states": "done"}) == "A_h1"
    assert row_label({"row": "A_h1", "n": 2, "seeds": 3, "states": "done failed"}) == "A_h1 (2/3 seeds)"
    assert row_label({"row": "A_h1", "n": 0, "seeds": 3, "states": "running new"}) == "A_h1 (running, not run)"


def test_a_setting_is_there_if_rows_differ_in_it_and_blank_where_it_is_bases():
    found = cells(
        {**BASE, "row": "C_N2", "block": "C", "N": 2}, {**BASE, "row": "big", "block": "big", "steps": 300_000}
    )
    assert (found["N"], found["steps"]) == ("2", "")
    assert "d_ff" not in found
    laid = grid("title", [BASE, {**BASE, "row": "big", "block": "big", "steps": 300_000}], [])
    assert [line[1] for block in laid.blocks for line in block] == ["100,000", "300,000"]


def test_blocks_are_kept_apart():
    lines = [{**BASE, "row": row, "block": block} for row, block in (("base", "base"), ("A_h1", "A"), ("A_h4", "A"))]
    assert [[line[0] for line in block] for block in grid("title", lines, []).blocks] == [["base"], ["A_h1", "A_h4"]]


def test_a_number_has_half_its_interval_and_a_difference_its_marks():
    difference = {"d_ppl": -0.004, "d_ppl_low": -0.1, "d_ppl_high": 0.092, "d_ppl_p_holm": 0.03, "d_bleu": -1.26}
    found = cells({**BASE, "row": "X", "block": "X", **difference, "paper_d_ppl": 0.37, "paper_params_m": 213.0})
    assert (found["PPL"], found["BLEU"]) == ("4.92 ± 0.02", "25.8")
    assert (found["Δ PPL"], found["Δ BLEU"]) == ("+0.00 ± 0.10 ∗", "−1.3")
    assert (found["paper Δ PPL"], found["paper params (M)"], found["paper BLEU"]) == ("+0.37", "213", "")
    assert (found["params (M)"], found["n"]) == ("63.1 (65.1)", "3/3")


def test_what_is_not_there_says_why():
    gone = {"n": 0, "ppl": NAN, "bleu": NAN, "state": "running: starting", "states": "running"}
    empty = {**BASE, "row": "X", "block": "X", **gone}
    found = cells(empty)
    assert [found[name] for name in ("PPL", "Δ PPL", "BLEU", "Δ BLEU", "n", "")] == [
        *("running", "—", "running", "—", "0/3"),
        "running: starting",
    ]


@pytest.mark.parametrize(
    ("states", "word"),
    [
        ("new", "—"),
        ("stopped", "stopped"),
        ("new failed", "failed"),
        ("failed running", "running"),
        ("stopped failed", "failed"),
    ],
)
def test_a_cell_says_what_matters_most_of_its_seeds(states, word):
    assert missing(states) == word


@pytest.mark.parametrize(
    ("p", "text"),
    [(None, ""), (0.05, ""), (0.049, " ∗"), (0.01, " ∗"), (0.0099, " ∗∗"), (0.0009, " ∗∗∗"), (0.0, " ∗∗∗")],
)
def test_marks_count_the_levels_that_p_is_below(p, text):
    assert marks(p) == text


def test_numbers_have_a_true_minus_and_no_minus_zero():
    assert (number(-0.004, 2), number(-1.25, 2), number(12345.678, 1)) == ("0.00", "−1.25", "12,345.7")
    assert (signed(-0.04, 1), signed(0.06, 1), signed(-0.06, 1)) == ("+0.0", "+0.1", "−0.1")
    assert (known(NAN), known(None), known(0.0)) == (None, None, 0.0)


@pytest.mark.parametrize(
    ("count", "text"), [(105_472, "0.11"), (9_949_999, "9.95"), (65_126_400, "65.1"), (218_333_184, "218")]
)
def test_parameters_are_in_millions(count, text):
    assert millions(count) == text
