"""Checkpoints of a run: whole or not there, safe to load, refused under another configuration, averaged once."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ablate.data.source import digest_of
from ablate.errors import NOT_SAID, ConfigError
from ablate.identity import refuse_change
from ablate.rundir import read_json, sync_folder, write_json

State = dict[str, Any]  # "model", "optimizer": state dicts; "progress": plain numbers, strings, lists
NAME = re.compile(r"step-(\d{6,})")


class Damaged(RuntimeError):
    """A checkpoint whose files are not what was written."""


def folders(checkpoints: Path) -> list[Path]:
    """List the complete checkpoints, oldest first."""
    return sorted((path for path in checkpoints.glob("step-*") if NAME.fullmatch(path.name)), key=step_of)


def counted(checkpoints: Path, num: int, every: int) -> list[Path]:
    """List the newest checkpoint, after the `num` - 1 newest regular ones before it, or as many as there are.

    One in between, where the run was stopped, is never among them: what is averaged does not depend on interruptions.

    Args:
        checkpoints: the run's folder of checkpoints.
        num: how many, at least 1.
        every: updates between two regular checkpoints.
    """
    found = folders(checkpoints)
    regular = [path for path in found[:-1] if step_of(path) % every == 0]
    return [*regular[max(0, len(regular) - (num - 1)) :], *found[-1:]]


def folder(checkpoints: Path, step: int) -> Path:
    """Name the checkpoint after so many updates."""
    return checkpoints / f"step-{step:06d}"


def step_of(folder: Path) -> int:
    """Read off a checkpoint's name how many updates it has seen."""
    return int(folder.name.removeprefix("step-"))


def save(checkpoints: Path, step: int, state: State, science: dict[str, Any], keep: int, every: int) -> Path:
    """Write one checkpoint so that it is complete on the disk or not there at all, then delete the oldest.

    It stays beside the newest `keep` - 1 of the regular ones, those at multiples of `every`. One in between, where the
    run was stopped, goes with the next save, and so does a newer one: it could not be read, or it would be newest.

    Args:
        checkpoints: the run's folder of checkpoints.
        step: updates done.
        state: what `load` will give back; tensors, numbers, strings, lists and dictionaries only.
        science: the run's science, stored so that another configuration cannot resume from it.
        keep: how many of the newest stay, at least 1.
        every: updates between two regular checkpoints.

    Raises:
        OSError: if it cannot be written, on a full disk for one; nothing of it stays, and the older ones do.
    """
    final = folder(checkpoints, step)
    aside = checkpoints / f".{final.name}.{os.getpid()}"
    sweep(checkpoints)
    aside.mkdir(parents=True)
    try:
        with open(aside / "state.pt", "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
        write_json(aside / "manifest.json", {"sha256": digest_of(aside / "state.pt"), "science": science})
    except (OSError, RuntimeError) as err:
        shutil.rmtree(aside, ignore_errors=True)  # where the disk is full, room to say so
        if isinstance(err.__context__, OSError):
            raise err.__context__ from err  # torch's own words hide it
        raise
    if final.exists():  # of an earlier attempt; bit-identical, but perhaps damaged: that is why we are here again
        discard(final)
    os.replace(aside, final)
    sync_folder(checkpoints)
    for unreadable in [path for path in folders(checkpoints) if step_of(path) > step]:
        discard(unreadable)
    for old in set(folders(checkpoints)) - set(counted(checkpoints, keep, every)):
        discard(old)
    return final


def discard(folder: Path) -> None:
    """Delete a checkpoint; killed midway, it leaves something for `sweep`, never half a checkpoint."""
    hidden = folder.with_name(f".{folder.name}.old")
    os.replace(folder, hidden)
    shutil.rmtree(hidden)


def sweep(checkpoints: Path) -> None:
    """Remove what a killed process left half-written; only the holder of the run's lock may call this."""
    for left in checkpoints.glob(".step-*"):
        shutil.rmtree(left)


def load(folder: Path, science: dict[str, Any], device: str = "cpu") -> State:
    """Read one checkpoint for a run of this science.

    Raises:
        Damaged: if its files are not what was written.
        ConfigError: if it was written under another science: both fingerprints and the keys that differ.
    """
    try:
        manifest = read_json(folder / "manifest.json")
        whole = manifest is not None and manifest["sha256"] == digest_of(folder / "state.pt")
    except (OSError, ValueError, KeyError) as err:
        raise Damaged(f"checkpoint {folder.name} cannot be read ({type(err).__name__}: {err})") from err
    if not whole:  # torch.load alone would not notice a flipped bit
        raise Damaged(f"checkpoint {folder.name} is not as it was written: state.pt and manifest.json disagree")
    refuse_change(f"checkpoint {folder}", manifest["science"], science)
    state: State = torch.load(folder / "state.pt", map_location=device, weights_only=True)
    return state


def newest(
    checkpoints: Path, science: dict[str, Any], device: str = "cpu", say: Callable[[str], None] = print
) -> State | None:
    """Read the newest checkpoint that can be read, saying which ones could not; None where there is none.

    Raises:
        ConfigError: as `load`.
    """
    for folder in reversed(folders(checkpoints)):
        try:
            return load(folder, science, device)
        except Damaged as err:
            say(f"{err}; trying the one before it")
    return None


def average(states: dict[str, dict[str, Tensor]]) -> dict[str, Tensor]:
    """Take the arithmetic mean of the parameters of several checkpoints.

    Args:
        states: parameters by name, by the checkpoint's name; the last one gives what is not averaged.

    Returns:
        Each floating-point tensor's mean, computed once per name in float64 and from untouched inputs, so that a tensor
        shared under two names is not averaged twice; integer buffers as the last checkpoint has them.

    Raises:
        ValueError: for no checkpoints, or checkpoints whose names or shapes differ.
    """
    if not states:
        raise ValueError("average: no checkpoints given; at least one is needed")
    *_, (last_name, last) = states.items()
    for name, state in states.items():
        if shapes(state) != shapes(last):
            raise ValueError(f"average: {name} and {last_name} do not hold the same tensors")

    def mean(key: str, newest: Tensor) -> Tensor:
        if not newest.is_floating_point():
            return newest.clone()
        return torch.stack([state[key].double() for state in states.values()]).mean(0).to(newest.dtype)

    return {key: mean(key, newest) for key, newest in last.items()}


def shapes(state: dict[str, Tensor]) -> dict[str, torch.Size]:
    """Give the shape of each tensor by name."""
    return {key: tensor.shape for key, tensor in state.items()}


def average_folders(paths: list[Path], science: dict[str, Any], device: str = "cpu") -> dict[str, Tensor]:
    """Average the model parameters of these checkpoints.

    Raises:
        ConfigError: if one is listed twice (it would count twice), or as `load`.
        Damaged: as `load`.
    """
    resolved = [path.resolve() for path in paths]
    twice = sorted({path.name for path in resolved if resolved.count(path) > 1})
    if twice:
        raise ConfigError("checkpoints", NOT_SAID, f"each may be averaged once; listed twice: {', '.join(twice)}")
    return average({str(path): load(path, science, device)["model"] for path in resolved})
