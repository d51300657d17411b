"""W&B's own files of a run, which `mirror` writes beside it, and which of them W&B has."""

from pathlib import Path

from ablate.rundir import RunDir


def fragments(run: RunDir) -> list[Path]:
    """List W&B's files of a run, oldest first: one per attempt, two where W&B went away before its end.

    Those of attempts that were killed before they began are left out.
    """

    def begun(path: Path) -> bool:
        with open(path, "rb") as file:
            return path.stem.removeprefix("run-").encode() in file.read(65536)  # the id is in its first record but one

    found = [path for path in run.wandb.glob("*run-*/run-*.wandb") if not path.parent.is_symlink() and begun(path)]
    return sorted(found, key=lambda path: path.parent.name.removeprefix("offline-"))  # …run-<date>_<time>-<id>


def unsent(run: RunDir) -> list[Path]:
    """List those of W&B's files of a run that were not sent to the end."""
    return [path for path in fragments(run) if not sign_of(path).exists()]


def sign_of(fragment: Path) -> Path:
    """Name the file by which W&B marks one of its files as sent to the end, and by which its own sync goes, too."""
    return Path(f"{fragment}.synced")
