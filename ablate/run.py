"""The command: compose → plan → launch → table. `python -m ablate.run --help`."""

import os
import sys
import time
from collections.abc import Callable

import hydra
from hydra.core.hydra_config import HydraConfig
from omegaconf import DictConfig
from rich.console import Console

from ablate import __version__, submit, table
from ablate.account import log_in
from ablate.compose import COMPOSE_ERRORS, check_choices, explain, root
from ablate.config import SlurmCluster
from ablate.cost import describe
from ablate.launch import Outcome, freeze, launch, num_workers
from ablate.plan import Plan, look_again, plan_from
from ablate.refuse import refuse
from ablate.results import refuse_unlike
from ablate.slurm import Unreachable
from ablate.spawn import STOPPED
from ablate.state import read_state
from ablate.status import duration, terminal

SETTLE_S = 10.0  # the workers of a launcher that was killed stop at their next update
INTERRUPTED = 130  # exit code, like STOPPED: not finished, nothing wrong; the same command continues
WORST_FIRST = (2, 1, INTERRUPTED, STOPPED)  # which exit code speaks for several jobs

WANTS_TRACE = "HYDRA_FULL_ERROR" in os.environ  # tracebacks instead of one line

exit_codes: list[int] = []  # one per job: -m runs several in one process


def do(overrides: list[str], plan_only: bool, say: Callable[[str], None], console: Console) -> int:
    """Plan what is asked for, do what is not done, print the table; gives the exit code."""
    plan = plan_from(overrides, prepare=not plan_only, say=say)
    submit.look_in_queue(plan.runs)
    cfg = plan.runs[0].cfg
    cluster = cfg.cluster
    on_slurm = isinstance(cluster, SlurmCluster)
    workers = (
        cluster.max_parallel * cluster.runs_per_job or len(plan.runs) if on_slurm else num_workers(cluster, cfg.device)
    )
    say(f"ablate {__version__}: preset {plan.preset}, {len(plan.rows)} rows × {plan.seeds} seeds, in {plan.runs_dir}")
    each = f"{cluster.ranks} processes of {cluster.threads}" if cluster.ranks > 1 else f"{cluster.threads}"
    say(f"device {cfg.device}, precision {cfg.precision}; {workers} runs at once, {each} CPU threads each")
    if plan.corpus:
        say(plan.corpus.describe())
    say(describe(plan, workers))
    if plan_only:
        return 0
    outcome = None
    refuse_unlike(plan)
    if plan.to_run:
        log_in(cfg.tracking.mode)
    if on_slurm:
        submit.submit(plan, say)
        going = [planned for planned in plan.runs if planned.state.name in ("queued", "running")]
        if going and not cluster.wait:
            say(submit.how_to_watch(going))
            return 0
        if not submit.wait(going, console):
            say("Interrupted. The jobs go on; the same command waits for them again.")
            return INTERRUPTED
        plan = look_again(plan)
        submit.look_in_queue(plan.runs)
    elif settle(plan).to_run:
        # Longest first, so that the workers end together.
        rest = sorted(plan.to_run, key=plan.hours, reverse=True)
        for planned in rest:
            freeze(planned)
        runs = {(planned.rows[0], planned.cfg.seed): planned.run for planned in rest}
        outcome = launch(runs, workers, console)
        plan = look_again(plan)
    say("\n" + table.write(table.build(plan), "md"))
    return conclude(plan, outcome, say)


def settle(plan: Plan) -> Plan:
    """Wait a moment for runs that others hold: the workers of a killed launcher are about to let go of theirs.

    Not for those that a job of SLURM's has, which holds no lock while it starts, or until its other runs have ended.
    """
    deadline = time.monotonic() + SETTLE_S
    held = [planned for planned in plan.runs if planned.state.name == "running"]
    while held and time.monotonic() < deadline:
        time.sleep(0.2)
        for planned in held:
            planned.state = read_state(planned.run)
        held = [planned for planned in held if planned.state.name == "running"]
    submit.look_in_queue(plan.runs)
    return plan


def conclude(plan: Plan, outcome: Outcome | None, say: Callable[[str], None]) -> int:
    """Say what is missing from the table and what to do about it; gives the exit code."""
    first = plan.runs[0].state.record
    if first is not None:
        timing = first["timing"]
        say(
            f"{first['row']} seed {first['seed']}: {timing['steps_per_s']:.1f} steps/s, "
            f"{timing['src_tgt_tokens_per_s']:,.0f} tokens/s (source + target, padding excluded), "
            f"trained in {duration(timing['train_s'])}, evaluated in {timing['evaluate_s']:.0f} s"
        )
    unfinished = [planned for planned in plan.runs if planned.state.name != "done"]
    for planned in unfinished:
        taken = planned.state.name == "running" and planned.run.lock.exists()
        by = f", not started here: {planned.run.lock.read_text('utf-8').strip()} has it" if taken else ""
        say(f"{planned.rows[0]} seed {planned.cfg.seed}: {planned.state.words}{by}; {planned.run.path}")
    if outcome and outcome.interrupted:
        say("Interrupted. The same command continues.")
        return INTERRUPTED
    failed = [planned for planned in unfinished if planned.state.name == "failed"]
    if failed:
        say("Failed runs are not repeated by themselves: python -m ablate.retry --failed")
        return 1
    if unfinished:
        say("The same command continues.")
        return STOPPED
    return 0


@hydra.main(config_path=str(root("conf")), config_name="config", version_base="1.3")
def job(cfg: DictConfig) -> None:
    """Do one job: what is on the command line, or one of the combinations of -m."""
    if INTERRUPTED in exit_codes:
        return  # Ctrl-C is meant for all jobs of -m
    console = terminal()

    def say(text: str) -> None:
        console.print(text, markup=False, soft_wrap=True)

    try:
        exit_codes.append(do(list(HydraConfig.get().overrides.task), bool(cfg.plan_only), say, console))
    except (ValueError, OSError, Unreachable) as err:  # OSError: a folder that cannot be written, a full disk
        if WANTS_TRACE:
            raise
        exit_codes.append(refuse(err))


def main() -> int:
    """Run the command; a setting that is wrong ends it before anything starts, in one line."""
    os.environ["HYDRA_FULL_ERROR"] = "1"  # hands us Hydra's errors, so that they can name the nearest valid field
    exit_codes.clear()
    try:
        check_choices(sys.argv[1:])
        job()
    except COMPOSE_ERRORS as err:
        if WANTS_TRACE:
            raise
        return refuse(explain(err))
    except ValueError as err:  # a setting, or what Hydra makes of one
        if WANTS_TRACE:
            raise
        return refuse(err)
    except KeyboardInterrupt:  # while planning; `launch` takes it otherwise
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    finally:
        if not WANTS_TRACE:
            del os.environ["HYDRA_FULL_ERROR"]  # or other commands, started by this process, would print tracebacks
    return next((code for code in WORST_FIRST if code in exit_codes), 0)


if __name__ == "__main__":
    sys.exit(main())
