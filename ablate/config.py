"""What a run is: the typed schema, the checks between its fields, its scale, and its fingerprint.

No Hydra and no torch here: planning, the table and the worker all read this file. Defaults live in `conf/*.yaml`,
one home each; a field here states its type, unit, meaning and special values.
"""

import dataclasses
import difflib
import hashlib
import json
import math
import re
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from ablate.rundir import write_text


class NotSaid(Enum):
    """Stands for the value in an error about a field that has none; an Enum's member stays itself across processes."""

    NOT_SAID = "not said"


NOT_SAID = NotSaid.NOT_SAID


class ConfigError(ValueError):
    """A setting the user can mend: names the field, the value, what is allowed, and where it came from."""

    def __init__(self, field: str, value: object, allowed: str, source: str = ""):
        super().__init__(field, value, allowed, source)  # its arguments, so that it can come from another process
        self.field = field

    def __str__(self) -> str:
        field, value, allowed, source = self.args
        where = f" (from {source})" if source else ""
        named = field if value is NOT_SAID else f"{field}={value!r}"
        return f"{named}{where}: {allowed}"


@dataclass
class Scale:
    """Factors by which a preset shrinks the paper's numbers."""

    width: float  # × d_model, d_ff, d_k, d_v; heads unchanged; each product must be a whole number
    depth: float  # × num_layers, rounded up
    steps: float  # × train_steps, rounded; warm-up is the preset's own


@dataclass
class Paper:
    """What the paper prints for a row; None where it prints nothing."""

    ppl_dev: float | None = None  # per BPE token, newstest2013
    bleu_dev: float | None = None  # newstest2013, beam 4, length penalty 0.6, no averaging
    params_m: float | None = None  # millions


@dataclass
class Row:
    """A line of Table 3, or of a table of the user's own."""

    name: str  # also its folder's name
    block: str  # the table's block: base, A … E, big, or a user's own
    cites: str  # the line of the paper it reproduces; empty for a user's own row
    paper: Paper


@dataclass
class Sweep:
    """A named set of rows; base is always planned first and need not be listed."""

    rows: list[str]
    title: str


@dataclass
class ModelConfig:
    """The Transformer in the paper's units; `scaled` turns them into the preset's."""

    num_layers: int  # the paper's N, for the encoder and for the decoder
    d_model: int  # width of every sub-layer's output
    d_ff: int  # inner width of the feed-forward network
    num_heads: int  # the paper's h
    d_k: int  # width of one head's queries and keys; free of d_model / h
    d_v: int  # width of one head's values; free of d_k
    dropout: float  # the paper's P_drop: sub-layer outputs and the embedding + position sum, nowhere else
    activation: str  # of the feed-forward network: relu (the paper's) or gelu
    positional: str  # sinusoid or learned
    max_positions: int  # learned positions: the longest sequence they cover, in subwords; ignored by sinusoid
    sinusoid_layout: str  # halves (authors: all sines, then all cosines) or interleaved (text)
    attention_bias: bool  # biases on the attention projections: true for the authors, none shown in the text
    fused_init: bool  # Xavier fans of the fused Q,K,V matrix (authors) or of each matrix by itself
    decoder_start: str  # what the decoder reads first: zeros (authors) or eos (the end symbol's embedding)


@dataclass
class OptimConfig:
    """Loss, batches, Adam, the learning rate, and when to evaluate."""

    train_steps: int  # optimiser updates, in the paper's units; `scaled` multiplies them by scale.steps
    warmup_steps: int  # updates of linear warm-up; never scaled
    lr_scale: float  # factor on the paper's learning rate d_model^-0.5 · min(s^-0.5, s · warmup^-1.5); 1 is the paper
    adam_beta1: float
    adam_beta2: float
    adam_eps: float
    label_smoothing: float  # the paper's ε, in [0, 1)
    smoothing: str  # others: ε/(V-1) on every id but the gold (authors); uniform: ε/V on every id
    batch_tokens: int  # tokens of one micro-batch, counted as batch_counting says
    batch_counting: str  # padded: sentences × longest side (authors); tokens: each side's tokens without padding (text)
    accumulate: int  # micro-batches per update
    eval_every_steps: int  # updates between two evaluations of dev perplexity; 0: only after the last
    checkpoint_every_steps: int  # updates between two checkpoints


