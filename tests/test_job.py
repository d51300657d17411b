import platform
import signal
import subprocess
import sys

import pytest
from commands import Commands, commands  # noqa: F401 – a fixture
from tiny import planned, tiny_run, undisturbed

from ablate import job, record, slurm
from ablate.ledger import history, note
from ablate.ranks import ALONE
from ablate.rundir import RunDir, lock, write_json, write_text
from ablate.spawn import DONE, FAILED, HELD, STOPPED
from ablate.state import read_state
from ablate.stop import StopFlag

pytestmark = pytest.mark.usefixtures("workplace", "slurm_like")


@pytest.fixture
def slurm_like(commands, monkeypatch) -> Commands:  # noqa: F811
    """Stand in for a SLURM in which this process is task 3 of array 12, started again once."""
    monkeypatch.setattr(slurm, "PAUSE_S", 0.01)
    for name, value in {"ARRAY_JOB_ID": "12", "ARRAY_TASK_ID": "3", "JOB_ID": "15", "RESTART_COUNT": "1"}.items():
        monkeypatch.setenv(f"SLURM_{name}", value)
    commands.add("scontrol", '[ "$1" = show ] && echo JobState=RUNNING; exit 0')
    return commands


def ended(run: RunDir) -> list[dict[str, object]]:
    return [line for line in history(run) if line["event"] == "ended"]


def test_a_job_does_its_runs_and_leaves_word():
    run = tiny_run()
    assert job.do([run], ALONE, StopFlag()) == DONE, run.log.read_text()
    assert record.comparable(record.read(run)) == undisturbed()
    started, end = history(run)
    assert (started["job"], started["restart"], started["host"]) == ("12_3", 1, platform.node())
    assert (end["event"], end["code"], end["step"], end["then"]) == ("ended", 0, 12, "")


def test_what_is_done_or_has_failed_is_not_begun_again():
    done, failed = tiny_run(), tiny_run("model.dropout=0.2")
    write_json(done.record, {"schema": 1})
    write_text(failed.error, "no luck\n")
    assert job.do([done, failed], ALONE, StopFlag()) == DONE
    assert history(done) == history(failed) == []


def test_a_failed_run_is_the_job_s_exit_code_and_does_not_stop_the_others():  # S1
    bad, good = tiny_run("optim.lr_scale=1.0e+30"), tiny_run()
    assert job.do([bad, good], ALONE, StopFlag()) == FAILED
    assert read_state(good).name == "done"
    assert ended(bad)[0]["reason"].startswith("NonFiniteLoss: ")
    assert ended(bad)[0]["then"] == ""


@pytest.mark.parametrize(("asked", "reason"), [("SIGTERM", "preempted"), ("SIGUSR2", "time limit")])
def test_a_job_that_is_asked_to_stop_passes_that_on_and_puts_itself_back(slurm_like, asked, reason):  # S4
    run = tiny_run("optim.train_steps=20000000")
    stop = StopFlag()
    stop.set(asked)
    assert job.do([run], ALONE, stop) == STOPPED
    (end,) = ended(run)
    assert (end["reason"], end["then"]) == (reason, "requeued")
    assert slurm_like.calls("scontrol")[-1] == "requeue 12_3"


def test_where_the_job_cannot_be_put_back_that_is_said(slurm_like, monkeypatch):
    monkeypatch.setattr(job, "REQUEUE_PATIENCE_S", 0.0)
    slurm_like.add("scontrol", "echo 'Requested operation is presently disabled' >&2; exit 1")
    assert job.put_back("12_3") == "left: scontrol: Requested operation is presently disabled"


def test_a_run_that_another_process_has_is_waited_for_and_then_left(monkeypatch):  # P7
    monkeypatch.setattr(job, "HELD_PATIENCE_S", 0.1)
    run = tiny_run()
    with lock(run.lock):
        assert job.do([run], ALONE, StopFlag()) == HELD
    assert ended(run)[0]["reason"] == "another process has it"


def judge(run: RunDir, code: int, asked: str = "", out_of_memory: bool = False) -> tuple[int, str]:
    return job.judge(run, code, asked, out_of_memory)


def test_a_killed_worker_s_run_goes_on_unless_it_was_out_of_memory():
    run = tiny_run()
    assert judge(run, -signal.SIGKILL) == (STOPPED, "killed by SIGKILL")
    assert judge(run, -signal.SIGTERM) == (STOPPED, "preempted")  # before it could listen
    code, reason = judge(run, -signal.SIGKILL, out_of_memory=True)
    assert code == FAILED
    assert reason.startswith("OutOfMemory: ")
    assert read_state(run).words == f"failed: {reason}"


