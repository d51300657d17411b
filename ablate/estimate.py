"""How long a training will take and how much memory, before anything is measured: a cost model, linear in its work.

`costs.json` beside this file has the coefficients, each at least 0, and the machine they are of; the benchmark
`scaling.py` measures and fits them. One thread of a CPU, float32.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from ablate.config import ModelConfig
from ablate.data.packed import Packed
from ablate.params import MEAN_LENGTH, count_parameters, train_flops

COSTS = Path(__file__).with_name("costs.json")
ASSUMED_GFLOPS = 40.0  # operations per second, in 10^9, where nothing is known or stated
LOGIT_ROWS = 256  # rows of logits that `ablate.loss` holds at once on a CPU


@dataclass(frozen=True)
class Load:
    """What one micro-batch holds; tokens are subwords, end symbols included, padding not."""

    src_tokens: float
    tgt_tokens: float
    src_len: float  # the length of the sentence that a token is in, mean over tokens: what attention's cost goes by
    tgt_len: float


@dataclass(frozen=True)
class Lengths:
    """What the sentences of a training set are like, in subwords with their end symbols."""

    src: float = MEAN_LENGTH  # mean over sentences
    tgt: float = MEAN_LENGTH
    longer: float = MEAN_LENGTH  # of each pair's longer side
    src_of_token: float = MEAN_LENGTH  # mean over tokens, of the sentence that they are in
    tgt_of_token: float = MEAN_LENGTH

    @classmethod
    def of(cls, packed: Packed) -> "Lengths":
        """Take the means of a split."""
        src, tgt = packed.src_lengths.astype(float), packed.tgt_lengths.astype(float)
        longer = np.maximum(src, tgt).mean()
        means = (src.mean(), tgt.mean(), longer, (src**2).sum() / src.sum(), (tgt**2).sum() / tgt.sum())
        return cls(*map(float, means))

    def load(self, batch_tokens: int, counting: str) -> Load:
        """Give the load of a full micro-batch; `counting` as `OptimConfig.batch_counting`."""
        sentences = batch_tokens / (self.longer if counting == "padded" else max(self.src, self.tgt))
        return Load(sentences * self.src, sentences * self.tgt, self.src_of_token, self.tgt_of_token)


def model_of(science: Mapping[str, Any]) -> ModelConfig:
    """Rebuild the model's configuration from a run's science, which leaves out what has no effect there."""
    without_effect = {"model.max_positions": 1, "model.sinusoid_layout": "halves"}
    known = {**without_effect, **science}
    return ModelConfig(**{field.name: known[f"model.{field.name}"] for field in fields(ModelConfig)})


def work(model: ModelConfig, vocab_size: int, load: Load) -> dict[str, float]:
    """Count the work of a micro-batch by kind, as far as each is done at a rate of its own.

    Args:
        model: scaled to the preset.
        vocab_size: V.
        load: what the micro-batch holds.

    Returns:
        By kind: matrix products in floating-point operations, forward and back; elements, that is, numbers written
        once or a few times; and counts.
    """
    src, tgt, n = load.src_tokens, load.tgt_tokens, model.num_layers
    products = train_flops(model, 0, src, tgt, 0.0, 0.0)
    outputs = n * model.d_model * (2 * src + 3 * tgt)  # of the sub-layers
    return {
        "micro-batch": 1.0,
        "layers": float(n),
        "products": products,
        "output products": train_flops(model, vocab_size, src, tgt, 0.0, 0.0) - products,
        "attention matrices": n * model.num_heads * (src / load.src_len + 2 * tgt / load.tgt_len),
        "attention weights": n * model.num_heads * (src * load.src_len + tgt * (load.tgt_len + load.src_len)),
        "elements": outputs + n * model.d_ff * (src + tgt),
        "dropped elements": outputs if model.dropout else 0.0,
        "logits": tgt * vocab_size,
        "parameters": float(count_parameters(model, vocab_size)),
    }


def memory(model: ModelConfig, vocab_size: int, load: Load) -> dict[str, float]:
    """Count what training holds at its peak, by kind, in numbers of 4 bytes; `process` is the interpreter's."""
    done = work(model, vocab_size, load)
    kinds = ("parameters", "attention weights", "elements", "dropped elements")
    logits = min(load.tgt_tokens, LOGIT_ROWS) * vocab_size
    return {"process": 1.0, **{kind: done[kind] for kind in kinds}, "logits": logits}


@dataclass(frozen=True)
class Estimate:
    """The cost model with its coefficients, as they stand in `costs.json`."""

    machine: str  # that they were measured on, in words
    seconds: dict[str, float]  # of one thread, per unit of each kind of `work`
    memory_mb: dict[str, float]  # per unit of each kind of `memory`
    error: dict[str, float]  # median relative error on rows it was not fitted on: of seconds, of memory_mb

    def update_s(self, science: Mapping[str, Any], lengths: Lengths) -> float:
        """Estimate the seconds of one update of a run with this science."""
        done = work(*self._sizes(science, lengths))
        accumulate = science["optim.accumulate"]
        times = dict.fromkeys(done, accumulate) | {"parameters": 1}  # Adam comes once, all else with micro-batches
        return sum(done[kind] * cost * times[kind] for kind, cost in self.seconds.items())

    def peak_mb(self, science: Mapping[str, Any], lengths: Lengths) -> float:
        """Estimate the most memory that training holds, in 10^6 bytes, interpreter and libraries included."""
        held = memory(*self._sizes(science, lengths))
        return sum(held[kind] * cost for kind, cost in self.memory_mb.items())

    def said(self, quantity: str) -> str:
        """Say where estimates of seconds or memory_mb come from, and how good they are."""
        return f"by a cost model fitted on {self.machine} (median error on rows new to it: {self.error[quantity]:.0%})"

    @staticmethod
    def _sizes(science: Mapping[str, Any], lengths: Lengths) -> tuple[ModelConfig, int, Load]:
        load = lengths.load(science["optim.batch_tokens"], science["optim.batch_counting"])
        return model_of(science), science["data.vocab_size"], load


@dataclass(frozen=True)
class Guess:
    """What the trainings of a plan will take on its device, before any is measured."""

    lengths: Lengths
    model: Estimate
    flops_per_s: float | None  # None: by the cost model
    source: str  # of the seconds, in words

    def train_s(self, science: Mapping[str, Any], flops: float) -> float:
        """Estimate the seconds of a whole training that takes so many operations."""
        if self.flops_per_s is not None:
            return flops / self.flops_per_s
        return science["optim.train_steps"] * self.model.update_s(science, self.lengths)


def guess(lengths: Lengths, device: str, sustained_gflops: float) -> Guess:
    """Choose what to estimate by: the rate that the user states; or the cost model, which speaks of CPUs only.

    Args:
        lengths: of the training set; the default where it is not known.
        device: as resolved.
        sustained_gflops: as `ClusterConfig`; 0 if the user states none.
    """
    model = Estimate(**json.loads(COSTS.read_text("utf-8")))
    if sustained_gflops:
        return Guess(lengths, model, sustained_gflops * 1e9, f"from cluster.sustained_gflops={sustained_gflops:g}")
    if device != "cpu":
        return Guess(lengths, model, ASSUMED_GFLOPS * 1e9, f"from {ASSUMED_GFLOPS:g} GFLOP/s, a mere assumption")
    return Guess(lengths, model, None, model.said("seconds"))
