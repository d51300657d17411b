"""What is said of runs on a real SLURM, and done to them by name."""

import json
from pathlib import Path
from typing import Any

from submitted import LONG, SLOW, SLURM, command, events, hurry, job_of, wait_for_update
from tiny import undisturbed, wait_until

from ablate import cancel, doctor, logs, record, retry, status
from ablate.named import find, select
from ablate.rundir import RunDir, write_text
from ablate.state import read_state

BASE = "base/1"


def told(capsys) -> dict[str, Any]:
    """Give what `ablate.status` says of the runs, by row and seed, and its warnings."""
    capsys.readouterr()
    assert status.main(["--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    return {"warnings": said["warnings"], **{f"{one['row']}/{one['seed']}": one for one in said["runs"]}}


def run(name: str) -> RunDir:
    """Give the run that is called so."""
    return select(Path("runs").absolute(), name)


def test_a_job_that_can_never_start_shows_slurm_s_reason(cluster, capsys):  # S8
    cluster.say("scontrol", "update", "partitionname=low", "state=down")
    try:
        assert command(*SLURM)[0] == 0
        wait_until(lambda: "PartitionDown" in told(capsys)[BASE]["reason"], "SLURM's reason")
        assert told(capsys)[BASE]["state"] == "queued"
        assert cancel.main(["--all"]) == 0
        wait_until(lambda: not cluster.say("squeue", "-h"), "its end")
        assert told(capsys)[BASE]["reason"] == "cancelled"
    finally:
        cluster.say("scontrol", "update", "partitionname=low", "state=up")


def test_without_an_accounting_states_come_from_files_and_the_queue(cluster, workplace, monkeypatch, capsys):  # S3
    assert command(*LONG, *SLOW)[0] == 0
    wait_for_update(run(BASE), 5)
    broken = workplace / "broken" / "sacct"
    write_text(broken, "#!/bin/sh\necho Slurm accounting storage is disabled >&2; exit 1\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(broken.parent), prepend=":")
    said = told(capsys)
    assert (said[BASE]["state"], said[BASE]["job"], said["warnings"]) == ("running", job_of(run(BASE)), [])
    assert 0 < said[BASE]["steps_per_s"] < 2  # in slow motion
    assert cancel.main(["base"]) == 0
    wait_until(lambda: told(capsys)[BASE]["reason"] == "cancelled", "its end")
    assert told(capsys)["warnings"] == []  # the queue knows how it ended


def test_of_a_job_s_runs_one_is_cancelled_and_the_same_command_continues_it(cluster, capsys):
    sweep = ["seeds=2", *LONG, *SLOW]
    assert command(*sweep, "cluster.runs_per_job=2")[0] == 0
    one, other = run(BASE), run("base/2")
    wait_for_update(one, 5)
    assert cancel.main([BASE]) == 0
    wait_until(lambda: read_state(one).words == "stopped: cancelled", "its end")
    hurry()
    wait_until(lambda: events(one, "ended") and events(other, "ended"), "the end of the job")
    assert [(line["reason"], line["then"]) for line in events(one, "ended")] == [("cancelled", "")]
    assert other.record.exists()
    assert told(capsys)[BASE]["reason"] == "cancelled"
    assert retry.main(["--lost"]) == 0  # not what was cancelled
    assert len(events(one, "submitted")) == 1
    assert command(*sweep)[0] == 0
    assert len(events(one, "submitted")) == 2
    assert logs.main([BASE, "-f"]) == 0
    assert "resumed after update" in one.log.read_text()
    done = record.read(one)
    assert done is not None
    assert record.comparable(done) == undisturbed(*LONG)


def submitted(*overrides: str) -> set[RunDir]:
    """Submit what is asked for; gives its runs."""
    before = every_run()
    assert command(*overrides)[0] == 0
    return every_run() - before


def every_run() -> set[RunDir]:
    """Give all runs there are."""
    return set(find(Path("runs").absolute()))


def test_of_six_runs_exactly_the_failed_are_done_again_the_one_without_memory_with_more(cluster, capsys):  # S7
    three = submitted("+sweep=row_B", *SLURM)
    (hasty,) = submitted("optim.lr_scale=1.0e+30", *SLURM)
    (hungry,) = submitted("model.dropout=0.2", *SLURM, "cluster.mem_gb=0.05")
    (endless,) = submitted("optim.train_steps=20000000", *SLOW)
    states = {**dict.fromkeys(three, "done"), hasty: "failed", hungry: "failed", endless: "running"}

    def seen() -> dict[RunDir, str]:
        capsys.readouterr()
        assert status.main(["--json"]) == 0
        return {RunDir(Path(one["run"])): one["state"] for one in json.loads(capsys.readouterr().out)["runs"]}

    wait_until(lambda: seen() == states, "3 done, 2 failed, 1 running")
    assert retry.main(["--lost"]) == 0
    assert retry.main(["--failed", "--mem", "x30"]) == 0
    said = capsys.readouterr().out
    assert "no lost runs" in said
    assert said.count("submitted 1 run") == 2  # they do not ask for the same
    again = {one: len(events(one, "submitted")) for one in states}
    assert again == {**dict.fromkeys(states, 1), hasty: 2, hungry: 2}
    wait_until(lambda: seen() == {**states, hungry: "done"}, "the end of both")
    assert record.comparable(record.read(hungry)) == undisturbed("model.dropout=0.2")
    assert len(events(endless, "started")) == 1


def test_the_doctor_sends_a_job_to_every_node_and_finds_nothing_wrong(cluster, capsys):
    settings = ["preset=smoke", "device=cpu", *SLURM]
    assert doctor.main([*settings, "cluster.nodes=2", "cluster.ranks=2"]) == 0
    said = capsys.readouterr().out
    assert "requeue: allowed" in said
    for node in ("n1", "n2"):
        assert f"is seen on {node}, with its locks" in said
        assert f"package: the same on {node}" in said
    assert not [line for line in said.splitlines() if not line.startswith("ok ")]
    wait_until(lambda: not cluster.say("squeue", "-h"), "the end of the job")
    assert doctor.main([*settings, "cluster.partition=hihg"]) == 1
    assert "cluster.partition='hihg': did you mean 'high'?" in capsys.readouterr().out
