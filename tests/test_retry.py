import pytest
from tiny import StopAt, planned, tiny_run, undisturbed

from ablate import record, retry
from ablate.rundir import read_json, write_text
from ablate.status import read_state
from ablate.worker import STOPPED, take

pytestmark = pytest.mark.usefixtures("workplace")


def test_exactly_the_failed_runs_are_done_again_from_where_they_were(capsys):
    failed, stopped, new = (run.run for run in planned("seeds=3").runs)
    other = tiny_run("model.dropout=0.2")  # of the same row and seed as the failed one
    for run in (failed, stopped, other):
        assert take(run, StopAt(3)) == STOPPED
    for run in (failed, other):
        write_text(run.error, "OSError: the disk was full\n")
    capsys.readouterr()
    assert retry.main(["--failed"]) == 0
    out = capsys.readouterr().out
    for run in (failed, other):
        assert f"{run.path}: failed: OSError: the disk was full" in out
    assert [read_state(run).name for run in (failed, other, stopped, new)] == ["done", "done", "stopped", "new"]
    assert record.comparable(record.read(failed)) == undisturbed()
    assert len(record.read(failed)["provenance"]) == 2
    assert not failed.error.exists()
    assert len(read_json(stopped.provenance)) == 1
    assert retry.main(["--failed"]) == 0
    assert "no failed runs under runs" in capsys.readouterr().out


def test_a_run_that_fails_again_is_said_in_the_exit_code(capsys):
    run = tiny_run("optim.lr_scale=1.0e+30")
    write_text(run.error, "RuntimeError: as before\n")
    assert retry.main(["--failed"]) == 1
    assert "failed: NonFiniteLoss" in capsys.readouterr().out
    assert read_state(run).reason.startswith("NonFiniteLoss")


def test_the_folder_of_runs_is_that_of_the_environment(workplace, monkeypatch, capsys):
    monkeypatch.setenv("ABLATE_RUNS", str(workplace / "elsewhere"))
    assert retry.main(["--failed"]) == 0
    assert f"no failed runs under {workplace / 'elsewhere'}" in capsys.readouterr().out.replace("\n", "")


def test_it_does_nothing_unless_it_is_told_which(capsys):
    with pytest.raises(SystemExit) as stopped:
        retry.main([])
    assert stopped.value.code == 2
    assert "--failed" in capsys.readouterr().err
