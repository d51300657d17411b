import dataclasses
import gc
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tiny import EVERY, STEPS, TINY, StopAt, end, tiny_run, undisturbed, wait_until

from ablate import checkpoint, compose, evaluate, frozen, record, train, worker
from ablate.errors import ConfigError
from ablate.rundir import RunDir, lock, read_json, write_json
from ablate.spawn import start
from ablate.state import read_state
from ablate.track import Tracker, read_metrics
from ablate.worker import DONE, FAILED, HELD, STOPPED, StopFlag, take

pytestmark = pytest.mark.usefixtures("workplace", "unchecked")


def finish(run: RunDir) -> record.Record:
    """Do the rest of a run; give what of its record is comparable."""
    assert take(run, StopFlag()) == DONE, run.error.read_text()
    return record.comparable(record.read(run))


def steps(run: RunDir) -> list[str]:
    return [path.name for path in checkpoint.folders(run.checkpoints)]


@pytest.mark.parametrize("asks", [1, EVERY, EVERY + 2, STEPS - 1, STEPS + 1])
def test_a_stopped_run_goes_on_to_the_same_record(asks, capsys):  # R1
    run = tiny_run()
    stop = StopAt(asks)
    assert take(run, stop) == STOPPED
    state = read_state(run)
    assert (state.name, state.reason, state.step) == ("stopped", "SIGTERM", min(asks, STEPS))
    assert not run.record.exists()
    assert steps(run)[-1] == f"step-{min(asks, STEPS):06d}"  # also after a stop in the middle of decoding
    assert finish(run) == undisturbed()
    assert f"resumed after update {min(asks, STEPS)}" in capsys.readouterr().out


def test_an_average_of_checkpoints_does_not_depend_on_where_the_run_was_stopped():  # R1
    averaged = ["decode.average_checkpoints=2"]
    run = tiny_run(*averaged)
    assert take(run, StopAt(EVERY + 1)) == STOPPED
    assert take(run, StopAt(STEPS - EVERY)) == STOPPED  # between the last two checkpoints
    assert finish(run) == undisturbed(*averaged)
    assert record.read(run)["checkpoint"] == {"rule": "mean of the last 2", "steps": [STEPS - EVERY, STEPS]}


def test_the_perplexity_that_training_ended_with_is_not_measured_again(monkeypatch):
    def again(*arguments):
        raise AssertionError("the model has not changed since")

    assert train.perplexity is evaluate.perplexity  # the trainer keeps the real one
    monkeypatch.setattr(evaluate, "perplexity", again)
    dev = finish(tiny_run())["dev"]
    assert dev["history"][-1] == [STEPS, dev["ppl"]]


def test_the_perplexity_of_an_average_is_the_averages():
    dev = undisturbed("decode.average_checkpoints=2")["dev"]
    assert abs(dev["ppl"] - dev["history"][-1][1]) > 1e-6


def test_a_protocol_may_judge_the_test_set_too():
    run = tiny_run("protocol=table2_base", "decode.average_checkpoints=2", "data.num_test=3")
    done = finish(run)
    assert (done["dev"]["num_sentences"], done["test"]["num_sentences"]) == (5, 3)
    assert len(run.hypotheses("test").read_text().splitlines()) == 3
    assert "tok:moses-de" in done["test"]["bleu_tok_signature"]
    assert "test" not in undisturbed()
    assert not any("test" in path.name for path in tiny_run().path.iterdir())


def test_libraries_that_cannot_be_loaded_leave_the_garbage_collector_on(monkeypatch):
    monkeypatch.setitem(sys.modules, "ablate.attempt", None)
    with pytest.raises(ImportError):
        worker.load_libraries()
    assert gc.isenabled()


def test_a_finished_run_is_left_as_it_is():
    run = tiny_run()
    write_json(run.record, {"schema": record.SCHEMA})
    assert take(run, StopFlag()) == DONE
    assert record.read(run) == {"schema": record.SCHEMA}


# Kill and resume


def test_the_tracker_gets_the_whole_record_and_all_translations(monkeypatch):
    told: list[tuple[record.Record, list[tuple[str, str, str]]]] = []
    monkeypatch.setattr(Tracker, "result", lambda self, *result: told.append(result))
    run = tiny_run()
    finish(run)
    ((done, sentences),) = told
    assert done == read_json(run.record)
    assert [translation for _, _, translation in sentences] == run.hypotheses("dev").read_text().splitlines()
    assert len({src for src, _, _ in sentences}) > 1


def killed(run: RunDir, how: str) -> int:
    """Do a run in a process that kills itself as the code given says; give its exit status."""
    code = (
        f"import os, signal, sys; from ablate import track, worker\n{how}\nsys.exit(worker.main({[str(run.path)]!r}))"
    )
    return subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=300).returncode


