"""Tiny runs, submitted as the command does it, and what happens to them."""

import os
from pathlib import Path

from rich.console import Console
from tiny import TINY, wait_until

from ablate import ledger, record, run
from ablate.named import find
from ablate.rundir import RunDir, read_json

MANY = int(os.environ.get("ABLATE_SLURM_RUNS", "26"))  # runs at once; by itself two arrays
SLURM = ["cluster=slurm", "cluster.timeout_min=10", "cluster.mem_gb=1"]
# Until `hurry`, in slow motion; as a user prepares a node.
SLOW = [*SLURM, f"cluster.setup=['export PYTHONPATH=\"{Path(__file__).parent / 'slow'}:$PYTHONPATH\"']"]
LONG = ["optim.train_steps=100000", "optim.batch_tokens=128", "optim.eval_every_steps=20"]  # 60 updates: slowly, 30 s


def command(*overrides: str) -> tuple[int, str]:
    """Do the command in this process; gives its exit code and what it said."""
    said: list[str] = []
    with open(os.devnull, "w") as nowhere:
        console = Console(record=True, width=200, file=nowhere)
        code = run.do([*TINY, *overrides], False, said.append, console)
        return code, "\n".join([*said, console.export_text()])


def hurry() -> None:
    """End the slow motion of the runs that are submitted from here."""
    Path("hurry").touch()


def runs(root: str = "runs") -> dict[str, RunDir]:
    """Give the runs in a folder, by row."""
    return {one.path.parts[-3]: one for one in find(Path(root).absolute())}


def records(root: str = "runs") -> dict[str, record.Record]:
    """Give what is comparable of the records in a folder, by row."""
    return {row: record.comparable(done) for row, one in runs(root).items() if (done := record.read(one))}


def events(one: RunDir, event: str) -> list[dict[str, object]]:
    """Give the lines of one kind of a run's `jobs.jsonl`."""
    return [line for line in ledger.history(one) if line["event"] == event]


def job_of(one: RunDir) -> str:
    """Give the number of the job that a run was started by last."""
    return str(events(one, "started")[-1]["job"])


def wait_for_update(one: RunDir, step: int) -> int:
    """Wait until a run's worker has done so many updates; gives its process number."""

    def there() -> bool:
        beat = read_json(one.heartbeat) or {}
        return beat.get("state") == "training" and beat["step"] >= step

    wait_until(there, f"update {step} of {one.path}")
    return int(read_json(one.heartbeat)["pid"])
