import pytest
from records import TRAINING, beat, finish

from ablate.ledger import note
from ablate.plan import plan_from
from ablate.rundir import RunDir, lock, write_json, write_text
from ablate.state import held, read_state


@pytest.fixture
def run(tmp_path) -> RunDir:
    return RunDir(tmp_path / "seed2")


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
    assert (state.steps_per_s, state.restarts) == (0.5, 2)
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
    with lock(run.lock):  # the next attempt has not said anything yet
        assert read_state(run).words == "running: starting"


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
    done = plan_from(["preset=smoke"], prepare=True, say=lambda text: None).runs[0]
    finish(done, ppl=12.5, bleu=7.25)
    write_text(done.run.error, "left behind\n")
    state = read_state(done.run)
    assert (state.name, state.dev_ppl, state.bleu, state.train_s) == ("done", 12.5, 7.25, 36.0)
    assert (state.step, state.total) == (60, 60)


def test_a_run_that_wandb_lacks_a_part_of_needs_sync(run):
    write_text(run.error, "ValueError: broken\n")
    write_text(run.needs_sync, "")
    assert read_state(run).words == "failed: ValueError: broken; needs sync"
    run.error.unlink()
    write_json(run.heartbeat, {"time": 1.0, "pid": 1, "state": "stopped", "reason": "SIGTERM"})
    assert read_state(run).words == "stopped: SIGTERM; needs sync"


def test_asking_for_a_lock_neither_makes_nor_keeps_it(run):
    assert not held(run.lock)
    assert not run.lock.exists()
    with lock(run.lock):
        assert held(run.lock)
        assert held(run.lock)
    assert not held(run.lock)
    with lock(run.lock):  # free again
        pass


def test_a_cancelled_run_is_stopped_whatever_its_heartbeat_says(run):
    write_text(run.cancelled, "")
    assert read_state(run).words == "stopped: cancelled"
    beat(run, **TRAINING)
    assert read_state(run).words == "stopped: cancelled"
    with lock(run.lock):
        assert read_state(run).words == "running: stopping, cancelled"


def test_a_run_whose_job_ended_before_it_said_anything_says_why(run):
    note(run, "submitting", name="sweep", task=None)
    assert read_state(run).words == "new"
    note(run, "lost", job="12", state="NODE_FAIL", reason="node failure")
    assert read_state(run).words == "stopped: node failure"
