import http.server
import sys
import threading
import time
from pathlib import Path

import pytest
from commands import Commands, commands  # noqa: F401 – a fixture

from ablate import compose, doctor, probe, site, slurm
from ablate.record import code_digest
from ablate.request import resolved
from ablate.rundir import lock, read_json, write_json

pytestmark = pytest.mark.usefixtures("workplace")
SMOKE = ["preset=smoke", "device=cpu", "tracking=none"]


def answer(**changes) -> site.Answer:
    """Give what a sound probe found."""
    found = {
        **{"host": "n1", "time": 1000.0, "package": "/p", "code": code_digest(), "python": "/p/python", "locks": ""},
        **{"corpora": True, "free_bytes": 10**12, "driver": False, "wandb": "", "torch": "2.13", "gpus": []},
        "torch_error": "",
    }
    return site.Answer({**found, **changes}, asked_at=999.0, seen_at=1002.0)


def judged(overrides=(), **changes) -> list[str]:
    """Give the findings about such an answer."""
    cfg = compose.compose(["cluster=slurm", "preset=smoke", *overrides])
    return [str(finding) for finding in site.judge(resolved(cfg, cfg.device), answer(**changes))]


def test_a_sound_node_is_all_right():
    assert all(finding.startswith("ok ") for finding in judged())
    assert any("clock: n1's agrees to 3 s or better" in finding for finding in judged())


@pytest.mark.parametrize(
    ("overrides", "changes", "said"),
    [
        ([], {"locks": "No locks available"}, "ERROR   folder of runs: locks do not work on n1: No locks available"),
        ([], {"code": "other", "package": "/q"}, "ERROR   package: another one on n1: /q"),
        ([], {"time": 990.0}, "WARNING clock: n1's differs by 9 s"),
        ([], {"time": 1010.0}, "WARNING clock: n1's differs by 8 s"),
        ([], {"torch_error": "OSError: libcudart"}, "ERROR   torch: fails on n1: OSError: libcudart"),
        ([], {"driver": True}, "WARNING GPU: torch 2.13 on n1 can use 0 GPUs, but NVIDIA's driver is there"),
        (["cluster.gpus=2"], {"gpus": ["H200"]}, "ERROR   GPU: torch 2.13 on n1 can use 1 GPUs, H200, 2 needed"),
        (["cluster.gpus=2"], {"gpus": ["H200", "H200"]}, "ok      GPU: torch 2.13 on n1 can use 2 GPUs, H200, H200"),
        (["tracking.mode=online"], {"wandb": "timed out"}, "WARNING W&B: not reached from n1: timed out"),
        (["tracking.mode=online"], {}, "ok      W&B: answers n1"),
        ([], {"free_bytes": 10**6}, "ERROR   disk: 1 runs keep "),
    ],
)
def test_what_would_fail_is_said(overrides, changes, said):
    assert any(finding.startswith(said) for finding in judged(overrides, **changes)), judged(overrides, **changes)


def test_corpora_that_a_node_does_not_see_are_said(workplace, monkeypatch):
    monkeypatch.setenv("ABLATE_DATA", str(workplace))
    assert any(f"corpora: {workplace} is not seen on n1" in finding for finding in judged(corpora=False))


def test_checkpoints_are_parameters_and_two_moments_of_four_bytes(monkeypatch):
    monkeypatch.setattr(site, "count_parameters", lambda model, vocab_size: 10**9)
    settings = ["+sweep=row_B", "seeds=2", "keep_checkpoints=5"]
    cfg = compose.compose(["cluster=slurm", "preset=smoke", *settings])
    # 3 rows × 2 seeds × 10⁹ parameters × 3 × 4 bytes × 5 checkpoints
    finding = site.judge_disk(cfg, answer(free_bytes=361 * 10**9).found)
    assert str(finding) == "ok      disk: 6 runs keep 360.00 GB of checkpoints, 361.00 GB are free (n1)"
    assert site.judge_disk(cfg, answer(free_bytes=359 * 10**9).found).level == "error"


def test_this_machine_is_looked_at_by_a_process_as_a_worker_is(capsys):
    assert doctor.main([*SMOKE, "cluster=local"]) == 0
    said = capsys.readouterr().out
    assert f"folder of runs: {Path('runs').absolute()} is seen on" in said
    assert "torch: torch 2." in said
    assert "disk: 1 runs keep" in said
    assert list(Path("runs/slurm").iterdir()) == []


