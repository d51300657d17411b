import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import Commands, commands  # noqa: F401 – a fixture
from records import finish
from tiny import TINY, planned, quiet

from ablate import compose, plan, request, slurm, submit
from ablate.errors import ConfigError
from ablate.ledger import history, open_job
from ablate.plan import plan_from
from ablate.rundir import write_text
from ablate.state import read_state

pytestmark = pytest.mark.usefixtures("workplace")
ON_SLURM = [*TINY[:1], *TINY[2:], "cluster=slurm"]  # without device=cpu


# What squeue says of the batch scripts that sbatch was called with: everything is pending.
QUEUED = """
/job-name=/ { split($0, part, "="); job = 10 + count++ }
/job-name=/ { for (i = 0; i < 5; i++) print job (i ? "_" i - 1 : "") "|" part[2] "|PENDING|Priority" }
"""


@pytest.fixture
def site(commands, monkeypatch) -> Commands:  # noqa: F811
    """Stand in for a SLURM that takes everything and starts nothing: jobs 10, 11, 12 …"""
    monkeypatch.setattr(slurm, "PAUSE_S", 0.01)
    commands.add("sbatch", f'echo "Submitted batch job $(( $(wc -l < {commands.folder}/sbatch.calls) + 9 ))"')
    commands.add("scontrol", "echo 'MaxArraySize = 4'")
    commands.add("srun", "")
    commands.add("sacct", "")
    commands.add("squeue", f"awk '{QUEUED}' $(cat {commands.folder}/sbatch.calls)")
    return commands


def ask(*overrides: str) -> plan.Plan:
    return plan_from([*ON_SLURM, *overrides], prepare=True, say=quiet)


def scripts() -> list[str]:
    """Give the batch scripts that were written, in the order of their numbers."""
    found = sorted(Path("runs/slurm").glob("*/*_submission.sh"), key=lambda path: path.name)
    return [path.read_text() for path in found]


def test_runs_are_submitted_once_in_arrays_no_longer_than_the_site_allows(site):  # P7
    said: list[str] = []
    asked = ask("+sweep=row_A", "seeds=2")
    done = submit.submit(asked, said.append)
    assert [len(one.jobs) for one in done] == [4, 4, 2]
    assert len(said) == 3
    assert len({one.name for one in done}) == 3
    assert [re.search("--array=(.*)", text)[1] for text in scripts()] == ["0-3%4", "0-3%4", "0-1%2"]
    assert [open_job(planned.run)["job"] for planned in asked.runs] == [
        *(f"10_{task}" for task in range(4)),
        *(f"11_{task}" for task in range(4)),
        *(f"12_{task}" for task in range(2)),
    ]
    again = ask("+sweep=row_A", "seeds=2")
    assert submit.submit(again, said.append) == []
    assert {planned.state.name for planned in again.runs} == {"queued"}
    assert len(site.calls("sbatch")) == 3


def test_of_many_runs_that_have_jobs_the_first_are_listed(site):
    asked = ask("seeds=22")
    submit.submit(asked, quiet)
    said = submit.how_to_watch(asked.runs).splitlines()
    assert said[19] == "base seed 20: queued: job 14_3 pending, Priority"
    assert said[20] == "… and 2 more"
    assert said[21].startswith("Watch them: ")


def test_a_limit_on_jobs_at_once_holds_for_all_arrays_together(site):
    submit.submit(ask("+sweep=row_A", "cluster.max_parallel=3"), quiet)
    assert [re.findall("--array=(.*)", text) for text in scripts()] == [["0-3%3"], []]
    assert [re.findall("--dependency=(.*)", text) for text in scripts()] == [[], ["afterany:10"]]


def test_a_site_without_arrays_gets_single_jobs(site):
    site.add("scontrol", "echo 'MaxArraySize = 0'")
    assert [one.id for one in submit.submit(ask("seeds=3"), quiet)] == ["10", "11", "12"]


def test_several_small_runs_share_a_job(site):
    (done,) = submit.submit(ask("+sweep=row_A", "cluster.runs_per_job=2"), quiet)
    assert [len(runs) for runs in done.jobs] == [2, 2, 1]
    assert "--cpus-per-task=2" in scripts()[0]


