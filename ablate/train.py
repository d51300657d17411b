"""Train one run: the loop, its numbers, its checkpoints, and the exact way back into it."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ablate import checkpoint
from ablate.adam import Adam
from ablate.compiled import Gain, compile_layers
from ablate.config import Config
from ablate.data.batch import Batch, Batches, share
from ablate.data.packed import Packed
from ablate.device import keep_freed_memory
from ablate.evaluate import Perplexity, perplexity
from ablate.gradient import Update, accumulate_gradients
from ablate.model.transformer import Transformer
from ablate.parallel import ALONE, Group
from ablate.schedule import learning_rate
from ablate.stop import Stopped
from ablate.track import Tracker

HEARTBEAT_S = 1.0  # at most one sign of life a second


class NonFiniteLoss(RuntimeError):
    """A loss or its gradient is NaN or infinite; the message names the update and its last batch."""


@dataclass
class Progress:
    """Where a run stands, besides its parameters and Adam's moments; plain values, stored in every checkpoint.

    The dropout of an update is seeded by the run's seed, the update's number and the rank, and the order of the batches
    is a function of the seed and the epoch: so step, epoch and position are all of the randomness there is to store.
    """

    step: int = 0  # updates done
    epoch: int = 0  # of the last batch
    position: int = 0  # within that epoch, of the batch to come
    src_tokens: int = 0  # seen so far, padding excluded
    tgt_tokens: int = 0
    loss: float = 0.0  # per target token, of the last update
    nll: float = 0.0  # the same without smoothing
    history: list[list[int | float]] = field(default_factory=list)  # [update, dev perplexity] of each evaluation
    train_s: float = 0.0  # seconds inside updates, over all attempts


def generator_seed(seed: int, step: int, rank: int = 0) -> int:
    """Give the seed of all random numbers of one update (0: of the initialisation) in the process of one rank."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1, np.uint32)[0])


