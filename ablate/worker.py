"""Do one run, from its frozen folder: train, evaluate, write the record. Composes nothing.

`python -m ablate.worker RUN` is what the local pool and a cluster's job start. Exit codes: 0 the record is there, 1 the
run failed (error.txt says why), 3 another process has the run, 75 stopped at a checkpoint: start it again.
"""

import gc
import json
import os
import platform
import signal
import sys
import threading
import time
import traceback
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ablate import config, record
from ablate.config import Config
from ablate.rundir import Held, RunDir, lock, read_json, write_json, write_text

if TYPE_CHECKING:  # torch is imported once the run is ours, so that losing a race costs nothing
    from ablate.data.corpus import Corpus
    from ablate.evaluate import Perplexity
    from ablate.model.transformer import Transformer

DONE, FAILED, HELD, STOPPED = 0, 1, 3, 75
LOCK_PATIENCE_S = 2  # whoever only looks whether a run is taken holds its lock for a moment


class StopFlag:
    """Set by SIGTERM, SIGUSR2, SIGINT, or the end of the parent process; read at update boundaries only."""

    def __init__(self) -> None:
        self.reason = ""

    def __call__(self) -> bool:
        """Tell whether the run was asked to stop."""
        return bool(self.reason)

    def listen(self) -> None:
        """Listen to signals."""
        for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT):
            signal.signal(number, lambda received, frame: self.set(signal.Signals(received).name))

    def watch_parent(self) -> None:
        """Stop when standard input ends: the pool holds its other end, so even a killed pool leaves no orphans."""

        def wait() -> None:
            while os.read(0, 1024):
                pass
            self.set("the parent process ended")

        threading.Thread(target=wait, daemon=True).start()

    def set(self, reason: str) -> None:
        """Ask the run to stop."""
        self.reason = self.reason or reason


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
    return take(run, stop)


def take(run: RunDir, stop: StopFlag) -> int:
    """Take the run's lock and do the run, unless another process has it."""
    deadline = time.monotonic() + LOCK_PATIENCE_S
    while True:
        try:
            with lock(run.lock):
                return do(run, stop)
        except Held as err:
            if stop():
                return STOPPED
            if time.monotonic() > deadline:
                say(f"not started: {err} has this run")
                return HELD
            time.sleep(0.2)


def do(run: RunDir, stop: StopFlag) -> int:
    """Do the run, its lock held; whatever goes wrong ends up in error.txt."""
    if run.record.exists():
        return DONE
    run.error.unlink(missing_ok=True)
    run.sweep()
    try:
        load_libraries()
        from ablate.decode import Stopped

        try:
            execute(run, config.load(run.config), stop)
        except Stopped:
            last = read_json(run.heartbeat) or {}  # where it stands
            beat(run, **{**last, "state": "stopped", "reason": stop.reason})
            return STOPPED
    except Exception as err:
        write_text(run.error, f"{type(err).__name__}: {err}\n\n{traceback.format_exc()}")
        traceback.print_exc()
        return FAILED
    return DONE


def load_libraries() -> None:
    """Import torch and what needs it, out of the garbage collector's sight.

    It would look through all of that while it is imported and again when the process ends: 0.6 s of every run.
    """
    gc.disable()
    try:
        import ablate.track
        import ablate.train  # noqa: F401
    finally:
        gc.freeze()
        gc.enable()


