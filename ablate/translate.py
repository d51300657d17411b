"""Translate text with a trained run: `python -m ablate.translate RUN < in.txt > out.txt`."""

import argparse
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from ablate import checkpoint, frozen
from ablate.config import Config
from ablate.data import corpus as corpora
from ablate.data.subword import EOS
from ablate.decode import translate_all
from ablate.device import resolve_device
from ablate.evaluate import clean
from ablate.model.inference import Decoder
from ablate.model.transformer import Transformer
from ablate.named import runs_folder, select
from ablate.refuse import refuses
from ablate.rundir import RunDir, read_json


class NoModel(ValueError):
    """A folder without a trained run in it."""


def load_model(run: RunDir, device: str | None) -> tuple[Transformer, corpora.Corpus, Config]:
    """Load a run's model from its checkpoints: the last, or the mean its configuration asks for.

    Args:
        run: a run with at least one checkpoint.
        device: auto, cpu, cuda or mps; None: the run's own.

    Raises:
        ConfigError: if the device is not there.
        NoModel: if it has no checkpoint.
        CorpusError: if the prepared corpus is no longer there.
    """
    if not checkpoint.folders(run.checkpoints):
        raise NoModel(f"RUN={str(run.path)!r}: has no checkpoint")
    identity = read_json(run.identity)
    cfg = frozen.load(run.config)
    cfg.device = resolve_device(device or cfg.device)
    used = checkpoint.counted(run.checkpoints, cfg.decode.average_checkpoints, cfg.optim.checkpoint_every_steps)
    corpus = corpora.reopen(Path(identity["corpus"]), identity["digests"])
    model = Transformer(cfg.model, corpus.subwords.vocab_size).to(cfg.device)
    model.load_state_dict(checkpoint.average_folders(used, identity["science"], cfg.device))
    return model.eval(), corpus, cfg


def translate(run: RunDir, lines: list[str], say: Callable[[str], None], device: str | None) -> list[str]:
    """Translate lines of text, in their order.

    Args:
        run: a trained run.
        lines: source sentences; an empty one gives an empty line.
        say: told about progress.
        device: see `load_model`.
    """
    model, corpus, cfg = load_model(run, device)
    if not run.record.exists():
        say(f"note: the run is not finished; this is its newest checkpoint of {run.checkpoints}")
    subwords = corpus.subwords
    wanted = [i for i, line in enumerate(lines) if line.strip()]
    sources = [np.array([*subwords.encode(lines[i].strip()), EOS]) for i in wanted]

    def progress(done: int, total: int) -> None:
        say(f"{done}/{total} sentences")

    found = translate_all(Decoder(model), sources, cfg.decode, cfg.device, on_progress=progress)
    translations = [""] * len(lines)
    for i, hypothesis in zip(wanted, found, strict=True):
        translations[i] = clean(subwords.decode(hypothesis.ids))
    return translations


@refuses(ValueError)
def main(argv: list[str] | None = None) -> int:
    """Translate standard input, line by line, to standard output; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m ablate.translate",
        description="Translate standard input, a sentence a line, with a trained run.",
    )
    parser.add_argument("run", metavar="RUN", help="a run's folder or its name, as A_h4/2")
    parser.add_argument("--threads", type=int, default=0, help="CPU threads (default: 0, all cores)")
    parser.add_argument("--device", help="auto, cpu, cuda or mps (default: the run's)")
    arguments = parser.parse_args(argv)

    def say(text: str) -> None:
        print(text, file=sys.stderr)

    if arguments.threads < 0:
        parser.error(f"argument --threads: {arguments.threads}: must be at least 0")
    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    text = sys.stdin.buffer.read().decode("utf-8-sig")
    lines = [line.removesuffix("\r") for line in text.split("\n")]
    if not lines[-1]:  # what follows the last line's end is no line
        lines.pop()
    translations = translate(select(Path(runs_folder()), arguments.run), lines, say, arguments.device)
    sys.stdout.buffer.write("".join(f"{text}\n" for text in translations).encode())
    return 0


if __name__ == "__main__":
    sys.exit(main())
