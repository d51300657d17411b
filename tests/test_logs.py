import io
import threading

import pytest
from commands import commands  # noqa: F401 – a fixture
from tiny import wait_until

from ablate import ledger, logs
from ablate.ledger import note
from ablate.rundir import RunDir, lock, write_json, write_text


@pytest.fixture
def run(workplace) -> RunDir:
    run = RunDir.of(workplace / "runs", "smoke", "A_h4", "0123456789ab", 1)
    write_json(run.identity, {"fingerprint": "0123456789ab"})
    return run


def test_a_run_s_log_is_printed_and_where_it_lies_said(run, capfd):
    write_text(run.log, "one\ntwo ü\nthree\n")
    assert logs.main(["A_h4"]) == 0
    said = capfd.readouterr()
    assert said.out == "one\ntwo ü\nthree\n"
    assert said.err == f"smoke/A_h4/0123456789ab/seed1: new; {run.log}\n"
    assert logs.main(["012345", "-n", "2"]) == 0
    assert capfd.readouterr().out == "two ü\nthree\n"
    assert logs.main([str(run.path), "-n", "0"]) == 0
    assert capfd.readouterr().out == ""


def test_an_ambiguous_name_lists_the_runs(run, capsys):
    write_json(RunDir(run.path.with_name("seed2")).identity, {})
    assert logs.main(["A_h4"]) == 2
    said = capsys.readouterr().err
    assert "RUN='A_h4': 2 runs are called so" in said
    assert "smoke/A_h4/0123456789ab/seed2" in said


def test_where_the_run_never_said_anything_its_job_s_output_is_printed(run, workplace, capfd):
    write_text(workplace / "job.log", "slurmstepd: no such luck\n")
    note(run, "submitting", name="sweep", task=None)
    note(run, "submitted", job="12", log=str(workplace / "job.log"))
    assert logs.main(["A_h4"]) == 0
    assert capfd.readouterr().out == "slurmstepd: no such luck\n"
    write_text(run.log, "12:00:00 base seed 1\n")
    assert logs.main(["A_h4"]) == 0
    said = capfd.readouterr()
    assert said.out == "12:00:00 base seed 1\n"
    assert f"what its job printed: {workplace}/job.log" in said.err


def test_a_run_without_a_log_prints_nothing(run, capfd):
    assert logs.main(["A_h4"]) == 0
    assert capfd.readouterr().out == ""


def test_a_running_run_is_followed_to_its_end(run, monkeypatch):
    monkeypatch.setattr(logs, "POLL_S", 0.01)
    out = io.BytesIO()
    thread = threading.Thread(target=logs.show, args=(run, out.write, True))
    with lock(run.lock):
        thread.start()  # before there is a log
        write_text(run.log, "one\n")
        wait_until(lambda: out.getvalue() == b"one\n", "the first line")
        with open(run.log, "a") as file:
            file.write("two\n")
        wait_until(lambda: out.getvalue() == b"one\ntwo\n", "the second line")
        run.beat(state="stopped", reason="SIGTERM")
        with open(run.log, "a") as file:
            file.write("three\n")
    thread.join()
    assert out.getvalue() == b"one\ntwo\nthree\n"


def test_a_run_is_followed_as_long_as_slurm_has_its_job(run, commands, monkeypatch, capfd):  # noqa: F811
    monkeypatch.setattr(logs, "POLL_S", 0.01)
    monkeypatch.setattr(ledger, "ASK_EVERY_S", 0.01)
    write_text(run.log, "one\n")
    run.beat(state="stopped", reason="SIGTERM")
    note(run, "submitting", name="sweep", task=None)
    note(run, "submitted", job="12", log="")
    asked = f"$(wc -l < {commands.folder}/squeue.calls)"
    commands.add(
        "squeue", f"[ {asked} = 3 ] && echo two >> {run.log}; [ {asked} -lt 4 ] && echo '12|sweep|PENDING|None'; true"
    )
    commands.add("sacct", "echo '12|NODE_FAIL'")
    assert logs.main(["A_h4", "-f"]) == 0
    said = capfd.readouterr()
    assert said.out == "one\ntwo\n"
    assert "seed1: queued: job 12 pending; " in said.err
    assert logs.main(["A_h4"]) == 0
    assert "seed1: stopped: node failure; " in capfd.readouterr().err
