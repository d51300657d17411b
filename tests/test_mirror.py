"""W&B's copy of a run, with W&B itself in offline mode, reading what it left on the disk; online: tests/tracking."""

import dataclasses
import functools
import json
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import wandb

from ablate import mirror
from ablate.compose import compose
from ablate.config import Config
from ablate.fragments import fragments
from ablate.mirror import group
from ablate.rundir import RunDir
from ablate.track import Tracker, read_metrics

IDENTITY = {"fingerprint": "0123456789ab", "digests": {"corpus": "c0ffee"}, "sweeps": ["row_A"]}
RECORD = {
    "schema": 1,
    "paper": {"ppl_dev": 5.0, "bleu_dev": 25.5, "params_m": None},
    "params": {"actual": 23, "paper": 29},
    "train": {"steps": 20},
    "dev": {"ppl": 7.5, "bleu": 11.0, "bleu_signature": "tok:13a", "history": [[20, 7.5]]},
    "test": {"bleu": 13.0},
    "checkpoint": {"rule": "last", "steps": [20]},
    "timing": {"train_s": 3.0, "peak_memory_mb": None},
}
SENTENCES = [("a house", "ein Haus", "ein Haus"), ("two houses", "zwei Häuser", "zwei <b>Haus</b>")]


@functools.cache
def config(seed: int, *overrides: str) -> Config:
    return dataclasses.replace(compose(["+row=A_h4", "preset=smoke", "tracking=offline", *overrides]), seed=seed)


def track(run: RunDir, attempt: int = 1, seed: int = 1, *overrides: str, say=lambda text: None) -> Tracker:
    return Tracker(run, attempt, mirror.start(run, config(seed, *overrides), IDENTITY, attempt, say))


@pytest.fixture
def run(tmp_path) -> RunDir:
    return RunDir(tmp_path / "seed1")


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
    """Track three runs in one process: the second fails; the third is stopped and resumed."""
    root = tmp_path_factory.mktemp("three")
    runs = [RunDir(root / f"seed{seed}") for seed in (1, 2, 3)]
    with track(runs[0], seed=1) as tracker:
        tracker.log(10, loss=3.5)
        tracker.log(20, loss=3.0)
        tracker.result(RECORD, SENTENCES)
    with pytest.raises(RuntimeError), track(runs[1], seed=2) as tracker:
        tracker.log(10, loss=4.5)
        raise RuntimeError("this run fails")
    for attempt, steps in ((1, (10, 11, 12)), (2, (11, 12, 13))):
        with track(runs[2], attempt=attempt, seed=3) as tracker:
            for step in steps:
                tracker.log(step, loss=float(attempt))
            if attempt == 1:
                tracker.stop()
    wandb.teardown()  # waits until its service has written everything
    return runs


def described(run: RunDir) -> Any:
    return next(record.run for record in written(fragments(run)[0]) if record.HasField("run"))


def test_three_runs_in_one_process_are_three_in_the_tracker(three):  # W4
    assert [len(fragments(run)) for run in three] == [1, 1, 2]
    runs = [described(run) for run in three]
    assert [one.run_id for one in runs] == ["0123456789ab-1", "0123456789ab-2", "0123456789ab-3"]
    assert [one.display_name for one in runs] == ["A_h4 seed 1", "A_h4 seed 2", "A_h4 seed 3"]


def test_a_run_is_found_by_project_sweep_row_preset_block_and_seed(three):
    one = described(three[0])
    assert (one.project, one.run_group, one.job_type) == ("ablate", "row_A/A_h4", "train")
    assert list(one.tags) == ["smoke", "A", "seed1"]


def test_the_frozen_configuration_is_shown_with_what_makes_the_fingerprint(three):
    shown = {item.key: json.loads(item.value_json) for item in described(three[0]).config.update}
    assert shown["model"]["num_heads"] == 4
    assert shown["row"]["paper"]["ppl_dev"] == 5.0
    assert (shown["fingerprint"], shown["digests"]) == ("0123456789ab", {"corpus": "c0ffee"})
    assert dataclasses.asdict(config(1)).keys() <= shown.keys()


def test_each_has_its_own_numbers_over_our_own_step(three):  # W4
    first, second = (written(fragments(run)[0]) for run in three[:2])
    assert history(first)[:2] == [
        {"trainer_step": 10, "attempt": 1, "loss": 3.5},
        {"trainer_step": 20, "attempt": 1, "loss": 3.0},
    ]
    assert history(second) == [{"trainer_step": 10, "attempt": 1, "loss": 4.5}]
    defined = [record.metric for record in first if record.HasField("metric")]
    assert [(metric.glob_name, metric.step_metric) for metric in defined if metric.glob_name] == [("*", "trainer_step")]


def test_the_summary_holds_counts_signatures_the_papers_numbers_and_the_whole_record(three):
    updates = [r.summary.update for r in written(fragments(three[0])[0]) if r.HasField("summary")]
    shown = {item.key or item.nested_key[0]: json.loads(item.value_json) for update in updates for item in update}
    wanted = {
        "params_actual": 23, "params_paper": 29, "ppl": 7.5, "bleu": 11.0, "bleu_signature": "tok:13a",
        "test_bleu": 13.0, "paper_ppl_dev": 5.0, "paper_bleu_dev": 25.5, "train_s": 3.0,
    }  # fmt: skip
    assert shown | wanted == shown
    assert "paper_params_m" not in shown  # the paper prints none
    assert json.loads(shown["record"]) == RECORD


