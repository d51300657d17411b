"""One attempt at a run: train, translate the dev set, score it, write the record; and what other ranks do of it."""

import platform
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from ablate import checkpoint, mirror, record
from ablate.config import Config
from ablate.data import corpus as corpora
from ablate.data.corpus import Corpus
from ablate.errors import ConfigError
from ablate.evaluate import Perplexity, evaluate
from ablate.identity import refuse_change
from ablate.identity import science as science_of
from ablate.model.transformer import Transformer
from ablate.parallel import Group, Lost
from ablate.rundir import RunDir, read_json, say, write_json, write_text
from ablate.stop import StopFlag, Stopped
from ablate.track import Tracker
from ablate.train import Trainer, generator_seed


def lead(run: RunDir, cfg: Config, stop: StopFlag, group: Group) -> None:
    """Train, translate the dev set, score it, write the record."""
    identity = read_json(run.identity)
    science = identity["science"]
    refuse_change(str(run.config), science, science_of(cfg, identity["digests"]))
    attempts = read_json(run.provenance) or []
    code = attempts[-1]["code"] if attempts else identity["code"]  # a resumed run shall not change it either
    attempts.append(
        record.attempt(code, identity["command"], describe_device(cfg.device), cfg.cluster.threads, group.count)
    )
    write_json(run.provenance, attempts)
    if attempts[-1]["code_changed"]:
        say(f"the code is not the one this run was planned with ({code} then, {attempts[-1]['code']} now)")
    corpus, model = build(cfg, identity)
    total = {"total": cfg.optim.train_steps, "attempt": len(attempts)}
    say(f"{cfg.row.name} seed {cfg.seed}, preset {cfg.preset}, {cfg.device}, {cfg.precision}, attempt {len(attempts)}")
    run.beat(state="starting", step=0, **total)
    with Tracker(run, len(attempts), mirror.start(run, cfg, identity, len(attempts), say)) as tracker:
        trainer = Trainer(
            cfg,
            science,
            model,
            corpus.split("train"),
            corpus.split("dev"),
            run.checkpoints,
            tracker,
            group=group,
            should_stop=lambda: stop.heed(group.which(stop())),
            on_progress=lambda numbers: run.beat(**total, **numbers),
            say=say,
        )
        if trainer.gain is not None:
            attempts[-1]["compile"] = asdict(trainer.gain)
            write_json(run.provenance, attempts)
        try:
            progress = trainer.run()
            results = judge(
                run, cfg, science, model, corpus, lambda: stop() or stop.heed(group.asked()), trainer.measured
            )
        except (Stopped, Lost):
            tracker.stop()
            raise
        tracker.log(progress.step, dev_bleu=results["dev"]["bleu"], dev_chrf=results["dev"]["chrf"])
        seen = {**asdict(progress), "padding_share": trainer.batches.padding_share(0)}
        done = record.assemble(cfg, identity, attempts, corpus.manifest, seen, results)
        record.write(run, done)
        tracker.result(read_json(run.record), translated(run, corpus))
    run.beat(state="done", step=progress.step, **total)
    for split in splits(cfg):
        scores = results[split]
        both = f"BLEU {scores['bleu']:.1f}, as the paper took it {scores['bleu_tok']:.1f}"
        say(f"done: {split} perplexity {scores['ppl']:.2f}, {both}")


def judge(
    run: RunDir,
    cfg: Config,
    science: dict[str, Any],
    model: Transformer,
    corpus: Corpus,
    should_stop: Callable[[], bool],
    measured: Perplexity | None = None,
) -> dict[str, Any]:
    """Evaluate the model with the checkpoints the configuration names, on dev and, if so said, on test.

    Gives the record's sections. `measured` is the dev set's perplexity under the parameters `model` comes with, if
    training ended by taking it.
    """
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
            run.beat(state="decoding", sentences=f"{done}/{sentences}", **steps)

    judged: dict[str, Any] = {}
    for split in splits(cfg):
        known = measured if split == "dev" else None
        judged[split], translations = evaluate(
            model, corpus, split, cfg.decode, cfg.optim.batch_tokens, cfg.device, progress, should_stop, known
        )
        write_text(run.hypotheses(split), translations)
    return {
        **judged,
        "checkpoint": {
            "rule": "last" if len(used) == 1 else f"mean of the last {len(used)}",
            "steps": [checkpoint.step_of(path) for path in used],
        },
        "evaluate_s": time.monotonic() - start_s,
    }


def splits(cfg: Config) -> tuple[str, ...]:
    """Name the splits that a run is judged on."""
    return ("dev", "test") if cfg.test_set else ("dev",)


def translated(run: RunDir, corpus: Corpus) -> list[tuple[str, str, str]]:
    """List source, reference and translation of each sentence of the dev set."""
    translations = run.hypotheses("dev").read_text("utf-8").split("\n")[:-1]
    return list(zip(corpus.text("dev", "src"), corpus.text("dev", "tgt"), translations, strict=True))


def assist(run: RunDir, cfg: Config, stop: StopFlag, group: Group) -> None:
    """Train as another rank, as far as rank 0 does: compute shares of the updates, write nothing."""
    identity = read_json(run.identity)
    corpus, model = build(cfg, identity)
    trainer = Trainer(
        cfg,
        identity["science"],
        model,
        corpus.split("train"),
        corpus.split("dev"),
        run.checkpoints,
        None,
        group=group,
        should_stop=lambda: stop.heed(group.which(stop())),
        say=lambda text: None,
    )
    with suppress(Stopped):
        trainer.run()


def build(cfg: Config, identity: dict[str, Any]) -> tuple[Corpus, Transformer]:
    """Open the corpus and initialise the model from the seed, on the device."""
    torch.set_num_threads(cfg.cluster.threads)
    corpus = corpora.reopen(Path(identity["corpus"]), identity["digests"])
    train_set, dev_set = corpus.split("train"), corpus.split("dev")
    torch.manual_seed(generator_seed(cfg.seed, 0))
    model = Transformer(cfg.model, corpus.subwords.vocab_size).to(cfg.device)
    for judged in splits(cfg):
        model.check_length(int(corpus.split(judged).src_lengths.max()) + cfg.decode.max_extra)
    model.check_length(int(max(dev_set.tgt_lengths.max(), train_set.tgt_lengths.max(), train_set.src_lengths.max())))
    return corpus, model


def describe_device(device: str) -> str:
    """Name the device in words, such as its model.

    Raises:
        ConfigError: if it is not here; whoever planned the run for a cluster's node could not tell.
    """
    if device == "cuda" and not torch.cuda.is_available():
        allowed = "is not there for torch; cluster.gpus asks SLURM for GPUs, device=cpu does without"
        raise ConfigError("device", device, allowed, platform.node())
    if device == "cuda":
        return f"cuda: {torch.cuda.get_device_name()}"
    return f"{device}: {cpu_model()}"


def cpu_model(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """Name the processor's model: as Linux has it in `cpuinfo`, else as Python knows it."""
    lines = cpuinfo.read_text("utf-8").splitlines() if cpuinfo.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()
