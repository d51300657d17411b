import pytest

from ablate import record
from ablate.diff import main
from ablate.rundir import RunDir, write_json


@pytest.fixture
def runs(tmp_path):
    """Make three runs: base with two seeds' worth of one science, and another dropout with one more key."""
    science = {"model.dropout": 0.1, "optim.warmup_steps": 20}
    for name, fingerprint, facts in (
        ("one", "0" * 12, science),
        ("same", "0" * 12, science),
        ("other", "1" * 12, {**science, "model.dropout": 0.3, "model.new": "x"}),
    ):
        write_json(RunDir(tmp_path / name).identity, {"fingerprint": fingerprint, "science": facts})
    return tmp_path


def test_the_keys_that_differ_are_printed_with_both_values(runs, capsys):  # P6
    assert main([str(runs / "one"), str(runs / "other")]) == 1
    assert capsys.readouterr().out == "model.dropout: 0.1 | 0.3\nmodel.new: None | 'x'\n"


def test_where_only_a_record_was_kept_it_tells(runs, capsys):
    facts = {"fingerprint": "2" * 12, "science": {"model.dropout": 0.2, "optim.warmup_steps": 20}}
    record.write(RunDir(runs / "kept"), facts)
    assert main([str(runs / "one"), str(runs / "kept")]) == 1
    assert capsys.readouterr().out == "model.dropout: 0.1 | 0.2\n"


def test_equal_runs_have_no_difference(runs, capsys):
    assert main([str(runs / "one"), str(runs / "same")]) == 0
    assert capsys.readouterr().out == "no difference: both are 000000000000\n"


def test_a_folder_that_is_no_run_is_named(runs, capsys):
    assert main([str(runs / "one"), str(runs / "nowhere")]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: RUN='")
    assert "nowhere': no runs are called so" in err


def test_a_run_may_be_called_by_its_name(runs, monkeypatch, capsys):
    monkeypatch.chdir(runs)
    for row, fingerprint, dropout in (("base", "0" * 12, 0.1), ("D_drop2", "1" * 12, 0.2)):
        facts = {"fingerprint": fingerprint, "science": {"model.dropout": dropout}}
        write_json(RunDir.of(runs / "runs", "smoke", row, fingerprint, 1).identity, facts)
    assert main(["base", "D_drop2"]) == 1
    assert capsys.readouterr().out == "model.dropout: 0.1 | 0.2\n"
