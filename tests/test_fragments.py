from pathlib import Path

import pytest

from ablate.fragments import fragments, sign_of, unsent
from ablate.rundir import RunDir

ID = "0123456789ab-2"


@pytest.fixture
def run(tmp_path) -> RunDir:
    return RunDir(tmp_path / "seed2")


def fragment(run: RunDir, folder: str, begun: bool = True, started: bytes = b"") -> Path:
    """Write a file as W&B names it: its header, and the run's id, and when it started, if it came so far."""
    path = run.wandb / f"{folder}-{ID}" / f"run-{ID}.wandb"
    path.parent.mkdir(parents=True)
    path.write_bytes(b":W&B\x00\x00\x00" + (b"...\x0e" + ID.encode() + started) * begun)
    return path


def test_fragments_are_listed_in_the_order_of_the_attempts_sent_at_once_or_not(run):
    later, first = fragment(run, "run-20260102_000000"), fragment(run, "offline-run-20260101_000000")
    last = fragment(run, "offline-run-20260103_000000")
    (run.wandb / "latest-run").symlink_to(last.parent)
    assert fragments(run) == [first, later, last]


def test_attempts_are_in_order_where_clocks_went_back_or_the_next_node_is_in_another_time_zone(run):
    # Field 17, a Timestamp of seconds and nanoseconds, as in files of W&B 0.31, of 2026-11-30 20:04:15.9 and 16.1 UTC.
    first = fragment(
        run, "run-20261130_200415", started=b"\x8a\x01\x0c\x08\xbf\xad\xb7\xd8\x06\x10\xd8\x8f\xdf\xaf\x03"
    )
    second = fragment(
        run, "offline-run-20261130_150416", started=b"\x8a\x01\x0b\x08\xc0\xad\xb7\xd8\x06\x10\xd8\xff\x87;"
    )
    same_second = fragment(run, "run-20261130_150415", started=b"\x8a\x01\x0b\x08\xbf\xad\xb7\xd8\x06\x10\xd8\xff\x87;")
    assert fragments(run) == [same_second, first, second]  # 15.1, 15.9 and 16.1 s


def test_an_attempt_that_was_killed_before_it_began_has_no_fragment(run):
    fragment(run, "offline-run-20260101_000000", begun=False)
    assert fragments(run) == []


def test_what_bears_the_sign_of_wandb_is_sent(run):
    first, second = fragment(run, "run-20260101_000000"), fragment(run, "offline-run-20260102_000000")
    sign_of(first).touch()
    assert unsent(run) == [second]
    assert sign_of(first).name == f"run-{ID}.wandb.synced"  # as W&B 0.31 writes it
