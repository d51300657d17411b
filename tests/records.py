"""What `ablate.worker` leaves, without training: complete records, with the scores a test wants, and signs of life."""

import functools
import time
from typing import Any

from ablate import record
from ablate.launch import freeze
from ablate.plan import PlannedRun
from ablate.rundir import RunDir, write_json, write_text

BLEU_SIGNATURE = "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|version:2.6.0"
TRAINING = {  # what a heartbeat says
    "state": "training",
    "step": 20,
    "total": 60,
    "loss": 3.5,
    "dev_ppl": 40.0,
    "src_tgt_tokens_per_s": 1234.5,
    "steps_per_s": 0.5,
    "attempt": 3,
}


@functools.cache
def attempt() -> dict[str, Any]:
    return record.attempt(record.code_digest(), "python -m ablate.run", "cpu: x86_64", 1)


def finish(planned: PlannedRun, ppl: float, bleu: float, **changes: Any) -> record.Record:
    """Write a planned run's folder as a worker leaves it; `changes` replace whole sections of the record."""
    assert planned.corpus is not None
    freeze(planned)
    cfg, steps = planned.cfg, planned.cfg.optim.train_steps
    write_json(planned.run.provenance, [attempt()])
    write_json(planned.run.heartbeat, {"time": 1.0, "pid": 1, "state": "done", "step": steps, "total": steps})
    write_text(planned.run.hypotheses("dev"), "Das Haus ist rot.\n" * 200)
    paper = cfg.row.paper
    done = {
        "row": cfg.row.name,
        "block": cfg.row.block,
        "cites": cfg.row.cites,
        "preset": cfg.preset,
        "seed": cfg.seed,
        "fingerprint": planned.fingerprint,
        "science": planned.science,
        "paper": {"ppl_dev": paper.ppl_dev, "bleu_dev": paper.bleu_dev, "params_m": paper.params_m},
        "params": {"actual": planned.params_actual, "paper": planned.params_paper},
        "corpus": planned.corpus.manifest,
        "train": {
            "steps": steps,
            "epochs": 1,
            "src_tokens": 20_000,
            "tgt_tokens": 24_000,
            "padding_share": 0.05,
            "loss": 3.25,
            "nll": 2.5,
        },
        "dev": {
            "ppl": ppl,
            "nll_per_token": 2.0,
            "num_tokens": 5_847,
            "bleu": bleu,
            "bleu_signature": BLEU_SIGNATURE,
            "chrf": 30.0,
            "chrf_signature": "nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:2.6.0",
            "num_sentences": 200,
            "hypotheses_sha256": "0" * 64,
            "best_ppl": ppl,
            "best_ppl_step": steps,
            "history": [[20, 2 * ppl], [steps, ppl]],
        },
        "checkpoint": {"rule": "last", "steps": [steps]},
        "timing": {
            "train_s": 36.0,
            "flops_per_s": planned.flops / 36.0,
            "steps_per_s": steps / 36.0,
            "tgt_tokens_per_s": 24_000 / 36.0,
            "src_tgt_tokens_per_s": 44_000 / 36.0,
            "evaluate_s": 2.0,
            "peak_memory_mb": 300.0,
        },
        "provenance": [attempt()],
    }
    record.write(planned.run, {**done, **changes})
    read = record.read(planned.run)
    assert read is not None
    return read


def beat(run: RunDir, **numbers: Any) -> None:
    """Write the sign of life that a worker gave five seconds ago."""
    write_json(run.heartbeat, {"time": time.time() - 5, "pid": 1, **numbers})
