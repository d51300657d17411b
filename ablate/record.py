"""record.json: what a finished run says of itself; and the provenance of each attempt.

Schema 1. Everything but `timing` and `provenance` is a function of the science, the seed and the machine: a run that
was killed and resumed writes the same (`comparable`).

    schema        1
    row, block, cites, preset, seed, fingerprint
    science       dotted keys: the whole resolved science configuration, with the corpus and vocabulary digests
    paper         ppl_dev, bleu_dev, params_m: what the paper prints for the row
    params        actual: of the trained module; paper: by the paper's accounting
    corpus        name, languages, licence, pairs per split, subword tokens
    train         steps, epochs, src_tokens, tgt_tokens (padding excluded), padding_share, loss, nll of the last update
    dev           ppl, nll_per_token, num_tokens, bleu, bleu_signature, chrf, chrf_signature, num_sentences,
                  bleu_tok, bleu_tok_signature (the paper's way; records of before 0.1.0 lack them),
                  best_ppl, best_ppl_step, history [[step, ppl] …], hypotheses_sha256
    test          as dev, without best_ppl and history; only under a protocol that judges the test set (Table 2)
    checkpoint    rule ("last" or "mean of the last k"), steps
    timing        train_s, flops_per_s (counted as the plan does), steps_per_s, tgt_tokens_per_s,
                  src_tgt_tokens_per_s, evaluate_s, peak_memory_mb
    provenance    one entry per attempt: time, command that does the run again, host, versions, commit, code digest;
                  with compile=true also compile: compile_s, plain_batch_s, compiled_batch_s
"""

import hashlib
import platform
import resource
import subprocess
import sys
import time
from dataclasses import asdict
from importlib import metadata
from pathlib import Path
from typing import Any

from ablate import __version__
from ablate.config import Config
from ablate.params import count_parameters, params_paper, run_flops
from ablate.rundir import RunDir, read_json, write_json

SCHEMA = 1
PACKAGE = Path(__file__).resolve().parent
RSS_PER_MB = 2**20 if sys.platform == "darwin" else 2**10  # getrusage counts bytes on macOS, kibibytes elsewhere
LIBRARIES = ("torch", "numpy", "sentencepiece", "sacrebleu", "hydra-core", "wandb")

Record = dict[str, Any]


class RecordError(ValueError):
    """A record of another schema."""


def write(run: RunDir, record: Record) -> None:
    """Write a finished run's record; from then on the run counts as finished."""
    write_json(run.record, {"schema": SCHEMA, **record})


def read(run: RunDir) -> Record | None:
    """Read a run's record; None if it has none yet.

    Raises:
        RecordError: if it has another schema than this version of ablate.
    """
    record: Record | None = read_json(run.record)
    return record if record is None else accept(run, record)


def accept(run: RunDir, record: Record) -> Record:
    """Give a record back that was read as plain JSON.

    Raises:
        RecordError: if it has another schema than this version of ablate.
    """
    if record.get("schema") != SCHEMA:
        raise RecordError(f"{run.record}: schema={record.get('schema')!r}, this version of ablate reads {SCHEMA}")
    return record


def assemble(
    cfg: Config,
    identity: dict[str, Any],
    attempts: list[dict[str, Any]],
    manifest: dict[str, Any],
    progress: dict[str, Any],
    results: dict[str, Any],
) -> Record:
    """Put a finished run's record together.

    Args:
        cfg: as frozen.
        identity: fingerprint and science.
        attempts: the provenance of each.
        manifest: the corpus's.
        progress: the trainer's, with the first epoch's padding_share.
        results: the sections dev, test if it was judged, and checkpoint, and evaluate_s.
    """
    best_step, best_ppl = min(progress["history"], key=lambda point: point[1])
    train_s, src_tokens, tgt_tokens = progress["train_s"], progress["src_tokens"], progress["tgt_tokens"]
    vocab_size = manifest["vocab_size"]
    return {
        "row": cfg.row.name,
        "block": cfg.row.block,
        "cites": cfg.row.cites,
        "preset": cfg.preset,
        "seed": cfg.seed,
        "fingerprint": identity["fingerprint"],
        "science": identity["science"],
        "paper": asdict(cfg.row.paper),
        "params": {"actual": count_parameters(cfg.model, vocab_size), "paper": params_paper(cfg.model)},
        "corpus": manifest,
        "train": {
            "steps": progress["step"],
            "epochs": progress["epoch"],
            "src_tokens": src_tokens,
            "tgt_tokens": tgt_tokens,
            "padding_share": progress["padding_share"],
            "loss": progress["loss"],
            "nll": progress["nll"],
        },
        "dev": {
            **results["dev"],
            "best_ppl": best_ppl,
            "best_ppl_step": int(best_step),
            "history": progress["history"],
        },
        **{split: results[split] for split in ("test",) if split in results},
        "checkpoint": results["checkpoint"],
        "timing": {
            "train_s": train_s,
            "flops_per_s": run_flops(cfg.model, cfg.optim, vocab_size) / train_s,
            "steps_per_s": progress["step"] / train_s,
            "tgt_tokens_per_s": tgt_tokens / train_s,
            "src_tgt_tokens_per_s": (src_tokens + tgt_tokens) / train_s,
            "evaluate_s": results["evaluate_s"],
            "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / RSS_PER_MB,
        },
        "provenance": attempts,
    }


def comparable(record: Record) -> Record:
    """Leave out what may differ between two runs of the same science and seed: times and where they happened."""
    return {key: value for key, value in record.items() if key not in ("timing", "provenance")}


def code_digest() -> str:
    """Hash the package's Python files, so that a change of code between planning and running shows."""
    digest = hashlib.sha256()
    for path in sorted(PACKAGE.rglob("*.py")):
        digest.update(f"{path.relative_to(PACKAGE)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:12]


def attempt(planned_code: str | None, command: str, device: str, threads: int, ranks: int = 1) -> dict[str, Any]:
    """Describe this attempt at a run: when, where, by what.

    Args:
        planned_code: the code digest when the run was planned; a difference is flagged as `code_changed`.
        command: what does the run again.
        device: the resolved device, in words.
        threads: CPU threads of each process.
        ranks: processes.
    """
    code = code_digest()
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "command": command,
        "host": platform.node(),
        "machine": f"{platform.machine()}, {platform.system()} {platform.release()}",
        "device": device,
        "threads": threads,
        "ranks": ranks,
        "python": platform.python_version(),
        "versions": {"ablate": __version__, **{name: metadata.version(name) for name in LIBRARIES}},
        "commit": git("rev-parse", "HEAD"),
        "uncommitted_changes": bool(git("status", "--porcelain", "--untracked-files=no")),
        "code": code,
        "code_changed": planned_code is not None and planned_code != code,
    }


def git(*arguments: str) -> str | None:
    """Ask git about the checkout the package stands in; None where there is no git or no checkout."""
    if not (PACKAGE.parent / ".git").exists():
        return None
    try:
        done = subprocess.run(["git", *arguments], cwd=PACKAGE, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()
