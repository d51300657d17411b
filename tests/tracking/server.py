"""A server of W&B's protocol on loopback, openwandb, in an environment and a folder of its own.

openwandb's licence (CC BY-NC) keeps it out of what ablate depends on: it is only ever a program that tests start.
ABLATE_OPENWANDB names it, such as VENV/bin/openwandb after `VENV/bin/pip install openwandb==0.5.25`.
"""

import json
import os
import shutil
import socket
import sqlite3
import subprocess
import time
import urllib.request
from contextlib import closing
from pathlib import Path
from typing import Any

KEY = "local0000000000000000000000000000000000000000"  # openwandb makes this one for its first user
PATIENCE_S = 300  # for the server to answer; only keeps a broken test from hanging


def missing() -> str:
    """Say why there is no server here; empty if there is one."""
    program = os.environ.get("ABLATE_OPENWANDB", "")
    if not program:
        return "no server of W&B's protocol: ABLATE_OPENWANDB does not name openwandb (CONTRIBUTING.md)"
    return "" if os.access(program, os.X_OK) else f"ABLATE_OPENWANDB={program} cannot be run"


def free_port() -> int:
    """Find a port that nobody listens on."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        port: int = listener.getsockname()[1]
        return port


class Server:
    """The server, which can be killed and started again with what it had."""

    def __init__(self, folder: Path):
        self.folder, self.port = folder, free_port()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Start it, if it is not running, and wait until it answers."""
        if self.process is not None:
            return
        with open(self.folder / "log.txt", "ab") as log:
            self.process = subprocess.Popen(
                [os.environ["ABLATE_OPENWANDB"], "serve", "--host", "127.0.0.1", "--port", str(self.port)],
                env={"PATH": os.environ["PATH"], "HOME": str(self.folder), "OPENWANDB_DATA_DIR": str(self.folder)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                urllib.request.build_opener(urllib.request.ProxyHandler({})).open(self.url, timeout=5).close()
                return
            except OSError:
                assert self.process.poll() is None, (self.folder / "log.txt").read_text()
                assert time.monotonic() < deadline, "the server does not answer"
                time.sleep(0.1)

    def kill(self) -> None:
        """Take it away at once."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self.process = None

    def ask(self, question: str, *values: object) -> list[tuple[Any, ...]]:
        """Ask the server's database."""
        with closing(sqlite3.connect(self.folder / "openwandb.db", timeout=30)) as database:
            return database.execute(question, values).fetchall()

    def forget(self) -> None:
        """Let it have no runs."""
        with closing(sqlite3.connect(self.folder / "openwandb.db", timeout=30)) as database:
            for table in ("metrics", "system_metrics", "artifacts", "files", "runs"):
                database.execute(f"DELETE FROM {table}")
            database.commit()
        for folder in (self.folder / "files").iterdir():
            shutil.rmtree(folder)

    def lines(self) -> list[tuple[str, dict[str, Any]]]:
        """List the lines of history the server was sent, in the order they came, each with its run's id."""
        found = []
        for path in sorted(self.folder.glob("files/*/*/*/wandb-history.jsonl")):
            found += [(path.parent.name, json.loads(line)) for line in path.read_text().splitlines() if line]
        return found

    def run(self) -> dict[str, Any]:
        """Give the one run that the server has."""
        ((name, state, config, summary, tags),) = self.ask(
            "SELECT display_name, state, config_json, summary_json, tags_json FROM runs"
        )
        settings = {key: entry["value"] for key, entry in json.loads(config).items()}
        return {
            "name": name, "state": state, "config": settings, "summary": json.loads(summary), "tags": json.loads(tags),
        }  # fmt: skip
