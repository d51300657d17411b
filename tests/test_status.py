import io
import json
import re

import pytest
from commands import Commands, commands  # noqa: F401 – a fixture
from records import TRAINING, beat, finish
from rich.console import Console
from rich.text import Text

from ablate import ledger, slurm, status
from ablate.launch import freeze
from ablate.ledger import Enquiry, note
from ablate.plan import PlannedRun, plan_from
from ablate.rundir import RunDir, lock, write_json, write_text
from ablate.state import RunState, read_state
from ablate.status import Survey, ago, duration, main, number, page, render, survey


@pytest.fixture
def run(tmp_path) -> RunDir:
    return RunDir(tmp_path / "runs" / "smoke" / "A_h4" / "0123456789ab" / "seed2")


def planned(workplace) -> PlannedRun:
    return plan_from(["preset=smoke", "+row=A_h4"], prepare=True, say=lambda text: None).runs[0]


def shown(group, width=200) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(group)
    return console.export_text()


@pytest.mark.parametrize(
    ("seconds", "written"),
    [(None, ""), (0.0, "0:00"), (59.9, "0:59"), (123.0, "2:03"), (3723.0, "1:02:03"), (360000.0, "100:00:00")],
)
def test_durations_are_written_as_on_a_clock(seconds, written):
    assert duration(seconds) == written


def test_numbers_are_written_with_their_digits():
    assert (number(None, 2), number(1234.567, 2), number(7.25, 1)) == ("", "1,234.57", "7.2")


def test_every_run_is_shown_under_its_preset_with_its_numbers(workplace):
    done = planned(workplace)
    finish(done, ppl=12.5, bleu=7.25)
    changed = plan_from(["preset=smoke", "+row=A_h4", "model.dropout=0.3"], prepare=True, say=print).runs[0]
    freeze(changed)
    beat(changed.run, **TRAINING)
    with lock(changed.run.lock):
        said = shown(page(survey(workplace / "runs", Enquiry())))
    lines = [line for line in said.splitlines() if line.strip()]
    assert lines[0] == f"preset smoke: 2 runs; logs: {workplace}/runs/smoke/ROW/FINGERPRINT/seedK/log.txt"
    by_run = {run.fingerprint: next(line for line in lines if run.fingerprint in line) for run in (done, changed)}
    for part in ("A_h4 (", "done", "60/60", "12.50", "7.2"):
        assert part in by_run[done.fingerprint]
    for part in (
        "A_h4 + changes (",
        "running: training",
        "20/60",
        "1,234",
        "3.500",
        "40.00",
        "1:20",
        " 2 ",
        "0:05 ago",
    ):
        assert part in by_run[changed.fingerprint]
    assert "SLURM" not in said  # nobody had to be asked


def test_a_run_of_which_only_the_record_was_kept_is_done(workplace, capsys):
    done = planned(workplace)
    finish(done, ppl=12.5, bleu=7.25)
    for path in done.run.path.iterdir():
        if path != done.run.record:
            path.unlink()
    assert main([str(workplace / "runs")]) == 0
    assert re.search(r"A_h4 \(\w{12}\) +1 +done +60/60 .* 12.50 +7.2", capsys.readouterr().out)


def test_nothing_is_lost_on_a_narrow_terminal(run):
    beat(run, **TRAINING)
    with lock(run.lock):
        said = shown(render({("A_h4", 2): read_state(run)}), width=80)
    for part in ("A_h4", "20/60", "1,234", "3.500", "40.00", "1:20"):
        assert part in said


def test_the_command_shows_runs_and_says_where_there_are_none(tmp_path, capsys):
    assert main([str(tmp_path / "nothing")]) == 0
    assert f"no runs under {tmp_path}" in capsys.readouterr().out.replace("\n", "")
    run = RunDir.of(tmp_path / "runs", "smoke", "base", "0123456789ab", 1)
    write_text(run.identity, json.dumps({"fingerprint": "0123456789ab", "changes": {}}))
    assert main([str(tmp_path / "runs")]) == 0
    out = capsys.readouterr().out
    assert "preset smoke: 1 runs" in out
    assert "base (0123456789ab)" in out


def on_slurm(root, *jobs: str) -> list[RunDir]:
    """Give a run for each of these jobs, as they are when they have been submitted."""
    runs = [RunDir.of(root, "smoke", "base", "0123456789ab", seed) for seed, _ in enumerate(jobs, 1)]
    for run, job in zip(runs, jobs, strict=True):
        write_json(run.identity, {"fingerprint": "0123456789ab", "changes": {}})
        note(run, "submitting", name=f"sweep{job}", task=None)
        note(run, "submitted", job=job, log=str(root / f"{job}.log"))
    return runs


@pytest.fixture
def slurm_like(commands, monkeypatch) -> Commands:  # noqa: F811
    monkeypatch.setattr(slurm, "PAUSE_S", 0.01)
    commands.add("squeue", "echo '12|sweep|PENDING|PartitionDown'")
    commands.add("sacct", "echo '13|NODE_FAIL'")
    return commands


