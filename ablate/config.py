"""What a run is: the typed schema.

No Hydra and no torch here: planning, the table and the worker all read this file. Defaults live in `conf/*.yaml`,
one home each; a field here states its type, unit, meaning and special values.
"""

from dataclasses import dataclass
from typing import Any


@dataclass
class Scale:
    """Factors by which a preset shrinks the paper's numbers."""

    width: float  # × d_model, d_ff, d_k, d_v; heads unchanged; each product must be a whole number
    depth: float  # × num_layers, rounded up
    steps: float  # × train_steps, rounded; warm-up is the preset's own


@dataclass
class Paper:
    """What the paper prints for a row; None where it prints nothing."""

    ppl_dev: float | None  # per BPE token, newstest2013
    bleu_dev: float | None  # newstest2013, beam 4, length penalty 0.6, no averaging
    params_m: float | None  # millions


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
    """The Transformer in the paper's units; `scale.scaled` turns them into the preset's."""

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

    train_steps: int  # optimiser updates, in the paper's units; `scale.scaled` multiplies them by scale.steps
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

    workers: int  # runs at once; 0: GPUs ÷ ranks with device=cuda, else physical cores ÷ (ranks × threads)


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
    """One run, and how to run it; `identity` says what of it can change its result."""

    row: Row
    preset: str
    scale: Scale
    model: ModelConfig
    data: Any  # a DataConfig; Any lets its subclasses add fields
    optim: OptimConfig
    decode: DecodeConfig
    precision: str  # of training's matrix products: auto: bf16 on CUDA, else fp32; fp32; bf16 (on a CPU, if it has it)
    compile: bool  # training's layers by torch's compiler; changes rounding, says what it gains; needs a C++ compiler
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
    test_set: bool  # translate and score the test set, too (Table 2)


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


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Turn nested dictionaries into one with dotted keys, in their order."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