KILL_AFTER_LOGGING = """
log = track.Tracker.log
def log_and_die(self, step, **numbers):
    log(self, step, **numbers)
    if step == 6:
        os.kill(os.getpid(), signal.SIGKILL)
track.Tracker.log = log_and_die
"""


def test_both_attempts_stay_in_the_log_and_the_last_one_counts():  # W2
    run = tiny_run()
    assert killed(run, KILL_AFTER_LOGGING) == -signal.SIGKILL
    with open(run.metrics, "a") as file:
        file.write('{"attempt": 1, "step": 7, "lo')  # what a kill in the middle of a write leaves
    assert read_state(run).words == "stopped: killed"
    assert finish(run) == undisturbed()
    lines = []
    for text in run.metrics.read_text().splitlines():
        try:
            lines.append(json.loads(text))
        except json.JSONDecodeError:
            assert text.startswith('{"attempt": 1, "step": 7, "lo')
    trained = [(line["attempt"], line["step"]) for line in lines if "loss" in line]
    # The checkpoint is of update 4, so the second attempt logs update 6 again.
    assert trained == [(1, 2), (1, 4), (1, 6), (2, 6), (2, 8), (2, 10), (2, 12)]
    used = [(line["attempt"], line["step"]) for line in read_metrics(run.metrics) if "loss" in line]
    assert used == [(1, 2), (1, 4), (2, 6), (2, 8), (2, 10), (2, 12)]
    sixth = [line for line in lines if line["step"] == 6]
    assert sixth[0]["loss"] == sixth[1]["loss"]
    assert len(record.read(run)["provenance"]) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR2])
def test_a_signal_leads_to_a_checkpoint_at_the_next_update(number, capsys):  # S4
    run = tiny_run("optim.train_steps=20000000", "optim.checkpoint_every_steps=1000000", "optim.eval_every_steps=0")
    process = start(run, threads=1)
    try:
        wait_until(lambda: read_metrics(run.metrics), "the first updates")
        process.send_signal(number)
        assert process.wait(120) == STOPPED == 75
    finally:
        end(process.pid)
        process.stdin.close()
    state = read_state(run)
    assert (state.name, state.reason) == ("stopped", number.name)
    assert f"stopped after update {state.step};" in run.log.read_text()
    assert steps(run) == [f"step-{state.step:06d}"]
    assert take(run, StopAt(1)) == STOPPED
    assert f"resumed after update {state.step}\n" in capsys.readouterr().out
    assert steps(run) == [f"step-{state.step + 1:06d}"]


def test_a_damaged_checkpoint_is_reported_and_the_one_before_it_used(capsys):  # R2
    run = tiny_run()
    assert take(run, StopAt(EVERY + 2)) == STOPPED
    newest = checkpoint.folders(run.checkpoints)[-1] / "state.pt"
    newest.write_bytes(newest.read_bytes()[:-100])
    assert finish(run) == undisturbed()
    said = capsys.readouterr().out
    assert f"checkpoint step-{EVERY + 2:06d} is not as it was written" in said
    assert f"resumed after update {EVERY}" in said


