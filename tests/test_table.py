import csv
import io
import math

import pytest
from records import finish

from ablate.compose import session
from ablate.plan import Plan, plan_from
from ablate.rundir import write_text
from ablate.table import COLUMNS, build, main, measurements, write
from ablate.typeset import FORMATS

ROW_B = ["base", "B_dk16", "B_dk32"]


@pytest.fixture(autouse=True)
def own_folder(workplace):
    return workplace


def planned(*overrides: str) -> Plan:
    with session():
        return plan_from(["preset=smoke", *overrides], prepare=True, say=lambda text: None)


def line_of(text: str, row: str) -> list[str]:
    """Give the cells of a row of a Markdown table."""
    found = next(line for line in text.splitlines() if line.startswith(f"| {row} "))
    return [cell.strip() for cell in found.strip("|").split("|")]


@pytest.fixture
def two_of_three(own_folder) -> Plan:
    """Plan base and (B) with three seeds: base has all, B_dk16 two, B_dk32 none."""
    asked = planned("+sweep=row_B", "seeds=3")
    for run, ppl, bleu in zip(asked.rows["base"], (8.0, 9.0, 10.0), (20.0, 21.0, 22.0), strict=True):
        finish(run, ppl, bleu)
    for run, ppl, bleu in zip(asked.rows["B_dk16"][1:], (10.0, 11.0), (19.0, 20.0), strict=True):
        finish(run, ppl, bleu)
    return planned("+sweep=row_B", "seeds=3")


def test_a_cell_is_the_mean_of_the_seeds_there_are_and_says_how_many(two_of_three):  # W6
    table = build(two_of_three)
    frame = table.frame.set_index("row")
    assert list(frame.index) == ROW_B
    assert list(zip(frame["n"], frame["seeds"], strict=True)) == [(3, 3), (2, 3), (0, 3)]
    assert list(frame["ppl"][:2]) == [9.0, 10.5]
    assert list(frame["bleu"][:2]) == [21.0, 19.5]
    # sd 1, and t(2) = 4.302653 at 97.5 % (any table of t): 9 ± 4.302653 / √3.
    assert frame.loc["base", ["ppl_sd", "ppl_low", "ppl_high"]].tolist() == pytest.approx([1.0, 6.51586, 11.48414])
    assert math.isnan(frame.loc["base", "d_ppl"])
    assert all(math.isnan(frame.loc["B_dk32", name]) for name in ("ppl", "bleu", "d_ppl", "d_bleu"))


def test_a_difference_to_base_is_paired_over_the_seeds_that_both_have(two_of_three):
    frame = build(two_of_three).frame.set_index("row")
    # Seeds 2 and 3: 10 and 11 against base's 9 and 10, not against its mean of all three.
    assert frame.loc["B_dk16", ["d_ppl", "d_ppl_n", "d_bleu", "d_bleu_n"]].tolist() == [1.0, 2, -2.0, 2]


def test_the_papers_numbers_stand_beside_ours_each_with_its_own_difference_to_base(two_of_three):
    frame = build(two_of_three).frame.set_index("row")
    assert list(frame["paper_ppl"]) == [4.92, 5.16, 5.01]
    assert list(frame["paper_bleu"]) == [25.8, 25.1, 25.4]
    assert frame.loc["B_dk16", ["paper_d_ppl", "paper_rel_ppl"]].tolist() == pytest.approx([0.24, 100 * 0.24 / 4.92])
    assert frame.loc["B_dk32", "paper_d_bleu"] == pytest.approx(-0.4)


