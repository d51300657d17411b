import re
import threading

import pytest
from commands import Commands, commands  # noqa: F401 – a fixture
from rich.console import Console
from tiny import planned, tiny_run, undisturbed, wait_until

from ablate import cancel, launch, record, slurm
from ablate.ledger import note
from ablate.rundir import RunDir, read_json, write_json, write_text
from ablate.state import read_state

pytestmark = pytest.mark.usefixtures("workplace")
LONG = ["optim.train_steps=20000000", "optim.checkpoint_every_steps=1000000", "optim.eval_every_steps=0"]


@pytest.fixture
def slurm_like(commands, monkeypatch) -> Commands:  # noqa: F811
    monkeypatch.setattr(slurm, "PAUSE_S", 0.01)
    commands.add(
        "squeue", "printf '12_0|sweep|PENDING|Priority\\n12_1|sweep|RUNNING|None\\n12_2|sweep|RUNNING|None\\n'"
    )
    commands.add("sacct", "")
    commands.add("scancel", "")
    return commands


def submitted(workplace, seed: int, job: str) -> RunDir:
    run = RunDir.of(workplace / "runs", "smoke", "base", "0123456789ab", seed)
    write_json(run.identity, {"fingerprint": "0123456789ab", "changes": {}})
    note(run, "submitting", name="sweep", task=int(job[-1]))
    note(run, "submitted", job=job, log="")
    return run


def training(run: RunDir) -> bool:
    return (read_json(run.heartbeat) or {}).get("state") == "training"


def test_a_cancelled_run_of_the_local_pool_stops_at_a_checkpoint_and_the_others_go_on(capsys):
    long, waiting, other = tiny_run(*LONG), tiny_run("model.dropout=0.2"), tiny_run()
    outcomes = []

    def pool() -> None:
        outcomes.append(
            launch.launch({("long", 1): long, ("waiting", 1): waiting, ("other", 1): other}, 1, Console(quiet=True))
        )

    # Its signal handlers are the main thread's business.
    thread = threading.Thread(target=pool)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(launch, "on_interrupt", lambda received: patch.context())
        thread.start()
        wait_until(lambda: training(long), "the first update")
        assert cancel.main([waiting.path.parent.name, long.path.parent.name]) == 0
        thread.join()
    said = capsys.readouterr().out
    assert re.search(r"seed1: new; was not running, and is not started unless a command asks for it again", said)
    assert re.search(r"seed1: running: training; asked to stop: it does at its next update, at a checkpoint", said)
    assert [read_state(run).words for run in (long, waiting)] == ["stopped: cancelled", "stopped: cancelled"]
    assert list(long.checkpoints.glob("step-*"))
    assert not waiting.log.exists()
    assert record.comparable(record.read(other)) == undisturbed()
    (outcome,) = outcomes
    assert (outcome.stopped, outcome.done, outcome.failed) == ([long, waiting], [other], [])


def test_a_launch_does_what_was_cancelled_before():
    run = tiny_run()
    assert cancel.main(["base"]) == 0
    assert read_state(run).words == "stopped: cancelled"
    launch.launch({("base", 1): run}, 1, Console(quiet=True))
    assert record.comparable(record.read(run)) == undisturbed()


def test_nothing_is_cancelled_unless_it_is_named(capsys):
    one, two = (run.run for run in planned("seeds=2").runs)
    for arguments in ([], ["--all", "base/1"]):
        with pytest.raises(SystemExit) as stopped:
            cancel.main(arguments)
        assert stopped.value.code == 2
    assert "give either the runs to cancel or --all" in capsys.readouterr().err
    assert cancel.main(["base"]) == 2
    assert "RUN='base': 2 runs are called so" in capsys.readouterr().err
    assert not one.cancelled.exists() and not two.cancelled.exists()
    assert cancel.main(["base/2"]) == 0
    assert not one.cancelled.exists() and two.cancelled.exists()


def test_all_are_those_that_are_not_over(workplace, capsys):
    done, failed, new = (run.run for run in planned("seeds=3").runs)
    write_json(done.record, {"schema": record.SCHEMA})
    write_text(failed.error, "no luck\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cancel, "over", lambda run: run != new)  # `done` has no whole record here
        assert cancel.main(["--all"]) == 0
    assert [run.cancelled.exists() for run in (done, failed, new)] == [False, False, True]
    assert cancel.main(["--all", "--runs", str(workplace / "nothing")]) == 0
    assert "nothing to cancel under" in capsys.readouterr().out


def test_jobs_are_cancelled_in_one_command_unless_other_runs_share_them(workplace, slurm_like, capsys):
    pending, first, second, alone = (
        submitted(workplace, seed, job) for seed, job in enumerate(["12_0", "12_1", "12_1", "12_2"], 1)
    )
    assert cancel.main(["base/1", "base/2", "base/4"]) == 0
    said = capsys.readouterr().out.splitlines()
    assert slurm_like.calls("scancel") == ["12_0 12_2"]
    assert said[0].endswith("seed1: queued: job 12_0 pending, Priority; cancelling job 12_0")
    assert said[1].endswith(
        "seed2: running: job 12_1 running; left out of job 12_1, which has other runs; it stops at a checkpoint"
    )
    assert said[2].endswith("cancelling job 12_2; it stops at a checkpoint")
    assert [run.cancelled.exists() for run in (pending, first, second, alone)] == [True, True, False, True]
    assert len(slurm_like.calls("squeue")) == 1
    assert cancel.main(["--all"]) == 0  # now nobody else has the second job
    assert slurm_like.calls("scancel")[1] == "12_0 12_1 12_2"


def test_a_slurm_that_does_not_answer_is_said(workplace, slurm_like, capsys):
    run = submitted(workplace, 1, "12_1")
    slurm_like.add("scancel", "echo 'Unable to contact slurm controller' >&2; exit 1")
    assert cancel.main(["base/1"]) == 1
    assert "error: scancel: Unable to contact slurm controller" in capsys.readouterr().err
    assert run.cancelled.exists()  # it stops by itself


def test_a_failed_or_finished_run_stays_what_it_is(capsys):
    run = tiny_run()
    write_text(run.error, "no luck\n")
    assert cancel.main(["base"]) == 0
    assert "failed; nothing to cancel" in capsys.readouterr().out
    assert read_state(run).words == "failed: no luck"
