import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
import torch
from processes import fork, fresh, together
from test_train import SCIENCE, Lab, new_model
from tiny import tiny_run, undisturbed, wait_until
from torch.nn import Parameter

from ablate import checkpoint, parallel, record, spawn, worker
from ablate.errors import ConfigError
from ablate.parallel import ALONE, Dismissed, Group, meet, take_gpu
from ablate.ranks import Ranks
from ablate.rundir import RunDir, lock
from ablate.spawn import Worker
from ablate.state import read_state
from ablate.stop import StopFlag, Stopped
from ablate.track import read_metrics
from ablate.train import Trainer
from ablate.worker import DONE, FAILED, HELD, STOPPED

# What the processes do together


def agree(group: Group, folder: Path) -> None:
    assert group.total(torch.tensor([1, 2]) * 10**group.rank).tolist() == [111, 222]
    assert group.first(7 + group.rank) == 7
    assert group.which(False) is None
    assert group.which(group.rank < 2) == 1
    weights = [Parameter(torch.full((2, 3), float(group.rank))), Parameter(torch.zeros(5))]
    group.same(weights)
    assert weights[0].tolist() == [[0.0] * 3] * 2
    if group.rank != 1:  # as if there had been no sentence for it
        for i, weight in enumerate(weights):
            weight.grad = torch.full(weight.shape, group.rank + 1.0 + 10 * i)
    group.total_gradients(weights)
    assert [weight.grad.tolist() for weight in weights] == [[[4.0] * 3] * 2, [24.0] * 5]  # 1 + 3, 11 + 13


def test_three_processes_add_up_and_agree(tmp_path):
    together(3, agree, tmp_path)
    assert list(tmp_path.iterdir()) == []  # the meeting is over


def test_one_process_agrees_with_itself():
    group = ALONE
    weight = Parameter(torch.ones(3))
    group.total_gradients([weight])
    assert weight.grad is None
    assert group.total(torch.tensor([3, 4])).tolist() == [3, 4]
    assert (group.which(True), group.which(False), group.asked()) == (0, None, None)
    assert (group.first(5), group.end(75)) == (5, 75)


def wait_for_the_leader(group: Group, folder: Path) -> None:
    if group.rank:
        assert group.until_end(lambda: group.rank == 2) == 75
    else:
        wait_until(lambda: group.asked() is not None, "rank 2's request")
        assert group.asked() == 2
        assert group.end(75) == 75


def test_the_others_wait_for_rank_0_and_tell_it_when_they_are_asked_to_stop(tmp_path):
    together(3, wait_for_the_leader, tmp_path)


# Training together


def train_together(group: Group, folder: Path) -> None:
    for accumulate in (1, 3):
        optim = {"lr_scale": 0.01, "accumulate": accumulate, "train_steps": 9, "checkpoint_every_steps": 3}
        lab = Lab(folder / f"{group.count}-{accumulate}", **optim)
        lab.cfg.log_every_steps = 1
        model = new_model(dropout=0.0, seed=3 + group.rank)  # as another kind of processor might initialise it
        trainer = lab.trainer(model, group=group)
        trainer.run()
        flat = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
        bits = flat.view(torch.int32).long()
        assert torch.equal(group.total(bits.clone()), group.count * bits)  # the same on all ranks, bit for bit


@pytest.mark.parametrize("accumulate", [1, 3])
def test_two_and_three_processes_train_as_one_does(together_trained, accumulate):
    """Each batch is one sentence: without accumulation all ranks but the last have nothing to do."""
    one, two, three = (together_trained / f"{count}-{accumulate}" for count in (1, 2, 3))
    lines = read_metrics(one / "metrics.jsonl")
    assert [line["step"] for line in lines if "loss" in line] == list(range(1, 10))
    last = checkpoint.load(one / "checkpoints" / "step-000009", SCIENCE)["progress"]
    for other in (two, three):
        for ours, theirs in zip(read_metrics(other / "metrics.jsonl"), lines, strict=True):
            about = {"loss", "nll", "dev_ppl", "gradient_norm"} & theirs.keys()
            exactly = {"step", "epoch", "learning_rate"} & theirs.keys()
            assert [ours[name] for name in about] == pytest.approx([theirs[name] for name in about], rel=1e-4)
            assert [ours[name] for name in exactly] == [theirs[name] for name in exactly]
        progress = checkpoint.load(other / "checkpoints" / "step-000009", SCIENCE)["progress"]
        for name in ("step", "epoch", "position", "src_tokens", "tgt_tokens"):
            assert progress[name] == last[name]


@pytest.fixture(scope="module")
def together_trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("together")
    together([1, 2, 3], train_together, folder)
    return folder


# Whole runs in several processes

TWO = "cluster.ranks=2"


def ended(worker: Worker) -> int:
    wait_until(lambda: worker.poll() is not None, "the end of all processes")
    return worker.poll()