def test_the_translations_are_a_table(three):
    (path,) = three[0].wandb.glob("offline-run-*/files/media/table/dev_translations*.json")
    table = json.loads(path.read_text("utf-8"))
    assert table["columns"] == ["src", "reference", "translation"]
    assert table["data"] == [list(one) for one in SENTENCES]


def test_failing_runs_fail_and_stopped_ones_are_preempted(three):  # W3
    records = [[written(path) for path in fragments(run)] for run in three]
    codes = [[r.exit.exit_code for r in one if r.HasField("exit")] for run in records for one in run]
    assert codes == [[0], [1], [75], [0]]
    preempting = [any(r.HasField("preempting") for r in one) for run in records for one in run]
    assert preempting == [False, False, True, False]


def test_no_step_is_dropped_when_a_resumed_run_logs_it_again(three):  # W2
    steps = [[row["trainer_step"] for row in history(written(path))] for path in fragments(three[2])]
    assert steps == [[10, 11, 12], [11, 12, 13]]
    resumed = [next(r.run.resume for r in written(path) if r.HasField("run")) for path in fragments(three[2])]
    assert all(resumed)  # so that W&B adds the second to the first, when they are sent


def test_attempts_are_in_order_where_the_next_node_is_in_another_time_zone(run, monkeypatch):
    try:
        for attempt, zone in ((1, "UTC"), (2, "UTC+5")):  # whose clocks show five hours less
            monkeypatch.setenv("TZ", zone)
            time.tzset()
            with track(run, attempt) as tracker:
                tracker.log(attempt, loss=3.5)
    finally:
        monkeypatch.delenv("TZ")
        time.tzset()
        wandb.teardown()
    found = fragments(run)
    assert found == sorted(found, reverse=True)  # by their folders' names
    assert [history(written(path))[0]["attempt"] for path in found] == [1, 2]


def test_the_local_log_is_complete_beside_the_mirror(three):
    assert [(line["step"], line["loss"]) for line in read_metrics(three[0].metrics)] == [(10, 3.5), (20, 3.0)]


def test_a_server_that_is_away_holds_a_run_up_for_less_than_half_a_minute():  # W1
    assert mirror.START_S <= 30
    assert mirror.FINISH_S + mirror.GRACE_S <= 30


def test_only_a_run_that_is_done_waits_long_for_its_model(run, monkeypatch):
    waits: list[float] = []
    monkeypatch.setattr(mirror, "within", lambda seconds, do: waits.append(seconds))
    monkeypatch.setattr(mirror, "begin", Mock())
    for code in (0, 1, mirror.STOPPED):
        mirror.start(run, config(1, "tracking.model_artifact=true"), IDENTITY, 1, print).finish(code)
    assert waits == [605, 25, 25]


def test_a_run_outside_a_sweep_is_grouped_by_its_row():
    assert group([], "base") == "base"
    assert group(["row_A", "row_B"], "base") == "row_A+row_B/base"
    assert len(group(["table3"], "x" * 200)) <= 128


SERVICE_DIES = """
import sys
from pathlib import Path
import psutil
sys.path.insert(0, sys.argv[1])
from test_mirror import RECORD, SENTENCES, track
from ablate.rundir import RunDir
with track(RunDir(Path(sys.argv[2])), say=print) as tracker:
    tracker.log(10, loss=3.5)
    (service,) = [child for child in psutil.Process().children() if child.name() == "wandb-core"]
    service.kill()
    service.wait()
    tracker.log(20, loss=3.0)
    tracker.log(30, loss=2.5)
    tracker.result(RECORD, SENTENCES)
"""


def test_a_mirror_that_breaks_ends_neither_the_run_nor_its_log(run):
    arguments = [sys.executable, "-c", SERVICE_DIES, str(Path(__file__).parent), str(run.path)]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert [line["step"] for line in read_metrics(run.metrics)] == [10, 20, 30]
    (said,) = done.stdout.splitlines()
    assert said.startswith("W&B takes no more of this run")
    assert said.endswith("metrics.jsonl is complete")


def test_a_mirror_that_does_not_start_is_said_and_done_without(run, monkeypatch):
    def init(**settings):
        raise OSError("no space left on device")

    monkeypatch.setattr(wandb, "init", init)
    said: list[str] = []
    with track(run, say=said.append) as tracker:
        tracker.log(10, loss=3.5)
    assert len(read_metrics(run.metrics)) == 1
    assert said == ["W&B takes no more of this run (OSError: no space left on device); metrics.jsonl is complete"]


def test_without_tracking_nothing_of_wandb_is_written(run):
    with track(run, 1, 1, "tracking=none") as tracker:
        tracker.log(10, loss=3.5)
    assert [path.name for path in run.path.iterdir()] == ["metrics.jsonl"]
