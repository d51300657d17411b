"""Train a toy model with and without `compile=true`, and resumed; `test_compiled.py` starts it.

In a process of its own, for the compiler cannot read functions whose shapes are being checked. Prints what it found.
"""

import dataclasses
import json
import shutil
import sys
from pathlib import Path

import numpy as np
import torch
from test_train import MODEL, OPTIM, SCIENCE, VOCAB, config, result, sentences

from ablate import checkpoint
from ablate.config import DecodeConfig
from ablate.decode import translate_all
from ablate.model import linear
from ablate.model.inference import Decoder
from ablate.model.transformer import Transformer
from ablate.rundir import RunDir
from ablate.track import Tracker
from ablate.train import Trainer, generator_seed

LENGTHS = np.random.default_rng(5).integers(2, 10, (90, 2)).tolist()
STEPS = 10  # updates; a checkpoint after the eighth, too


def train(folder: Path, compiled: bool) -> Trainer:
    """Train for some updates; a resumed run starts with other parameters, which its checkpoint replaces."""
    optim = dataclasses.replace(OPTIM, train_steps=STEPS, batch_tokens=60, eval_every_steps=5)
    cfg = dataclasses.replace(config(), model=MODEL, optim=optim, compile=compiled)
    run = RunDir(folder)
    torch.manual_seed(generator_seed(99 if run.checkpoints.exists() else 3, 0))
    model, packed = Transformer(MODEL, VOCAB), sentences(LENGTHS)
    with Tracker(run, 1) as tracker:
        trainer = Trainer(
            cfg,
            SCIENCE,
            model,
            packed,
            packed,
            run.checkpoints,
            tracker,
            say=lambda text: print(text, file=sys.stderr),
        )
        if compiled:
            torch.compiler.set_stance("fail_on_recompile")  # every batch fits the code that was made for one
        trainer.run()
    return trainer


def main() -> None:
    """Do it in this folder."""
    folder = Path(sys.argv[1])
    linear.LARGE = 0  # every layer by oneDNN, as large ones are
    plain = train(folder / "plain", compiled=False)
    assert "torch._dynamo" not in sys.modules, "the compiler is loaded where it is off"
    whole = train(folder / "whole", compiled=True)
    shutil.copytree(folder / "whole", folder / "resumed")
    shutil.rmtree(checkpoint.folder(RunDir(folder / "resumed").checkpoints, STEPS))
    resumed = train(folder / "resumed", compiled=True)
    found = {"resumed exactly": result(resumed) == result(whole), "gain": dataclasses.asdict(whole.gain)}
    both = {"plain": plain, "compiled": whole}
    src, decode = [np.array([3, 4, 5, 1])], DecodeConfig(4, 0.6, 3, 1, 1)
    found["translations"] = [translate_all(Decoder(t.model.eval()), src, decode, "cpu")[0].ids for t in both.values()]
    print(json.dumps(found | {name: [t.progress.loss, t.progress.history] for name, t in both.items()}))


if __name__ == "__main__":
    main()
