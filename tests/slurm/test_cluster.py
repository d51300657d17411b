"""The SLURM that the other tests here rely on is a real one."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import cluster as module
import psutil
import pytest
from cluster import Cluster, missing, search_path
from tiny import alive, wait_until


def jobs(cluster: Cluster) -> dict[str, str]:
    """Give the state of each job in the queue."""
    return dict(line.split() for line in cluster.say("squeue", "-h", "-r", "-o", "%i %T").splitlines())


def submit(cluster: Cluster, *options: str, command: str) -> str:
    """Submit a shell command; gives the job's number."""
    return cluster.say("sbatch", "--parsable", "--output=%A_%a.txt", *options, "--wrap", command)


def test_an_array_runs_and_is_accounted_for(cluster):
    job = submit(cluster, "--array=0-2", command='srun echo "task $SLURM_ARRAY_TASK_ID"')
    wait_until(lambda: not jobs(cluster), "the end of the array")
    assert [Path(f"{job}_{task}.txt").read_text() for task in range(3)] == [f"task {task}\n" for task in range(3)]
    asked = ["sacct", "-X", "-n", "-j", job, "-o", "State"]
    wait_until(lambda: cluster.say(*asked).split() == ["COMPLETED"] * 3, "the accounting")


def test_the_high_partition_preempts_the_low_one_which_starts_again(cluster):
    low = submit(cluster, "--nodes=2", "--exclusive", command='echo "start $SLURM_RESTART_COUNT" >> low.txt; sleep 60')
    wait_until(lambda: Path("low.txt").exists(), "the first start")
    high = submit(cluster, "--partition=high", "--nodes=2", "--exclusive", command="sleep 1")
    wait_until(lambda: jobs(cluster).get(high) == "RUNNING", "the preemption")
    assert jobs(cluster)[low] == "PENDING"
    wait_until(lambda: Path("low.txt").read_text() == "start \nstart 1\n", "the second start")


def test_a_job_whose_node_fails_starts_on_the_other(cluster):
    job = submit(cluster, "--nodelist=n1,n2", "--nodes=1-2", "--exclusive", command="hostname >> on.txt; sleep 60")
    wait_until(lambda: jobs(cluster).get(job) == "RUNNING", "its start")
    cluster.say("scontrol", "update", "nodename=n1", "state=down", "reason=test")
    wait_until(lambda: jobs(cluster).get(job) == "PENDING", "its return to the queue")


def test_a_controller_that_is_restarted_comes_back_with_its_jobs(cluster):
    job = submit(cluster, command="touch started; sleep 60")
    wait_until(Path("started").exists, "its start")
    cluster.kill("slurmctld", signal.SIGTERM)
    cluster.launch("slurmctld", "-D")
    wait_until(lambda: cluster.run("squeue").returncode == 0, "the controller")
    assert jobs(cluster)[job] == "RUNNING"


def test_the_next_test_finds_an_idle_cluster(cluster):
    submit(cluster, "--array=0-20", command="trap '' TERM; sleep 60")
    cluster.kill("n2")
    cluster.rest()
    assert jobs(cluster) == {}
    assert cluster.idle()


def test_what_watches_a_job_s_steps_is_the_cluster_s_too_and_ends_with_it(cluster):
    submit(cluster, command="srun sleep 60")

    def names() -> list[str]:
        return [process.info["name"] for process in psutil.process_iter(["name"]) if cluster.owns(process)]

    wait_until(lambda: names().count("slurmstepd") >= 2, "the batch script's, and the step's")


def test_a_test_that_waits_for_ever_is_broken_off():
    left_s, again_s = signal.setitimer(signal.ITIMER_REAL, 0.1, 1)  # the second one reaches what waits on the way out
    with (
        pytest.raises(TimeoutError, match="this test has taken longer"),
        subprocess.Popen(["sleep", "1000"]) as process,
    ):
        process.wait()
    signal.setitimer(signal.ITIMER_REAL, left_s, again_s)
    process.kill()
    process.wait()


def test_nothing_is_left_of_a_cluster(tmp_path, monkeypatch):
    if missing():
        pytest.skip(missing())
    folder = tmp_path / "slurm"
    folder.mkdir()
    cluster = Cluster(folder)
    cluster.launch("sh", "-c", "sleep 1000 & wait", called="daemon")
    wait_until(lambda: len([p for p in psutil.process_iter() if cluster.owns(p)]) == 2, "its processes")
    cluster.stop()
    assert not [process for process in psutil.process_iter() if cluster.owns(process)]
    assert not folder.exists()


def test_what_is_missing_is_said(monkeypatch):
    monkeypatch.setattr(module, "search_path", lambda: "/nowhere")
    assert missing().startswith("no munged, mariadbd,")
    assert missing().endswith("apt-get install slurmctld slurmd slurm-client munge slurmdbd mariadb-server")
    monkeypatch.setattr(module, "PROGRAMS", [])
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert missing() == "a SLURM of one's own needs root"


@pytest.mark.parametrize("late", [False, True])
def test_a_daemon_does_not_outlive_a_killed_test_run(late, tmp_path, monkeypatch):
    if missing():
        pytest.skip(missing())
    if late:  # the run is killed before the daemon has asked to be killed with it
        (tmp_path / "setpriv").write_text(
            f'#!/bin/sh\nsleep 1\nexec {shutil.which("setpriv", path=search_path())} "$@"\n'
        )
        (tmp_path / "setpriv").chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    code = (
        "import pathlib, sys, time; sys.path.insert(0, sys.argv[1]); from cluster import Cluster\n"
        "cluster = Cluster(pathlib.Path(sys.argv[2])); cluster.launch('sleep', '1000')\n"
        "print(cluster.daemons['sleep'].pid, flush=True); time.sleep(1000)"
    )
    run = [sys.executable, "-c", code, str(Path(__file__).parent), str(tmp_path)]
    with subprocess.Popen(run, stdout=subprocess.PIPE, text=True) as process:
        daemon = int(process.stdout.readline())
        if not late:
            wait_until(lambda: psutil.Process(daemon).name() == "sleep", "its beginning")
        process.send_signal(signal.SIGKILL)
    wait_until(lambda: not alive(daemon), "its end")