@pytest.mark.usefixtures("workplace")
def test_two_processes_do_a_run_that_is_told_from_one_processs_by_rounding_only_and_rank_0_writes():  # S9
    run = tiny_run(TWO, "model.dropout=0")
    assert ended(Worker(run)) == DONE, run.log.read_text()
    ours, theirs = record.comparable(record.read(run)), undisturbed("model.dropout=0")
    assert ours["fingerprint"] == theirs["fingerprint"]  # the number of processes is no part of it
    assert ours["train"] == pytest.approx(theirs["train"], rel=1e-3)
    assert ours["train"]["tgt_tokens"] == theirs["train"]["tgt_tokens"]
    assert ours["dev"]["ppl"] == pytest.approx(theirs["dev"]["ppl"], rel=1e-3)
    assert [attempt["ranks"] for attempt in record.read(run)["provenance"]] == [2]
    steps = [line["step"] for line in map(json.loads, run.metrics.read_text().splitlines()) if "loss" in line]
    assert steps == [2, 4, 6, 8, 10, 12]
    assert run.log.read_text().count("done: ") == run.log.read_text().count(", attempt 1\n") == 1
    assert not list(run.path.glob(".meeting*"))


def fail() -> None:
    raise RuntimeError("no memory left on this GPU")


INCIDENTS: dict[str, Callable[[], None]] = {
    **{name: partial(signal.raise_signal, signal.Signals[name]) for name in ("SIGTERM", "SIGUSR2", "SIGKILL")},
    "failure": fail,
}


def happen(what: str, step: int) -> None:
    """Let something happen to this process after an update."""
    update = Trainer.update

    def update_and_more(self, stream):
        update(self, stream)
        if self.progress.step == step:
            INCIDENTS[what]()

    Trainer.update = update_and_more


def attempts(path: str, count: int, *incidents: tuple[str, int, int] | None) -> list[tuple[list[int], str]]:
    """Attempt a run again and again in so many processes; gives each time their exit codes and the run's state.

    Args:
        path: of the run.
        count: processes.
        incidents: of each attempt: what happens, to which rank, after which update; None: nothing.
    """

    def task(ranks: Ranks, incident: tuple[str, int, int] | None) -> int:
        stop = StopFlag()
        stop.listen()
        if incident and ranks.rank == incident[1]:
            happen(incident[0], incident[2])
        return worker.take(RunDir(Path(path)), stop, ranks)

    return [
        (
            fork(*(partial(task, ranks, incident) for ranks in Ranks.on_this_machine(count))),
            read_state(RunDir(Path(path))).words,
        )
        for incident in incidents
    ]


@pytest.mark.usefixtures("workplace")
def test_signals_and_kills_of_any_rank_leave_no_trace(capsys):  # R1, S4
    calm, troubled = tiny_run(TWO, "runs_dir=calm"), tiny_run(TWO)
    assert fresh(attempts, str(calm.path), 2, None) == [[[DONE, DONE], "done"]]
    capsys.readouterr()
    incidents = [("SIGTERM", 1, 6), ("SIGUSR2", 0, 7), ("SIGKILL", 1, 10), None]
    codes, states = zip(*fresh(attempts, str(troubled.path), 2, *incidents), strict=True)
    assert codes == ([STOPPED, STOPPED], [STOPPED, STOPPED], [STOPPED, -signal.SIGKILL], [DONE, DONE])
    assert states == (
        "stopped: rank 1 was asked to stop",
        "stopped: SIGUSR2",
        "stopped: another rank was lost",
        "done",
    )
    said = capsys.readouterr().out
    assert re.findall(r"resumed after update (\d+)", said) == ["6", "7", "8"]  # 8 is the last regular one before 10
    assert record.comparable(record.read(troubled)) == record.comparable(record.read(calm))


@pytest.mark.usefixtures("workplace")
def test_a_rank_that_fails_fails_the_run_and_says_why_and_when_rank_0_is_killed_the_others_end():  # S1
    run = tiny_run("cluster.ranks=3")
    assert fresh(attempts, str(run.path), 3, ("failure", 1, 6), ("failure", 0, 6), ("SIGKILL", 0, 6)) == [
        [[FAILED, FAILED, FAILED], "failed: RuntimeError: no memory left on this GPU"],
        [[FAILED, FAILED, FAILED], "failed: RuntimeError: no memory left on this GPU"],
        [[-signal.SIGKILL, STOPPED, STOPPED], "stopped: killed"],
    ]


@pytest.mark.usefixtures("workplace")
def test_a_run_goes_on_in_another_number_of_processes_and_says_so(capsys):
    run = tiny_run(TWO)
    assert fresh(attempts, str(run.path), 2, ("SIGTERM", 0, 6)) == [[[STOPPED, STOPPED], "stopped: SIGTERM"]]
    again = tiny_run("cluster.ranks=1")  # the same run: only the frozen number changes
    assert again == run
    assert worker.take(run, StopFlag()) == DONE
    assert [attempt["ranks"] for attempt in record.read(run)["provenance"]] == [2, 1]
    assert "resumed after update 6" in capsys.readouterr().out


