import csv
import io
import math

import pytest
from records import finish

from ablate.compose import session
from ablate.plan import Plan, plan_from
from ablate.rundir import write_text
from ablate.table import MixedRecords, build, main, write

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
    assert list(frame["n"]) == ["3/3", "2/3", "0/3"]
    assert list(frame["ppl"][:2]) == [9.0, 10.5]
    assert list(frame["bleu"][:2]) == [21.0, 19.5]
    assert frame.loc["B_dk16", "d_ppl"] == 1.5
    assert frame.loc["B_dk16", "d_bleu"] == -1.5
    assert math.isnan(frame.loc["base", "d_ppl"])
    assert all(math.isnan(frame.loc["B_dk32", name]) for name in ("ppl", "bleu", "d_ppl", "d_bleu"))


def test_the_papers_numbers_stand_beside_ours_each_with_its_own_difference_to_base(two_of_three):
    frame = build(two_of_three).frame.set_index("row")
    assert list(frame["paper_ppl"]) == [4.92, 5.16, 5.01]
    assert list(frame["paper_bleu"]) == [25.8, 25.1, 25.4]
    assert frame.loc["B_dk16", "paper_d_ppl"] == pytest.approx(0.24)
    assert frame.loc["B_dk32", "paper_d_bleu"] == pytest.approx(-0.4)


def test_the_text_shows_dashes_for_a_missing_row_and_blanks_where_a_setting_is_bases(two_of_three):  # W6
    text = write(build(two_of_three), "md")
    header = line_of(text, "row")
    base, dk16, dk32 = (dict(zip(header, line_of(text, row), strict=True)) for row in ROW_B)
    assert header.index("row") == 0
    assert "preset smoke" in text.splitlines()[0]
    assert (base["d_k"], dk16["d_k"], dk32["d_k"]) == ("4", "1", "2")  # a sixteenth of 64, 16 and 32
    assert (dk16["PPL"], dk16["Δ PPL"], dk16["BLEU"], dk16["Δ BLEU"], dk16["n"]) == (
        "10.50",
        "+1.50",
        "19.5",
        "-1.5",
        "2/3",
    )
    assert (dk32["PPL"], dk32["Δ PPL"], dk32["BLEU"], dk32["n"]) == ("—", "", "—", "0/3")
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
    assert line_of(text, "B_dk16")[-1] == "failed: NonFiniteLoss: loss is nan at update 7; new"
    assert line_of(text, "base")[-1] == "new"


def test_one_row_alone_is_a_table_without_differences():
    asked = planned("+row=A_h4")
    finish(asked.runs[0], ppl=9.0, bleu=12.5)
    frame = build(planned("+row=A_h4")).frame
    assert list(frame["row"]) == ["A_h4"]
    assert (frame["ppl"][0], frame["bleu"][0]) == (9.0, 12.5)
    assert math.isnan(frame["d_ppl"][0])
    assert "12.5" in write(build(planned("+row=A_h4")), "md")


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
    ):
        assert part in notes
    assert "instead of" not in notes


def test_settings_on_top_of_the_rows_are_said_beneath_the_table():  # P5
    notes = build(planned("+sweep=row_B", "model.dropout=0.3")).notes
    assert any("not the rows as they stand: model.dropout=0.3 instead of 0.1" in note for note in notes)


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


@pytest.mark.parametrize(
    ("section", "key", "other", "name"),
    [
        ("dev", "bleu_signature", "tok:intl", "BLEU"),
        ("corpus", "digests", {"corpus": "e" * 64, "vocab": "f" * 64}, "corpus"),
        ("science", "decode.beam_size", 5, "beam and length penalty"),
    ],
)
def test_numbers_that_do_not_compare_are_refused(section, key, other, name):
    asked = planned("seeds=2")
    record = finish(asked.runs[0], ppl=9.0, bleu=9.0)
    finish(asked.runs[1], 9.0, 9.0, **{section: {**record[section], key: other}})
    with pytest.raises(MixedRecords, match=f"{name}: one table cannot hold"):
        build(planned("seeds=2"))


def test_csv_has_every_digit_and_every_cell(two_of_three):
    lines = list(csv.DictReader(io.StringIO(write(build(two_of_three), "csv"))))
    assert [line["row"] for line in lines] == ROW_B
    assert [line["d_k"] for line in lines] == ["4", "1", "2"]
    assert float(lines[1]["ppl"]) == 10.5
    assert lines[2]["ppl"] == ""
    assert float(lines[0]["params_m"]) == two_of_three.runs[0].params_actual / 1e6


def test_the_command_prints_what_the_plan_has(two_of_three, capsys):
    arguments = ["row_B", "--preset", "smoke", "--seeds", "3", "--runs", "runs"]
    assert main(arguments) == 0
    out, err = capsys.readouterr()
    assert (out, err) == (write(build(two_of_three), "md") + "\n", "")
    assert main([*arguments, "--format", "csv"]) == 0
    assert capsys.readouterr().out.startswith("row,")


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
