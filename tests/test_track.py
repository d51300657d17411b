import json

import pytest

from ablate.rundir import RunDir
from ablate.track import Tracker, read_metrics


@pytest.fixture
def run(tmp_path) -> RunDir:
    return RunDir(tmp_path / "seed1")


def track(run: RunDir, attempt: int = 1) -> Tracker:
    return Tracker(run, attempt)


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


def test_without_a_mirror_there_is_nothing_but_the_log(run):
    with track(run) as tracker:
        tracker.log(1, loss=3.0)
        tracker.result({}, [])
    assert sorted(path.name for path in run.path.iterdir()) == ["metrics.jsonl"]
