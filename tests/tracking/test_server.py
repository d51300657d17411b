"""Runs, their mirror and its sync against a server of W&B's protocol that is really there, or really server."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import wandb
from server import KEY, Server
from test_mirror import RECORD, SENTENCES
from tiny import EVERY, StopAt, tiny_run

from ablate import mirror, sync
from ablate.fragments import fragments, unsent
from ablate.frozen import load
from ablate.rundir import RunDir, lock, read_json
from ablate.state import read_state
from ablate.track import Tracker, read_metrics
from ablate.worker import DONE, STOPPED, StopFlag, take

ONLINE, OFFLINE = "tracking=wandb", "tracking=offline"


def send(*arguments: str) -> int:
    return sync.main([*arguments])


def sent(server: Server) -> list[tuple[int, int]]:
    """Attempt and step of every line the server was sent, in order; not of the one that shows the translations."""
    return [(line["attempt"], line["trainer_step"]) for _, line in server.lines() if "dev_translations" not in line]


def logged(run: RunDir) -> list[tuple[int, int]]:
    """The same of every line of metrics.jsonl."""
    lines = [json.loads(text) for text in run.metrics.read_text().splitlines()]
    return [(line["attempt"], line["step"]) for line in lines]


def page(server: Server, record: dict[str, Any]) -> str:
    """The address of a run's page; openwandb's user is called default."""
    return f"{server.url}/default/ablate/runs/{record['fingerprint']}-{record['seed']}"


def keys(folder: Path) -> list[Path]:
    """The files under a folder that hold the key for the server."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) > 10
    return [path for path in files if KEY.encode() in path.read_bytes()]


@contextmanager
def tracker(run: RunDir, attempt: int = 1, said: list[str] | None = None) -> Iterator[Tracker]:
    """Track as the worker does; at the end W&B's service ends too, as with the worker's process."""
    say = (said if said is not None else []).append
    with Tracker(run, attempt, mirror.start(run, load(run.config), read_json(run.identity), attempt, say)) as log:
        yield log
    wandb.teardown()


def do(run: RunDir, stop: StopFlag | None = None) -> int:
    """Do a run, or a part of it, as a process of its own would."""
    code = take(run, stop or StopFlag())
    wandb.teardown()
    return code


def test_a_run_that_is_watched_arrives_whole_and_the_key_stays_out_of_its_files(server, workplace, capsys):
    run, log = tiny_run(ONLINE, "tracking.model_artifact=true"), workplace / "log.txt"
    assert do(run) == DONE, run.error.read_text()
    log.write_text("".join(capsys.readouterr()))
    there, record = server.run(), read_json(run.record)
    assert there["name"] == "base seed 1"
    assert there["state"] == "finished"
    assert there["tags"] == ["smoke", "base", "seed1"]
    assert there["config"]["model"]["num_heads"] == 8
    assert there["config"]["fingerprint"] == record["fingerprint"]
    summary = there["summary"]
    assert json.loads(summary["record"]) == record
    assert summary["bleu_signature"] == record["dev"]["bleu_signature"]
    assert (summary["params_actual"], summary["params_paper"]) == tuple(record["params"].values())
    assert (summary["paper_ppl_dev"], summary["paper_bleu_dev"], summary["paper_params_m"]) == (4.92, 25.8, 65)
    assert sent(server) == logged(run)
    rows = [line for _, line in server.lines()]
    assert {row["loss"] for row in rows if "loss" in row} == {
        line["loss"] for line in read_metrics(run.metrics) if "loss" in line
    }
    (table,) = server.folder.glob("files/*/*/*/media/table/dev_translations*.json")
    shown = json.loads(table.read_text())
    assert shown["columns"] == ["src", "reference", "translation"]
    assert [row[2] for row in shown["data"]] == run.hypotheses("dev").read_text().splitlines()
    ((model,),) = server.ask("SELECT name FROM artifacts WHERE artifact_type = 'model'")
    assert model == f"model-{record['fingerprint']}-1"
    assert run.wandb_url.read_text() == page(server, record)
    assert not run.needs_sync.exists()
    assert read_state(run).words == "done"
    assert keys(workplace) == []
    assert send("--dry-run") == 0
    assert "0 of 1 runs have something to send" in capsys.readouterr().out


def test_a_server_that_is_away_at_the_start_costs_nothing_but_a_sync(server, capsys, monkeypatch):  # W1
    monkeypatch.setattr(mirror, "START_S", 5)
    server.kill()
    run = tiny_run(ONLINE)
    assert do(run) == DONE, run.error.read_text()
    assert "this run needs sync" in capsys.readouterr().out
    assert read_state(run).words == "done: needs sync"
    assert [path.parent.name.split("-")[0] for path in fragments(run)] == ["offline"]
    server.start()
    assert send() == 0
    assert sent(server) == logged(run)
    assert json.loads(server.run()["summary"]["record"]) == read_json(run.record)
    assert run.wandb_url.read_text() == page(server, read_json(run.record))
    assert keys(run.path) == []
    assert read_state(run).words == "done"
    before = server.lines()
    assert send() == 0
    assert server.lines() == before


def test_a_server_that_is_killed_and_started_again_gets_every_line(server):
    run, said = tiny_run(ONLINE), []
    with tracker(run, said=said) as log:
        for step in range(1, 31):
            log.log(step, loss=1 / step)
            if step == 10:
                server.kill()
            if step == 20:
                server.start()
    assert sent(server) == logged(run) == [(1, step) for step in range(1, 31)]
    assert said == []
    assert not run.needs_sync.exists()


