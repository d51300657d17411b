import time

import pytest
from commands import Commands, commands  # noqa: F401 – a fixture

from ablate import ledger, slurm
from ablate.ledger import Fate, close, fates, history, note, open_job
from ablate.rundir import RunDir, write_text

FAIL = "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1"


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    monkeypatch.setattr(slurm, "PAUSE_S", 0.01)


@pytest.fixture
def slurm_like(commands) -> Commands:  # noqa: F811
    """Stand in for a SLURM with an empty queue and an accounting that knows nothing."""
    commands.add("squeue", "")
    commands.add("sacct", "")
    return commands


def submitted(folder, name="sweep", task=3, job="12_3") -> RunDir:
    """Give a run whose job was submitted."""
    run = RunDir(folder / f"{name}{task}")
    note(run, "submitting", name=name, task=task)
    if job:
        note(run, "submitted", job=job)
    return run


def test_a_run_s_history_outlives_a_line_that_was_cut_short(tmp_path):
    run = submitted(tmp_path)
    with open(run.jobs, "a") as file:
        file.write('{"time": 1, "event": "sta')
    assert [line["event"] for line in history(run)] == ["submitting", "submitted"]
    assert history(RunDir(tmp_path / "none")) == []


ENDED = {"job": "12_3", "code": 75, "step": 4, "reason": "preempted"}


@pytest.mark.parametrize(
    ("events", "job"),
    [
        ([], "12_3"),
        ([("started", {"job": "12_3"})], "12_3"),
        ([("ended", {**ENDED, "then": ""})], None),
        ([("ended", {**ENDED, "then": "requeued"})], "12_3"),
        ([("ended", {**ENDED, "then": "left: SLURM has it as COMPLETING"})], "12_3"),
        (
            [("ended", {**ENDED, "then": "requeued"}), ("started", {"job": "12_3"}), ("ended", {**ENDED, "then": ""})],
            None,
        ),
        ([("lost", {"job": "12_3", "reason": "cancelled"})], None),
        ([("lost", {"job": "12_3", "reason": "cancelled"}), ("submitting", {"name": "b", "task": None})], ""),
        ([("submitting", {"name": "b", "task": None}), ("lost", {"job": None, "reason": "refused"})], None),
        (
            [
                *(("submitting", {"name": "b", "task": None}), ("submitted", {"job": "13"})),
                # By somebody who found the first job dead before there was a second one.
                ("lost", {"job": "12_3", "reason": "killed"}),
            ],
            "13",
        ),
        (
            [
                *(("submitting", {"name": "b", "task": None}), ("started", {"job": "12_3"})),
                *(("submitted", {"job": "13"}), ("ended", {**ENDED, "then": ""})),
            ],
            "13",
        ),
    ],
)
def test_a_job_is_open_until_it_says_that_it_ended_for_good(tmp_path, events, job):
    run = submitted(tmp_path)
    for event, facts in events:
        note(run, event, **facts)
    found = open_job(run)
    assert (found and (found["job"] or "")) == job


def test_runs_without_an_open_job_cost_no_question(tmp_path, slurm_like):
    over = submitted(tmp_path)
    note(over, "ended", **ENDED, then="")
    assert fates([over, RunDir(tmp_path / "never")]) == {}
    assert slurm_like.calls("squeue") == []


def test_one_question_tells_of_all_jobs(tmp_path, slurm_like):  # S8
    runs = [submitted(tmp_path, task=task, job=f"12_{task}") for task in range(5)]
    slurm_like.add(
        "squeue",
        "cat <<END\n12_0|sweep|PENDING|QOSMaxCpuPerUserLimit\n12_1|sweep|RUNNING|None\n12_2|sweep|SUSPENDED|None\n"
        "12_3|sweep|OUT_OF_MEMORY|OutOfMemory\n12_4|sweep|FAILED|NonZeroExitCode\n99|other|PENDING|Priority\nEND",
    )
    assert list(fates(runs).values()) == [
        Fate(True, "job 12_0 pending, QOSMaxCpuPerUserLimit", "PENDING", "12_0"),
        Fate(True, "job 12_1 running", "RUNNING", "12_1"),
        Fate(True, "job 12_2 suspended", "SUSPENDED", "12_2"),
        Fate(False, "out of memory", "OUT_OF_MEMORY", "12_3"),
        Fate(False, "killed", "FAILED", "12_4"),
    ]
    assert len(slurm_like.calls("squeue")) == 1
    assert slurm_like.calls("sacct") == []


@pytest.mark.parametrize(("task", "line"), [(3, "12_3|sweep|PENDING|Priority"), (None, "12|sweep|PENDING|Priority")])
def test_a_job_is_found_by_its_name_if_its_submitter_was_killed_before_it_wrote_the_number(
    tmp_path, slurm_like, task, line
):  # P7
    run = submitted(tmp_path, task=task, job=None)
    slurm_like.add("squeue", f"echo '11_3|another|RUNNING|None\n{line}'")
    assert fates([run]) == {
        run: Fate(True, f"job {line.partition('|')[0]} pending, Priority", "PENDING", line.partition("|")[0])
    }


