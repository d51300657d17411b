import re
from dataclasses import replace
from pathlib import Path

import pytest
from commands import Commands, commands  # noqa: F401 – a fixture
from tiny import TINY, StopAt, planned, quiet, tiny_run, undisturbed

from ablate import compose, frozen, record, retry, slurm
from ablate.errors import ConfigError
from ablate.launch import freeze
from ablate.ledger import history, note
from ablate.named import called
from ablate.plan import plan_from
from ablate.rundir import RunDir, read_json, write_json, write_text
from ablate.state import RunState, read_state
from ablate.submit import submit
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
        assert f"{called(run)}: failed: OSError: the disk was full" in out
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


@pytest.mark.parametrize("arguments", [["--lost", "--mem", "x2"], ["--mem", "16"]])
def test_more_memory_is_for_runs_that_were_without(arguments):
    with pytest.raises(SystemExit):
        retry.main(arguments)


@pytest.mark.parametrize(
    ("name", "reason", "kind"),
    [
        ("failed", "OutOfMemory: SLURM ended job 12_1 at its memory limit", "oom"),
        ("failed", "out of memory", "oom"),
        ("failed", "MemoryError: ", "oom"),
        ("failed", "RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory: you tried …", "oom"),
        ("failed", "OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", "failed"),  # the GPU's
        ("failed", "NoProgress: time limit, 3 times after update 4", "failed"),
        ("stopped", "node failure", "lost"),
        ("stopped", "killed", "lost"),
        ("stopped", "the parent process ended", "lost"),
        ("stopped", "cancelled", ""),
        ("stopped", "SIGINT", ""),
        ("stopped", "SIGTERM; needs sync", ""),
        ("stopped", "killed; needs sync", "lost"),
        ("new", "", ""),
        ("running", "training", ""),
        ("queued", "job 12 pending", ""),
        ("done", "", ""),
    ],
)
def test_how_a_run_ended(name, reason, kind):
    assert retry.kind(RunState(name, reason)) == kind


@pytest.mark.parametrize(("had", "mem", "gets"), [(4, "x2", 8), (1.5, "x1.5", 2.25), (4, "16", 16), (0, "16", 16)])
def test_more_memory_is_a_factor_or_gib(had, mem, gets):
    cluster = replace(compose.compose(["cluster=slurm"]).cluster, mem_gb=float(had))
    assert retry.more_memory(cluster, mem) == replace(cluster, mem_gb=float(gets))


@pytest.mark.parametrize(
    ("had", "mem", "said"),
    [
        (4, "2x", "give GiB, such as 16, or a factor, such as x2"),
        (0, "x2", "a run had the site's default"),
        (4, "4", "a run had 4 GiB, and that was too little"),
        (4, "x0.5", "a run had 4 GiB, and that was too little"),
    ],
)
def test_memory_that_would_not_be_more_is_refused(had, mem, said):
    cluster = replace(compose.compose(["cluster=slurm"]).cluster, mem_gb=float(had))
    with pytest.raises(ConfigError, match=f"--mem='{mem}': {said}"):
        retry.more_memory(cluster, mem)


def test_a_local_run_has_no_limit_to_raise_and_then_nothing_is_done(capsys):
    run = tiny_run()
    write_text(run.error, "MemoryError: \n")
    assert retry.main(["--oom", "--mem", "x2"]) == 2
    assert "--mem='x2': a run without memory was done on this machine" in capsys.readouterr().err
    assert read_state(run).words == "failed: MemoryError: "


def test_exactly_the_lost_runs_are_done_again():
    killed, interrupted, failed, new = (run.run for run in planned("seeds=4").runs)
    for run, reason in ((killed, "killed"), (interrupted, "SIGINT")):
        assert take(run, StopAt(3)) == STOPPED
        run.beat(**{**read_json(run.heartbeat), "reason": reason})
    write_text(failed.error, "no luck\n")
    assert retry.main(["--lost"]) == 0
    assert [read_state(run).name for run in (killed, interrupted, failed, new)] == ["done", "stopped", "failed", "new"]
    assert record.comparable(record.read(killed)) == undisturbed()


def test_runs_of_the_local_pool_are_done_again_as_each_was_done(monkeypatch):
    seen = []
    one, two = tiny_run("cluster.threads=2", "cluster.workers=3"), tiny_run("model.dropout=0.2", "cluster.workers=4")
    for run in (one, two):
        write_text(run.error, "no luck\n")

    def launch(runs, workers, console):
        seen.append((list(runs.values()), workers))
        return retry_launch(runs, workers, console)

    retry_launch = retry.launch
    monkeypatch.setattr(retry, "launch", launch)
    assert retry.main(["--failed"]) == 0
    assert sorted(seen, key=lambda each: each[1]) == [([one], 3), ([two], 4)]
    assert [record.read(run)["provenance"][0]["threads"] for run in (one, two)] == [2, 1]


