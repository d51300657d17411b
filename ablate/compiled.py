"""`compile=true`: training's layers through torch's compiler, and what that gains, measured before the first update.

All is compiled once, before training, and for one batch, which depends on the corpus and the seed alone, so that every
attempt at a run has the same code: a resumed run stays bit for bit what it would have been. Batches that the code does
not fit, such as those of a single sentence, go through the layers as they are.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from statistics import median

import torch
import torch.fx.experimental._config as shapes

from ablate.data.batch import Batch, Batches
from ablate.errors import ConfigError
from ablate.gradient import Update
from ablate.model.transformer import Transformer

TURNS = 20  # of the gradient with and without the compiler, at most; at least one
MEASURE_S = 10.0  # after which no further turn is taken
SEEN = 50  # batches among which one is chosen


@dataclass(frozen=True)
class Gain:
    """What compiling cost and brought, in seconds; a batch's are those of its gradient."""

    compile_s: float
    plain_batch_s: float
    compiled_batch_s: float

    def words(self, batches: int) -> str:
        """Say it, and whether it pays for a run that has so many batches before it."""
        plain_ms, compiled_ms = 1000 * self.plain_batch_s, 1000 * self.compiled_batch_s
        saved_s = self.plain_batch_s - self.compiled_batch_s
        said = (
            f"compiled in {self.compile_s:.0f} s: the gradient of a batch takes {compiled_ms:,.0f} ms instead of "
            f"{plain_ms:,.0f} ({plain_ms / compiled_ms:.2f} x)"
        )
        if saved_s <= 0:
            return f"{said}; compile=false is faster here"
        repaid = self.compile_s / saved_s
        if repaid > batches:
            return f"{said}; too little for the {batches:,} batches to come: compile=false is faster here"
        return f"{said}: repaid after {repaid:,.0f} of {batches:,} batches"


def typical(batches: Batches) -> Batch:
    """Choose the batch to compile for: the first with sizes above 1, which the compiler would take to be 1 always."""
    first = [batch for *_, batch in islice(batches.batches(0, 0), SEEN)]
    return next((batch for batch in first if min(*batch.src.shape, *batch.tgt.shape) > 1), first[0])


def compile_layers(
    model: Transformer,
    batches: Batches,
    gradient: Callable[[list[Batch]], Update],
    threads: int,
    should_stop: Callable[[], bool],
) -> Gain:
    """Have the layers' forward and backward passes compiled, and measure what it gains.

    Args:
        model: in training; its gradients are thrown away.
        batches: of training; for one of them the code is made.
        gradient: computes the gradient of batches.
        threads: CPU threads of this process.
        should_stop: asked while it measures, which True ends.

    Raises:
        ConfigError: if it cannot be done here.
    """
    batch = typical(batches)

    def seconds() -> float:
        model.zero_grad(set_to_none=True)
        start_s = time.perf_counter()
        float(gradient([batch]).loss_sum)  # waits for a GPU, too
        return time.perf_counter() - start_s

    plain, compiled = [seconds()], []  # the first is not counted, nor is the one that compiles
    torch.compiler.reset()
    torch.compiler.set_stance("default")
    # Code is kept on disk for other processes, but the compiler suits it to the sizes it sees: only those of the same
    # sizes shall have the same. Sizes that happen to be equal in this batch need not be so in others.
    sizes = batch.src.shape, batch.tgt.shape, batch.num_src_tokens, batch.num_tgt_tokens, threads
    kept = torch.compiler.config.patch(cache_key_tag=f"ablate {sizes}")  # type: ignore[attr-defined]
    with kept, shapes.patch(use_duck_shape=False):  # type: ignore[attr-defined]
        model.compile_layers()
        try:
            compiled.append(seconds())
        except torch._dynamo.exc.TorchDynamoException as err:
            needs = "torch's compiler failed; on a CPU it needs a C++ compiler, such as g++, on a GPU Triton and gcc"
            raise ConfigError("compile", True, f"{needs}: {first_line(err)}") from err
    torch.compiler.set_stance("eager_on_recompile")  # nothing is compiled later: that would depend on what came before
    layers = model.compiled
    start_s = time.perf_counter()
    for turn in range(TURNS):
        if turn and (should_stop() or time.perf_counter() - start_s > MEASURE_S):
            break
        model.compiled = None
        plain.append(seconds())
        model.compiled = layers
        compiled.append(seconds())
    model.zero_grad(set_to_none=True)
    usual = median(plain[1:]), median(compiled[1:])
    return Gain(max(compiled[0] - usual[1], 0.0), *usual)


def first_line(err: Exception) -> str:
    """Give the beginning of a message that goes on with a traceback of the compiler's own."""
    return str(err).strip().partition("\n")[0]