def test_the_accounting_tells_how_a_job_ended_that_the_queue_has_forgotten(tmp_path, slurm_like):
    ends = ["TIMEOUT", "NODE_FAIL", "CANCELLED by 1000", "OUT_OF_MEMORY", "PREEMPTED"]
    runs = [submitted(tmp_path, task=task, job=f"12_{task}") for task in range(6)]
    lines = "".join(f"12_{task}|{state}\n" for task, state in enumerate(ends))
    slurm_like.add("sacct", f"printf '{lines}'")
    words = ["time limit", "node failure", "cancelled", "out of memory", "preempted", "killed"]
    assert [fate.words for fate in fates(runs).values()] == words
    assert not any(fate.alive for fate in fates(runs).values())
    assert slurm_like.calls("sacct")[0] == "-X -n -P -j 12 -o JobID,State"  # of thousands of tasks it would be too long


def test_without_an_accounting_a_job_that_is_gone_was_killed(tmp_path, slurm_like):  # S3
    run = submitted(tmp_path)
    slurm_like.add("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    assert fates([run]) == {run: Fate(False, "killed", "", "12_3")}
    (slurm_like.folder / "sacct").unlink()
    assert fates([run]) == {run: Fate(False, "killed", "", "12_3")}


def test_a_queue_that_fails_twice_is_asked_again(tmp_path, slurm_like):  # S3
    run = submitted(tmp_path)
    slurm_like.add(
        "squeue",
        f"[ $(wc -l < {slurm_like.folder}/squeue.calls) -lt 3 ] && {{ {FAIL}; }}; echo '12_3|sweep|RUNNING|None'",
    )
    assert fates([run])[run].words == "job 12_3 running"


def test_a_heading_of_the_queue_is_no_job(tmp_path, slurm_like):
    run = submitted(tmp_path)
    slurm_like.add("squeue", "printf 'CLUSTER: lab\n12_3|sweep|RUNNING|None\n'")
    assert fates([run])[run].words == "job 12_3 running"


def test_where_the_queue_does_not_answer_a_job_counts_as_alive(tmp_path, slurm_like, monkeypatch):  # S3, P7
    run = submitted(tmp_path)
    slurm_like.add("squeue", FAIL)
    why = "its job is unknown: squeue: slurm_load_jobs error: Unable to contact slurm controller"
    assert fates([run]) == {run: Fate(True, why, "", "12_3")}
    monkeypatch.setattr(slurm, "ANSWER_S", 0.2)
    slurm_like.add("squeue", "exec sleep 60")
    began_s = time.monotonic()
    assert fates([run])[run].words == "its job is unknown: squeue: no answer in 0 s"
    assert time.monotonic() - began_s < 30  # not 60: it is given up


def test_of_a_cancelled_run_that_shares_a_job_it_is_said(tmp_path, slurm_like):
    cancelled, other = submitted(tmp_path), submitted(tmp_path, name="other")
    slurm_like.add("squeue", "echo '12_3|sweep|RUNNING|None'")
    write_text(cancelled.cancelled, "")
    assert [fate.words for fate in fates([cancelled, other]).values()] == [
        "cancelled; job 12_3 running",
        "job 12_3 running",
    ]


def test_where_there_is_no_slurm_nothing_is_queued(tmp_path, monkeypatch):
    run = submitted(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert fates([run]) == {run: Fate(False, "its job is unknown: no squeue here", "", "12_3")}


@pytest.mark.parametrize(
    "said",
    [
        "slurmstepd-n1: error: StepId=1.0 exceeded memory limit (308764672 > 52428800), being killed",
        "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=12.0. Some of your processes may have been killed",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=12.0.",
    ],
)
def test_a_memory_limit_is_found_in_the_log_where_the_state_does_not_tell(tmp_path, slurm_like, said):
    run = RunDir(tmp_path / "run")
    note(run, "submitting", name="sweep", task=None)
    note(run, "submitted", job="12", log=str(tmp_path / "log"))
    slurm_like.add("sacct", "echo '12|FAILED'")
    assert fates([run])[run].words == "killed"
    (tmp_path / "log").write_text("x" * 20_000 + f"\n{said}\nsrun: error: n1: task 0: Killed\n")
    assert fates([run]) == {run: Fate(False, "out of memory", "OUT_OF_MEMORY", "12")}


def test_how_a_job_ended_is_written_down_once(tmp_path, slurm_like):
    killed, too_big = submitted(tmp_path, task=0, job="12_0"), submitted(tmp_path, task=1, job="12_1")
    slurm_like.add("sacct", "printf '12_0|TIMEOUT\n12_1|OUT_OF_MEMORY\n'")
    close(fates([killed, too_big]))
    assert [line["reason"] for line in history(killed) if line["event"] == "lost"] == ["time limit"]
    assert not killed.error.exists()
    assert too_big.error.read_text() == "OutOfMemory: SLURM ended job 12_1 at its memory limit\n"
    assert fates([killed, too_big]) == {}
    assert ledger.last_words(killed, 0.0) == "time limit"
    assert ledger.last_words(killed, time.time() + 1) == ""
