"""The checks on a configuration: each field's choices and range, and the relations between fields."""

import dataclasses
import math
import re

from ablate.config import CLUSTER_KINDS, DATA_KINDS, Config, SlurmCluster, flatten
from ablate.errors import NOT_SAID, ConfigError, nearest

CHOICES = {
    "model.activation": ("relu", "gelu"),
    "model.positional": ("sinusoid", "learned"),
    "model.sinusoid_layout": ("halves", "interleaved"),
    "model.decoder_start": ("zeros", "eos"),
    "optim.smoothing": ("others", "uniform"),
    "optim.batch_counting": ("padded", "tokens"),
    "data.name": tuple(DATA_KINDS),
    "cluster.name": tuple(CLUSTER_KINDS),
    "precision": ("auto", "fp32", "bf16"),
    "device": ("auto", "cpu", "cuda", "mps"),
    "tracking.mode": ("offline", "online", "none"),
}

ABOVE_0 = ("optim.lr_scale", "data.timeout_s")

LOWEST = {
    "model.num_layers": 1,
    "model.d_model": 1,
    "model.d_ff": 1,
    "model.num_heads": 1,
    "model.d_k": 1,
    "model.d_v": 1,
    "model.dropout": 0,
    "model.max_positions": 1,
    "optim.train_steps": 1,
    "optim.warmup_steps": 1,
    "optim.adam_beta1": 0,
    "optim.adam_beta2": 0,
    "optim.adam_eps": 0,
    "optim.label_smoothing": 0,
    "optim.batch_tokens": 1,
    "optim.accumulate": 1,
    "optim.eval_every_steps": 0,
    "optim.checkpoint_every_steps": 1,
    "decode.beam_size": 1,
    "decode.length_penalty": 0,
    "decode.max_extra": 0,
    "decode.batch_sentences": 1,
    "decode.average_checkpoints": 1,
    "data.vocab_size": 1,
    "data.max_subwords": 1,
    "data.retries": 0,
    "seeds": 1,
    "cluster.workers": 0,
    "cluster.ranks": 1,
    "cluster.threads": 1,
    "cluster.sustained_gflops": 0,
    "cluster.nodes": 1,
    "cluster.gpus": 0,
    "cluster.cpus": 0,
    "cluster.mem_gb": 0,
    "cluster.timeout_min": 1,
    "cluster.stop_before_s": 1,
    "cluster.max_parallel": 0,
    "cluster.runs_per_job": 1,
    "keep_checkpoints": 1,
    "log_every_steps": 1,
}

BELOW = {
    "model.dropout": 1,
    "optim.adam_beta1": 1,
    "optim.adam_beta2": 1,
    "optim.label_smoothing": 1,
    "data.vocab_size": 1 << 31,  # SentencePiece counts in 32 bits
}


def check(cfg: Config) -> None:
    """Check every field's range and the relations between fields, in the paper's units or the preset's.

    Raises:
        ConfigError: at the first field that is out of range or without effect.
    """
    flat = flatten(dataclasses.asdict(cfg))
    for name, value in flat.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ConfigError(name, value, "must be a finite number")
    for name, allowed in CHOICES.items():
        if flat[name] not in allowed:
            raise ConfigError(name, flat[name], nearest(str(flat[name]), list(allowed)))
    for name in ABOVE_0:
        if flat.get(name, 1) <= 0:  # another kind of corpus may have it; below, of cluster
            raise ConfigError(name, flat[name], "must be above 0")
    for name, low in LOWEST.items():
        value = flat.get(name, low)
        if value < low or value >= BELOW.get(name, math.inf):
            upper = f" and below {BELOW[name]}" if name in BELOW else ""
            raise ConfigError(name, value, f"must be at least {low}{upper}")
    if cfg.decode.average_checkpoints > cfg.keep_checkpoints:
        raise ConfigError(
            "decode.average_checkpoints",
            cfg.decode.average_checkpoints,
            f"must be at most keep_checkpoints={cfg.keep_checkpoints}: older ones are deleted",
        )
    if cfg.decode.beam_size == 1 and cfg.decode.length_penalty != 0:
        raise ConfigError(
            "decode.length_penalty", cfg.decode.length_penalty, "has no effect with decode.beam_size=1; set it to 0"
        )
    if not re.fullmatch(r"[^/\\#?%:]{1,128}", cfg.tracking.project):
        raise ConfigError("tracking.project", cfg.tracking.project, r"must be 1 to 128 characters, none of / \ # ? % :")
    if cfg.tracking.model_artifact and cfg.tracking.mode == "none":
        raise ConfigError("tracking.model_artifact", True, "has no effect with tracking=none; set it to false")
    if cfg.precision == "bf16" and cfg.device == "mps":
        raise ConfigError("precision", "bf16", "needs device=cuda or cpu, got device=mps; use fp32")
    if cfg.compile and cfg.device == "mps":
        raise ConfigError("compile", True, "needs device=cuda or cpu, got device=mps; use false")
    if isinstance(cfg.cluster, SlurmCluster):
        check_slurm(cfg.cluster, cfg.device)
    if cfg.cluster.ranks > 1 and cfg.device == "mps":
        raise ConfigError("cluster.ranks", cfg.cluster.ranks, "must be 1 with device=mps: its processes cannot add up")