def execute(run: RunDir, cfg: Config, stop: StopFlag) -> None:
    """Train, translate the dev set, score it, write the record."""
    import torch

    from ablate.data import corpus as corpora
    from ablate.decode import Stopped
    from ablate.model.transformer import Transformer
    from ablate.track import Tracker
    from ablate.train import Trainer, generator_seed

    torch.set_num_threads(cfg.cluster.threads)
    identity = read_json(run.identity)
    science = identity["science"]
    config.refuse_change(str(run.config), science, config.science(cfg, identity["digests"]))
    attempts = read_json(run.provenance) or []
    code = attempts[-1]["code"] if attempts else identity["code"]  # a resumed run shall not change it either
    attempts.append(record.attempt(code, describe_device(cfg.device), cfg.cluster.threads))
    write_json(run.provenance, attempts)
    if attempts[-1]["code_changed"]:
        say(f"the code is not the one this run was planned with ({code} then, {attempts[-1]['code']} now)")
    corpus = corpora.reopen(Path(identity["corpus"]), identity["digests"])
    train_set, dev_set = corpus.split("train"), corpus.split("dev")

    torch.manual_seed(generator_seed(cfg.seed, 0))
    model = Transformer(cfg.model, corpus.subwords.vocab_size).to(cfg.device)
    model.check_length(int(dev_set.src_lengths.max()) + cfg.decode.max_extra)
    model.check_length(int(max(dev_set.tgt_lengths.max(), train_set.tgt_lengths.max(), train_set.src_lengths.max())))
    total = {"total": cfg.optim.train_steps, "attempt": len(attempts)}
    say(f"{cfg.row.name} seed {cfg.seed}, preset {cfg.preset}, {cfg.device}, {cfg.precision}, attempt {len(attempts)}")
    beat(run, state="starting", step=0, **total)
    names = {"row": cfg.row.name, "block": cfg.row.block, "preset": cfg.preset, "seed": cfg.seed}
    names["fingerprint"] = identity["fingerprint"]
    with Tracker(run, cfg.tracking, names, science, len(attempts), say) as tracker:
        trainer = Trainer(
            cfg,
            science,
            model,
            train_set,
            dev_set,
            run.checkpoints,
            tracker,
            should_stop=stop,
            on_progress=lambda numbers: beat(run, **total, **numbers),
            say=say,
        )
        try:
            progress = trainer.run()
            results = judge(run, cfg, science, model, corpus, stop, trainer.measured)
        except Stopped:
            tracker.finish(0)  # not a failure: it goes on later
            raise
        tracker.log(progress.step, dev_bleu=results["dev"]["bleu"], dev_chrf=results["dev"]["chrf"])
        seen = {**asdict(progress), "padding_share": trainer.batches.padding_share(0)}
        done = record.assemble(cfg, identity, attempts, corpus.manifest, seen, results)
        tracker.summary(**results["dev"], **{f"paper_{k}": v for k, v in asdict(cfg.row.paper).items()})
        tracker.summary(record=json.dumps({"schema": record.SCHEMA, **done}))  # whole, for `track.download`
        record.write(run, done)
    beat(run, state="done", step=progress.step, **total)
    say(f"done: dev perplexity {results['dev']['ppl']:.2f}, BLEU {results['dev']['bleu']:.1f}")


def judge(
    run: RunDir,
    cfg: Config,
    science: dict[str, Any],
    model: "Transformer",
    corpus: "Corpus",
    stop: StopFlag,
    measured: "Perplexity | None" = None,
) -> dict[str, Any]:
    """Evaluate the model on the dev set, with the checkpoints the configuration names; gives the record's sections.

    `measured` is the dev set's perplexity under the parameters `model` comes with, if training ended by taking it.
    """
    from ablate import checkpoint
    from ablate.evaluate import evaluate

    start_s = last_s = time.monotonic()
    used = checkpoint.counted(run.checkpoints, cfg.decode.average_checkpoints, cfg.optim.checkpoint_every_steps)
    assert len(used) == cfg.decode.average_checkpoints, "the configuration was checked to leave that many"
    if len(used) > 1:
        model.load_state_dict(checkpoint.average_folders(used, science, cfg.device))
        measured = None
    steps = {"step": cfg.optim.train_steps, "total": cfg.optim.train_steps}

    def progress(done: int, sentences: int) -> None:
        nonlocal last_s
        if time.monotonic() - last_s > 1:
            last_s = time.monotonic()
            beat(run, state="decoding", sentences=f"{done}/{sentences}", **steps)

    dev, translations = evaluate(
        model, corpus, "dev", cfg.decode, cfg.optim.batch_tokens, cfg.device, progress, stop, measured
    )
    write_text(run.hypotheses("dev"), translations)
    return {
        "dev": dev,
        "checkpoint": {
            "rule": "last" if len(used) == 1 else f"mean of the last {len(used)}",
            "steps": [checkpoint.step_of(path) for path in used],
        },
        "evaluate_s": time.monotonic() - start_s,
    }


def describe_device(device: str) -> str:
    """Name the device in words, such as its model."""
    if device == "cuda":
        import torch

        return f"cuda: {torch.cuda.get_device_name()}"
    return f"{device}: {cpu_model()}"


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Name the processor's model: as Linux has it in `cpuinfo`, else as Python knows it."""
    lines = cpuinfo.read_text("utf-8").splitlines() if cpuinfo.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def say(text: str) -> None:
    """Print a line of the run's log."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


def beat(run: RunDir, **numbers: Any) -> None:
    """Write the run's sign of life; not flushed to the disk, for the next one comes within seconds."""
    write_json(run.heartbeat, {**numbers, "time": time.time(), "pid": os.getpid()}, durable=False)


if __name__ == "__main__":
    sys.exit(main())
