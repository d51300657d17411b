import dataclasses
import io
import os
import re
import signal

import psutil
import pytest
from rich.console import Console
from rich.text import Text
from tiny import StopAt, alive, end, planned, tiny_run, undisturbed, wait_until

from ablate import launch, record, spawn
from ablate.config import LocalCluster
from ablate.frozen import load, save
from ablate.identity import fingerprint
from ablate.rundir import RunDir, lock, read_json
from ablate.state import RunState, read_state
from ablate.track import read_metrics
from ablate.worker import STOPPED, StopFlag, take

pytestmark = pytest.mark.usefixtures("workplace")
LONG = ["optim.train_steps=20000000", "optim.checkpoint_every_steps=1000000", "optim.eval_every_steps=0"]


def shown(*runs: RunDir, workers: int = 1) -> tuple[launch.Outcome, str]:
    """Launch runs as rows r1, r2 …; give how they ended and what a terminal-less console showed."""
    console = Console(record=True, width=200, file=open(os.devnull, "w"))  # noqa: SIM115 – as long as the process
    outcome = launch.launch({(f"r{i}", 1): run for i, run in enumerate(runs, 1)}, workers, console)
    console.file.close()
    return outcome, console.export_text()


@pytest.mark.parametrize(("cores", "threads", "expected"), [(8, 2, 4), (2, 1, 2), (2, 3, 1), (None, 1, 6)])
def test_as_many_runs_at_once_as_the_physical_cores_carry(monkeypatch, cores, threads, expected):
    monkeypatch.setattr(psutil, "cpu_count", lambda logical=True: 6 if logical else cores)
    assert launch.num_workers(LocalCluster("local", 1, threads, 1.0, 0), "cpu") == expected
    assert launch.num_workers(LocalCluster("local", 1, threads, 1.0, 5), "cpu") == 5


@pytest.mark.parametrize(("ranks", "expected"), [(1, 5), (2, 2), (5, 1), (6, 1)])
def test_as_many_runs_at_once_as_there_are_gpus_for_their_processes(monkeypatch, ranks, expected):
    monkeypatch.setattr(launch, "visible_gpus", lambda: ["3", "4", "5", "6", "7"])
    assert launch.num_workers(LocalCluster("local", ranks, 1, 1.0, 0), "cuda") == expected
    assert launch.num_workers(LocalCluster("local", ranks, 1, 1.0, 9), "cuda") == 9


@pytest.mark.parametrize(
    ("ranks", "workers", "expected"),
    [
        (1, 2, ["3", "4", "4", "3"]),  # the second ends first, then the first
        (2, 2, ["3,4", "5,6", "5,6", "3,4"]),
        (1, 4, ["3", "4", "5", "6"]),
        (4, 2, ["3,4,5,6"] * 4),  # more at once than there are GPUs for: they share them
        (5, 2, [""] * 4),  # too few: the run itself says so
    ],
)
def test_each_run_has_gpus_of_its_own(monkeypatch, ranks, workers, expected):
    seen = []

    class Stub:
        def __init__(self, run: RunDir, gpus: str) -> None:
            seen.append(gpus)
            self.number = len(seen)

        def poll(self) -> int | None:
            return launch.DONE if len(seen) == 4 or self.number == {2: 2, 3: 1}.get(len(seen)) else None

    runs = [one.run for one in planned("seeds=4", f"cluster.ranks={ranks}").runs]
    for run in runs:
        save(dataclasses.replace(load(run.config), device="cuda"), run.config)
    monkeypatch.setattr(launch, "visible_gpus", lambda: ["3", "4", "5", "6"])
    monkeypatch.setattr(launch, "Worker", Stub)
    shown(*runs, workers=workers)
    assert seen == expected


def test_freezing_writes_the_whole_configuration_and_what_its_fingerprint_was_made_of():
    plan = planned("model.dropout=0.2")
    frozen = plan.runs[0]
    assert load(frozen.run.config) == frozen.cfg
    identity = read_json(frozen.run.identity)
    assert fingerprint(identity["science"]) == identity["fingerprint"] == frozen.run.path.parent.name
    assert identity["changes"]["model.dropout"] == [0.1, 0.2]
    assert identity["code"] == record.code_digest()


def test_a_failing_run_does_not_stop_the_others():  # S1
    bad, good = tiny_run("optim.lr_scale=1.0e+30"), tiny_run()
    outcome, text = shown(bad, good)
    assert (outcome.failed, outcome.done, outcome.interrupted) == ([bad], [good], False)
    assert re.search(r"r1 seed 1: failed: NonFiniteLoss: .*", text)
    assert re.search(r"r2 seed 1: done, step 12/12", text)
    assert "Traceback (most recent call last)" in bad.log.read_text()
    assert record.comparable(record.read(good)) == undisturbed()