@dataclass
class DecodeConfig:
    """Beam search and which parameters it uses."""

    beam_size: int  # 1 is greedy
    length_penalty: float  # α of ((5 + n) / 6)^α, n the length with the end symbol (Wu et al. 2016, equation 14)
    max_extra: int  # a hypothesis has at most source length + this many subwords, the end symbol included
    batch_sentences: int  # sentences decoded at once; changes speed only up to rounding
    average_checkpoints: int  # decode with the mean of the last k checkpoints; 1: the last itself (Table 3)


@dataclass
class DataConfig:
    """A corpus and its segmentation; the subclasses add what one kind of corpus needs."""

    name: str  # which kind: a key of `DATA_KINDS`
    src_lang: str  # ISO 639-1
    tgt_lang: str
    vocab_size: int  # ids of the shared BPE, control ids and the 256 bytes included
    max_subwords: int  # training pairs with a longer side are dropped and counted; dev and test never


@dataclass
class HomeAssistantData(DataConfig):
    """English-German interface text of Home Assistant, out of its wheel on PyPI."""

    version: str  # of the wheel
    sha256: str  # of the wheel's bytes
    min_words: int  # a side with fewer is dropped
    max_words: int  # a side with more is dropped


@dataclass
class SyntheticData(DataConfig):
    """Sentences from a small English-German grammar, made on the spot."""

    grammar_seed: int  # which sentences; independent of the run's seed
    num_train: int  # pairs
    num_dev: int
    num_test: int


@dataclass
class FilesData(DataConfig):
    """The user's own parallel text: one file per side, or one tab-separated file per split; plain or .gz."""

    train_src: str | None
    train_tgt: str | None
    dev_src: str | None
    dev_tgt: str | None
    test_src: str | None  # None: no test set
    test_tgt: str | None
    train_tsv: str | None  # source TAB target; instead of the two files
    dev_tsv: str | None
    test_tsv: str | None


@dataclass
class DownloadedData(DataConfig):
    """Text of public servers. None of these fields changes the text: every file is checked against its digest."""

    mirror: str | None  # address in place of the original servers, with the files at HOST/PATH; None: those themselves
    folder: str | None  # a folder with the files, at HOST/PATH or side by side, in place of the network
    lock_file: str | None  # of SHA-256 digests, written on first use; None: downloads/digests.json beside the corpora
    timeout_s: float  # without a sign of the server
    retries: int  # in a row that bring nothing; each waits twice as long as the one before


@dataclass
class Multi30kData(DownloadedData):
    """English and German descriptions of pictures, 29,000 pairs (Elliott et al. 2016)."""


@dataclass
class WmtData(DownloadedData):
    """WMT14 English-German or English-French."""

    news_commentary: str  # v9 (WMT14's) or v11 (the authors')
    min_words: int  # a training pair is dropped if a side has fewer words between spaces,
    max_words: int  # or more,
    max_ratio: float  # or this many times the other side's


@dataclass
class SegmentedData(DataConfig):
    """The authors' own segmented files."""

    folder: str | None  # that holds them; None: an error


@dataclass
class ClusterConfig:
    """Where runs happen; nothing here changes a result. The subclasses add what one kind of place needs."""

    name: str  # which kind: local or slurm
    ranks: int  # processes of one run, one per GPU, which share each update's batch; each has its own dropout masks
    threads: int  # CPU threads of each process; on one machine the same number gives the same bits
    # Floating-point operations per second of one run, in 10^9, for the plan's hours before any run is measured; 0: by
    # the cost model on a CPU, 40 on another device.
    sustained_gflops: float


@dataclass
class LocalCluster(ClusterConfig):
    """A pool of worker processes on this machine."""

    workers: int  # runs at once; 0: physical cores ÷ (ranks × threads)


