"""One SLURM for all tests in this folder; elsewhere than in CI, where it must be there, they skip without it."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster, missing


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