def test_a_process_that_does_not_answer_in_time_is_an_error(monkeypatch, capsys):
    monkeypatch.setattr(site, "PATIENCE_S", 0.0)
    assert doctor.main([*SMOKE, "cluster=local"]) == 1
    assert f"ERROR   worker: a process of {sys.executable} does not answer within 0 s" in capsys.readouterr().out


def test_a_folder_of_runs_that_cannot_be_made_is_an_error(capsys):
    Path("runs").write_text("a file")
    assert doctor.main([*SMOKE, "cluster=local"]) == 1
    assert "ERROR   folder of runs: " in capsys.readouterr().out


def test_a_probe_sees_whether_locks_work_and_writes_for_its_node(workplace, monkeypatch):
    write_json(workplace / probe.QUESTION, {"corpora": str(workplace), "runs": ".", "wandb": None})
    monkeypatch.setenv("SLURM_NODEID", "1")
    with lock(workplace / probe.LOCK):
        probe.answer(str(workplace))
    found = read_json(workplace / "answer.1.json")
    assert (found["locks"], found["corpora"], found["code"]) == ("", True, code_digest())
    assert abs(found["time"] - time.time()) < 60
    assert probe.locks(workplace / probe.LOCK) != ""  # nobody holds it, as a file system without locks would have it
    monkeypatch.setenv("SLURM_LOCALID", "1")
    monkeypatch.setenv("SLURM_NODEID", "2")
    probe.answer(str(workplace))
    assert not (workplace / "answer.2.json").exists()


def test_a_server_that_answers_anything_is_reached():
    class Refusing(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_error(404)

        def log_message(self, *arguments):
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.handle_request)
        thread.start()
        assert probe.unreachable(f"http://127.0.0.1:{server.server_port}") == ""
        thread.join()
        port = server.server_port
    assert "refused" in probe.unreachable(f"http://127.0.0.1:{port}")
    assert probe.unreachable("nonsense") != ""


@pytest.fixture
def slurm_like(commands, monkeypatch) -> Commands:  # noqa: F811
    """Stand in for a SLURM whose jobs never start."""
    monkeypatch.setattr(slurm, "PAUSE_S", 0.01)
    monkeypatch.setattr(site, "PATIENCE_S", 0.5)
    for name, script in {
        "sbatch": "echo Submitted batch job 12",
        "scontrol": "echo 'JobId=12 Requeue=0 JobState=PENDING'",
        "squeue": "echo '12|doctor|PENDING|PartitionDown'",
        "scancel": "",
        "srun": "",
    }.items():
        commands.add(name, script)
    return commands


def test_a_job_that_does_not_start_is_a_warning_with_slurm_s_reason_and_is_cancelled(slurm_like, capsys):  # S8
    assert doctor.main([*SMOKE, "cluster=slurm"]) == 0
    said = capsys.readouterr().out
    assert "WARNING requeue: not allowed" in said
    assert "WARNING job: job 12 pending, PartitionDown: it did not start within" in said
    assert slurm_like.calls("scancel") == ["12"]


def test_a_job_that_ends_without_an_answer_is_an_error_with_what_it_printed(slurm_like, capsys):
    slurm_like.add(
        "sbatch", "for last; do :; done; echo 'No module named ablate' > $(dirname $last)/12_0_log.out; echo job 12"
    )
    slurm_like.add("squeue", "echo '12|doctor|FAILED|NonZeroExitCode'")
    assert doctor.main([*SMOKE, "cluster=slurm"]) == 1
    assert (
        "ERROR   job: job 12 failed, and no answer came; it printed\n        No module named ablate"
        in capsys.readouterr().out
    )


def test_what_slurm_refuses_is_an_error(slurm_like, workplace, monkeypatch, capsys):
    slurm_like.add("sbatch", "echo 'Batch job submission failed: Job violates policy' >&2; exit 1")
    assert doctor.main([*SMOKE, "cluster=slurm"]) == 1
    assert "Job violates policy" in capsys.readouterr().out
    assert slurm_like.calls("scancel") == []
    monkeypatch.setenv("PATH", str(workplace))
    assert doctor.main([*SMOKE, "cluster=slurm"]) == 1
    assert "ERROR   SLURM: cluster.name='slurm': needs SLURM's commands" in capsys.readouterr().out
