import os
import re
import sys
from pathlib import Path

import pytest
from commands import commands  # noqa: F401 – a fixture
from test_submit import ask, scripts, site  # noqa: F401 – a fixture
from tiny import quiet

from ablate import submit
from ablate.errors import ConfigError
from ablate.ledger import open_job

pytestmark = pytest.mark.usefixtures("workplace")
RECORDED = Path(__file__).with_name("batch_script.txt")


def test_the_batch_script_is_as_recorded(site):  # noqa: F811 – S10
    """The recorded script was written by this code and read line by line against sbatch's manual."""
    submit.submit(
        ask(
            *("+row=A_h4", "seeds=2", "cluster.partition=gpu", "cluster.account=lab", "cluster.qos=long"),
            *("cluster.constraint=nvme", "cluster.nodes=2", "cluster.gpus=4", "cluster.gpu_type=h200"),
            *("cluster.cpus=6", "cluster.mem_gb=1.5", "cluster.timeout_min=90", "cluster.stop_before_s=120"),
            *("cluster.max_parallel=1", "cluster.setup=['module load cuda','ulimit -c 0']"),
            "cluster.sbatch=['--exclude=n7','--exclusive']",
        ),
        quiet,
    )
    (text,) = scripts()
    folder = next(Path("runs/slurm").absolute().glob("ablate-*"))
    said = text.replace(str(folder), "FOLDER").replace(folder.name, "NAME").replace(sys.executable, "PYTHON")
    assert said == RECORDED.read_text()


def test_a_null_field_is_left_to_the_site(site):  # noqa: F811
    submit.submit(ask(), quiet)
    options = set(re.findall(r"#SBATCH --([\w-]+)", scripts()[0]))
    assert options == {
        *("cpus-per-task", "job-name", "nodes", "ntasks-per-node", "open-mode", "output", "requeue", "signal", "time"),
        "wckey",  # submitit's own
    }


@pytest.mark.parametrize(
    ("refusal", "asked", "said"),
    [
        (
            "invalid partition specified: gppu",
            "partition=gppu",
            "partition='gppu': did you mean 'gpu'? valid: cpu, gpu",
        ),
        (
            "Invalid account or account/partition combination specified",
            "account=lbb",
            "account='lbb': did you mean 'lab'?",
        ),
        ("Invalid qos specification", "qos=lnog", "qos='lnog': valid: lab, other"),
        ("Invalid feature specification", "constraint=a10", "constraint='a10': valid: cpu, gpu"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "timeout_min=900", "timeout_min=900: "),
        ("Requested node configuration is not available", "gpus=9", "nodes, gpus, gpu_type, cpus or mem_gb: "),
        ("More processors requested than permitted", "cpus=9", "nodes, gpus, gpu_type, cpus or mem_gb: "),
        ("Job violates accounting/QOS policy", "cpus=1", "name='slurm': "),
    ],
)
def test_what_the_site_refuses_is_explained_with_what_it_has(site, refusal, asked, said):  # noqa: F811
    site.add("sbatch", f"echo 'sbatch: error: Batch job submission failed: {refusal}' >&2; exit 1")
    site.add("sinfo", "printf 'gpu\ncpu\ngpu\n'")
    site.add("sacctmgr", "printf 'lab\nother\n'")
    planned = ask(f"cluster.{asked}")
    with pytest.raises(ConfigError) as refused:
        submit.submit(planned, quiet)
    assert str(refused.value).startswith(f"cluster.{said}")
    assert refusal in str(refused.value)
    assert open_job(planned.runs[0].run) is None  # so that the next command submits it


def test_a_job_does_not_inherit_the_job_that_submits_it(site, monkeypatch):  # noqa: F811
    for name in ("SLURM_JOB_ID", "SLURM_MEM_PER_CPU", "SBATCH_TIMELIMIT", "SBATCH_PARTITION", "SBATCH_QOS"):
        monkeypatch.setenv(name, "outer")
    monkeypatch.setenv("ABLATE_RANKS", '{"rank": 1}')
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    site.add("sbatch", f"env > {site.folder}/env; echo Submitted batch job 10")
    submit.submit(ask("cluster.partition=gpu"), quiet)
    seen = dict(line.partition("=")[::2] for line in (site.folder / "env").read_text().splitlines())
    names = {name for name in seen if name.startswith(("SLURM", "SBATCH", "ABLATE_R"))}
    assert names == {"SLURM_CONF", "SBATCH_QOS"}  # the user's own default, for a field that says nothing
    assert os.environ["SLURM_JOB_ID"] == os.environ["SBATCH_PARTITION"] == "outer"  # here they are as before