class Trainer:
    """One run's training, resumable after any update.

    `run()` goes from wherever the newest checkpoint is to the last update.
    """

    def __init__(
        self,
        cfg: Config,
        science: dict[str, Any],
        model: Transformer,
        train_set: Packed,
        dev_set: Packed,
        checkpoints: Path,
        tracker: Tracker | None,
        *,
        group: Group = ALONE,
        should_stop: Callable[[], bool] = lambda: False,
        on_progress: Callable[[dict[str, Any]], None] = lambda numbers: None,
        say: Callable[[str], None] = print,
    ):
        """Restore the newest checkpoint, or start at update 0.

        Args:
            cfg: scaled, with device and precision resolved.
            science: of the run, for its checkpoints.
            model: freshly initialised from the seed, on the device.
            train_set: packed pairs.
            dev_set: packed pairs.
            checkpoints: the run's folder of checkpoints.
            tracker: told of every `log_every_steps`-th update and of every evaluation; None on all ranks but 0.
            group: the processes that train together.
            should_stop: asked after every update; True leads to a checkpoint and `Stopped`.
            on_progress: told about once a second.
            say: told what a reader of the run's log should know.
        """
        self.cfg, self.science, self.model, self.tracker, self.say = cfg, science, model, tracker, say
        self.dev_set, self.checkpoints = dev_set, checkpoints
        self.group, self.should_stop, self.on_progress = group, should_stop, on_progress
        optim = cfg.optim
        self.batches = Batches(train_set, optim.batch_tokens, optim.batch_counting, cfg.seed)
        self.optimizer = Adam(model.parameters(), optim.adam_beta1, optim.adam_beta2, optim.adam_eps)
        if cfg.device == "cpu":
            keep_freed_memory()
        self.progress = Progress()
        state = group.newest(checkpoints, science, cfg.device, say)
        if state is None:
            group.same(model.parameters())
        else:
            model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
            self.progress = Progress(**state["progress"])
            say(f"resumed after update {self.progress.step}")
        self.gain: Gain | None = None  # by compiling
        left = optim.train_steps - self.progress.step
        if cfg.compile and left:
            alone = partial(self.gradient, group=ALONE)
            self.gain = compile_layers(model.train(), self.batches, alone, cfg.cluster.threads, should_stop)
            say(self.gain.words(left * optim.accumulate // group.count))
        # Updates since the numbers were last read: each with its number, its last batch's place, its source tokens.
        self.unread: list[tuple[int, tuple[int, int], int, Update]] = []
        self.rates: dict[str, float] = {}  # as last logged
        self.measured: Perplexity | None = None  # of the dev set, by the last evaluation of this attempt
        self.window_start_s = self.heartbeat_s = time.monotonic()

    def run(self) -> Progress:
        """Train to the last update and leave a checkpoint there.

        Raises:
            NonFiniteLoss: naming the update and the batch; no checkpoint holds it.
            Stopped: after a checkpoint, when `should_stop` said so.
        """
        cfg, optim, progress = self.cfg, self.cfg.optim, self.progress
        stream = self.batches.batches(progress.epoch, progress.position)
        self.model.train()
        while progress.step < optim.train_steps:
            self.update(stream)
            step = progress.step
            last = step == optim.train_steps
            stop = self.should_stop() and not last  # before anything waits for the device: a lost rank shows here
            if step % cfg.log_every_steps == 0 or last:
                self.read_numbers(log=True)
            if last or (optim.eval_every_steps and step % optim.eval_every_steps == 0):
                self.evaluate()
            if step % optim.checkpoint_every_steps == 0 or last or stop:
                self.save()
            if stop:
                self.beat()
                self.say(f"stopped after update {step}; the same command continues")
                raise Stopped
            if time.monotonic() - self.heartbeat_s > HEARTBEAT_S:
                self.beat()
        return progress

    def update(self, stream: Iterator[tuple[int, int, Batch]]) -> None:
        """Do one update of the parameters and move the progress on, reading nothing back from the device."""
        cfg, optim, progress = self.cfg, self.cfg.optim, self.progress
        step, micro_batches = progress.step + 1, []
        for _ in range(optim.accumulate):
            epoch, position, batch = next(stream)
            micro_batches.append(batch)
        self.model.zero_grad(set_to_none=True)
        torch.manual_seed(generator_seed(cfg.seed, step, self.group.rank))
        update = self.gradient(share(self.batches.packed, micro_batches, self.group.rank, self.group.count), self.group)
        self.optimizer.step(self.rate(step))
        progress.step, progress.epoch, progress.position = step, epoch, position + 1
        src_tokens = sum(batch.num_src_tokens for batch in micro_batches)
        progress.src_tokens += src_tokens
        progress.tgt_tokens += sum(batch.num_tgt_tokens for batch in micro_batches)
        self.unread.append((step, (epoch, position), src_tokens, update))

    def gradient(self, batches: list[Batch], group: Group) -> Update:
        """Put the gradient of these micro-batches, and of the group's others, into `.grad`."""
        cfg, optim = self.cfg, self.cfg.optim
        smoothed = optim.label_smoothing, optim.smoothing
        return accumulate_gradients(self.model, batches, *smoothed, cfg.device, cfg.precision == "bf16", group)

    def rate(self, step: int) -> float:
        """Give the learning rate of an update."""
        optim = self.cfg.optim
        return learning_rate(step, self.cfg.model.d_model, optim.warmup_steps, optim.lr_scale)

    def read_numbers(self, log: bool = False) -> None:
        """Read the losses since last time off the device, refuse non-finite ones, and log their mean if asked.

        Raises:
            NonFiniteLoss: naming the first such update.
        """
        if not self.unread:
            return
        sums = torch.stack([torch.stack([u.loss_sum, u.nll_sum, u.num_tokens]) for *_, u in self.unread]).cpu()
        norms = [p.grad.norm() for p in self.model.parameters() if p.grad is not None]
        gradient_norm = float(torch.stack(norms).norm())  # of the last update
        finite = torch.isfinite(sums[:, 0])
        if not (finite.all() and math.isfinite(gradient_norm)):
            first = -1 if finite.all() else int(torch.nonzero(~finite)[0])
            what = f"the gradient's norm is {gradient_norm}" if finite.all() else f"the loss is {float(sums[first, 0])}"
            step, (epoch, position), *_ = self.unread[first]
            raise NonFiniteLoss(
                f"{what} at update {step}, epoch {epoch}, batch {position}; "
                "a lower optim.lr_scale or a longer optim.warmup_steps may help"
            )
        now = time.monotonic()
        window_s = now - self.window_start_s
        self.window_start_s = now
        progress = self.progress
        progress.train_s += window_s
        progress.loss, progress.nll = (float(sums[-1, i] / sums[-1, 2]) for i in (0, 1))
        if log and self.tracker is not None:
            tokens = float(sums[:, 2].sum())
            src_tokens = sum(src_tokens for _, _, src_tokens, _ in self.unread)
            self.rates = {
                "tgt_tokens_per_s": tokens / window_s,
                "src_tgt_tokens_per_s": (tokens + src_tokens) / window_s,
                "steps_per_s": len(self.unread) / window_s,
            }
            self.tracker.log(
                progress.step,
                loss=float(sums[:, 0].sum()) / tokens,
                nll=float(sums[:, 1].sum()) / tokens,
                learning_rate=self.rate(progress.step),
                gradient_norm=gradient_norm,
                epoch=progress.epoch,
                **self.rates,
            )
        self.unread = []

    def evaluate(self) -> None:
        """Measure dev perplexity and keep it; rank 0 does, the others meet it again in the next update."""
        self.read_numbers()
        if self.tracker is None:
            return
        measured = self.measured = perplexity(self.model, self.dev_set, self.cfg.optim.batch_tokens, self.cfg.device)
        self.progress.history.append([self.progress.step, measured.ppl])
        self.tracker.log(self.progress.step, dev_ppl=measured.ppl, dev_nll=measured.nll_per_token)
        self.say(f"update {self.progress.step}: dev perplexity {measured.ppl:.2f}")
        self.window_start_s = time.monotonic()
        self.beat()

    def save(self) -> None:
        """Write a checkpoint of where the run stands; rank 0 does."""
        self.read_numbers()
        if self.tracker is None:
            return
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "progress": asdict(self.progress),
        }
        keep, every = self.cfg.keep_checkpoints, self.cfg.optim.checkpoint_every_steps
        checkpoint.save(self.checkpoints, self.progress.step, state, self.science, keep, every)
        self.window_start_s = time.monotonic()

    def beat(self) -> None:
        """Say where the run stands."""
        progress = self.progress
        self.on_progress(
            {
                "state": "training",
                "step": progress.step,
                "loss": progress.loss or None,
                "dev_ppl": progress.history[-1][1] if progress.history else None,
                **self.rates,
            }
        )
        self.heartbeat_s = time.monotonic()
