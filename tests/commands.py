"""Commands that stand in for SLURM's where a real one would not do what a test needs, such as fail."""

import os
from pathlib import Path

import pytest


class Commands:
    """A folder of small shell scripts, in front of PATH."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        folder.mkdir()
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}/usr/bin{os.pathsep}/bin")

    def add(self, name: str, script: str) -> None:
        """Make a command of these lines of shell; what it was called with is kept (`calls`)."""
        path = self.folder / name
        path.write_text(f'#!/bin/sh\necho "$*" >> {self.folder}/{name}.calls\n{script}\n')
        path.chmod(0o755)

    def calls(self, name: str) -> list[str]:
        """List the arguments of each call."""
        path = self.folder / f"{name}.calls"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Commands:
    return Commands(tmp_path / "bin", monkeypatch)
