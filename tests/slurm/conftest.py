"""A SLURM for all tests of a process in this folder; elsewhere than in CI they skip without it."""

import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from cluster import Cluster, missing
from submitted import MANY

LIMIT_S, AGAIN_S = 2400 + 20 * MANY, 120  # of a test; then for each thing that it waits for on its way out


@pytest.fixture(autouse=True)
def time_limit() -> Iterator[None]:
    """Break off a test that waits for what does not come, such as a process that a dead SLURM never ends."""

    def break_off(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"this test has taken longer than {LIMIT_S} s")

    before = signal.signal(signal.SIGALRM, break_off)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S, AGAIN_S)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Cluster]:
    """Start a cluster; ABLATE_NEED_SLURM=1 makes its absence an error."""
    if reason := missing():
        if os.environ.get("ABLATE_NEED_SLURM"):
            pytest.fail(f"ABLATE_NEED_SLURM is set: {reason}")
        pytest.skip(reason)
    cluster = Cluster(Path(tempfile.mkdtemp(prefix="slurm-")))  # not in pytest's folder: sockets have short paths
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def cluster(shared_cluster: Cluster, workplace: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """Give an idle cluster, in a working directory of the test's own."""
    for name in ("SLURM_CONF", "PATH"):
        monkeypatch.setenv(name, shared_cluster.env[name])
    yield shared_cluster
    shared_cluster.rest()
