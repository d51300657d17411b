import json
import struct
from pathlib import Path
from typing import Any

import pytest

from ablate.config import TrackingConfig
from ablate.rundir import RunDir
from ablate.track import Tracker, read_metrics

NONE = TrackingConfig(mode="none", project="ablate", entity=None)
OFFLINE = TrackingConfig(mode="offline", project="ablate", entity=None)


def identity(seed: int = 1, row: str = "A_h4") -> dict[str, object]:
    return {"row": row, "block": "A", "preset": "smoke", "seed": seed, "fingerprint": "0123456789ab"}


@pytest.fixture
def run(tmp_path) -> RunDir:
    return RunDir(tmp_path / "seed1")


def track(run: RunDir, attempt: int = 1, tracking: TrackingConfig = NONE, **names) -> Tracker:
    return Tracker(run, tracking, identity(**names), {"model.dropout": 0.1}, attempt, say=lambda text: None)


def lines(run: RunDir) -> list[dict]:
    return [json.loads(text) for text in run.metrics.read_text().splitlines()]


def test_a_line_holds_attempt_step_time_and_numbers(run):
    with track(run) as tracker:
        tracker.log(10, loss=3.5, learning_rate=1e-4)
        on_disk = lines(run)  # at once, not when the run ends
    (line,) = on_disk
    assert (line["attempt"], line["step"], line["loss"], line["learning_rate"]) == (1, 10, 3.5, 1e-4)
    assert line["time"] > 0


def test_after_a_resume_the_log_keeps_both_attempts_and_the_last_counts(run):  # W2
    with pytest.raises(RuntimeError), track(run, attempt=1) as tracker:
        for step in (9, 10, 11, 12):
            tracker.log(step, loss=float(step))
        raise RuntimeError("killed")
    with track(run, attempt=2) as tracker:  # from the checkpoint of step 10
        for step in (11, 12, 13):
            tracker.log(step, loss=100.0 + step)
    assert [(line["attempt"], line["step"]) for line in lines(run)] == [
        (1, 9), (1, 10), (1, 11), (1, 12), (2, 11), (2, 12), (2, 13),
    ]  # fmt: skip
    assert [line["loss"] for line in read_metrics(run.metrics)] == [9.0, 10.0, 111.0, 112.0, 113.0]


def test_training_evaluation_and_scores_of_one_step_are_all_kept(run):
    with track(run) as tracker:
        tracker.log(20, loss=3.5)
        tracker.log(20, dev_ppl=40.0, dev_nll=3.7)
        tracker.log(10, loss=4.0)
        tracker.log(20, dev_bleu=7.0, dev_chrf=30.0)
    read = [
        {key: value for key, value in line.items() if key not in ("attempt", "time")}
        for line in read_metrics(run.metrics)
    ]
    assert read == [
        {"step": 10, "loss": 4.0},
        {"step": 20, "loss": 3.5},
        {"step": 20, "dev_ppl": 40.0, "dev_nll": 3.7},
        {"step": 20, "dev_bleu": 7.0, "dev_chrf": 30.0},
    ]


def test_a_line_that_a_kill_cut_off_is_left_out_and_spoils_no_other(run):
    with track(run) as tracker:
        tracker.log(10, loss=4.0)
    with open(run.metrics, "a") as file:
        file.write('{"attempt": 1, "step": 11, "lo')
    assert [line["step"] for line in read_metrics(run.metrics)] == [10]
    with track(run, attempt=2) as tracker:
        tracker.log(11, loss=3.0)
    assert [(line["step"], line["loss"]) for line in read_metrics(run.metrics)] == [(10, 4.0), (11, 3.0)]


def test_a_run_that_logged_nothing_has_no_metrics(run):
    assert read_metrics(run.metrics) == []
    with track(run):
        pass
    assert read_metrics(run.metrics) == []


def test_nan_is_not_written(run):
    with track(run) as tracker, pytest.raises(ValueError, match="JSON"):
        tracker.log(1, loss=float("nan"))
    assert run.metrics.read_text() == ""


def test_without_tracking_there_is_no_mirror(run):
    with track(run) as tracker:
        tracker.log(1, loss=3.0)
        tracker.summary(bleu=7.0)
    assert sorted(path.name for path in run.path.iterdir()) == ["metrics.jsonl"]


# From here on with W&B itself, in offline mode, reading what it left on the disk.


def mirrored(run: RunDir) -> list[Path]:
    return sorted(run.wandb.glob("offline-run-*/run-*.wandb"))


