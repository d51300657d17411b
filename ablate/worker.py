"""Do one run, from its frozen folder: train, evaluate, write the record. Composes nothing.

`python -m ablate.worker RUN` is what the local pool and a cluster's job start, once for each rank. Exit codes: 0 the
record is there, 1 the run failed (error.txt says why), 3 another process has the run, 75 stopped at a checkpoint: start
it again.
"""

import gc
import os
import sys
import time
import traceback
from pathlib import Path

from ablate import frozen
from ablate.errors import ConfigError
from ablate.ranks import ALONE, Ranks
from ablate.rundir import Held, RunDir, lock, read_json, say, write_text
from ablate.spawn import DONE, FAILED, HELD, STOPPED
from ablate.stop import StopFlag, Stopped

LOCK_PATIENCE_S = 2  # whoever only looks whether a run is taken holds its lock for a moment
ERROR_PATIENCE_S = 5  # what ended another rank may take so long to be seen here


def main(argv: list[str] | None = None) -> int:
    """Do the run in the folder given; returns the exit code."""
    arguments = sys.argv[1:] if argv is None else argv
    if len(arguments) != 1 or arguments[0].startswith("-"):
        print(__doc__)
        return 0 if arguments in (["-h"], ["--help"]) else 2
    run = RunDir(Path(arguments[0]))
    if not run.config.is_file():
        print(f"error: RUN={arguments[0]!r}: no such run; give a folder that holds {run.config.name}", file=sys.stderr)
        return 2
    stop = StopFlag()
    stop.listen()
    if os.environ.get("ABLATE_WATCH_PARENT"):
        stop.watch_parent()
    stop.watch_file(run.cancelled)
    ranks = Ranks.of_environment()
    code = take(run, stop, ranks)
    if ranks.count > 1:
        sys.stdout.flush()
        os._exit(code)  # a sum that still waits for a lost rank must not keep this process
    return code


def take(run: RunDir, stop: StopFlag, ranks: Ranks = ALONE) -> int:
    """Take part in a run. Rank 0 takes its lock, or tells the others that another process has it.

    Args:
        run: frozen.
        stop: asked after every update, and more often while decoding.
        ranks: this process's place among those that do the run together; alone if nothing is said.

    Returns:
        The exit code; on the other ranks that of rank 0, unless one of them is lost.
    """
    if ranks.rank > 0:
        return do(run, stop, ranks)
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            with lock(run.lock):
                return ranks.dismiss(run, DONE) if run.record.exists() else do(run, stop, ranks)
        except Held as err:
            if stop():
                return ranks.dismiss(run, STOPPED)
            if time.monotonic() > deadline:
                say(f"not started: {err} has this run")
                return ranks.dismiss(run, HELD)
            time.sleep(0.2)


def do(run: RunDir, stop: StopFlag, ranks: Ranks) -> int:
    """Do the run, its lock held by rank 0; whatever goes wrong ends up in error.txt."""
    ours = ranks.rank == 0  # the run; for the other ranks not before rank 0, which has the lock, has called them
    if ours:
        run.error.unlink(missing_ok=True)
        run.sweep()
    try:
        load_libraries()
        from ablate import attempt
        from ablate.parallel import Dismissed, Lost, meet, take_gpu

        cfg = frozen.load(run.config)
        if ranks.count != cfg.cluster.ranks:
            raise ConfigError("cluster.ranks", cfg.cluster.ranks, f"but {ranks.count} were started", str(run.config))
        try:
            with meet(run, ranks, cfg.device, stop) as group:
                ours = True
                if group.count > 1 and cfg.device == "cuda":
                    take_gpu(ranks)
                if group.rank:
                    attempt.assist(run, cfg, stop, group)
                    return group.until_end(stop)
                try:
                    attempt.lead(run, cfg, stop, group)
                except Stopped:
                    return group.end(halt(run, stop.reason, ranks))
                return group.end(DONE)
        except Dismissed as err:
            return err.code
        except Stopped:
            return halt(run, stop.reason, ranks)
        except Lost as err:
            say(f"rank {ranks.rank}: {err} ({err.__cause__})")
            return FAILED if error_comes(run) else halt(run, str(err), ranks)
    except Exception as err:
        if ours and not run.error.exists():  # else another rank was first, and that may be why this one fails
            write_text(run.error, f"{type(err).__name__}: {err}\n\n{traceback.format_exc()}")
        traceback.print_exc()
        return FAILED


def load_libraries() -> None:
    """Import torch and what needs it, out of the garbage collector's sight; not before the run is ours.

    It would look through all of that while it is imported and again when the process ends: 0.6 s of every run.
    """
    gc.disable()
    try:
        import ablate.attempt  # noqa: F401
    finally:
        gc.freeze()
        gc.enable()


def halt(run: RunDir, reason: str, ranks: Ranks) -> int:
    """Leave word that the run stopped, and why; gives the exit code."""
    if ranks.rank == 0:
        last = read_json(run.heartbeat) or {}  # where it stands
        run.beat(**{**last, "state": "stopped", "reason": reason})
    return STOPPED


def error_comes(run: RunDir) -> bool:
    """Tell whether the rank that was lost failed and wrote down why, or was killed; the file may take a moment."""
    deadline = time.monotonic() + ERROR_PATIENCE_S
    while not run.error.exists() and time.monotonic() < deadline:
        time.sleep(0.2)
    return run.error.exists()


if __name__ == "__main__":
    sys.exit(main())
