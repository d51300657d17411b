"""Runs on a real SLURM that does to them what SLURMs do."""

import os
import signal

from submitted import LONG, SLOW, SLURM, command, events, hurry, job_of, records, runs, wait_for_update
from tiny import undisturbed, wait_until

from ablate import checkpoint, record
from ablate.rundir import RunDir
from ablate.state import read_state


def starts(ours: dict[str, RunDir]) -> set[int]:
    """Tell how often jobs have started these runs."""
    return {len(events(one, "started")) for one in ours.values()}


def test_preempted_requeued_killed_and_without_a_controller_the_records_are_the_local_pool_s(cluster):  # S4, S5
    sweep = ["+sweep=row_A", *LONG, "optim.train_steps=200000"]  # 120 updates: slowly, a minute
    assert command(*sweep, *SLOW)[0] == 0
    ours = runs()
    assert len(ours) == 5
    for restart in (1, 2):  # a job of the high partition takes everything, twice
        wait_until(lambda number=restart: starts(ours) == {number}, "the start of all")
        wait_for_update(ours["A_h1"], 4 * restart)
        cluster.say("sbatch", "--partition=high", "--nodes=2", "--exclusive", "--wrap", "sleep 1")
        wait_until(lambda: cluster.run("squeue", "-h", "-t", "R", "-p", "high").stdout, "the preemption")
        wait_until(lambda: not cluster.say("squeue", "-h", "-p", "high"), "the end of the preempting job")
    wait_until(lambda: starts(ours) == {3}, "the third start of all")
    pid = wait_for_update(ours["A_h4"], 0)
    wait_for_update(ours["A_h16"], 0)
    cluster.say("scontrol", "requeue", job_of(ours["A_h16"]))
    cluster.kill("slurmctld", signal.SIGTERM)
    os.kill(pid, signal.SIGKILL)
    cluster.launch("slurmctld", "-D")
    wait_until(lambda: len(events(ours["A_h16"], "ended")) == 3, "the requeued one's end")
    hurry()
    wait_until(lambda: len(records()) == 5, "five records")

    assert command(*sweep, "runs_dir=local")[0] == 0
    assert records() == records("local")
    for row, one in ours.items():
        attempts = record.read(one)["provenance"]
        assert len(attempts) == (4 if row in ("A_h4", "A_h16") else 3)
        assert not any(attempt["code_changed"] for attempt in attempts)
        assert [line["restart"] for line in events(one, "started")] == list(range(len(attempts)))
        assert len(events(one, "submitted")) == 1
    ends = {row: [line["reason"] for line in events(one, "ended")] for row, one in ours.items()}
    assert ends["base"] == ["preempted", "preempted", ""]
    assert ends["A_h4"] == ["preempted", "preempted", "killed by SIGKILL", ""]
    assert ends["A_h16"] == ["preempted", "preempted", "preempted", ""]  # whoever asks for it


def test_before_its_time_limit_a_job_puts_itself_back_and_goes_on(cluster):  # S4
    assert command("optim.train_steps=20000000", *SLOW, "cluster.timeout_min=1", "cluster.stop_before_s=20")[0] == 0
    (one,) = runs().values()
    wait_until(lambda: len(events(one, "started")) == 2, "SLURM's signal, and the second start")
    end = events(one, "ended")[0]
    assert (end["reason"], end["then"]) == ("time limit", "requeued")
    wait_for_update(one, int(end["step"]) + 1)
    assert f"resumed after update {end['step']}\n" in one.log.read_text()


def test_the_run_of_a_node_that_crashed_goes_on_on_another_from_the_newest_checkpoint_that_is_whole(cluster):  # S5, R2
    cluster.say("scontrol", "update", "nodename=n2", "state=drain", "reason=test")
    assert command(*LONG, *SLOW)[0] == 0
    (one,) = runs().values()
    wait_for_update(one, 9)
    cluster.crash("n1")
    hurry()
    whole, damaged = checkpoint.folders(one.checkpoints)[-2:]
    (damaged / "state.pt").write_bytes((damaged / "state.pt").read_bytes()[:-100])
    cluster.say("scontrol", "update", "nodename=n2", "state=resume")
    cluster.say("scontrol", "update", "nodename=n1", "state=down", "reason=crashed")  # as after SlurmdTimeout
    wait_until(one.record.exists, "the record")
    assert [line["host"] for line in events(one, "started")] == ["n1", "n2"]
    wait_until(lambda: events(one, "ended"), "the end of the job")
    assert [line["code"] for line in events(one, "ended")] == [0]  # the crash itself left no word
    assert f"resumed after update {checkpoint.step_of(whole)}\n" in one.log.read_text()
    assert records()["base"] == undisturbed(*LONG)


def test_a_cancelled_job_does_not_come_back(cluster):
    assert command(*LONG, *SLOW)[0] == 0
    (one,) = runs().values()
    wait_for_update(one, 5)
    job = job_of(one)
    cluster.say("scancel", job)
    wait_until(lambda: not cluster.say("squeue", "-h"), "its end")
    wait_until(lambda: "CANCELLED" in cluster.say("sacct", "-X", "-n", "-j", job, "-o", "State"), "the accounting")
    assert read_state(one).name == "stopped"  # at a checkpoint
    hurry()
    assert command(*LONG, *SLOW)[0] == 0  # the same command submits it again
    wait_until(one.record.exists, "the record")
    assert len(events(one, "submitted")) == 2
    assert records()["base"] == undisturbed(*LONG)


def test_a_job_without_memory_leaves_a_failed_run_that_says_so(cluster):  # S7
    assert command(*SLURM[:2], "cluster.mem_gb=0.05")[0] == 0
    (one,) = runs().values()
    wait_until(lambda: not cluster.say("squeue", "-h"), "its end")
    print(cluster.say("sacct", "-P"), one.jobs.read_text(), one.log.read_text())
    code, text = command(*SLURM)
    print(text)
    assert code == 1
    assert read_state(one).reason.startswith("OutOfMemory: ")
    assert len(events(one, "submitted")) == 1
