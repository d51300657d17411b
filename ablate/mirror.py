"""W&B's copy of a run, online or in files beside the run, for `ablate.sync`. With `account` the door to wandb.

metrics.jsonl and record.json are the truth: whatever goes wrong here is said, and training goes on.
"""

import json
import shutil
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import psutil

from ablate.config import Config
from ablate.fragments import sign_of, unsent
from ablate.rundir import RunDir, write_text
from ablate.spawn import STOPPED

START_S = 20  # how long W&B's server may keep a run waiting at its start
FINISH_S = 20  # the same at its end, for what is not sent yet
FINISH_WITH_MODEL_S = 600  # for a run that is done; a stopped one has no model yet, and perhaps little time
GRACE_S = 5  # after that it is ended: while a table or a model waits to be sent, W&B 0.31 heeds no limit of its own
FLUSH_S = 0.5  # how much of the mirror a killed attempt may lose; `wandb leet` sees the rest meanwhile


def run_id(fingerprint: str, seed: int) -> str:
    """Name a run as W&B knows it: every attempt at it is one run there."""
    return f"{fingerprint}-{seed}"


def group(sweeps: list[str], row: str) -> str:
    """Name what belongs together on W&B, the seeds of a row: `row_A/A_h4`; by the row alone outside a sweep."""
    return "/".join(part for part in ("+".join(sweeps), row) if part)[-128:]  # W&B takes no more


def begin(run: RunDir, cfg: Config, identity: dict[str, Any], online: bool) -> Any:
    """Begin or go on with a run of W&B's, in files of its own; gives W&B's object for it."""
    import wandb  # here: it takes half a second, and tracking=none does without

    tags = (cfg.preset, cfg.row.block, f"seed{cfg.seed}")
    # W&B 0.31 imports its launcher of jobs and its public interface there, 0.4 s of every run, and finds no job.
    wandb.Run._detect_and_apply_job_inputs = lambda run: None
    begun = wandb.init(
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
            finish_timeout=FINISH_WITH_MODEL_S if cfg.tracking.model_artifact else FINISH_S,
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
    if online:
        write_text(run.wandb_url, begun.url)
    # Our own step is the axis: a resumed run logs earlier steps again, which W&B's own counter would drop.
    begun.define_metric("*", step_metric="trainer_step")
    return begun


def end_service(run: Any) -> None:
    """End W&B's own process, which would go on trying to send; what it was told is in its files.

    Args:
        run: W&B's object; None if it never gave one.
    """
    import wandb

    if checker := getattr(run, "_run_status_checker", None):
        checker.stop()  # its threads ask the service every five seconds, and would not find it
    services = [child for child in psutil.Process().children() if child.name() == "wandb-core"]
    for service in services:
        service.suspend()  # or it would end a run twice in its file, which W&B's sync then refuses
    with suppress(Exception, SystemExit):  # it would have us exit with the service's code
        within(1, wandb.teardown)
    for service in services:
        service.kill()


def within(seconds: int, do: Callable[[], object]) -> None:
    """Do something that may hang, in a thread that is then left alone.

    Raises:
        TimeoutError: if it takes longer; else whatever it raises.
    """
    raised: list[BaseException] = []

    def work() -> None:
        try:
            do()
        except BaseException as err:
            raised.append(err)

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"no end after {seconds} s")
    if raised:
        raise raised[0]


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
    """One attempt's part of a run on W&B.

    Where W&B does not take something while online, the attempt goes on offline, in further files of W&B's; where it
    does not take something offline, it is left alone.
    """

    def __init__(
        self, run: RunDir, cfg: Config, identity: dict[str, Any], attempt: int, say: Callable[[str], None]
    ) -> None:
        """Begin; see `start`."""
        self.run, self.cfg, self.identity, self.attempt, self.say = run, cfg, identity, attempt, say
        self.online = cfg.tracking.mode == "online"
        self.wandb: Any = None
        if self.online:
            write_text(run.needs_sync, "tracking=wandb: W&B may lack a part of this run; python -m ablate.sync\n")
        run.wandb.mkdir(parents=True, exist_ok=True)
        self.open()

    def open(self) -> None:
        """Begin, or begin again offline."""
        earlier = set(self.run.wandb.glob("run-*"))
        try:
            self.wandb = begin(self.run, self.cfg, self.identity, self.online)
        except Exception as err:  # whatever it is: a run is worth more than its mirror
            self.fail(err)
            for left in set(self.run.wandb.glob("run-*")) - earlier:
                shutil.rmtree(left, ignore_errors=True)  # nothing was logged to it

    def fail(self, err: Exception) -> None:
        """Go on offline, or, where this was so already, do without W&B."""
        run, self.wandb = self.wandb, None
        if not self.online:
            self.say(f"W&B takes no more of this run ({one_line(err)}); metrics.jsonl is complete")
            return
        self.say(f"W&B does not take this run ({one_line(err)}); going on offline: this run needs sync")
        self.online = False
        end_service(run)
        self.open()

    def do(self, what: Callable[[Any], object]) -> None:
        """Do something with W&B's run."""
        if self.wandb is None:
            return
        try:
            what(self.wandb)
        except Exception as err:  # as above
            self.fail(err)
            self.do(what)

    def log(self, step: int, numbers: dict[str, Any]) -> None:
        """Pass on the numbers of one step."""
        self.do(lambda run: run.log({"trainer_step": step, "attempt": self.attempt, **numbers}))

    def result(self, record: dict[str, Any], sentences: Sequence[tuple[str, str, str]]) -> None:
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
            if self.cfg.tracking.model_artifact:
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
        run, self.wandb = self.wandb, None
        if run is None:
            return
        patience_s = FINISH_WITH_MODEL_S if self.cfg.tracking.model_artifact and exit_code == 0 else FINISH_S
        try:
            within(patience_s + GRACE_S, lambda: run.finish(exit_code=exit_code))
        except Exception as err:  # as above
            self.say(f"W&B does not have all of this run ({one_line(err)}): it needs sync; metrics.jsonl is complete")
            end_service(run)
            return
        if self.online:
            sign_of(Path(run.settings.sync_file)).touch()
            if not unsent(self.run):
                self.run.needs_sync.unlink(missing_ok=True)


def start(
    run: RunDir, cfg: Config, identity: dict[str, Any], attempt: int, say: Callable[[str], None]
) -> Mirror | None:
    """Start W&B's copy of one attempt at a run.

    Args:
        run: W&B's files lie in its folder.
        cfg: frozen; W&B shows all of it as the run's configuration.
        identity: the run's identity.json.
        attempt: 1 for the first, one more for each resume; all of them are one run on W&B.
        say: told when the mirror is not what was asked for.

    Returns:
        The mirror; None if none is wanted.
    """
    return None if cfg.tracking.mode == "none" else Mirror(run, cfg, identity, attempt, say)