@pytest.fixture
def small_disk(tmp_path) -> Iterator[Path]:
    """Give a folder on a disk of 8 MB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode:
        pytest.skip("no disk can be mounted here")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_fails_the_run_by_name_and_with_room_it_goes_on(small_disk):
    run = tiny_run(f"runs_dir={small_disk}")
    assert take(run, StopAt(EVERY + 1)) == STOPPED
    before = steps(run)
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(shutil.disk_usage(small_disk).free - 200_000))  # a checkpoint takes 1.2 MB
    assert take(run, StopFlag()) == FAILED
    assert read_state(run).words == "failed: OSError: [Errno 28] No space left on device"
    assert steps(run) == before
    assert not list(run.checkpoints.glob(".*"))
    ballast.unlink()
    assert finish(run) == undisturbed()


# Who does a run, and what run it is


def test_a_run_that_another_process_has_is_left_to_it(monkeypatch, capsys):  # P7
    monkeypatch.setattr(worker, "LOCK_PATIENCE_S", 0.3)
    run = tiny_run()
    with lock(run.lock):
        assert take(run, StopFlag()) == HELD
        assert read_state(run).name == "running"
    assert re.search(rf"not started: process {os.getpid()} on \S+ has this run", capsys.readouterr().out)
    assert not run.provenance.exists()
    with lock(run.lock):
        assert take(run, StopAt(1)) == STOPPED  # asked to stop while it waits


def test_a_worker_composes_nothing():  # P8
    code = "import sys, ablate.worker; sys.exit(any(name.split('.')[0] in ('hydra', 'torch') for name in sys.modules))"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_an_edit_of_the_files_after_the_plan_does_not_reach_a_run(tmp_path, monkeypatch):  # P8
    run = tiny_run()
    edited = tmp_path / "edited"
    for name in ("conf", "sweeps"):
        shutil.copytree(compose.root(name), edited / name)
    base = edited / "conf" / "model" / "base.yaml"
    base.write_text(base.read_text().replace("dropout: 0.1", "dropout: 0.3"))
    monkeypatch.setattr(compose, "PACKAGE", edited)
    assert compose.compose(TINY).model.dropout == 0.3
    assert finish(run) == undisturbed()


def test_a_corpus_that_has_moved_with_its_cache_is_found(tmp_path, monkeypatch):
    run, expected = tiny_run(), undisturbed()
    identity = read_json(run.identity)
    name = Path(identity["corpus"]).name
    shutil.copytree(identity["corpus"], tmp_path / "moved" / "corpora" / name)
    write_json(run.identity, {**identity, "corpus": str(tmp_path / "gone" / name)})
    monkeypatch.setenv("ABLATE_DATA", str(tmp_path / "nothing"))
    assert take(run, StopFlag()) == FAILED
    assert f"gone/{name}: the prepared corpus is not there any more" in run.error.read_text()
    monkeypatch.setenv("ABLATE_DATA", str(tmp_path / "moved"))
    assert finish(run) == expected


def test_code_other_than_planned_is_flagged(capsys):  # P8
    run = tiny_run()
    identity = read_json(run.identity)
    write_json(run.identity, {**identity, "code": "0123456789ab"})
    assert take(run, StopAt(1)) == STOPPED
    assert "the code is not the one this run was planned with (0123456789ab then" in capsys.readouterr().out
    write_json(run.identity, {**identity, "code": "0123456789ab"})
    finish(run)
    assert [attempt["code_changed"] for attempt in record.read(run)["provenance"]] == [True, False]


def test_code_that_changes_between_two_attempts_is_flagged_even_if_planned_again(capsys):  # P8
    run = tiny_run()
    assert take(run, StopAt(1)) == STOPPED
    attempts = read_json(run.provenance)
    write_json(run.provenance, [{**attempts[0], "code": "0123456789ab"}])  # done by other code than today's
    finish(run)
    assert [attempt["code_changed"] for attempt in record.read(run)["provenance"]] == [False, True]


def test_a_frozen_configuration_that_was_edited_is_refused():  # P8, R5
    run = tiny_run()
    assert take(run, StopAt(1)) == STOPPED
    cfg = frozen.load(run.config)
    planned = read_json(run.identity)["fingerprint"]
    frozen.save(dataclasses.replace(cfg, optim=dataclasses.replace(cfg.optim, lr_scale=2.0)), run.config)
    assert take(run, StopFlag()) == FAILED
    said = run.error.read_text()
    assert re.search(
        rf"made under fingerprint {planned}, this is [0-9a-f]{{12}}: optim.lr_scale: 0.3 then, 2.0 now", said
    )
    frozen.save(cfg, run.config)
    assert finish(run) == undisturbed()


# Failures


def test_a_run_that_raises_says_so_and_leaves_its_traceback(capsys):  # S1
    run = tiny_run("optim.lr_scale=1.0e+30")
    assert take(run, StopFlag()) == FAILED
    assert "Traceback (most recent call last)" in run.error.read_text()
    assert "Traceback (most recent call last)" in capsys.readouterr().err  # the run's log, when the pool starts it
    state = read_state(run)
    assert state.name == "failed"
    assert state.reason.startswith("NonFiniteLoss: ")
    assert not run.record.exists()


def test_too_few_checkpoints_for_the_average_are_refused_before_anything_starts():
    assert tiny_run("decode.average_checkpoints=2", f"optim.checkpoint_every_steps={STEPS - 1}")  # one at 11, one at 12
    with pytest.raises(ConfigError, match=r"only 1 are written: 12 updates, one checkpoint every 12"):
        tiny_run("decode.average_checkpoints=2", f"optim.checkpoint_every_steps={STEPS}")


def test_what_is_not_a_run_s_folder_is_explained(capsys):
    assert worker.main([]) == 2
    assert worker.main(["--help"]) == 0
    assert "python -m ablate.worker RUN" in capsys.readouterr().out
    assert worker.main(["nowhere"]) == 2
    assert "error: RUN='nowhere': no such run" in capsys.readouterr().err
    assert not os.path.exists("nowhere")
