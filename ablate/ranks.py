"""The processes that do one run together, one per GPU, as one of them sees it. The work is `parallel`'s."""

import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from ablate.rundir import RunDir, write_json

VARIABLE = "ABLATE_RANKS"  # of the environment: which rank a worker is


@dataclass(frozen=True)
class Ranks:
    """One process's place among those of a run."""

    rank: int = 0  # of this process; 0 leads: it holds the run's lock and alone writes into its folder
    count: int = 1  # processes of the run
    local: int = 0  # place among those on this machine: which GPU it takes
    num_nodes: int = 1  # machines
    meeting: str = ""  # names the attempt, so that nobody joins the processes of another

    @classmethod
    def on_this_machine(cls, count: int) -> "list[Ranks]":
        """Name the processes of a new attempt that all run here."""
        meeting = secrets.token_hex(4)
        return [cls(rank, count, rank, 1, meeting) for rank in range(count)]

    @classmethod
    def of_environment(cls, environment: Mapping[str, str] = os.environ) -> "Ranks":
        """Read what `environment` wrote; a process by itself where there is nothing.

        SLURM's variables are not looked at: a worker of a local pool inside an allocation is by itself.
        """
        text = environment.get(VARIABLE)
        return cls(**json.loads(text)) if text else cls()

    @classmethod
    def of_slurm(cls, environment: Mapping[str, str] = os.environ) -> "Ranks":
        """Read a task's place in its job step; for what was submitted to be one task per rank.

        Raises:
            KeyError: outside a job step.
        """
        said = {"SLURM_RESTART_COUNT": "0", **environment}  # a requeued job keeps its number
        rank, count, local, num_nodes, job, step, restart = (
            int(said[f"SLURM_{name}"])
            for name in ("PROCID", "NTASKS", "LOCALID", "NNODES", "JOB_ID", "STEP_ID", "RESTART_COUNT")
        )
        return cls(rank, count, local, num_nodes, f"{job}.{step}.{restart}")

    def environment(self) -> dict[str, str]:
        """Write this place for a process that `of_environment` is called in."""
        return {VARIABLE: json.dumps(asdict(self))}

    def dismiss(self, run: RunDir, code: int) -> int:
        """Tell the other ranks, before any meeting, that there is nothing to do; gives the exit code that they get."""
        if self.count > 1:
            write_json(run.meeting(self.meeting), {"exit": code}, durable=False)
        return code


ALONE = Ranks()  # the only process of its run
