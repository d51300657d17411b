"""W&B's copy of a run, online or in files beside the run, for `ablate.sync`. With `account` the door to wandb.

metrics.jsonl and record.json are the truth: whatever goes wrong here is said, and training goes on.
"""

import json
import shutil
from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ablate.config import Config
from ablate.rundir import RunDir, write_text

START_S = 20  # how long W&B's server may keep a run waiting at its start
FINISH_S = 20  # the same at its end, for what is not sent yet
FINISH_WITH_MODEL_S = 600
FLUSH_S = 0.5  # how much of the mirror a killed attempt may lose; `wandb leet` sees the rest meanwhile
STOPPED = 75  # the exit code of a run that will go on


def run_id(fingerprint: str, seed: int) -> str:
    """Name a run as W&B knows it: every attempt at it is one run there."""
    return f"{fingerprint}-{seed}"


def group(sweeps: list[str], row: str) -> str:
    """Name what belongs together on W&B, the seeds of a row: `row_A/A_h4`; by the row alone outside a sweep."""
    return "/".join(part for part in ("+".join(sweeps), row) if part)[-128:]  # W&B takes no more


def start(
    run: RunDir, cfg: Config, identity: dict[str, Any], attempt: int, say: Callable[[str], None] = print
) -> "Mirror | None":
    """Start W&B's copy of one attempt at a run; offline, with a word, if the server does not answer in time.

    Args:
        run: W&B's files lie in its folder.
        cfg: frozen; W&B shows all of it as the run's configuration.
        identity: the run's identity.json.
        attempt: 1 for the first, one more for each resume; all of them are one run on W&B.
        say: told when the mirror is not what was asked for.

    Returns:
        The mirror; None if none is wanted, or none can be had.
    """
    if cfg.tracking.mode == "none":
        return None
    online = cfg.tracking.mode == "online"
    if online:
        write_text(run.needs_sync, "tracking=wandb: W&B may lack a part of this run; python -m ablate.sync\n")
    import wandb  # here: it takes half a second, and tracking=none does without

    earlier = set(run.wandb.glob("run-*"))
    run.wandb.mkdir(parents=True, exist_ok=True)
    try:
        try:
            return Mirror(run, cfg, identity, attempt, say, online)
        except Exception as err:
            if not online:
                raise
            say(f"W&B does not answer ({one_line(err)}); going on offline: this run needs sync")
            wandb.teardown()  # or its service would say that the run's id is in use
            for left in set(run.wandb.glob("run-*")) - earlier:
                shutil.rmtree(left)  # nothing was logged to it
            return Mirror(run, cfg, identity, attempt, say, online=False)
    except Exception as err:  # whatever it is: a run is worth more than its mirror
        say(f"W&B does not start ({one_line(err)}); going on without: metrics.jsonl is complete")
        return None


def one_line(err: Exception) -> str:
    """Say what an error of W&B is in one line."""
    return " ".join(f"{type(err).__name__}: {err}".split())


def summary(record: dict[str, Any]) -> dict[str, Any]:
    """Pick out of a record what W&B's table of runs shows: scores, signatures, both counts, the paper's, and timing."""
    found = {name: value for name, value in record["dev"].items() if name != "history"}
    found |= {f"test_{name}": value for name, value in record.get("test", {}).items()}
    found |= {f"params_{name}": value for name, value in record["params"].items()}
    found |= {f"paper_{name}": value for name, value in record["paper"].items()}
    return {name: value for name, value in (found | record["timing"]).items() if value is not None}