def test_rows_that_ask_for_more_get_an_array_of_their_own(site, workplace):
    (workplace / "mine" / "row").mkdir(parents=True)
    (workplace / "mine" / "sweep").mkdir()
    large = "# @package _global_\ncluster: { mem_gb: 64 }\noptim: { adam_beta1: 0.8 }\n"
    (workplace / "mine" / "row" / "large.yaml").write_text(large)
    (workplace / "mine" / "sweep" / "mine.yaml").write_text("# @package sweep.mine\ntitle: mine\nrows: [large, A_h4]\n")
    with compose.session("mine"):
        done = submit.submit(ask("+sweep=mine"), quiet)
    assert [len(one.jobs) for one in done] == [2, 1]
    assert ["--mem=64GB" in text for text in scripts()] == [False, True]


@pytest.mark.parametrize("taken", [True, False])
def test_jobs_that_sbatch_got_no_answer_about_are_looked_for_before_they_are_submitted_again(site, taken):  # P7
    site.add(
        "sbatch",
        "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1",
    )
    asked = ask()
    with pytest.raises(slurm.Unreachable, match=r"sbatch: .* timed out .*; the same command later finds out"):
        submit.submit(asked, quiet)
    site.add("sbatch", "echo Submitted batch job 11")
    (name,) = [line["name"] for line in history(asked.runs[0].run)]
    site.add("squeue", f"echo '10|{name}|PENDING|Priority'" if taken else "")
    assert len(submit.submit(asked, quiet)) == (0 if taken else 1)
    if not taken:
        assert history(asked.runs[0].run)[1]["reason"] == "not submitted"


def test_without_slurm_s_commands_nothing_is_tried(tmp_path, monkeypatch):
    asked = ask()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match=r"cluster\.name='slurm': needs SLURM's commands"):
        submit.submit(asked, quiet)


@pytest.mark.parametrize(
    ("overrides", "device", "precision", "ranks"),
    [
        ([], "cpu", "fp32", 1),
        (["cluster.gpus=1"], "cuda", "bf16", 1),
        (["cluster.gpus=4"], "cuda", "bf16", 4),
        (["device=cuda"], "cuda", "bf16", 1),
        (["cluster.ranks=2"], "cpu", "fp32", 2),
    ],
)
def test_the_device_is_what_the_job_asks_for_whatever_this_machine_has(
    monkeypatch, overrides, device, precision, ranks
):
    monkeypatch.setattr(request, "resolve_device", lambda device: pytest.fail("this machine does not matter"))
    cfg = ask(*overrides).runs[0].cfg
    assert (cfg.device, cfg.precision, cfg.cluster.ranks) == (device, precision, ranks)


def test_a_run_that_was_ended_at_its_memory_limit_has_failed_and_is_not_submitted_again(site):
    asked = ask()
    submit.submit(asked, quiet)
    site.add("squeue", "echo '10|x|OUT_OF_MEMORY|OutOfMemory'")
    assert submit.submit(asked, quiet) == []
    assert read_state(asked.runs[0].run).words == "failed: OutOfMemory: SLURM ended job 10 at its memory limit"


def test_a_run_whose_job_was_cancelled_is_submitted_again(site):
    asked = ask()
    submit.submit(asked, quiet)
    site.add("squeue", "echo '10|x|CANCELLED|None'")
    assert len(submit.submit(asked, quiet)) == 1
    events = [line["event"] for line in history(asked.runs[0].run)]
    assert events == ["submitting", "submitted", "lost", "submitting", "submitted"]


def test_submitting_loads_no_torch(site):
    code = (
        "import sys; from ablate import run; sys.argv = ['x', *sys.argv[1:]]\n"
        "assert run.main() == 0; assert 'torch' not in sys.modules; assert 'wandb' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code, *ON_SLURM], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "submitted 1 run as job 10" in done.stdout
    assert "base seed 1: queued: job" in done.stdout


def test_a_finished_and_a_failed_run_are_left_alone(site):
    done, failed, *rest = planned("+sweep=row_B").runs
    finish(done, 5.0, 20.0)
    write_text(failed.run.error, "no luck\n")
    (array,) = submit.submit(ask("+sweep=row_B"), quiet)
    assert array.jobs == [[one.run] for one in rest]
