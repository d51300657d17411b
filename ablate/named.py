"""Find runs in their folders, by what a user calls them."""

import os
from pathlib import Path

from ablate.rundir import RunDir

MIN_DIGITS = 3  # of a fingerprint; fewer may be a seed
MAX_LISTED = 20


class NotOne(ValueError):
    """A name that is no run's, or several runs'; the message lists what there is."""


def runs_folder() -> str:
    """Name the folder of runs as `conf/config.yaml` does where nothing else is said."""
    return os.environ.get("ABLATE_RUNS", "runs")


def find(root: Path, preset: str = "*", row: str = "*") -> list[RunDir]:
    """Find all runs under a folder, or those of one preset or in one row's folder, in the order of their names."""
    there = sorted(root.glob(f"{preset}/{row}/*/seed*"))
    numbered = [path for path in there if path.name.removeprefix("seed").isdecimal()]  # else it is somebody's copy
    return [run for path in numbered if is_run(run := RunDir(path))]


def is_run(run: RunDir) -> bool:
    """Tell whether there is a run: one that was planned here, or the record that was kept of one."""
    return run.identity.is_file() or run.record.is_file()


def select(root: Path, name: str) -> RunDir:
    """Find the one run that is meant.

    Args:
        root: the folder of runs.
        name: a run's folder; or some of its preset, row, fingerprint (its first digits will do) and seed, in this
            order, such as "A_h4", "A_h4/2" or "0123ab/seed2".

    Raises:
        NotOne: if there is none, or more than one.
    """
    if is_run(run := RunDir(Path(name).absolute())):
        return run
    runs = find(root)
    found = [run for run in runs if is_called(run, [part for part in name.split("/") if part])]
    if len(found) == 1:
        return found[0]
    there = [f"  {called(run)}" for run in found or runs]
    if len(there) > MAX_LISTED:
        there[MAX_LISTED:] = [f"  … and {len(there) - MAX_LISTED} more"]
    said = f"RUN={name!r}: {len(found) or 'no'} runs are called so; under {root} there are"
    raise NotOne("\n".join([said, *there]) if there else f"{said} none")


def called(run: RunDir) -> str:
    """Name a run by its preset, row, fingerprint and seed."""
    return "/".join(run.path.parts[-4:])


def is_called(run: RunDir, parts: list[str]) -> bool:
    """Tell whether each of these parts of a name is one of the run's, in their order."""
    preset, row, identity, seed = run.path.parts[-4:]
    prefixes = {identity[:digits] for digits in range(MIN_DIGITS, len(identity) + 1)}
    for own in ({preset}, {row}, prefixes, {seed, seed.removeprefix("seed")}):
        if parts and parts[0] in own:
            parts = parts[1:]
    return not parts
