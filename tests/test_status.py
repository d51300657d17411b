import io
import json
import time

import pytest
from records import finish
from rich.console import Console

from ablate.launch import freeze
from ablate.plan import PlannedRun, plan_from
from ablate.rundir import RunDir, lock, write_json, write_text
from ablate.status import duration, find, held, main, number, page, read_state, render


@pytest.fixture
def run(tmp_path) -> RunDir:
    return RunDir(tmp_path / "runs" / "smoke" / "A_h4" / "0123456789ab" / "seed2")


def beat(run: RunDir, **numbers) -> None:
    write_json(run.heartbeat, {"time": time.time() - 5, "pid": 1, **numbers})


TRAINING = {
    "state": "training",
    "step": 20,
    "total": 60,
    "loss": 3.5,
    "dev_ppl": 40.0,
    "src_tgt_tokens_per_s": 1234.5,
    "steps_per_s": 0.5,
}


def planned(workplace) -> PlannedRun:
    return plan_from(["preset=smoke", "+row=A_h4"], prepare=True, say=lambda text: None).runs[0]


def shown(group, width=200) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(group)
    return console.export_text()


def test_a_run_without_files_is_new(run):
    state = read_state(run)
    assert (state.name, state.words, state.step, state.age_s) == ("new", "new", None, None)


def test_a_run_whose_lock_is_held_is_running_with_its_last_numbers(run):
    beat(run, **TRAINING)
    with lock(run.lock):
        state = read_state(run)
    assert (state.name, state.reason) == ("running", "training")
    assert (state.step, state.total, state.loss, state.dev_ppl) == (20, 60, 3.5, 40.0)
    assert state.tokens_per_s == 1234.5
    assert state.eta_s == 80  # 40 updates left at half an update a second
    assert state.age_s == pytest.approx(5, abs=3)


def test_a_running_run_says_how_far_it_has_translated(run):
    beat(run, state="decoding", sentences="64/200", step=60, total=60)
    with lock(run.lock):
        assert read_state(run).words == "running: decoding 64/200"


def test_a_run_that_has_not_said_anything_yet_is_starting(run):
    with lock(run.lock):
        assert read_state(run).words == "running: starting"


def test_a_run_that_let_go_of_its_lock_without_a_record_was_killed(run):
    with lock(run.lock):
        beat(run, **TRAINING)
    assert read_state(run).words == "stopped: killed"
    beat(run, **{**TRAINING, "state": "stopped", "reason": "SIGTERM"})
    assert read_state(run).words == "stopped: SIGTERM"


def test_a_heartbeat_that_a_power_cut_emptied_is_none(run):
    beat(run, **TRAINING)
    run.heartbeat.write_bytes(b"")
    assert read_state(run).words == "new"
    with lock(run.lock):
        assert read_state(run).words == "running: starting"


def test_a_failed_run_says_why(run):
    beat(run, **TRAINING)
    write_text(run.error, "NonFiniteLoss: loss is nan at update 21\n\nTraceback …\n")
    state = read_state(run)
    assert (state.name, state.reason, state.step) == ("failed", "NonFiniteLoss: loss is nan at update 21", 20)


def test_a_record_outweighs_everything_else(workplace):
    done = planned(workplace)
    finish(done, ppl=12.5, bleu=7.25)
    write_text(done.run.error, "left behind\n")
    state = read_state(done.run)
    assert (state.name, state.dev_ppl, state.bleu, state.train_s) == ("done", 12.5, 7.25, 36.0)
    assert (state.step, state.total) == (60, 60)


def test_asking_for_a_lock_neither_makes_nor_keeps_it(run):
    assert not held(run.lock)
    assert not run.lock.exists()
    with lock(run.lock):
        assert held(run.lock)
        assert held(run.lock)
    assert not held(run.lock)
    with lock(run.lock):  # free again
        pass


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(None, ""), (0.0, "0:00"), (59.9, "0:59"), (123.0, "2:03"), (3723.0, "1:02:03"), (360000.0, "100:00:00")],
)
def test_durations_are_written_as_on_a_clock(seconds, written):
    assert duration(seconds) == written


def test_numbers_are_written_with_their_digits():
    assert (number(None, 2), number(1234.567, 2), number(7.25, 1)) == ("", "1,234.57", "7.2")


def test_every_run_is_shown_under_its_preset_with_its_numbers(workplace):
    done = planned(workplace)
    finish(done, ppl=12.5, bleu=7.25)
    changed = plan_from(["preset=smoke", "+row=A_h4", "model.dropout=0.3"], prepare=True, say=print).runs[0]
    freeze(changed)
    beat(changed.run, **TRAINING)
    with lock(changed.run.lock):
        said = shown(page(workplace / "runs"))
    lines = [line for line in said.splitlines() if line.strip()]
    assert lines[0].startswith("preset smoke: 2 runs; running ones last heard of up to 5 s ago")
    by_run = {run.fingerprint: next(line for line in lines if run.fingerprint in line) for run in (done, changed)}
    for part in ("A_h4 (", "done", "60/60", "12.50", "7.2"):
        assert part in by_run[done.fingerprint]
    for part in ("A_h4 + changes (", "running: training", "20/60", "1,234", "3.500", "40.00", "1:20"):
        assert part in by_run[changed.fingerprint]


def test_nothing_is_lost_on_a_narrow_terminal(run):
    beat(run, **TRAINING)
    with lock(run.lock):
        said = shown(render({("A_h4", 2): read_state(run)}), width=80)
    for part in ("A_h4", "20/60", "1,234", "3.500", "40.00", "1:20"):
        assert part in said


def test_runs_are_found_by_preset(tmp_path):
    for preset, row in (("smoke", "base"), ("smoke", "A_h1"), ("quick", "base")):
        write_json(RunDir.of(tmp_path, preset, row, "0123456789ab", 1).identity, {"fingerprint": "0123456789ab"})
    (tmp_path / "smoke" / "base" / "notes").mkdir()
    assert {preset: len(runs) for preset, runs in find(tmp_path).items()} == {"quick": 1, "smoke": 2}


def test_the_command_shows_runs_and_says_where_there_are_none(tmp_path, capsys):
    assert main([str(tmp_path / "nothing")]) == 0
    assert f"no runs under {tmp_path}" in capsys.readouterr().out.replace("\n", "")
    run = RunDir.of(tmp_path / "runs", "smoke", "base", "0123456789ab", 1)
    write_text(run.identity, json.dumps({"fingerprint": "0123456789ab", "changes": {}}))
    assert main([str(tmp_path / "runs")]) == 0
    out = capsys.readouterr().out
    assert "preset smoke: 1 runs" in out
    assert "base (0123456789ab)" in out