def test_a_worker_that_cannot_even_start_is_a_failed_run(tmp_path, monkeypatch):  # S1
    run = tiny_run()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "omegaconf.py").write_text("raise ImportError('no such luck')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "broken"), prepend=os.pathsep)
    outcome, text = shown(run)
    assert outcome.failed == [run]
    assert read_state(run).name == "failed"
    assert "the worker ended with exit code 1; see" in text
    assert "no such luck" in run.log.read_text()


def test_a_killed_worker_leaves_a_stopped_run_that_goes_on(monkeypatch):
    run = tiny_run(*LONG)
    started = spawn.start

    def start_and_kill(*arguments):
        process = started(*arguments)
        wait_until(lambda: read_metrics(run.metrics), "the first updates")
        process.kill()
        return process

    monkeypatch.setattr(spawn, "start", start_and_kill)
    outcome, text = shown(run)
    assert (outcome.stopped, outcome.failed) == ([run], [])
    assert read_state(run).words == "stopped: killed"
    assert "r1 seed 1: stopped: killed" in text
    assert take(run, StopAt(1)) == STOPPED


def test_a_worker_ends_by_itself_when_its_launcher_does():
    run = tiny_run(*LONG)
    process = spawn.start(run, threads=1)
    try:
        wait_until(lambda: read_metrics(run.metrics), "the first updates")
        process.stdin.close()  # what the operating system does when the launcher is killed
        assert process.wait(120) == STOPPED
    finally:
        end(process.pid)
    state = read_state(run)
    assert state.words == "stopped: the parent process ended"
    assert (run.checkpoints / f"step-{state.step:06d}").is_dir()
    assert not alive(process.pid)


def test_a_run_that_another_process_has_is_told_apart_from_a_failure(monkeypatch):  # P7
    run = tiny_run()
    with lock(run.lock):
        outcome, text = shown(run)
    assert (outcome.held, outcome.failed, outcome.stopped) == ([run], [], [])
    assert re.search(rf"r1 seed 1: running: by another process, process {os.getpid()} on \S+", text)


def test_an_interrupt_is_noted_and_the_handlers_are_given_back():
    before = signal.getsignal(signal.SIGINT)
    received: list[int] = []
    with launch.on_interrupt(received):
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGTERM)
    assert received == [signal.SIGINT, signal.SIGTERM]
    assert signal.getsignal(signal.SIGINT) is before


def test_a_line_of_a_run_says_what_is_known():
    assert launch.plain("A_h4", 2, RunState("new")) == "A_h4 seed 2: new"
    state = RunState(
        "running", "training", step=40, total=1000, tokens_per_s=12345.6, loss=3.14159, dev_ppl=27.182, eta_s=3723.0
    )
    assert launch.plain("base", 1, state) == (
        "base seed 1: running: training, step 40/1000, tokens/s 12,346, loss 3.142, dev PPL 27.18, ETA 1:02:03"
    )


def test_on_a_terminal_the_runs_are_a_live_table():
    run = tiny_run()
    assert take(run, StopFlag()) == 0
    console = Console(force_terminal=True, record=True, width=100, file=open(os.devnull, "w"))  # noqa: SIM115
    with launch.view(lambda: {("base", 1): read_state(run)}, console) as show:
        show()
    console.file.close()
    text = console.export_text()
    assert re.search(r"row\s+seed\s+state\s+step\s+tokens/s\s+loss\s+dev PPL\s+BLEU\s+ETA", text)
    assert re.search(r"base\s+1\s+done\s+12/12", text)


def test_where_not_all_runs_fit_the_terminal_the_running_ones_stay(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")
    names = ["done"] * 40 + ["running"] * 3 + ["failed"] * 2 + ["new"] * 15  # a pool of three at the 20 rows' 60 runs
    states = {(f"r{i}", 1): RunState(name) for i, name in enumerate(names, 1)}
    console = Console(force_terminal=True, width=100, height=12, file=io.StringIO())
    with launch.view(lambda: states, console) as show:
        show()
        drawn = console.file.getvalue()
        console.file.truncate(0)
    frame = [line for line in Text.from_ansi(drawn).plain.splitlines() if line][-12:]
    words = [" ".join(line.split()[:3]) for line in frame]
    assert words[0] == "row seed state"
    assert words[1:11] == [*(f"r{i} 1 done" for i in range(1, 6)), *(f"r{i} 1 {names[i - 1]}" for i in range(41, 46))]
    assert frame[11].strip() == "… and 35 done, 15 to do not shown"
    assert all(f"r{i} " in console.file.getvalue() for i in range(1, 61))  # at the end there is room for all
