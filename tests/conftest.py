"""Check every shape and type in a signature while the tests run, but for those that are `unchecked`.

And keep tests away from the user's folders.
"""

import os
from collections.abc import Iterator
from pathlib import Path

import jaxtyping
import pytest
from jaxtyping import install_import_hook

install_import_hook("ablate", "beartype.beartype")
if "PYTEST_XDIST_WORKER" in os.environ:  # else several processes' threads wait for each other's cores
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session", autouse=True)
def own_folders(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give the test session a corpus folder of its own; shared within it, since a corpus is found by its content."""
    base = tmp_path_factory.getbasetemp()
    root = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setenv("ABLATE_DATA", str(root / "ablate-data"))
        monkeypatch.delenv("ABLATE_RUNS", raising=False)
        monkeypatch.setenv("WANDB_SILENT", "true")
        yield


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to an empty working directory; runs land in `runs/` in it."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do whole runs in this process without checking shapes and types again and again: a third of their time.

    They are checked in `undisturbed`, to which these runs are compared.
    """
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
