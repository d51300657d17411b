"""The command on a real SLURM: each run once, however often and from wherever it is given."""

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from cluster import MAX_ARRAY_SIZE
from submitted import LONG, MANY, SLOW, SLURM, command, events, hurry, job_of, records, runs, wait_for_update
from tiny import TINY, undisturbed, wait_until

from ablate.errors import ConfigError
from ablate.named import find
from ablate.state import read_state


def start(*overrides: str) -> "subprocess.Popen[str]":
    """Give the command as a user does."""
    arguments = [sys.executable, "-m", "ablate.run", *overrides, *TINY, *SLURM]
    return subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def pause(cluster, state="down"):
    """Let jobs wait, and with state="up" start."""
    cluster.say("scontrol", "update", "partitionname=low", f"state={state}")


@pytest.fixture
def cluster(cluster):
    yield cluster
    pause(cluster, "up")


def test_it_returns_while_the_jobs_wait_and_says_how_to_watch_them(cluster):  # S2, S8
    pause(cluster)
    code, text = command("+sweep=row_B", *SLURM)
    assert code == 0
    assert re.search(r"submitted 3 runs as job \d+ \(an array of 3\), named ablate-smoke-[0-9a-f]{8}", text)
    assert "python -m ablate.status --watch" in text
    assert "|" not in text  # no table yet
    wait_until(lambda: "PartitionDown" in cluster.say("squeue", "-h", "-o", "%r"), "SLURM's reason")
    code, text = command("+sweep=row_B", *SLURM)
    assert code == 0
    assert "submitted" not in text
    assert re.search(r"B_dk16 seed 1: queued: job \d+_1 pending, PartitionDown", text)
    assert "3 runs: 3 queued" in text
    code, text = command("+sweep=row_B")  # nor does the local pool take what is queued
    assert code == 75
    assert "3 runs: 3 queued" in text
    pause(cluster, "up")
    wait_until(lambda: len(records()) == 3, "the records")
    assert len(cluster.say("sacct", "-X", "-n", "-o", "JobID", "--name=" + job_name()).split()) == 3


def job_name() -> str:
    """Give the name of the only array that was submitted."""
    (folder,) = [path for path in Path("runs/slurm").iterdir() if path.is_dir()]
    return folder.name


