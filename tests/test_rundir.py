import errno
import fcntl
import multiprocessing
import os
from pathlib import Path

import pytest

from ablate.rundir import Held, RunDir, lock, read_json, write_bytes, write_json, write_text


def test_a_run_lies_under_preset_row_fingerprint_and_seed():
    run = RunDir.of(Path("runs"), "smoke", "A_h4", "0123456789ab", 3)
    assert run.path == Path("runs/smoke/A_h4/0123456789ab/seed3")
    assert run.hypotheses("dev") == run.path / "hypotheses.dev.txt"


def test_no_two_files_of_a_run_have_one_path():
    run = RunDir(Path("seed1"))
    paths = [getattr(run, name) for name, value in vars(RunDir).items() if isinstance(value, property)]
    assert len(paths) > 10
    assert len(set(paths)) == len(paths)
    assert {path.parent for path in paths} == {run.path, run.wandb}


def test_a_file_is_written_with_its_folder_and_nothing_beside_it(tmp_path):
    write_text(tmp_path / "new" / "text.txt", "Grüße\u2028\r\n")
    assert (tmp_path / "new" / "text.txt").read_bytes() == "Grüße\u2028\r\n".encode()
    assert list((tmp_path / "new").iterdir()) == [tmp_path / "new" / "text.txt"]


@pytest.mark.parametrize("durable", [True, False])
def test_a_write_that_fails_leaves_the_old_file(durable, tmp_path, monkeypatch):
    path = tmp_path / "file"
    write_bytes(path, b"old", durable)

    def fail(*arguments):
        raise OSError("the disk is full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OSError, match="full"):
        write_bytes(path, b"new", durable)
    assert path.read_bytes() == b"old"


def test_json_reads_back_and_a_missing_file_is_none(tmp_path):
    write_json(tmp_path / "a.json", {"ε": [1, 0.1, None]})
    assert read_json(tmp_path / "a.json") == {"ε": [1, 0.1, None]}
    assert read_json(tmp_path / "b.json") is None


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_json_holds_no_nan_and_no_infinity(value, tmp_path):
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"loss": value})
    assert list(tmp_path.iterdir()) == []


def hold_until_told(path: Path, ready, done) -> None:
    with lock(path):
        ready.set()
        done.wait(30)


def test_a_lock_that_another_process_holds_names_it_and_is_free_when_that_ends(tmp_path):  # P7
    context = multiprocessing.get_context("spawn")
    ready, done = context.Event(), context.Event()
    holder = context.Process(target=hold_until_told, args=(tmp_path / "lock", ready, done))
    holder.start()
    assert ready.wait(30)
    with pytest.raises(Held, match=f"process {holder.pid} on "), lock(tmp_path / "lock"):
        pass
    holder.kill()  # however it ends
    holder.join(30)
    with lock(tmp_path / "lock"):
        assert f"process {os.getpid()} on " in (tmp_path / "lock").read_text()
    holder.close()


def test_a_lock_is_free_after_an_error_inside(tmp_path):
    with pytest.raises(RuntimeError), lock(tmp_path / "lock"):
        raise RuntimeError
    with lock(tmp_path / "lock"):
        pass


def test_a_file_system_without_locks_is_no_other_process(tmp_path, monkeypatch):
    def no_locks(file, how):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    with pytest.raises(OSError, match=r"must support flock: .*lock'"), lock(tmp_path / "lock"):
        pass


@pytest.mark.parametrize("text", ["", "{", "\0" * 50])
def test_a_file_that_is_not_json_is_named(text, tmp_path):
    assert read_json(tmp_path / "a.json") is None
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ValueError, match=r"a\.json: is not JSON \("):
        read_json(tmp_path / "a.json")


def test_who_holds_the_lock_sweeps_what_killed_workers_left_and_nothing_of_others(tmp_path):
    run = RunDir(tmp_path)
    run.beat(state="training")
    write_json(run.meeting("just now"), {"exit": 3})
    write_json(run.meeting("yesterday"), {"host": "gone", "port": 1})
    os.utime(run.meeting("yesterday"), (0, 0))
    (tmp_path / ".heartbeat.4711.tmp").touch()
    (tmp_path / ".config.yaml.4711.tmp").touch()  # a planner, which has no lock, writes it now
    run.sweep()
    assert {path.name for path in tmp_path.iterdir()} == {"heartbeat", ".meeting.just now", ".config.yaml.4711.tmp"}