def test_the_text_shows_dashes_for_a_missing_row_and_blanks_where_a_setting_is_bases(two_of_three):  # W6
    text = write(build(two_of_three), "md")
    header = line_of(text, "row")
    base, dk16, dk32 = (dict(zip(header, line_of(text, row), strict=True)) for row in ROW_B)
    assert header.index("row") == 0
    assert "preset smoke" in text.splitlines()[0]
    assert (base["d_k"], dk16["d_k"], dk32["d_k"]) == ("4", "1", "2")  # a sixteenth of 64, 16 and 32
    # Two values 1 apart: half of the interval is t(1) · sd / √2 = 12.7062 · 0.5. BLEU's differences have no
    # spread: p = 0. Those of log PPL are ln 10/9 and ln 11/10, t is 19.97 and p 1 - 2/π · atan t = 0.032.
    assert (dk16["PPL"], dk16["BLEU"], dk16["n"]) == ("10.50 ± 6.35", "19.5 ± 6.4", "2/3")
    assert (dk16["Δ PPL"], dk16["Δ BLEU"]) == ("+1.00 ± 0.00 ∗", "−2.0 ± 0.0 ∗∗∗")
    assert [dk32[name] for name in ("PPL", "Δ PPL", "BLEU", "Δ BLEU", "n")] == ["—", "—", "—", "—", "0/3"]
    assert dk32[""] == "to run"
    assert (dk32["paper PPL"], dk32["paper BLEU"]) == ("5.01", "25.4")
    assert (base["Δ PPL"], base["Δ BLEU"]) == ("", "")
    assert "d_v" not in header  # the rows of (B) do not differ in it


def test_settings_equal_to_bases_are_blank_as_in_the_paper():
    text = write(build(planned("+sweep=row_C")), "md")
    header = line_of(text, "row")
    cells = dict(zip(header, line_of(text, "C_ff1024"), strict=True))
    assert (cells["N"], cells["d_model"], cells["d_ff"]) == ("", "", "64")


def test_the_order_is_the_sweeps_and_does_not_depend_on_what_is_done():  # W6
    asked = planned("+sweep=[row_E,row_B]")
    assert list(build(asked).frame["row"]) == ["base", "E_learned", "B_dk16", "B_dk32"]
    finish(asked.rows["B_dk32"][0], ppl=9.0, bleu=9.0)
    table = build(planned("+sweep=[row_E,row_B]"))
    assert list(table.frame["row"]) == ["base", "E_learned", "B_dk16", "B_dk32"]
    assert math.isnan(table.frame["d_ppl"].iloc[3])  # there is no base yet to differ from


def test_what_is_failed_or_running_is_said_in_its_row():
    asked = planned("+sweep=row_B", "seeds=2")
    write_text(asked.rows["B_dk16"][1].run.error, "NonFiniteLoss: loss is nan at update 7\n")
    finish(asked.rows["base"][0], ppl=9.0, bleu=9.0)
    text = write(build(planned("+sweep=row_B", "seeds=2")), "md")
    assert line_of(text, "B_dk16")[-1] == "to run (seed 1); failed: NonFiniteLoss: loss is nan at update 7 (seed 2)"
    assert line_of(text, "B_dk16").count("failed") == 2  # in place of PPL and BLEU
    assert line_of(text, "base")[-1] == "done (seed 1); to run (seed 2)"


def test_what_a_failure_says_is_not_taken_for_a_state():
    asked = planned("+sweep=row_B")
    write_text(asked.rows["B_dk16"][0].run.error, "OSError: no space; running | low\n")
    text = write(build(planned("+sweep=row_B")), "md")
    assert r"failed: OSError: no space, running \| low |" in text
    assert line_of(text, "B_dk16").count("failed") == 2  # in place of PPL and BLEU


def test_one_row_alone_is_a_table_without_differences():
    asked = planned("+row=A_h4")
    finish(asked.runs[0], ppl=9.0, bleu=12.5)
    frame = build(planned("+row=A_h4")).frame
    assert list(frame["row"]) == ["A_h4"]
    assert (frame["ppl"][0], frame["bleu"][0]) == (9.0, 12.5)
    assert math.isnan(frame["d_ppl"][0])
    assert "| 12.5 |" in write(build(planned("+row=A_h4")), "md")