def test_two_submitters_at_the_same_second_submit_each_run_once(cluster):  # P7
    both = [start("+sweep=row_B"), start("+sweep=row_B")]
    said = [process.communicate(timeout=300)[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], said
    assert sorted(len(re.findall("submitted 3 runs", text)) for text in said) == [0, 1]
    wait_until(lambda: len(records()) == 3, "the records")
    assert {row: len(events(one, "submitted")) for row, one in runs().items()} == dict.fromkeys(runs(), 1)
    assert {row: len(events(one, "started")) for row, one in runs().items()} == dict.fromkeys(runs(), 1)


def test_waiting_ends_with_the_table_and_small_runs_share_jobs(cluster):
    code, text = command("+sweep=row_B", *SLURM, "cluster.runs_per_job=2", "cluster.wait=true")
    assert code == 0
    assert re.search(r"submitted 3 runs as job \d+ \(an array of 2\)", text)
    assert re.search(r"B_dk32 seed 1: done, step 12/12", text)
    assert re.search(r"^\| B_dk16 .*\| 1/1 ", text, re.MULTILINE)
    assert records()["base"] == undisturbed()
    assert len({job_of(one) for one in runs().values()}) == 2


def test_a_run_that_fails_shows_and_neither_hides_nor_harms_the_others(cluster):  # S1
    Path("mine/row").mkdir(parents=True)
    Path("mine/sweep").mkdir()
    Path("mine/row/hasty.yaml").write_text("# @package _global_\noptim: { lr_scale: 1.0e+30 }\n")
    Path("mine/sweep/mine.yaml").write_text("# @package sweep.mine\n{ title: mine, rows: [hasty] }\n")
    with start("--config-dir=mine", "+sweep=mine", "cluster.wait=true") as process:
        text = process.communicate(timeout=600)[0]
    assert process.returncode == 1, text
    assert re.search(r"hasty seed 1: failed: NonFiniteLoss", text)
    ours = runs()
    assert "Traceback (most recent call last)" in ours["hasty"].log.read_text()
    assert records()["base"] == undisturbed()
    job = job_of(ours["hasty"])
    state = ["sacct", "-X", "-n", "-P", "-j", job, "-o", "State,ExitCode"]
    wait_until(lambda: cluster.say(*state) == "FAILED|1:0", "the accounting")
    with start("--config-dir=mine", "+sweep=mine") as process:  # and it is not tried again by itself
        assert "submitted" not in process.communicate(timeout=300)[0]
    assert process.returncode == 1


def test_from_inside_an_allocation_a_job_is_what_it_would_be_from_outside(cluster):
    arguments = [sys.executable, "-m", "ablate.run", *TINY, *SLURM, "cluster.setup=['env > env.txt']"]
    text = cluster.say("srun", "--cpus-per-task=2", "--mem-per-cpu=300", "--partition=high", *arguments)
    assert "submitted 1 run" in text
    wait_until(lambda: len(records()) == 1, "the record")
    seen = dict(line.partition("=")[::2] for line in Path("env.txt").read_text().splitlines())
    asked = ("SLURM_JOB_PARTITION", "SLURM_CPUS_PER_TASK", "SLURM_MEM_PER_NODE")
    assert [seen[name] for name in asked] == ["low", "1", "1024"]
    assert "SLURM_MEM_PER_CPU" not in seen
    assert records()["base"] == undisturbed()


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("cluster.partition=hihg", "cluster.partition='hihg': did you mean 'high'? valid: high, low"),
        ("cluster.account=lba", "cluster.account='lba': did you mean 'lab'? valid: lab, root"),
        ("cluster.constraint=loopbak", "cluster.constraint='loopbak': did you mean 'loopback'? valid: loopback"),
        ("cluster.qos=nromal", "cluster.qos='nromal': did you mean 'normal'? valid: normal"),
        ("cluster.timeout_min=61", "cluster.timeout_min=61: "),
        ("cluster.cpus=5", "cluster.nodes, gpus, gpu_type, cpus or mem_gb: "),
        ("cluster.mem_gb=9", "cluster.nodes, gpus, gpu_type, cpus or mem_gb: "),
    ],
)
def test_what_the_site_does_not_have_is_refused_with_what_it_has(cluster, asked, said):
    with pytest.raises(ConfigError) as refused:
        command(*SLURM, asked)
    assert str(refused.value).startswith(said)
    assert cluster.say("squeue", "-h") == ""


def test_a_job_asks_for_what_its_fields_say(cluster):
    pause(cluster)
    fields = {"nodes": 2, "gpus": 4, "gpu_type": "toy", "cpus": 2, "account": "lab", "constraint": "loopback"}
    assert command(*SLURM, "device=auto", *(f"cluster.{name}={value}" for name, value in fields.items()))[0] == 0
    shown = cluster.say("scontrol", "show", "job", "-o")
    told = {"NumNodes": "2-2", "NumTasks": "4", "CPUs/Task": "2", "TimeLimit": "00:10:00", "MinMemoryNode": "1G"}
    told |= {"Account": "lab", "Features": "loopback", "Requeue": "1", "TresPerNode": "gres:gpu:toy:2"}
    found = dict(word.partition("=")[::2] for word in shown.split())
    assert {name: found.get(name) for name in told} == told


def test_of_several_runs_in_a_job_a_killed_one_goes_on_when_the_others_are_done(cluster):
    sweep = ["seeds=2", *LONG]
    assert command(*sweep, *SLOW, "cluster.runs_per_job=2")[0] == 0
    both = find(Path("runs").absolute())
    os.kill(wait_for_update(both[1], 5), signal.SIGKILL)
    hurry()
    wait_until(lambda: len(events(both[1], "ended")) == 2, "the end")
    assert [line["reason"] for line in events(both[1], "ended")] == ["killed by SIGKILL", ""]
    assert [line["reason"] for line in events(both[0], "ended")] == [""]  # it was left in peace
    assert {job_of(one) for one in both} == {job_of(both[0])}
    assert all(one.record.exists() for one in both)


def test_many_runs_in_arrays_are_each_done_once(cluster):
    code, text = command(f"seeds={MANY}", *SLURM, "optim.train_steps=2000")
    assert code == 0
    assert text.count("submitted") == -(-MANY // MAX_ARRAY_SIZE)

    def done() -> int:
        return sum(one.record.exists() for one in find(Path("runs").absolute()))

    wait_until(lambda: done() == MANY, "all records", 600 + 20 * MANY)
    for one in find(Path("runs").absolute()):
        assert len(events(one, "started")) == 1
        assert read_state(one).name == "done"