class Mirror:
    """One attempt's part of a run on W&B."""

    def __init__(
        self,
        run: RunDir,
        cfg: Config,
        identity: dict[str, Any],
        attempt: int,
        say: Callable[[str], None],
        online: bool,
    ):
        """Start it; see `start`."""
        import wandb

        self.run, self.attempt, self.say, self.online = run, attempt, say, online
        self.sends_model = cfg.tracking.model_artifact
        tags = (cfg.preset, cfg.row.block, f"seed{cfg.seed}")
        # W&B 0.31 imports its launcher of jobs and its public interface there, 0.4 s of every run, and finds no job.
        wandb.Run._detect_and_apply_job_inputs = lambda run: None
        self.wandb: Any = wandb.init(
            mode="online" if online else "offline",
            dir=str(run.path),
            project=cfg.tracking.project,
            entity=cfg.tracking.entity,
            id=run_id(identity["fingerprint"], cfg.seed),
            name=f"{cfg.row.name} seed {cfg.seed}",
            group=group(identity["sweeps"], cfg.row.name),
            job_type="train",
            tags=[tag[:64] for tag in tags if tag],  # W&B takes no more
            config={**asdict(cfg), "fingerprint": identity["fingerprint"], "digests": identity["digests"]},
            resume="allow",  # W&B continues the numbers of the attempts before, also when they are sent later
            reinit="create_new",  # several runs in one process are several runs
            settings=wandb.Settings(
                init_timeout=START_S,
                finish_timeout=FINISH_WITH_MODEL_S if self.sends_model else FINISH_S,
                finish_timeout_raises=True,
                silent=True,
                console="off",
                disable_git=True,  # provenance.json has the commit, the packages and the machine
                save_code=False,
                x_save_requirements=False,
                x_disable_stats=True,
                x_disable_machine_info=True,
                x_transaction_log_flush_interval=FLUSH_S,
            ),
        )
        # Our own step is the axis: a resumed run logs earlier steps again, which W&B's own counter would drop.
        self.wandb.define_metric("*", step_metric="trainer_step")

    def log(self, step: int, numbers: dict[str, Any]) -> None:
        """Pass on the numbers of one step."""
        self.do(lambda run: run.log({"trainer_step": step, "attempt": self.attempt, **numbers}))

    def result(self, record: dict[str, Any], sentences: Iterable[tuple[str, str, str]]) -> None:
        """Show what a finished run says of itself, its translations, and send its model if that is asked for.

        Args:
            record: the run's, with its schema.
            sentences: source, reference and translation of each sentence of the dev set.
        """

        def show(run: Any) -> None:
            import wandb

            table = wandb.Table(columns=["src", "reference", "translation"], data=[list(one) for one in sentences])
            run.summary.update({**summary(record), "record": json.dumps(record)})  # whole, for `account.download`
            run.log({"trainer_step": record["train"]["steps"], "attempt": self.attempt, "dev_translations": table})
            if self.sends_model:
                model = wandb.Artifact(f"model-{run.id}", "model", metadata={"checkpoint": record["checkpoint"]})
                for step in record["checkpoint"]["steps"]:
                    folder = self.run.checkpoints / f"step-{step:06d}"
                    model.add_dir(str(folder), folder.name, policy="immutable", skip_cache=True)  # no copy
                run.log_artifact(model)

        self.do(show)

    def finish(self, exit_code: int) -> None:
        """End this attempt: 0 for done, `STOPPED` for one that will go on, anything else for failed (W3).

        Where W&B has everything, the run does not need sync any more.
        """
        if exit_code == STOPPED:
            self.do(lambda run: run.mark_preempting())
        self.do(lambda run: run.finish(exit_code=exit_code))
        if self.wandb is not None and self.online:
            Path(f"{self.wandb.settings.sync_file}.synced").touch()  # W&B's own sign, which its sync heeds
            if not unsent(self.run):
                self.run.needs_sync.unlink(missing_ok=True)
        self.wandb = None

    def do(self, what: Callable[[Any], object]) -> None:
        """Do something with W&B's run; after the first failure nothing any more."""
        if self.wandb is None:
            return
        try:
            what(self.wandb)
        except Exception as err:  # whatever it is: a run is worth more than its mirror
            self.wandb = None
            self.say(f"W&B did not take all of this run ({one_line(err)}); metrics.jsonl is complete")


def fragments(run: RunDir) -> list[Path]:
    """List W&B's files of a run, one per attempt, oldest first; without those of attempts killed before they began."""

    def begun(path: Path) -> bool:
        with open(path, "rb") as file:
            return path.stem.removeprefix("run-").encode() in file.read(65536)  # the id is in its first record but one

    found = [path for path in run.wandb.glob("*run-*/run-*.wandb") if not path.parent.is_symlink() and begun(path)]
    return sorted(found, key=lambda path: path.parent.name.removeprefix("offline-"))  # …run-<date>_<time>-<id>


def unsent(run: RunDir) -> list[Path]:
    """List those of W&B's files of a run that were not sent to the end."""
    return [path for path in fragments(run) if not Path(f"{path}.synced").exists()]