@pytest.mark.usefixtures("workplace")
def test_a_number_of_processes_that_was_not_planned_is_refused():
    run = tiny_run(TWO)
    assert worker.take(run, StopFlag()) == FAILED
    assert read_state(run).reason.startswith("ConfigError: cluster.ranks=2 (from ")
    assert read_state(run).reason.endswith("config.yaml): but 1 were started")


@pytest.mark.usefixtures("workplace")
def test_all_ranks_leave_a_run_that_is_done_or_that_another_process_has():  # P7
    run = tiny_run(TWO)
    with lock(run.lock):
        assert ended(Worker(run)) == HELD
    assert not run.provenance.exists()
    run.record.write_text("{}")
    assert ended(Worker(run)) == DONE


@pytest.mark.usefixtures("workplace")
def test_a_rank_that_cannot_even_start_fails_the_run(monkeypatch):  # S1
    run = tiny_run(TWO)
    start = spawn.start

    def start_or_fail(run: RunDir, threads: int, ranks: Ranks, gpus: str):
        if ranks.rank == 1:
            monkeypatch.setattr(spawn.sys, "executable", "/bin/false")
        return start(run, threads, ranks, gpus)

    monkeypatch.setattr(spawn, "start", start_or_fail)
    assert ended(Worker(run)) == 1


@pytest.mark.usefixtures("workplace")
def test_a_rank_that_nobody_calls_leaves_a_run_that_others_may_have_as_it_is(monkeypatch):
    run = tiny_run(TWO)
    monkeypatch.setattr(parallel, "MEETING_S", 0.1)
    assert worker.take(run, StopFlag(), Ranks.on_this_machine(2)[1]) == FAILED
    assert not run.error.exists()


@pytest.mark.usefixtures("workplace")
def test_a_process_that_does_not_end_after_another_has_is_killed(monkeypatch):
    monkeypatch.setattr(spawn, "PATIENCE_S", 0.2)
    stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(flush=True); time.sleep(1000)"

    def start(run: RunDir, threads: int, ranks: Ranks, gpus: str):
        code = [sys.executable, "-c", stubborn] if ranks.rank == 0 else ["sh", "-c", "read line; exit 75"]
        return subprocess.Popen(code, stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    monkeypatch.setattr(spawn, "start", start)
    worker = Worker(tiny_run(TWO))
    stubborn_one, other = worker.processes
    stubborn_one.stdout.readline()  # from here on it ignores SIGTERM
    other.stdin.close()
    assert ended(worker) == -signal.SIGKILL
    for process in worker.processes:
        process.stdout.close()


# Meeting


def test_rank_0_does_not_wait_for_ever(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "MEETING_S", 0.3)
    with (
        pytest.raises(TimeoutError, match=r"not all of 2 ranks have come within 0 s"),
        meet(RunDir(tmp_path), Ranks.on_this_machine(2)[0], "cpu", lambda: False),
    ):
        pass


def test_the_others_do_not_wait_for_ever_either(tmp_path, monkeypatch):
    monkeypatch.setattr(parallel, "MEETING_S", 0.3)
    with (
        pytest.raises(TimeoutError, match=r"rank 0 has not called within 0 s"),
        meet(RunDir(tmp_path), Ranks.on_this_machine(2)[1], "cpu", lambda: False),
    ):
        pass


@pytest.mark.parametrize("rank", [0, 1])
def test_who_waits_for_the_others_can_be_stopped(tmp_path, rank):
    with pytest.raises(Stopped), meet(RunDir(tmp_path), Ranks.on_this_machine(2)[rank], "cpu", lambda: True):
        pass


def test_who_is_dismissed_does_not_wait(tmp_path):
    leader, other = Ranks.on_this_machine(2)
    leader.dismiss(RunDir(tmp_path), 3)
    with pytest.raises(Dismissed) as dismissed, meet(RunDir(tmp_path), other, "cpu", lambda: False):
        pass
    assert dismissed.value.code == 3


@pytest.mark.parametrize(("num_gpus", "local", "expected"), [(4, 2, 2), (4, 0, 0), (1, 0, 0), (1, 3, 0)])
def test_each_process_takes_a_gpu_of_its_own(monkeypatch, num_gpus, local, expected):
    taken = []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: num_gpus)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    take_gpu(Ranks(rank=5, count=8, local=local))
    assert taken == [expected]


def test_fewer_gpus_than_processes_are_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(ConfigError, match=r"cluster.ranks=8: is one process per GPU; process 3 of \S+ finds 2 there"):
        take_gpu(Ranks(rank=2, count=8, local=2))