def written(path: Path) -> list[Any]:
    """Read W&B's own file of a run: protocol-buffer records in LevelDB's log format, behind a header of 7 bytes."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts, records = path.read_bytes(), 7, b"", []
    assert data.startswith(b":W&B")
    while at + 7 <= len(data):
        if at % 32768 > 32768 - 7:  # the rest of a block too small for a header
            at += 32768 - at % 32768
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a whole record, or the last part of one
            records.append(Record.FromString(parts))
            parts = b""
    return records


def history(records: list[Any]) -> list[dict[str, Any]]:
    """Give the numbers logged, a dictionary a call."""
    calls = [record.history.item for record in records if record.HasField("history")]
    named = [{item.key or ".".join(item.nested_key): json.loads(item.value_json) for item in items} for items in calls]
    return [{key: value for key, value in row.items() if not key.startswith("_")} for row in named]


@pytest.fixture(scope="module")
def three(tmp_path_factory) -> list[RunDir]:
    """Track three runs in one process: the second fails; the third is resumed."""
    import wandb

    root = tmp_path_factory.mktemp("three")
    runs = [RunDir(root / f"seed{seed}") for seed in (1, 2, 3)]
    with track(runs[0], tracking=OFFLINE, seed=1) as tracker:
        tracker.log(10, loss=3.5)
        tracker.log(20, loss=3.0)
        tracker.summary(bleu=7.0)
    with pytest.raises(RuntimeError), track(runs[1], tracking=OFFLINE, seed=2) as tracker:
        tracker.log(10, loss=4.5)
        raise RuntimeError("this run fails")
    for attempt, steps in ((1, (10, 11, 12)), (2, (11, 12, 13))):
        with track(runs[2], attempt=attempt, tracking=OFFLINE, seed=3) as tracker:
            for step in steps:
                tracker.log(step, loss=float(attempt))
    wandb.teardown()  # waits until its service has written everything
    return runs


def test_three_runs_in_one_process_are_three_in_the_tracker(three):  # W4
    assert [len(mirrored(run)) for run in three] == [1, 1, 2]
    described = [next(r.run for r in written(mirrored(run)[0]) if r.HasField("run")) for run in three]
    assert [one.run_id for one in described] == ["0123456789ab-1", "0123456789ab-2", "0123456789ab-3"]
    assert [one.display_name for one in described] == ["A_h4 seed 1", "A_h4 seed 2", "A_h4 seed 3"]
    assert described[0].run_group == "A_h4"
    assert set(described[0].tags) == {"smoke", "A", "seed1"}
    assert described[0].project == "ablate"


def test_each_has_its_own_numbers_over_our_own_step(three):  # W4
    assert history(written(mirrored(three[0])[0])) == [
        {"trainer_step": 10, "attempt": 1, "loss": 3.5},
        {"trainer_step": 20, "attempt": 1, "loss": 3.0},
    ]
    assert history(written(mirrored(three[1])[0])) == [{"trainer_step": 10, "attempt": 1, "loss": 4.5}]


def test_a_failing_run_is_finished_with_exit_code_1(three):  # W3
    codes = [[r.exit.exit_code for r in written(path) if r.HasField("exit")] for run in three for path in mirrored(run)]
    assert codes == [[0], [1], [0], [0]]


def test_no_step_is_dropped_when_a_resumed_run_logs_it_again(three):  # W2
    steps = [[row["trainer_step"] for row in history(written(path))] for path in mirrored(three[2])]
    assert sorted(steps) == [[10, 11, 12], [11, 12, 13]]


def test_the_local_log_is_complete_beside_the_mirror(three):
    assert [(line["step"], line["loss"]) for line in read_metrics(three[0].metrics)] == [(10, 3.5), (20, 3.0)]


def test_a_server_that_does_not_answer_is_said_and_the_run_goes_on_offline(run, monkeypatch):  # W1
    import wandb

    started, said = [], []

    class Mirror:
        def define_metric(self, *names, **options): ...

        def finish(self, exit_code): ...

    def init(mode, **settings):
        started.append((mode, settings["settings"].init_timeout))
        if mode == "online":
            raise wandb.errors.CommError("no answer")
        return Mirror()

    monkeypatch.setattr(wandb, "init", init)
    online = TrackingConfig(mode="online", project="ablate", entity=None)
    with Tracker(run, online, identity(), {}, 1, said.append):
        pass
    assert [mode for mode, _ in started] == ["online", "offline"]
    assert all(timeout <= 30 for _, timeout in started)
    assert len(said) == 1
    assert "needs sync" in said[0]
