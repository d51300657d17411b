"""A server of W&B's protocol for these tests; elsewhere than in CI, where it must be there, they skip without it."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import wandb
from server import KEY, Server, missing

from ablate import mirror


@pytest.fixture(scope="session")
def shared_server() -> Iterator[Server]:
    """Start a server; ABLATE_NEED_OPENWANDB=1 makes its absence an error."""
    if reason := missing():
        if os.environ.get("ABLATE_NEED_OPENWANDB"):
            pytest.fail(f"ABLATE_NEED_OPENWANDB is set: {reason}")
        pytest.skip(reason)
    with tempfile.TemporaryDirectory() as folder:
        server = Server(Path(folder))
        try:
            yield server
        finally:
            server.kill()


@pytest.fixture
def server(shared_server: Server, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Give a server that answers and has no runs; W&B knows no other, and nothing of the user's."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    for name, value in {"BASE_URL": shared_server.url, "API_KEY": KEY, "SILENT": "true"}.items():
        monkeypatch.setenv(f"WANDB_{name}", value)
    monkeypatch.setenv("HOME", str(workplace))
    for name in ("START_S", "FINISH_S"):
        monkeypatch.setattr(mirror, name, 300)  # so that a slow machine is not taken for a server that is away
    wandb.teardown()  # or it would keep the settings of an earlier test
    shared_server.start()
    shared_server.forget()
    yield shared_server
    wandb.teardown()