@dataclass
class SlurmCluster(ClusterConfig):
    """Jobs for SLURM; null is the site's default."""

    partition: str | None
    account: str | None
    qos: str | None
    constraint: str | None  # features that a node must have
    nodes: int  # of one job
    gpus: int  # of one job, on all its nodes; 0: none. A process each, or one that several runs share
    gpu_type: str | None  # as the site calls it, such as a100
    cpus: int  # of each process; 0: threads × runs_per_job
    mem_gb: float  # GiB of one job on each node; 0: the site's default
    timeout_min: int  # minutes that a job may take; a run that takes longer goes on in the same job, requeued
    stop_before_s: int  # seconds before that limit, in which a checkpoint must be written
    max_parallel: int  # jobs at once; 0: no limit
    runs_per_job: int  # small runs that share a job's GPU or CPUs, started together
    setup: list[str]  # shell commands on the node before the run, such as "module load cuda"
    sbatch: list[str]  # more options of sbatch, such as "--exclude=n7" or "--exclusive"
    wait: bool  # stay until all is done, then print the table; false: submit and return


@dataclass
class TrackingConfig:
    """The W&B mirror of metrics.jsonl; the local files are the truth."""

    mode: str  # offline (default), online, or none
    project: str  # W&B project
    entity: str | None  # W&B user or team; None: the account's default
    model_artifact: bool  # also give W&B the checkpoints that the run's scores are of, as a model artifact


@dataclass
class Config:
    """One run, and how to run it. `SCIENCE` names what can change its result."""

    row: Row
    preset: str
    scale: Scale
    model: ModelConfig
    data: Any  # a DataConfig; Any lets its subclasses add fields
    optim: OptimConfig
    decode: DecodeConfig
    precision: str  # of training's matrix products: auto: bf16 on CUDA, else fp32; fp32; bf16 (on a CPU, if it has it)
    device: str  # auto, cpu, cuda or mps
    seeds: int  # runs per row: seeds 1 … seeds
    seed: int  # of this run; set by the plan
    sweep: dict[str, Sweep]
    cluster: Any  # a ClusterConfig; as data
    tracking: TrackingConfig
    runs_dir: str  # relative to the working directory
    keep_checkpoints: int  # how many of the newest stay on disk
    log_every_steps: int  # updates between two lines of metrics.jsonl
    plan_only: bool  # print the plan and its cost; write nothing
    test_set: bool = (
        False  # translate and score the test set, too (Table 2); runs frozen before there was this have none
    )


DATA_KINDS: dict[str, type[DataConfig]] = {
    "homeassistant": HomeAssistantData,
    "synthetic": SyntheticData,
    "files": FilesData,
    "multi30k": Multi30kData,
    "wmt14_ende": WmtData,
    "wmt14_enfr": WmtData,
    "wmt16_ende_bpe32k": SegmentedData,
}

CLUSTER_KINDS: dict[str, type[ClusterConfig]] = {"local": LocalCluster, "slurm": SlurmCluster}
KINDS: dict[str, dict[str, Any]] = {"data": DATA_KINDS, "cluster": CLUSTER_KINDS}  # sections of several kinds

SCIENCE = ("model", "data", "optim", "decode", "precision")  # the sections that can change a result
PATHS = (  # where the text is found, not what it is
    *(f"data.{f.name}" for f in dataclasses.fields(FilesData) if f.name.endswith(("_src", "_tgt", "_tsv"))),
    *(f"data.{name}" for name in DownloadedData.__annotations__),
)

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

RANGES = {  # field: (lowest, highest, highest allowed?)
    "model.num_layers": (1, math.inf, False),
    "model.d_model": (1, math.inf, False),
    "model.d_ff": (1, math.inf, False),
    "model.num_heads": (1, math.inf, False),
    "model.d_k": (1, math.inf, False),
    "model.d_v": (1, math.inf, False),
    "model.dropout": (0, 1, False),
    "model.max_positions": (1, math.inf, False),
    "optim.train_steps": (1, math.inf, False),
    "optim.warmup_steps": (1, math.inf, False),
    "optim.lr_scale": (0, math.inf, False),
    "optim.adam_beta1": (0, 1, False),
    "optim.adam_beta2": (0, 1, False),
    "optim.adam_eps": (0, math.inf, False),
    "optim.label_smoothing": (0, 1, False),
    "optim.batch_tokens": (1, math.inf, False),
    "optim.accumulate": (1, math.inf, False),
    "optim.eval_every_steps": (0, math.inf, False),
    "optim.checkpoint_every_steps": (1, math.inf, False),
    "decode.beam_size": (1, math.inf, False),
    "decode.length_penalty": (0, math.inf, False),
    "decode.max_extra": (0, math.inf, False),
    "decode.batch_sentences": (1, math.inf, False),
    "decode.average_checkpoints": (1, math.inf, False),
    "data.vocab_size": (1, 1 << 31, False),  # SentencePiece counts in 32 bits
    "data.max_subwords": (1, math.inf, False),
    "seeds": (1, math.inf, False),
    "cluster.workers": (0, math.inf, False),
    "cluster.ranks": (1, math.inf, False),
    "cluster.threads": (1, math.inf, False),
    "cluster.sustained_gflops": (0, math.inf, False),
    "cluster.nodes": (1, math.inf, False),
    "cluster.gpus": (0, math.inf, False),
    "cluster.cpus": (0, math.inf, False),
    "cluster.mem_gb": (0, math.inf, False),
    "cluster.timeout_min": (1, math.inf, False),
    "cluster.stop_before_s": (1, math.inf, False),
    "cluster.max_parallel": (0, math.inf, False),
    "cluster.runs_per_job": (1, math.inf, False),
    "keep_checkpoints": (1, math.inf, False),
    "log_every_steps": (1, math.inf, False),
}


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn nested dictionaries into one with dotted keys, in their order."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat


