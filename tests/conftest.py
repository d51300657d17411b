"""Check every shape and type in a signature while the tests run, and keep tests away from the user's folders."""

import warnings
from pathlib import Path

import pytest
from jaxtyping import install_import_hook

with warnings.catch_warnings():
    install_import_hook("ablate", "beartype.beartype")


@pytest.fixture(autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test run a corpus folder of its own; shared within the session, for corpora are found by their content."""
    root = tmp_path_factory.getbasetemp().parent / "ablate-data"
    monkeypatch.setenv("ABLATE_DATA", str(root))
    monkeypatch.delenv("ABLATE_RUNS", raising=False)
    monkeypatch.setenv("WANDB_SILENT", "true")


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give an empty working directory; runs go to `runs/` in it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path / "runs"