def test_beneath_the_table_stands_what_the_numbers_are_of(two_of_three):
    notes = "\n".join(build(two_of_three).notes)
    for part in (
        "preset smoke",
        "corpus synthetic (en-de)",
        "vocabulary of 512",
        "beam 4",
        "length penalty 0.6",
        "newstest2013",
        "tok:13a",
        "checkpoint: last",
        "torch 2",
        "commit",
        "Rank agreement with the paper (Kendall's τ, 95 % interval): PPL +1.00 over 2 rows; an interval takes 8",
        "corrected over all tests of this table (Holm)",
    ):
        assert part in notes
    assert "instead of" not in notes


def test_settings_on_top_of_the_rows_are_said_beneath_the_table():  # P5
    notes = build(planned("+sweep=row_B", "model.dropout=0.3")).notes
    assert any("not the rows as they stand: model.dropout=0.3 instead of 0.1" in note for note in notes)


def test_where_rows_had_different_values_all_are_said(own_folder):
    (own_folder / "mine" / "row").mkdir(parents=True)
    (own_folder / "mine" / "sweep").mkdir()
    (own_folder / "mine" / "row" / "deep.yaml").write_text(
        "# @package _global_\nmodel: {num_layers: 3, dropout: 0.2}\n"
    )
    (own_folder / "mine" / "sweep" / "s.yaml").write_text("# @package sweep.s\ntitle: s\nrows: [deep, B_dk16]\n")
    with session(str(own_folder / "mine")):
        plan = plan_from(["preset=smoke", "+sweep=s", "model.dropout=0.3"], prepare=False)
    assert "model.dropout=0.3 instead of 0.1 or 0.2" in plan.changed


def test_rows_that_are_equal_share_their_runs_and_it_is_said(own_folder):  # P9
    (own_folder / "mine" / "row").mkdir(parents=True)
    (own_folder / "mine" / "sweep").mkdir()
    (own_folder / "mine" / "row" / "again.yaml").write_text("# @package _global_\nmodel: {d_model: 512}\n")
    (own_folder / "mine" / "sweep" / "s.yaml").write_text("# @package sweep.s\ntitle: s\nrows: [again]\n")
    with session(str(own_folder / "mine")):
        finish(plan_from(["preset=smoke", "+sweep=s"], True, lambda text: None).runs[0], ppl=9.0, bleu=9.0)
        table = build(plan_from(["preset=smoke", "+sweep=s"], True, lambda text: None))
    assert list(table.frame["ppl"]) == [9.0, 9.0]
    assert "again equals base at this preset: the same runs fill both." in table.notes


def test_code_that_changed_under_a_run_is_said():  # P8
    asked = planned()
    record = finish(asked.runs[0], ppl=9.0, bleu=9.0)
    assert not any("other code" in note for note in build(planned()).notes)
    finish(asked.runs[0], ppl=9.0, bleu=9.0, provenance=[{**record["provenance"][0], "code_changed": True}])
    assert any("other code than they were planned with" in note for note in build(planned()).notes)


def test_one_seed_gives_numbers_without_intervals_and_says_so():
    asked = planned("+sweep=row_B")
    for row, ppl in (("base", 9.0), ("B_dk16", 9.5)):
        finish(asked.rows[row][0], ppl, bleu=9.0)
    table = build(planned("+sweep=row_B"))
    assert "No interval and no test: they take two finished seeds (seeds=2 or more)." in table.notes
    assert line_of(write(table, "md"), "B_dk16")[3:6] == ["9.50", "+0.50", "9.0"]
    assert "±" not in write(table, "md")


