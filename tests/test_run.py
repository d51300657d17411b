import os
import random
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from records import finish
from rich.console import Console
from tiny import TINY, alive, end, planned, tiny_run, tree, undisturbed, wait_until

from ablate import checkpoint, compose, ledger, record, run, submit
from ablate.data.source import data_root
from ablate.named import find
from ablate.results import MixedRecords
from ablate.rundir import RunDir, lock, read_json
from ablate.state import read_state
from ablate.track import read_metrics

RUN = [sys.executable, "-m", "ablate.run"]
ROW_A = ["base", "A_h1", "A_h4", "A_h16", "A_h32"]


@pytest.fixture(autouse=True)
def folder(workplace):
    """Work in a folder of its own, and leave no worker behind in any case."""
    yield workplace
    for one in find(workplace / "runs"):
        pid = (read_json(one.heartbeat) or {}).get("pid")
        if pid and alive(pid) and read_state(one).name == "running":
            os.kill(pid, signal.SIGKILL)


def command(module: str, *arguments: str, text: str = "") -> tuple[int, str]:
    """Give a command as a user does; its exit code and what it said."""
    done = subprocess.run(
        [sys.executable, "-m", f"ablate.{module}", *arguments], input=text, capture_output=True, text=True, timeout=600
    )
    return done.returncode, done.stdout + done.stderr


def here(*overrides: str) -> tuple[int, str]:
    """Do the command in this process; its workers are real. Gives the exit code and what it said."""
    said: list[str] = []
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=200, file=nowhere)
        code = run.do([*TINY, *overrides], False, said.append, console)
        return code, "\n".join([*said, console.export_text()])


def only(folder: Path) -> RunDir:
    """Give the one run in a folder of runs."""
    (one,) = find(folder / "runs")
    return one


def table_in(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("|")]


