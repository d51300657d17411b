"""One point of `scaling.py`: seconds per update and peak memory of one configuration, in this process.

`python benchmarks/scaling_point.py JSON`, with what `measure` there tells; prints a line of JSON. Imports what a run
does and no more, so that its memory is a run's.
"""

import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import wandb  # noqa: F401 – a run has it in memory
from common import peak_mb

from ablate import frozen
from ablate.config import Config
from ablate.data.corpus import Corpus
from ablate.data.packed import Packed
from ablate.data.subword import EOS
from ablate.model.transformer import Transformer
from ablate.rundir import RunDir
from ablate.track import Tracker
from ablate.train import Trainer

TIMED_S, FEWEST, WARM = 1.5, 4, 2  # seconds and updates that are timed, updates before


def sentences(cfg: Config, length: int) -> Packed:
    """Draw sentences of one length, for a few batches."""
    rng, number = np.random.default_rng(1), 8 * max(1, cfg.optim.batch_tokens // length)
    sides = [[[*rng.integers(3, cfg.data.vocab_size, length - 1).tolist(), EOS] for _ in range(number)] for _ in "st"]
    return Packed.of(*sides)


def work(point: dict[str, Any]) -> dict[str, float]:
    """Measure one point: the mean of the middle half of its updates, and the most memory held.

    Args:
        point: `config`, a file; and `corpus`, a folder, or `length`, of random sentences.
    """
    torch.set_num_threads(1)
    cfg = frozen.load(Path(point["config"]))
    packed = Corpus(Path(point["corpus"])).split("train") if "corpus" in point else sentences(cfg, point["length"])
    scratch = RunDir(Path(tempfile.mkdtemp()))
    model = Transformer(cfg.model, cfg.data.vocab_size).train()
    with Tracker(scratch, attempt=1) as tracker:
        trainer = Trainer(cfg, {}, model, packed, packed, scratch.checkpoints, tracker)
    stream, times = trainer.batches.batches(0, 0), []
    while len(times) < WARM + FEWEST or sum(times[WARM:]) < TIMED_S:
        start = time.process_time()
        trainer.update(stream)
        times.append(time.process_time() - start)
        trainer.unread.clear()
    times = sorted(times[WARM:])
    middle = times[len(times) // 4 : len(times) - len(times) // 4]
    return {"update_s": statistics.mean(middle), "peak_mb": peak_mb()}


if __name__ == "__main__":
    print(json.dumps(work(json.loads(sys.argv[1]))))
