import subprocess
import sys

from cluster import Cluster
from tiny import tiny_run, wait_until

from ablate import record
from ablate.rundir import RunDir
from ablate.spawn import Worker
from ablate.status import read_state
from ablate.track import read_metrics
from ablate.worker import DONE, STOPPED

TASK = """
import sys
from pathlib import Path
from ablate.ranks import Ranks
from ablate.rundir import RunDir
from ablate.stop import StopFlag
from ablate.worker import take
stop = StopFlag()
stop.listen()
sys.exit(take(RunDir(Path(sys.argv[1])), stop, Ranks.of_slurm()))
"""


def start(cluster: Cluster, run: RunDir, *options: str) -> "subprocess.Popen[str]":
    """Do a run in two tasks."""
    command = ["srun", "--ntasks=2", *options, sys.executable, "-c", TASK, str(run.path)]
    return subprocess.Popen(command, env=cluster.env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)


def test_tasks_on_two_nodes_do_what_two_processes_of_the_local_pool_do(cluster):
    here, there = tiny_run("cluster.ranks=2", "runs_dir=here"), tiny_run("cluster.ranks=2", "runs_dir=there")
    worker = Worker(here, 1)
    wait_until(lambda: worker.poll() is not None, "the local run")
    with start(cluster, there, "--nodes=2") as tasks:
        said = tasks.communicate()[0]
    assert tasks.returncode == DONE, said
    assert record.comparable(record.read(there)) == record.comparable(record.read(here))
    assert said.count(", attempt 1\n") == 1


def test_a_signal_from_slurm_stops_all_tasks_after_the_same_update(cluster):  # S4
    run = tiny_run("cluster.ranks=2", "optim.train_steps=20000000", "optim.eval_every_steps=0")
    with start(cluster, run, "--job-name=signalled") as tasks:
        wait_until(lambda: read_metrics(run.metrics), "the first updates")
        cluster.say("scancel", "--signal=USR2", "--name=signalled")
        said = tasks.communicate()[0]
    assert tasks.returncode == STOPPED, said
    state = read_state(run)
    assert state.name == "stopped"
    assert (run.checkpoints / f"step-{state.step:06d}").is_dir()
    assert f"stopped after update {state.step};" in said