def test_a_row_of_the_table_from_one_command(folder):
    """Plan, train, decode, score, tabulate; then the same from the records; then translate."""
    asked = ["+sweep=row_A", *TINY, "optim.train_steps=8000"]
    code, text = command("run", *asked)
    assert code == 0, text
    table = table_in(text)
    assert [line.split("|")[1].strip() for line in table[2:]] == ["base", "A_h1", "A_h4", "A_h16", "A_h32"]
    assert "5 runs: 5 to run" in text
    records = [record.read(one) for one in find(folder / "runs")]
    assert sorted(done["row"] for done in records) == ["A_h1", "A_h16", "A_h32", "A_h4", "base"]
    assert {done["train"]["steps"] for done in records} == {5}  # 8,000 × 0.0006, rounded
    before = {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*")}

    code, again = command("run", *asked)
    assert (code, table_in(again)) == (0, table)
    assert "5 runs: 5 done" in again
    assert {path: path.stat().st_mtime_ns for path in (folder / "runs").rglob("*")} == before

    code, alone = command("table", "row_A", *asked[1:])
    assert (code, table_in(alone)) == (0, table)

    done = find(folder / "runs")[0]
    code, text = command("translate", str(done.path), text="the cat sleeps .\n\nthe dog sees the cat .\n")
    assert code == 0, text
    assert "2/2 sentences" in text


def test_a_failing_run_does_not_hide_behind_the_others(folder):  # S1
    (folder / "mine" / "row").mkdir(parents=True)
    (folder / "mine" / "sweep").mkdir()
    (folder / "mine" / "row" / "hasty.yaml").write_text(
        "# @package _global_\nrow: {block: own, cites: '', paper: {ppl_dev: null, bleu_dev: null, params_m: null}}\n"
        "optim: {lr_scale: 1.0e+30}\n"
    )
    (folder / "mine" / "sweep" / "mine.yaml").write_text("# @package sweep.mine\ntitle: mine\nrows: [hasty]\n")
    with compose.session(str(folder / "mine")):
        code, text = here("+sweep=mine", "cluster.workers=2")
        assert code == 1
        assert re.search(r"hasty seed 1: failed: NonFiniteLoss", text)
        assert "python -m ablate.retry --failed" in text
        assert re.search(r"\| base .*\| 1/1 ", text)
        assert re.search(r"\| hasty .*\| 0/1 ", text)
        states = {one.path.parts[-3]: read_state(one) for one in find(folder / "runs")}
        assert (states["base"].name, states["hasty"].name) == ("done", "failed")
        (base,) = [one for one in find(folder / "runs") if one.path.parts[-3] == "base"]
        assert record.comparable(record.read(base)) == undisturbed()
        assert here("+sweep=mine")[0] == 1  # and it is not tried again by itself
    code, text = command("status")
    assert "failed: NonFiniteLoss" in text.replace("\n", " ")


def test_an_edit_of_a_row_s_file_while_it_runs_does_not_reach_the_table(folder, monkeypatch):  # P8
    (folder / "mine" / "row").mkdir(parents=True)
    idea = folder / "mine" / "row" / "idea.yaml"
    idea.write_text("# @package _global_\nmodel: {dropout: 0.2}\n")

    def launch_and_edit(*arguments):
        outcome = launch(*arguments)
        idea.write_text("# @package _global_\nmodel: {dropout: 0.3}\n")
        return outcome

    launch = run.launch
    monkeypatch.setattr(run, "launch", launch_and_edit)
    with compose.session(str(folder / "mine")):
        code, text = here("+row=idea")
    assert code == 0
    assert re.search(r"\| idea .*\| 1/1 ", text)


def test_what_would_not_stand_beside_the_records_there_are_is_refused_before_it_is_run(folder):
    first = planned("seeds=2").runs[0]
    done = finish(first, ppl=9.0, bleu=9.0)
    for signature in ("bleu_signature", "bleu_tok_signature"):
        finish(first, 9.0, 9.0, dev={**done["dev"], signature: "version:1.0"})
        with pytest.raises(MixedRecords, match=r"version:1\.0 \(base seed 1\)"):
            here("seeds=2")
    assert [one.log.exists() for one in find(folder / "runs")] == [False, False]


def test_two_launchers_at_the_same_second_start_each_run_once(folder):  # P7
    arguments = [*RUN, "+sweep=row_B", *TINY, "optim.train_steps=8000"]
    both = [subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for _ in "ab"]
    said = [process.communicate(timeout=600)[0] for process in both]
    for process, text in zip(both, said, strict=True):
        # Who lost a run says who has it; or finds it finished, if it was quick.
        missing = re.findall(r"not started here: process (\d+) on \S+ has it", text)
        assert process.returncode == (75 if missing else 0), text
    found = find(folder / "runs")
    assert len(found) == 3
    for one in found:
        assert [attempt["code_changed"] for attempt in read_json(one.provenance)] == [False]  # one attempt
        assert len([line for line in read_metrics(one.metrics) if "loss" in line]) == 3  # updates 2, 4, 5


def test_who_has_a_run_is_said(folder, monkeypatch):  # P7
    monkeypatch.setattr(run, "SETTLE_S", 0.1)
    taken = tiny_run()
    with lock(taken.lock):
        code, text = here()
    assert code == 75
    assert re.search(rf"base seed 1: running.*, not started here: process {os.getpid()} on \S+ has it", text)
    assert not taken.provenance.exists()


def test_runs_that_a_dying_worker_still_holds_are_waited_for(folder, monkeypatch):
    plan = planned()
    plan.runs[0].state.name = "running"  # as it was a moment ago
    run.settle(plan)
    assert [one.state.name for one in plan.to_run] == ["new"]


def test_runs_that_a_job_has_which_holds_no_lock_are_left_to_it(folder, monkeypatch):
    plan = planned()
    monkeypatch.setattr(
        ledger, "fates", lambda runs: {one: ledger.Fate(True, "job 12 running", "RUNNING") for one in runs}
    )
    submit.look_in_queue(plan.runs)
    run.settle(plan)
    assert (plan.to_run, plan.runs[0].state.words) == ([], "running: job 12 running")


# Kills, of the worker and of the launcher


@contextmanager
def started(folder: Path, *overrides: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start the command in the background; it does not outlive the block."""
    with open(folder / "out.txt", "ab") as out:
        process = subprocess.Popen([*RUN, *TINY, *overrides], stdout=out, stderr=subprocess.STDOUT)
    try:
        yield process
    finally:
        end(process.pid)
        process.wait()


def the_run(folder: Path) -> RunDir:
    """Wait until the one run there is has been planned."""
    wait_until(lambda: list((folder / "runs").rglob("config.yaml")), "the plan")
    return only(folder)


def num_lines(path: Path) -> int:
    return path.read_text().count("\n") if path.exists() else 0


def worker_of(one: RunDir, process: subprocess.Popen[bytes], attempt: int) -> int:
    """Wait until a launcher's worker has begun this attempt; give its process number."""
    wait_until(lambda: len(read_json(one.provenance) or []) == attempt, f"attempt {attempt}")
    (worker,) = [child for child in psutil.Process(process.pid).children() if "ablate.worker" in child.cmdline()]
    return worker.pid


LONGER = ["optim.train_steps=250000", "optim.batch_tokens=128", "optim.eval_every_steps=30"]  # 150 updates


def kill(folder: Path, attempt: int, num_logged: int, launcher: bool) -> None:
    """Give the command and kill its worker, or itself, when the run has logged so many more lines."""
    with started(folder, *LONGER) as process:
        one = the_run(folder)
        worker = worker_of(one, process, attempt)
        target = num_lines(one.metrics) + num_logged
        wait_until(lambda: num_lines(one.metrics) >= target or one.record.exists(), "the next updates")
        with suppress(ProcessLookupError):  # it may just have finished
            os.kill(process.pid if launcher else worker, signal.SIGKILL)
        code = process.wait(300)
        assert code == (-signal.SIGKILL if launcher else 75) or one.record.exists(), (folder / "out.txt").read_text()
        wait_until(lambda: not alive(worker), "the end of the worker, also without its launcher")  # no orphans


def test_six_kills_leave_no_trace_in_the_record(folder):
    """SIGKILL to the worker and to the launcher in turn, somewhere within the next dozen updates."""
    expected = undisturbed(*LONGER)
    rng = random.Random(1)
    for attempt in range(1, 7):
        kill(folder, attempt, rng.randrange(4), launcher=attempt % 2 == 0)
        if only(folder).record.exists():
            break  # this machine was too fast, or too busy, for the test to watch
    with started(folder, *LONGER) as process:
        assert process.wait(300) == 0, (folder / "out.txt").read_text()
    done = record.read(only(folder))
    assert record.comparable(done) == expected
    assert len(done["provenance"]) > 2
    assert not list(only(folder).checkpoints.glob(".*"))


def test_ctrl_c_checkpoints_and_the_same_command_continues(folder):
    with started(folder, *LONGER) as process:
        one = the_run(folder)
        worker = worker_of(one, process, 1)
        wait_until(lambda: num_lines(one.metrics), "the first updates")
        process.send_signal(signal.SIGINT)
        assert process.wait(300) == 130
        assert not alive(worker)
    text = (folder / "out.txt").read_text()
    assert "Traceback" not in text
    assert "The same command continues." in text
    state = read_state(one)
    assert (state.name, state.reason) == ("stopped", "SIGTERM")
    assert checkpoint.step_of(checkpoint.folders(one.checkpoints)[-1]) == state.step < 150
    assert here(*LONGER)[0] == 0
    assert record.comparable(record.read(one)) == undisturbed(*LONGER)
    assert len(record.read(one)["provenance"]) == 2


def test_the_paper_s_base_model_trains_and_decodes_at_full_size(folder):
    code, text = here(
        "preset=paper",
        "data=synthetic",
        "optim.train_steps=3",
        "optim.accumulate=1",
        "optim.batch_tokens=128",
        "optim.eval_every_steps=0",
        "data.num_dev=1",
    )
    assert code == 0, text
    done = record.read(only(folder))
    # 44,138,496 of the body (recipe.md's count with biases) and 340 × 512 of the embedding.
    assert done["params"]["actual"] == 44_138_496 + 340 * 512
    assert done["train"]["steps"] == 3
    assert done["dev"]["num_sentences"] == 1
    for path in (folder / "runs").rglob("state.pt"):
        path.unlink()  # half a gigabyte


# The command in this process, as far as it only plans


def give(monkeypatch, capsys, *arguments: str) -> tuple[int, str, str]:
    """Give `python -m ablate.run` in this process."""
    monkeypatch.setattr(sys, "argv", ["ablate.run", *arguments])
    code = run.main()
    return code, *capsys.readouterr()


@pytest.mark.parametrize("prepared", [True, False])
def test_plan_only_writes_nothing(prepared, workplace, monkeypatch, capsys):  # P10
    if prepared:
        finish(planned("+sweep=row_A").runs[0], ppl=9.0, bleu=9.0)
    else:
        monkeypatch.setenv("ABLATE_DATA", str(workplace / "data"))
    before = tree(workplace, data_root())
    code, out, err = give(monkeypatch, capsys, "+sweep=row_A", *TINY, "plan_only=true")
    assert (code, err) == (0, "")
    assert all(row in out for row in ROW_A)
    assert ("5 runs: 1 done, 4 to run" if prepared else "not prepared") in out
    assert tree(workplace, data_root()) == before


def test_a_wrong_setting_ends_the_command_in_one_line_with_nothing_written(workplace, monkeypatch, capsys):  # P3
    (workplace / "mine" / "row").mkdir(parents=True)
    (workplace / "mine" / "row" / "bad.yaml").write_text("# @package _global_\nmodel: {d_kk: 16}\n")
    before = tree(workplace)
    for arguments, parts in (
        (["--config-dir", "mine", "+row=bad"], ["row/bad", "model.d_kk", "did you mean 'd_k'?"]),
        (["+model.dropuot=0.3"], ["model.dropuot", "did you mean 'dropout'?"]),
        (["+sweep=row_A,row_B"], ["'+sweep=[row_A,row_B]'"]),
        (["model.num_heads=0"], ["model.num_heads=0: must be at least 1"]),
        (["+sweep=[row_A,row_F]"], ["sweep='row_F'"]),
        (["+row=3"], ["row=3: is no name; valid: A_h1"]),
        (["-m", "+row=A_h1,3"], ["row=3: is no name; valid: A_h1"]),
        (["-m", "+row=range(1,3)"], ["Got int"]),
        (["runs_dir=a=b"], ["runs_dir='a=b': cannot be read; "]),
    ):
        code, out, err = give(monkeypatch, capsys, *arguments, "preset=smoke")
        assert code == 2
        assert out == ""
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert all(part in err for part in parts), err
    assert tree(workplace) == before


def test_a_folder_that_cannot_be_written_is_said_in_one_line(workplace, monkeypatch, capsys):
    (workplace / "file").touch()
    code, _, err = give(monkeypatch, capsys, "preset=smoke", "runs_dir=file/runs")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("error: [Errno 20] Not a directory: ")


def test_ctrl_c_ends_all_jobs_of_m(workplace, monkeypatch, capsys):
    begun = []

    def interrupted(overrides, *others):
        begun.append(overrides)
        return 130

    monkeypatch.setattr("ablate.run.do", interrupted)
    assert give(monkeypatch, capsys, "-m", "preset=smoke", "+row=A_h1,A_h4")[0] == 130
    assert begun == [["preset=smoke", "+row=A_h1"]]


def test_ctrl_c_while_planning_is_no_traceback(monkeypatch, capsys):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("ablate.run.do", interrupted)
    code, _, err = give(monkeypatch, capsys, "preset=smoke")
    assert (code, err) == (130, "interrupted\n")


def test_a_command_after_a_wrong_one_in_the_same_process_is_judged_by_itself(monkeypatch, capsys):
    assert give(monkeypatch, capsys, "preset=smoke", "seeds=0")[0] == 2
    assert give(monkeypatch, capsys, "preset=smoke", "plan_only=true")[0] == 0


def test_the_command_plans_the_same_rows_from_another_directory(workplace):  # P4
    (workplace / "analysis").mkdir()
    arguments = [sys.executable, "-m", "ablate.run", "+sweep=row_A", "preset=smoke", "plan_only=true"]
    done = subprocess.run(arguments, cwd=workplace / "analysis", capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines() if " 60 " in line] == ROW_A


def test_several_jobs_leave_nothing_behind_when_they_only_plan(monkeypatch, capsys, workplace):  # P10
    code, out, err = give(monkeypatch, capsys, "-m", "preset=smoke", "+row=A_h1,A_h4", "plan_only=true")
    assert (code, err) == (0, "")
    assert "A_h1 " in out and "A_h4 " in out
    assert list(workplace.iterdir()) == []


def test_a_command_leaves_the_environment_as_it_was(monkeypatch, capsys):
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    assert give(monkeypatch, capsys, "preset=smoke", "plan_only=true")[0] == 0
    assert "HYDRA_FULL_ERROR" not in os.environ