def nearest(name: str, valid: list[str]) -> str:
    """Say which valid name is closest to a misspelt one, and list them all: the tail of an error message."""
    close = difflib.get_close_matches(name, valid, n=1, cutoff=0.5)
    return (f"did you mean {close[0]!r}? " if close else "") + "valid: " + ", ".join(valid)


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
    for name, (low, high, closed) in RANGES.items():
        value = flat.get(name, low)  # another kind of cluster may have it
        if value < low or value > high or (value == high and not closed):
            upper = "" if high == math.inf else f" and below {high}"
            raise ConfigError(name, value, f"must be at least {low}{upper}")
    if isinstance(cfg.data, DownloadedData) and not (cfg.data.timeout_s > 0 and cfg.data.retries >= 0):
        raise ConfigError(
            "data.timeout_s", cfg.data.timeout_s, f"must be above 0, and data.retries={cfg.data.retries} at least 0"
        )
    if cfg.optim.lr_scale == 0:
        raise ConfigError("optim.lr_scale", 0.0, "must be above 0: nothing would be learned")
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
    if isinstance(cfg.cluster, SlurmCluster):
        check_slurm(cfg.cluster, cfg.device)
    if cfg.cluster.ranks > 1 and cfg.device == "mps":
        raise ConfigError("cluster.ranks", cfg.cluster.ranks, "must be 1 with device=mps: its processes cannot add up")