def test_a_row_of_ones_own_has_no_numbers_of_the_paper_and_says_what_it_changes(own_folder):
    (own_folder / "mine" / "row").mkdir(parents=True)
    (own_folder / "mine" / "sweep").mkdir()
    (own_folder / "mine" / "row" / "gelu.yaml").write_text("# @package _global_\nmodel: {activation: gelu}\n")
    (own_folder / "mine" / "sweep" / "s.yaml").write_text("# @package sweep.s\n{title: s, rows: [gelu]}\n")
    with session(str(own_folder / "mine")):
        table = build(plan_from(["preset=smoke", "+sweep=s"], True, lambda text: None))
    assert table.title == "s: ours (preset smoke) beside the paper's"
    text = write(table, "md")
    cells = dict(zip(line_of(text, "row"), line_of(text, "gelu"), strict=True))
    assert cells["other"] == "activation=gelu"
    assert [cells[f"paper {name}"] for name in ("PPL", "Δ PPL", "BLEU", "Δ BLEU", "params (M)")] == [""] * 5


def test_measurements_have_a_line_for_every_row_and_seed(two_of_three):
    frame = measurements(two_of_three)
    assert list(zip(frame["row"], frame["seed"], strict=True)) == [(row, seed) for row in ROW_B for seed in (1, 2, 3)]
    assert list(frame["state"]) == ["done"] * 3 + ["new"] + ["done"] * 2 + ["new"] * 3
    assert frame["ppl"].dropna().tolist() == [8.0, 9.0, 10.0, 10.0, 11.0]
    assert frame.loc[4, ["block", "chrf", "train_s", "epochs"]].tolist() == ["B", 30.0, 36.0, 1]
    assert math.isnan(frame.loc[8, "bleu"])
    assert frame.loc[4, "folder"] == str(two_of_three.rows["B_dk16"][1].run.path)


def test_every_format_has_every_row(two_of_three):
    for form in FORMATS:
        text = write(build(two_of_three), form).replace(r"\_", "_")
        assert all(row in text for row in ROW_B), form
        assert "smoke" in text


def test_csv_has_every_digit_and_every_cell(two_of_three):
    lines = list(csv.DictReader(io.StringIO(write(build(two_of_three), "csv"))))
    assert [line["row"] for line in lines] == ROW_B
    assert list(lines[0]) == COLUMNS
    assert [line["d_k"] for line in lines] == ["4", "1", "2"]
    assert [line["d_v"] for line in lines] == ["4", "4", "4"]
    assert float(lines[1]["ppl"]) == 10.5
    assert lines[2]["ppl"] == ""
    assert int(lines[0]["params"]) == two_of_three.runs[0].params_actual
    assert int(lines[0]["params_as_paper"]) == two_of_three.runs[0].params_paper


def test_the_command_prints_what_the_plan_has(two_of_three, capsys):
    arguments = ["row_B", "--preset", "smoke", "--seeds", "3", "--runs", "runs"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert (out, err) == (write(build(two_of_three), "md") + "\n", "")
    assert main([*arguments, "--format", "csv"]) == 0
    assert capsys.readouterr().out.startswith("preset,row,")


def test_the_command_takes_several_sweeps_and_settings(capsys):
    assert main(["row_B,row_E", "preset=smoke", "model.dropout=0.3"]) == 0
    out = capsys.readouterr().out
    assert all(line_of(out, row) for row in [*ROW_B, "E_learned"])


def test_without_the_corpus_the_command_says_that_it_cannot_tell(capsys, own_folder, monkeypatch):
    monkeypatch.setenv("ABLATE_DATA", str(own_folder / "data"))
    assert main(["row_E", "preset=smoke"]) == 0
    out, err = capsys.readouterr()
    assert "the corpus is not prepared here" in err
    assert line_of(out, "E_learned")
    assert not (own_folder / "data").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["row_F", "preset=smoke"], "sweep='row_F'"),
        (["row_A", "preset=smoke", "row=A_h1"], "+row=A_h1"),
        (["row_A", "preset=smoke", "model.dropuot=0.1"], "did you mean 'dropout'?"),
        (["row_A", "--config-dir", "nowhere"], "is not a folder"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(arguments, message, capsys):
    assert main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1