@pytest.mark.parametrize("when", ["while training", "before the end"])
def test_a_server_that_goes_away_for_good_costs_nothing_but_a_sync(server, when, monkeypatch):
    monkeypatch.setattr(mirror, "FINISH_S", 5)
    monkeypatch.setattr(mirror, "GRACE_S", 2)
    run, said = tiny_run(ONLINE), []
    with tracker(run, said=said) as log:
        for step in range(1, 31):
            log.log(step, loss=1 / step)
            if step == 10 and when == "while training":
                server.kill()
        log.result(RECORD, SENTENCES)  # a table, for which W&B would wait as long as it takes
        server.kill()
    assert len(said) == 1
    assert "needs sync" in said[0]
    assert run.needs_sync.exists()
    assert len(read_metrics(run.metrics)) == 30
    server.start()
    assert send() == 0
    assert set(sent(server)) == set(logged(run))
    assert json.loads(server.run()["summary"]["record"]) == RECORD
    (table,) = server.folder.glob("files/*/*/*/media/table/dev_translations*.json")
    assert json.loads(table.read_text())["data"] == [list(one) for one in SENTENCES]
    assert not run.needs_sync.exists()


@pytest.mark.parametrize("how", ["stopped", "killed"])
def test_the_attempts_of_a_resumed_run_are_sent_in_order_and_once(server, how, capsys):  # W2
    run = tiny_run(OFFLINE)
    if how == "stopped":
        assert do(run, StopAt(EVERY + 1)) == STOPPED
    else:
        code = f"""
import os, signal, sys
from ablate import track, worker
log = track.Tracker.log
def log_and_die(self, step, **numbers):
    log(self, step, **numbers)
    if step == 6:
        os.kill(os.getpid(), signal.SIGKILL)
track.Tracker.log = log_and_die
worker.main([{str(run.path)!r}])
"""
        assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == -signal.SIGKILL
    assert do(run) == DONE, run.error.read_text()
    assert {attempt for attempt, _ in logged(run)} == {1, 2}
    assert not run.needs_sync.exists()  # nobody wanted it on W&B at once
    capsys.readouterr()
    assert send("--dry-run") == 0
    out = capsys.readouterr().out
    assert "2 attempts to send" in out
    assert "nothing was sent" in out
    assert server.ask("SELECT * FROM runs") == []
    assert len(unsent(run)) == 2
    assert send() == 0
    first, second = ([line for line in sent(server) if line[0] == attempt] for attempt in (1, 2))
    assert sent(server) == [*first, *second]
    lines = {attempt: [line for line in logged(run) if line[0] == attempt] for attempt in (1, 2)}
    if how == "stopped":
        assert first == lines[1]
    else:  # may lack what W&B had not yet written down, be it one of two lines of an update
        assert first == lines[1][: len(first)]
    assert second == lines[2]
    assert server.run()["state"] == "finished"
    assert json.loads(server.run()["summary"]["record"]) == read_json(run.record)
    before = server.lines()
    assert send() == 0
    assert server.lines() == before


def test_what_was_sent_before_its_predecessor_is_sent_again_after_it(server, capsys, monkeypatch):
    run = tiny_run(ONLINE)
    server.kill()
    with monkeypatch.context() as soon:
        soon.setattr(mirror, "START_S", 5)
        with tracker(run, attempt=1) as log:
            log.log(1, loss=3.0)
            log.stop()
    server.start()
    with tracker(run, attempt=2) as log:
        log.log(2, loss=2.0)
    assert sent(server) == [(2, 2)]
    assert run.needs_sync.exists()
    assert send() == 0
    assert "2 attempts to send, 1 of them again" in capsys.readouterr().out
    assert sent(server) == [(2, 2), (1, 1), (2, 2)]
    assert not run.needs_sync.exists()


def test_a_run_that_cannot_be_sent_is_named_and_stays(server, capsys):
    runs = [tiny_run(OFFLINE), tiny_run(OFFLINE, "+row=A_h4")]
    for run in runs:
        with tracker(run) as log:
            log.log(1, loss=3.0)
    (broken,) = fragments(runs[0])
    broken.write_bytes(broken.read_bytes()[:7] + b"\0" * 7 + broken.stem.removeprefix("run-").encode())
    assert send() == 1
    out = capsys.readouterr().out
    assert "sent: 1 runs; not sent: 1" in out
    assert str(runs[0].path.relative_to(Path("runs").absolute())) in out
    assert unsent(runs[0]) and not unsent(runs[1])


def test_without_a_server_nothing_is_sent_and_nothing_lost(server, capsys):
    run = tiny_run(OFFLINE)
    with tracker(run) as log:
        log.log(1, loss=3.0)
    server.kill()
    assert send() == 1
    assert "sent: 0 runs; not sent: 1; the same command tries again" in capsys.readouterr().out
    server.start()
    assert send() == 0
    assert sent(server) == logged(run)


def test_a_running_run_is_left_alone(server, capsys):
    run = tiny_run(OFFLINE)
    with tracker(run) as log:
        log.log(1, loss=3.0)
    with lock(run.lock):
        assert send() == 0
    assert "1 running, left alone" in capsys.readouterr().out
    assert unsent(run)