# What says which options of sbatch; `cluster.sbatch` must not say it again.
SBATCH_FIELDS = {
    **{"partition": "partition", "account": "account", "qos": "qos", "constraint": "constraint", "nodes": "nodes"},
    **{"gpus": "gpus", "gpus-per-node": "gpus", "gres": "gpus", "cpus-per-task": "cpus", "mem": "mem_gb"},
    **{"time": "timeout_min", "signal": "stop_before_s", "array": "max_parallel", "ntasks-per-node": "ranks"},
    **{"ntasks": "ranks"},
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


def scaled(cfg: Config) -> Config:
    """Apply the preset's scale to the paper's numbers; the one place where that happens.

    Widths are multiplied by `scale.width` and must stay whole; layers by `scale.depth`, rounded up; heads are
    unchanged; `train_steps` by `scale.steps`, rounded, at least 1. The result's own scale is 1, 1, 1.

    Raises:
        ConfigError: for a width that does not stay a whole number of at least 1, a factor outside (0, 1], or fewer
            checkpoints than are to be averaged.
    """
    for name, factor in dataclasses.asdict(cfg.scale).items():
        if not 0 < factor <= 1:
            raise ConfigError(f"scale.{name}", factor, "must be above 0 and at most 1 (1 is the paper)")
    # Fractions of the decimal the user wrote: 0.1 × 30 is 3, not 3.0000000000000004.
    width, depth, steps = (Fraction(repr(f)) for f in (cfg.scale.width, cfg.scale.depth, cfg.scale.steps))
    widths: dict[str, Any] = {}
    for name in ("d_model", "d_ff", "d_k", "d_v"):
        value = getattr(cfg.model, name)
        product = value * width
        if product.denominator != 1:
            raise ConfigError(
                f"model.{name}", value, f"× scale.width={cfg.scale.width} is {float(product)}, not a whole number"
            )
        widths[name] = int(product)
    model = dataclasses.replace(cfg.model, num_layers=math.ceil(cfg.model.num_layers * depth), **widths)
    optim = dataclasses.replace(cfg.optim, train_steps=max(1, round(cfg.optim.train_steps * steps)))
    done = dataclasses.replace(cfg, model=model, optim=optim, scale=Scale(1.0, 1.0, 1.0))
    check(done)
    num_checkpoints = math.ceil(done.optim.train_steps / done.optim.checkpoint_every_steps)
    if done.decode.average_checkpoints > num_checkpoints:
        raise ConfigError(
            "decode.average_checkpoints",
            done.decode.average_checkpoints,
            f"only {num_checkpoints} are written: {done.optim.train_steps} updates, one checkpoint every "
            f"{done.optim.checkpoint_every_steps}",
        )
    return done


def science(cfg: Config, digests: dict[str, str]) -> dict[str, Any]:
    """Give everything that can change a result, as a flat dictionary of dotted keys.

    That is the model, the corpus and its segmentation, the optimiser, the decoder, the precision, and the digests of
    the prepared corpus and vocabulary; not the seed, paths, device, workers, cluster, tracker. `cfg` is scaled.
    """
    tree = dataclasses.asdict(cfg)
    flat = flatten({name: tree[name] for name in SCIENCE})
    flat = {name: value for name, value in flat.items() if name not in PATHS}
    del flat["model.sinusoid_layout" if cfg.model.positional == "learned" else "model.max_positions"]  # without effect
    if cfg.test_set:  # only then, so that runs of before there was this keep their fingerprints
        flat["test_set"] = True
    flat |= {f"digest.{name}": value for name, value in digests.items()}
    return {name: value + 0.0 if isinstance(value, float) else value for name, value in flat.items()}  # -0.0 is 0.0


def fingerprint(science: dict[str, Any]) -> str:
    """Hash a run's science (`science`) to 12 hexadecimal digits: equal science, equal fingerprint."""
    text = json.dumps(science, sort_keys=True, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def diff(ours: dict[str, Any], theirs: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Give the keys on which two flat dictionaries differ, with both values; None where a key is missing."""
    keys = [*ours, *(key for key in theirs if key not in ours)]
    return {key: (ours.get(key), theirs.get(key)) for key in keys if ours.get(key) != theirs.get(key)}


def refuse_change(where: str, planned: dict[str, Any], present: dict[str, Any]) -> None:
    """Make sure that what was written under one science is used under the same.

    Raises:
        ConfigError: with both fingerprints and the keys that differ.
    """
    if changed := diff(planned, present):
        keys = "; ".join(f"{key}: {was!r} then, {now!r} now" for key, (was, now) in changed.items())
        raise ConfigError(
            where,
            NOT_SAID,
            f"was made under fingerprint {fingerprint(planned)}, this is {fingerprint(present)}: {keys}",
        )


def to_yaml(cfg: Config) -> str:
    """Write a configuration as YAML, every field in it."""
    return OmegaConf.to_yaml(OmegaConf.structured(cfg))


def from_dict(tree: dict[str, Any]) -> Config:
    """Build a typed configuration from nested dictionaries; types are checked and unknown keys refused.

    Raises:
        ConfigError: for an unknown kind of corpus or cluster.
        omegaconf.errors.OmegaConfBaseException: for a key or a type the schema does not have.
    """
    schema = OmegaConf.structured(Config)
    for section, kinds in KINDS.items():
        name = tree.get(section, {}).get("name")
        if name not in kinds:
            raise ConfigError(f"{section}.name", name, nearest(str(name), list(kinds)))
        schema[section] = OmegaConf.structured(kinds[name])
    cfg: Config = OmegaConf.to_object(OmegaConf.merge(schema, tree))  # type: ignore[assignment]
    return cfg


def save(cfg: Config, path: Path) -> None:
    """Freeze a configuration into a file, atomically."""
    write_text(path, to_yaml(cfg))


def load(path: Path) -> Config:
    """Read a frozen configuration."""
    return from_dict(OmegaConf.to_container(OmegaConf.load(path)))  # type: ignore[arg-type]