@pytest.fixture
def site(commands, monkeypatch) -> Commands:  # noqa: F811
    """Stand in for a SLURM that takes everything: jobs 10, 11, …; nothing is in its queue but job 10_3, running."""
    monkeypatch.setattr(slurm, "PAUSE_S", 0.01)
    commands.add("sbatch", f'echo "Submitted batch job $(( $(wc -l < {commands.folder}/sbatch.calls) + 9 ))"')
    commands.add("scontrol", "echo 'MaxArraySize = 64'")
    commands.add("srun", "")
    commands.add("sacct", "")
    commands.add("squeue", "echo '10_3|any|RUNNING|None'")
    return commands


def memory(run: RunDir) -> str | None:
    """Give the memory that the batch script of a run's last job asks for."""
    folder = [line["folder"] for line in history(run) if line["event"] == "submitted"][-1]
    return re.search("--mem=(.*)", next(Path(folder).glob("*.sh")).read_text())[1]


@pytest.fixture
def ended(site) -> list[RunDir]:
    """Give six runs that were submitted: 0 done, 1 failed, 2 out of memory, 3 running, 4 lost, 5 cancelled."""
    plan = plan_from([*TINY, "cluster=slurm", "cluster.mem_gb=2", "seeds=6"], prepare=True, say=quiet)
    submit(plan, quiet)
    done, failed, oom, _, _, cancelled = runs = [planned.run for planned in plan.runs]
    write_json(done.record, {"schema": record.SCHEMA})
    write_text(failed.error, "NonFiniteLoss: loss is nan\n")
    write_text(oom.error, "OutOfMemory: SLURM ended job 10_2 at its memory limit\n")
    for task in (0, 1, 2):
        note(runs[task], "ended", job=f"10_{task}", code=1, step=0, reason="", then="")
    write_text(cancelled.cancelled, "")
    return runs


@pytest.mark.parametrize(
    ("arguments", "again", "memories"),
    [
        (["--failed"], [1, 2], ["2GB", "2GB"]),
        (["--failed", "--mem", "x2"], [1, 2], ["2GB", "4GB"]),
        (["--oom", "--mem", "x2"], [2], ["4GB"]),
        (["--oom", "--mem", "16"], [2], ["16GB"]),
        (["--lost"], [4], ["2GB"]),
        (["--failed", "--lost"], [1, 2, 4], ["2GB", "2GB", "2GB"]),
    ],
)
def test_exactly_the_asked_for_runs_are_submitted_again_the_one_without_memory_with_more(
    ended, monkeypatch, arguments, again, memories
):  # S7
    monkeypatch.setattr(retry, "read_state", lambda run: RunState("done") if run == ended[0] else read_state(run))
    assert retry.main(arguments) == 0
    submissions = [len([line for line in history(run) if line["event"] == "submitted"]) for run in ended]
    assert submissions == [2 if number in again else 1 for number in range(6)]
    assert [memory(ended[number]) for number in again] == memories
    assert not any(ended[number].error.exists() for number in again)
    if 1 in again:
        assert retry.old_error(ended[1]).read_text() == "NonFiniteLoss: loss is nan\n"


def test_runs_are_submitted_again_as_each_was_submitted(site):
    runs = []
    for settings in (["cluster.mem_gb=3", "cluster.partition=a"], ["cluster.mem_gb=5", "model.dropout=0.2"]):
        (planned_run,) = plan_from([*TINY, "cluster=slurm", *settings], prepare=True, say=quiet).runs
        freeze(planned_run)
        write_text(planned_run.run.error, "no luck\n")
        runs.append(planned_run.run)
    local = tiny_run("model.dropout=0.3")
    write_text(local.error, "no luck\n")
    assert retry.main(["--failed"]) == 0
    assert [memory(run) for run in runs] == ["3GB", "5GB"]
    assert frozen.load(runs[0].config).cluster.partition == "a"
    assert read_state(local).name == "done"


def test_what_slurm_refuses_stays_failed(ended, site, monkeypatch, capsys):
    monkeypatch.setattr(retry, "read_state", lambda run: RunState("done") if run == ended[0] else read_state(run))
    site.add("sbatch", "echo 'sbatch: error: Batch job submission failed: Job violates policy' >&2; exit 1")
    assert retry.main(["--failed", "--mem", "x2"]) == 2
    assert "Job violates policy" in capsys.readouterr().err
    assert read_state(ended[1]).words == "failed: NonFiniteLoss: loss is nan"
    assert frozen.load(ended[2].config).cluster.mem_gb == 2
