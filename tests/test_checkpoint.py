import builtins
import itertools
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from ablate import checkpoint
from ablate.errors import ConfigError

SCIENCE = {"model.d_model": 8, "optim.lr_scale": 1.0}


def state(value: float) -> checkpoint.State:
    return {
        "model": {"weight": torch.full((3, 5), float(value))},
        "progress": {"step": int(value), "history": [[1, 2.5]]},
    }


def save(folder: Path, step: int, keep: int = 9, every: int = 1) -> Path:
    return checkpoint.save(folder, step, state(step), SCIENCE, keep, every)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_checkpoint_comes_back_as_it_was_saved(tmp_path):
    folder = save(tmp_path, 7)
    assert names(tmp_path) == ["step-000007"]
    loaded = checkpoint.load(folder, SCIENCE)
    assert torch.equal(loaded["model"]["weight"], torch.full((3, 5), 7.0))
    assert loaded["progress"] == {"step": 7, "history": [[1, 2.5]]}


def test_the_newest_is_that_of_the_highest_step_however_many_digits_it_has(tmp_path):
    for step in (999_999, 1_000_000):
        save(tmp_path, step)
    assert [checkpoint.step_of(path) for path in checkpoint.folders(tmp_path)] == [999_999, 1_000_000]
    assert checkpoint.newest(tmp_path, SCIENCE)["progress"]["step"] == 1_000_000


def test_there_is_no_newest_checkpoint_in_an_empty_or_missing_folder(tmp_path):
    assert checkpoint.newest(tmp_path / "missing", SCIENCE) is None


def test_only_the_newest_stay(tmp_path):
    for step in (10, 20, 30, 40):
        save(tmp_path, step, keep=3, every=10)
    assert names(tmp_path) == ["step-000020", "step-000030", "step-000040"]


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_a_stop_between_two_checkpoints_does_not_change_which_ones_stay(tmp_path, keep):
    for step in (10, 20, 30, 40, 43):  # 43 is the last update
        save(tmp_path / "undisturbed", step, keep, every=10)
    for step in (3, 10, 14, 19, 20, 30, 35, 40, 41, 43):
        save(tmp_path / "stopped", step, keep, every=10)
        assert checkpoint.newest(tmp_path / "stopped", SCIENCE)["progress"]["step"] == step
    assert names(tmp_path / "stopped") == names(tmp_path / "undisturbed")


def killing(n: int, functions: list[tuple[object, str]]) -> None:
    """Let this process kill itself at the n-th call of any of these functions."""
    left = itertools.count(n - 1, -1)

    def counted(function):
        def wrapper(*arguments, **keywords):
            if next(left) == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **keywords)

        return wrapper

    for owner, name in functions:
        setattr(owner, name, counted(getattr(owner, name)))


def kill_at_every_step_of_a_save(folder: Path) -> None:
    """Save update 1 whole; then, in one process after the other, update 2, killed at its n-th call of the system."""
    calls = [(os, name) for name in ("mkdir", "open", "fsync", "replace", "unlink", "rmdir", "close")]
    for n in range(1, 99):
        save(folder / str(n), 1)
        child = os.fork()
        if not child:
            killing(n, [*calls, (torch, "save"), (builtins, "open")])
            save(folder / str(n), 2, keep=1)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            print(n)
            return
        assert os.WTERMSIG(status) == signal.SIGKILL