def test_a_worker_that_is_killed_after_its_record_is_written_is_done():
    run = tiny_run()
    write_json(run.record, {"schema": 1})
    assert judge(run, -signal.SIGTERM, asked="SIGTERM") == (DONE, "")


def test_a_worker_that_was_asked_itself_stops_for_that_reason():
    run = tiny_run()
    run.beat(state="stopped", reason="another rank was lost", step=4)
    assert judge(run, STOPPED) == (STOPPED, "another rank was lost")
    assert judge(run, STOPPED, asked="SIGTERM") == (STOPPED, "preempted")


def test_a_cancelled_run_is_neither_begun_nor_put_back():
    run = tiny_run()
    write_text(run.cancelled, "")
    assert judge(run, STOPPED, asked="SIGTERM") == (DONE, "cancelled")
    assert judge(run, -signal.SIGKILL) == (DONE, "cancelled")
    assert job.do([run], ALONE, StopFlag()) == DONE
    assert not run.log.exists()


def standing_in(monkeypatch: pytest.MonkeyPatch, codes: dict[RunDir, str]) -> None:
    """Let a few lines of Python be each run's worker."""

    def start(run: RunDir, *others: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen([sys.executable, "-c", codes[run]], stdin=subprocess.PIPE)

    monkeypatch.setattr(job, "start", start)


def test_a_worker_that_could_not_start_is_a_failed_run(monkeypatch):
    run = tiny_run()
    standing_in(monkeypatch, {run: "raise SystemExit(1)"})
    assert job.do([run], ALONE, StopFlag()) == FAILED
    assert ended(run)[0]["reason"] == f"the worker ended with exit code 1; see {run.log}"
    assert read_state(run).name == "failed"


def test_a_failed_run_that_is_done_again_before_its_job_has_ended_keeps_its_new_attempt(monkeypatch):
    bad, good = (one.run for one in planned("seeds=2").runs)
    error = str(bad.error)
    wait = f"import os, time\nfor _ in range(6000):\n    if os.path.exists({error!r}): break\n    time.sleep(0.01)\n"
    retry = f"{wait}os.remove({error!r})"
    standing_in(monkeypatch, {bad: "raise SystemExit(1)", good: retry})  # as ablate.retry does while the other goes on
    assert job.do([bad, good], ALONE, StopFlag()) == FAILED
    assert (ended(bad)[0]["code"], ended(bad)[0]["reason"]) == (1, "exit code 1")
    assert not bad.error.exists()


@pytest.mark.parametrize(
    ("code", "asked", "reason"),
    [(STOPPED, "SIGUSR2", "time limit"), (-signal.SIGKILL, "", "killed by SIGKILL")],
)
def test_a_run_that_ends_again_and_again_without_a_new_checkpoint_has_failed(code, asked, reason):
    run = tiny_run()
    (run.checkpoints / "step-000004").mkdir(parents=True)
    for step in (0, 4, 4):
        assert judge(run, code, asked) == (STOPPED, reason)
        note(run, "ended", job="12_3", code=code, reason=reason, step=step, then="requeued")
    assert judge(run, code, asked)[0] == FAILED
    assert read_state(run).reason.startswith(f"NoProgress: {reason}, 3 times after update 4; ")


def test_preemptions_are_never_too_many():  # S6
    run = tiny_run()
    for _ in range(9):
        note(run, "ended", job="12_3", code=STOPPED, reason="preempted", step=0, then="left")
    assert judge(run, STOPPED, "SIGTERM") == (STOPPED, "preempted")


def test_a_job_has_slurm_s_number(monkeypatch):
    assert job.job_id() == "12_3"
    monkeypatch.delenv("SLURM_ARRAY_JOB_ID")
    assert job.job_id() == "15"
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    assert job.node() == "n1"


def test_processes_that_the_kernel_killed_for_their_memory_are_counted(tmp_path):
    root, proc = tmp_path / "cgroup", tmp_path / "cgroup.txt"
    for controllers, file in (("", "memory.events"), ("memory", "memory.oom_control")):
        folder = root / controllers / "job_12"
        folder.mkdir(parents=True)
        (folder / file).write_text("oom_kill_disable 0\nunder_oom 0\noom_kill 2\n")
    proc.write_text("0::/job_12\n")
    assert job.oom_kills(proc, root) == 2
    proc.write_text("5:cpu,cpuacct:/job_12\n4:memory:/job_12\n")
    assert job.oom_kills(proc, root) == 2
    proc.write_text("0::/elsewhere\n")
    assert job.oom_kills(proc, root) == 0
    assert job.oom_kills(tmp_path / "none", root) == 0