def test_slurm_is_asked_once_about_all_runs_and_its_reasons_are_shown(tmp_path, slurm_like, capsys):  # S8
    on_slurm(tmp_path, "12", "13")
    assert main([str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "queued: job 12 pending, PartitionDown" in said
    assert "stopped: node failure" in said
    assert "SLURM was asked 0 s ago" in said
    assert "warning" not in said
    assert (len(slurm_like.calls("squeue")), len(slurm_like.calls("sacct"))) == (1, 1)


@pytest.mark.parametrize("accounting", ["echo 'Slurm accounting storage is disabled' >&2; exit 1", None])
def test_without_an_accounting_there_is_one_warning_and_the_states_of_the_rest(
    tmp_path, slurm_like, accounting, monkeypatch, capsys
):  # S3
    *_, other = on_slurm(tmp_path, "12", "13", "14")
    beat(other, **TRAINING)
    if accounting:
        slurm_like.add("sacct", accounting)
    else:
        (slurm_like.folder / "sacct").unlink()
        monkeypatch.setenv("PATH", str(slurm_like.folder))  # nor the machine's own
    with lock(other.lock):
        assert main([str(tmp_path), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [(one["state"], one["job"]) for one in told["runs"]] == [
        ("queued", "12"),
        ("stopped", "13"),
        ("running", "14"),
    ]
    why = "Slurm accounting storage is disabled" if accounting else "not found here"
    assert told["warnings"] == [f"sacct: {why}; why jobs ended that left no word is not known"]


def test_a_queue_that_hangs_is_given_up_after_one_try(tmp_path, slurm_like, monkeypatch, capsys):  # S3
    on_slurm(tmp_path, "12")
    monkeypatch.setattr(slurm, "ANSWER_S", 0.2)
    monkeypatch.setattr(ledger, "PATIENCE_S", 0.1)
    slurm_like.add("squeue", "exec sleep 60")
    assert main([str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "queued: its job is unknown" in said
    assert said.count("warning: squeue: no answer") == 1
    assert len(slurm_like.calls("squeue")) == 1


def test_who_watches_asks_slurm_ever_more_seldom_while_nothing_happens(tmp_path, slurm_like, monkeypatch):
    now_s = [1000.0]
    monkeypatch.setattr(slurm.time, "monotonic", lambda: now_s[0])
    on_slurm(tmp_path, "12")
    enquiry, asked = Enquiry(), []
    for _ in range(60):
        survey(tmp_path, enquiry)
        asked.append(len(slurm_like.calls("squeue")))
        now_s[0] += 2
    # Asked at 0 (news), then after 5, 7.5, 11.25, 16.875 and 25.3 s, each at the next of the refreshes every 2 s.
    assert [asked.index(times) * 2 for times in range(1, 7)] == [0, 6, 14, 26, 44, 70]


def test_a_failed_run_shows_the_end_of_its_traceback_and_its_log(run, tmp_path):  # S1
    write_json(run.identity, {"fingerprint": "0123456789ab", "changes": {}})
    write_text(run.error, "ValueError: no\n\nTraceback (most recent call last):\n  File x, line 3\nValueError: no\n")
    found = survey(tmp_path / "runs", Enquiry())
    said = shown(page(found))
    assert f"smoke/A_h4/0123456789ab/seed2: {run.log}" in said
    assert "File x, line 3" in said
    assert status.as_json(found)["runs"][0]["error"] == run.error.read_text()


@pytest.mark.parametrize(
    ("num_failed", "shown", "said"),
    [
        # 29 rows, with 3 tracebacks of 5 lines, and 6 lines: preset, header, blank, what is left out, age, warning
        (3, ["done"] * 21 + ["running"] * 4 + ["failed"] * 3 + ["queued"], "9 done, 20 to do"),
        # 20 rows with 4 tracebacks; 21 would be with 5
        (20, ["running"] * 4 + ["failed"] * 16, "4 failed, 1 queued, 30 done, 20 to do, 12 tracebacks"),
    ],
)
def test_who_watches_more_runs_than_fit_the_terminal_sees_those_that_matter_and_what_is_beneath(
    tmp_path, monkeypatch, num_failed, shown, said
):
    names = ["done"] * 30 + ["new"] * 20 + ["running"] * 4 + ["failed"] * num_failed + ["queued"]
    runs = {RunDir.of(tmp_path, "smoke", f"r{i}", "0" * 12, 1): RunState(name) for i, name in enumerate(names, 10)}
    for run in [run for run, state in runs.items() if state.name == "failed"]:
        write_text(run.error, "E: no\n" + "line\n" * 3 + "E: no\n")
    monkeypatch.setattr(Enquiry, "age_s", 7.0)
    (enquiry := Enquiry()).warnings = ["sacct: no answer"]
    monkeypatch.setattr(status, "survey", lambda root, _: Survey(root, runs, enquiry))
    monkeypatch.setenv("TERM", "xterm")
    console = Console(force_terminal=True, width=400, height=50, file=io.StringIO())
    monkeypatch.setattr(status, "terminal", lambda: console)
    frames = []

    def sleep(seconds):
        frames.append(Text.from_ansi(console.file.getvalue()).plain)
        console.file.seek(console.file.truncate(0))
        raise KeyboardInterrupt

    monkeypatch.setattr(status.time, "sleep", sleep)
    assert main([str(tmp_path), "--watch"]) == 0
    assert len(frames[0].strip("\n").split("\n")) <= 50
    assert re.findall(r"^r\d+ \(0{12}\) +1 +(\w+)", frames[0], re.MULTILINE) == shown
    assert frames[0].count("log.txt\n  line\n  line\n  line\n  E: no\n") == min(num_failed, 4)
    assert frames[0].rstrip().endswith(f"… and {said} not shown\nSLURM was asked 7 s ago\nwarning: sacct: no answer")
    whole = Text.from_ansi(console.file.getvalue()).plain  # at the end there is room for all
    assert whole.count("(000000000000)") == len(names)
    assert "not shown" not in whole


def test_how_long_ago_something_was():
    assert (ago(None), ago(3.9), ago(61.0)) == ("", "0:03 ago", "1:01 ago")