def test_a_save_that_is_killed_leaves_the_checkpoint_before_it(tmp_path):  # R2
    code = f"import pathlib, test_checkpoint as t; t.kill_at_every_step_of_a_save(pathlib.Path({str(tmp_path)!r}))"
    done = subprocess.run([sys.executable, "-c", code], cwd=Path(__file__).parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    kills = int(done.stdout) - 1
    assert kills >= 10
    found = []
    for n in range(1, kills + 1):
        place = tmp_path / str(n)
        said = []
        newest = checkpoint.newest(place, SCIENCE, say=said.append)
        assert said == []  # what is there is whole
        found.append(newest["progress"]["step"])
        assert torch.equal(newest["model"]["weight"], torch.full((3, 5), float(found[-1])))
        save(place, 3, keep=1)
        assert names(place) == ["step-000003"]  # what was half-written is swept
    assert found == sorted(found)  # the old one up to the rename, then the new one
    assert set(found) == {1, 2}


def test_a_truncated_or_altered_checkpoint_is_passed_over_with_a_message(tmp_path):  # R2
    save(tmp_path, 1)
    good = {path: path.read_bytes() for path in save(tmp_path, 2).iterdir()}
    rng = random.Random(1)

    def flipped(data: bytes) -> bytes:
        at = rng.randrange(len(data))
        return data[:at] + bytes([data[at] ^ 16]) + data[at + 1 :]

    state_file, manifest = sorted(good, key=lambda path: path.name, reverse=True)
    damaged = [(state_file, good[state_file][:length]) for length in (0, 1, 500, len(good[state_file]) - 1)]
    damaged += [(state_file, flipped(good[state_file])) for _ in range(30)]
    damaged += [(state_file, bytes(len(good[state_file]))), (manifest, b""), (manifest, b"{}"), (manifest, b"[")]
    for path, data in damaged:
        path.write_bytes(data)
        said = []
        assert checkpoint.newest(tmp_path, SCIENCE, say=said.append)["progress"]["step"] == 1
        assert len(said) == 1
        assert "checkpoint step-000002" in said[0]
        assert "trying the one before it" in said[0]
        path.write_bytes(good[path])
    state_file.unlink()
    assert checkpoint.newest(tmp_path, SCIENCE, say=said.append)["progress"]["step"] == 1
    save(tmp_path, 2)  # trained again: the damaged one is replaced
    assert checkpoint.newest(tmp_path, SCIENCE)["progress"]["step"] == 2


def test_half_written_checkpoints_are_not_listed_and_are_swept(tmp_path):  # R2
    save(tmp_path, 1)
    (tmp_path / ".step-000002.4711").mkdir()
    (tmp_path / ".step-000002.4711" / "state.pt").write_bytes(b"half")
    assert [path.name for path in checkpoint.folders(tmp_path)] == ["step-000001"]
    checkpoint.sweep(tmp_path)
    assert names(tmp_path) == ["step-000001"]


def test_a_stop_counts_for_no_average_even_if_a_kill_kept_it_from_being_deleted(tmp_path, monkeypatch):  # R1
    for step in (10, 20, 25):  # stopped at 25
        save(tmp_path, step, keep=3, every=10)
    monkeypatch.setattr(checkpoint, "discard", lambda folder: pytest.fail("killed"))
    with pytest.raises(pytest.fail.Exception):
        save(tmp_path, 30, keep=3, every=10)
    assert names(tmp_path) == ["step-000010", "step-000020", "step-000025", "step-000030"]
    counted = [checkpoint.step_of(path) for path in checkpoint.counted(tmp_path, 3, 10)]
    assert counted == [10, 20, 30]
    assert [checkpoint.step_of(path) for path in checkpoint.counted(tmp_path, 1, 10)] == [30]
    assert checkpoint.counted(tmp_path / "missing", 2, 10) == []


def test_a_newer_checkpoint_that_cannot_be_read_keeps_no_place(tmp_path):  # R2
    for step in (10, 20):
        save(tmp_path, step, keep=2, every=10)
    (tmp_path / "step-000020" / "state.pt").write_bytes(b"")
    save(tmp_path, 15, keep=2, every=10)  # gone on from 10, and stopped
    assert names(tmp_path) == ["step-000010", "step-000015"]
    save(tmp_path, 20, keep=2, every=10)
    assert [checkpoint.step_of(path) for path in checkpoint.counted(tmp_path, 2, 10)] == [10, 20]


def test_another_configuration_may_not_resume(tmp_path):  # R5
    folder = save(tmp_path, 1)
    with pytest.raises(ConfigError) as refused:
        checkpoint.newest(tmp_path, {**SCIENCE, "optim.lr_scale": 2.0})
    # The first 12 hexadecimal digits of sha256 of the sorted JSON, by the sha256sum command:
    # printf '{"model.d_model": 8, "optim.lr_scale": 1.0}' | sha256sum, and the same with 2.0.
    assert str(folder) in str(refused.value)
    assert "made under fingerprint 514a47394c90, this is 106066bfa0d6: optim.lr_scale: 1.0 then, 2.0 now" in str(
        refused.value
    )
    assert "d_model" not in str(refused.value)


def tied(value: float) -> dict[str, torch.Tensor]:
    weight = torch.full((2, 3), value)
    return {"src": weight, "tgt": weight, "steps": torch.tensor([int(value)])}


def test_a_tied_weight_is_averaged_once_and_inputs_stay_as_they_are():  # R3
    states = {"one": tied(1.0), "three": tied(3.0)}
    mean = checkpoint.average(states)
    assert torch.equal(mean["src"], torch.full((2, 3), 2.0))
    assert torch.equal(mean["tgt"], torch.full((2, 3), 2.0))
    assert torch.equal(states["one"]["src"], torch.full((2, 3), 1.0))
    assert mean["steps"].tolist() == [3]  # integers are not averaged


def test_averaging_loses_nothing_to_float32():
    values = [1e8, 1.0, -1e8]  # their mean is 1/3; summed in float32 it would be 0
    states = {str(v): {"w": torch.tensor([v])} for v in values}
    assert checkpoint.average(states)["w"].item() == pytest.approx(1 / 3)


def test_checkpoints_of_different_tensors_cannot_be_averaged():
    with pytest.raises(ValueError, match="one and other do not hold the same tensors"):
        checkpoint.average({"one": {"w": torch.zeros(2)}, "other": {"w": torch.zeros(3)}})
    with pytest.raises(ValueError, match="no checkpoints"):
        checkpoint.average({})


def test_a_checkpoint_listed_twice_is_refused_by_name(tmp_path):  # R4
    one, two = save(tmp_path, 1), save(tmp_path, 2)
    again = tmp_path / "sub" / ".." / two.name
    (tmp_path / "sub").mkdir()
    with pytest.raises(ConfigError, match="listed twice: step-000002"):
        checkpoint.average_folders([one, two, again], SCIENCE)
    averaged = checkpoint.average_folders([one, two], SCIENCE)
    assert torch.equal(averaged["weight"], torch.full((3, 5), 1.5))
