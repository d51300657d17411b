"""Do one run, from its frozen folder: train, evaluate, write the record. Composes nothing.

`python -m ablate.worker RUN` is what the local pool and a cluster's job start. Exit codes: 0 the record is there, 1 the
run failed (error.txt says why), 3 another process has the run, 75 stopped at a checkpoint: start it again.
"""

import hashlib
import os
import platform
import resource
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
from ablate.params import count_parameters, params_paper, run_flops
from ablate.rundir import Held, RunDir, lock, read_json, write_json, write_text

if TYPE_CHECKING:  # torch is imported once the run is ours, so that losing a race costs nothing
    from ablate.data.corpus import Corpus
    from ablate.model.transformer import Transformer
    from ablate.train import Progress

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
    try:
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


def execute(run: RunDir, cfg: Config, stop: StopFlag) -> None:
    """Train, translate the dev set, score it, write the record."""
    import torch

    from ablate.data import corpus as corpora
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
        progress = trainer.run()
        results = evaluate(run, cfg, science, model, corpus, stop, total)
        padding_share = trainer.batches.padding_share(0)
        write_record(run, cfg, identity, attempts, corpus, progress, padding_share, results)
        tracker.log(progress.step, dev_bleu=results["dev"]["bleu"], dev_chrf=results["dev"]["chrf"])
        tracker.summary(**results["dev"], **{f"paper_{k}": v for k, v in asdict(cfg.row.paper).items()})
    beat(run, state="done", step=progress.step, **total)
    say(f"done: dev perplexity {results['dev']['ppl']:.2f}, BLEU {results['dev']['bleu']:.1f}")


def evaluate(
    run: RunDir,
    cfg: Config,
    science: dict[str, Any],
    model: "Transformer",
    corpus: "Corpus",
    stop: StopFlag,
    total: dict[str, int],
) -> dict[str, Any]:
    """Measure dev perplexity, translate the dev set, score the translations; gives the record's sections."""
    from ablate import checkpoint
    from ablate.decode import translate_all
    from ablate.evaluate import clean, perplexity, score

    start_s = time.monotonic()
    used = checkpoint.folders(run.checkpoints)[-cfg.decode.average_checkpoints :]
    assert len(used) == cfg.decode.average_checkpoints, "the configuration was checked to leave that many"
    if len(used) > 1:
        model.load_state_dict(checkpoint.average_folders(used, science, cfg.device))
    model.eval()
    dev_set = corpus.split("dev")
    measured = perplexity(model, dev_set, cfg.optim.batch_tokens, cfg.device)
    done_s = [0.0]

    def progress(done: int, sentences: int) -> None:
        if time.monotonic() - done_s[0] > 1:
            done_s[0] = time.monotonic()
            beat(run, state="decoding", step=total["total"], sentences=f"{done}/{sentences}", **total)

    sources = [dev_set.src(i) for i in range(len(dev_set))]
    translations = translate_all(model, sources, cfg.decode, cfg.device, on_progress=progress, should_stop=stop)
    hypotheses = [clean(corpus.subwords.decode(hypothesis.ids)) for hypothesis in translations]
    scores = score(hypotheses, corpus.text("dev", "tgt"))
    text = "".join(f"{hypothesis}\n" for hypothesis in hypotheses)
    write_text(run.hypotheses("dev"), text)
    return {
        "dev": {
            **asdict(measured),
            **asdict(scores),
            "hypotheses_sha256": hashlib.sha256(text.encode()).hexdigest(),
        },
        "checkpoint": {
            "rule": "last" if len(used) == 1 else f"mean of the last {len(used)}",
            "steps": [checkpoint.step_of(path) for path in used],
        },
        "evaluate_s": time.monotonic() - start_s,
    }


def write_record(
    run: RunDir,
    cfg: Config,
    identity: dict[str, Any],
    attempts: list[dict[str, Any]],
    corpus: "Corpus",
    progress: "Progress",
    padding_share: float,
    results: dict[str, Any],
) -> None:
    """Put together record.json; see `ablate.record` for what each key means."""
    best_step, best_ppl = min(progress.history, key=lambda point: point[1])
    vocab_size = corpus.subwords.vocab_size
    record.write(
        run,
        {
            "row": cfg.row.name,
            "block": cfg.row.block,
            "cites": cfg.row.cites,
            "preset": cfg.preset,
            "seed": cfg.seed,
            "fingerprint": identity["fingerprint"],
            "science": identity["science"],
            "paper": asdict(cfg.row.paper),
            "params": {"actual": count_parameters(cfg.model, vocab_size), "paper": params_paper(cfg.model)},
            "corpus": corpus.manifest,
            "train": {
                "steps": progress.step,
                "epochs": progress.epoch,
                "src_tokens": progress.src_tokens,
                "tgt_tokens": progress.tgt_tokens,
                "padding_share": padding_share,
                "loss": progress.loss,
                "nll": progress.nll,
            },
            "dev": {
                **results["dev"],
                "best_ppl": best_ppl,
                "best_ppl_step": int(best_step),
                "history": progress.history,
            },
            "checkpoint": results["checkpoint"],
            "timing": {
                "train_s": progress.train_s,
                "flops_per_s": run_flops(cfg.model, cfg.optim, vocab_size) / progress.train_s,
                "steps_per_s": progress.step / progress.train_s,
                "tgt_tokens_per_s": progress.tgt_tokens / progress.train_s,
                "src_tgt_tokens_per_s": (progress.src_tokens + progress.tgt_tokens) / progress.train_s,
                "evaluate_s": results["evaluate_s"],
                "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            },
            "provenance": attempts,
        },
    )


def describe_device(device: str) -> str:
    """Name the device in words, such as its model."""
    if device == "cuda":
        import torch

        return f"cuda: {torch.cuda.get_device_name()}"
    return f"{device}: {platform.processor() or platform.machine()}"


def say(text: str) -> None:
    """Print a line of the run's log."""
    print(time.strftime("%H:%M:%S"), text, flush=True)


def beat(run: RunDir, **numbers: Any) -> None:
    """Write the run's sign of life; not flushed to the disk, for the next one comes within seconds."""
    write_json(run.heartbeat, {**numbers, "time": time.time(), "pid": os.getpid()}, durable=False)


if __name__ == "__main__":
    sys.exit(main())