# What says which options of sbatch; `cluster.sbatch` must not say it again.
SBATCH_FIELDS = {
    "partition": "partition",
    "account": "account",
    "qos": "qos",
    "constraint": "constraint",
    "nodes": "nodes",
    "gpus": "gpus",
    "gpus-per-node": "gpus",
    "gres": "gpus",
    "cpus-per-task": "cpus",
    "mem": "mem_gb",
    "time": "timeout_min",
    "signal": "stop_before_s",
    "array": "max_parallel",
    "ntasks": "ranks",
    "ntasks-per-node": "ranks",
}
SBATCH_OURS = ("job-name", "output", "error", "open-mode", "requeue", "no-requeue", "wait", "parsable")


def check_slurm(cluster: SlurmCluster, device: str) -> None:
    """Check the relations between the fields of cluster=slurm.

    Raises:
        ConfigError: at the first that does not hold.
    """

    def need(true: bool, field: str, allowed: str) -> None:
        if not true:
            raise ConfigError(f"cluster.{field}", getattr(cluster, field), allowed)

    nodes = cluster.nodes
    need(not cluster.gpus or cluster.ranks in (1, cluster.gpus), "ranks", "is cluster.gpus: one process per GPU")
    need(not cluster.gpus or device != "cpu", "gpus", "has no effect with device=cpu")
    need(cluster.gpus % nodes == 0, "gpus", f"must be a multiple of cluster.nodes={nodes}: as many on each")
    need((cluster.gpus or cluster.ranks) % nodes == 0, "nodes", "has no more nodes than processes, as many on each")
    need(cluster.gpu_type is None or cluster.gpus > 0, "gpu_type", "has no effect without cluster.gpus")
    alone = cluster.runs_per_job == 1 or max(nodes, cluster.gpus, cluster.ranks) == 1
    need(alone, "runs_per_job", "shares one GPU, or one node's CPUs, between runs of one process")
    need(cluster.stop_before_s < 60 * cluster.timeout_min, "stop_before_s", "must be less than cluster.timeout_min")
    for field in ("setup", "sbatch"):
        if any("wandb" in line.lower() and re.search(r"\b\w{40,}", line) for line in getattr(cluster, field)):
            allowed = "seems to hold a key for W&B, and is written down; jobs inherit WANDB_API_KEY, or `wandb login`"
            raise ConfigError(f"cluster.{field}", NOT_SAID, allowed)
    for line in cluster.sbatch:
        option = line.removeprefix("--").partition("=")[0]
        need(line.startswith("--"), "sbatch", f"{line!r} is no option such as '--exclude=n7'")
        need(option not in SBATCH_FIELDS, "sbatch", f"--{option} is cluster.{SBATCH_FIELDS.get(option)}")
        need(option not in SBATCH_OURS, "sbatch", f"--{option} is set so that jobs are found, read and put back")
