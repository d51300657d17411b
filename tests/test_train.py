import dataclasses
import functools
import json
import math
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ablate import checkpoint
from ablate.compose import compose
from ablate.config import Config, ModelConfig, OptimConfig
from ablate.data.packed import Packed
from ablate.data.subword import EOS
from ablate.errors import ConfigError
from ablate.model.transformer import Transformer
from ablate.parallel import ALONE, Group
from ablate.rundir import RunDir
from ablate.schedule import learning_rate
from ablate.stop import Stopped
from ablate.track import Tracker, read_metrics
from ablate.train import NonFiniteLoss, Trainer, generator_seed

VOCAB = 23
SCIENCE = {"optim.lr_scale": 1.0}
MODEL = ModelConfig(
    num_layers=1,
    d_model=8,
    d_ff=12,
    num_heads=2,
    d_k=3,
    d_v=5,
    dropout=0.25,
    activation="relu",
    positional="sinusoid",
    max_positions=64,
    sinusoid_layout="halves",
    attention_bias=True,
    fused_init=True,
    decoder_start="zeros",
)
OPTIM = OptimConfig(
    train_steps=20,
    warmup_steps=5,
    lr_scale=1.0,
    adam_beta1=0.9,
    adam_beta2=0.98,
    adam_eps=1e-9,
    label_smoothing=0.1,
    smoothing="others",
    batch_tokens=4,
    batch_counting="padded",
    accumulate=1,
    eval_every_steps=5,
    checkpoint_every_steps=4,
)


@functools.cache
def config() -> Config:
    cfg = compose(["preset=smoke", "device=cpu", "precision=fp32", "keep_checkpoints=2", "log_every_steps=4"])
    return dataclasses.replace(cfg, model=MODEL, optim=OPTIM, seed=3)


def sentences(lengths: list[tuple[int, int]]) -> Packed:
    """Make pairs of these lengths, the end symbol counted, out of ids from 3 up."""
    rng = np.random.default_rng(1)
    sides = [[[*map(int, rng.integers(3, VOCAB, n - 1)), EOS] for n in side] for side in zip(*lengths, strict=True)]
    return Packed.of(*sides)


EIGHT = sentences([(3, 4), (4, 2), (2, 4), (4, 4), (4, 3), (1, 4), (4, 1), (3, 4)])  # one a batch of 4
DEV = sentences([(5, 3), (2, 4), (1, 1)])


def new_model(dropout: float = 0.25, seed: int = 3) -> Transformer:
    torch.manual_seed(generator_seed(seed, 0))
    return Transformer(dataclasses.replace(MODEL, dropout=dropout), VOCAB)


class Crash(BaseException):
    """A process that ends without a word."""


class Lab:
    """Trains a toy model in a folder, again and again until it is done."""

    def __init__(self, folder: Path, **optim: object) -> None:
        self.run = RunDir(folder)
        self.cfg = dataclasses.replace(config(), optim=dataclasses.replace(OPTIM, **optim))
        self.said: list[str] = []

    def trainer(
        self,
        model: Transformer,
        should_stop=lambda trainer: False,
        attempt: int = 1,
        group: Group = ALONE,
    ) -> Trainer:
        self.tracker = Tracker(self.run, attempt)
        trainer = Trainer(
            self.cfg,
            SCIENCE,
            model,
            EIGHT,
            DEV,
            self.run.checkpoints,
            None if group.rank else self.tracker,
            group=group,
            should_stop=lambda: should_stop(trainer),
            say=self.said.append,
        )
        return trainer

    def train(self, interruptions: dict[int, bool] | None = None) -> Trainer:
        """Train to the end; each update named interrupts once, with a checkpoint (True) or by a crash (False)."""
        left = dict(interruptions or {})

        def should_stop(trainer: Trainer) -> bool:
            graceful = left.pop(trainer.progress.step, None)
            if graceful is False:
                raise Crash
            return bool(graceful)

        attempt = 0
        while True:
            attempt += 1
            # Parameters and generator as another process might have them: all must come from the checkpoint.
            model = new_model() if attempt == 1 else new_model(seed=attempt)
            if not checkpoint.folders(self.run.checkpoints):
                model = new_model()
            torch.manual_seed(attempt)
            try:
                trainer = self.trainer(model, should_stop, attempt)
                trainer.run()
                return trainer
            except (Stopped, Crash):
                continue
            finally:
                self.tracker.finish(0)


def result(trainer: Trainer) -> dict[str, object]:
    """Collect all that training leaves, bit for bit, but the times."""
    progress = {name: value for name, value in vars(trainer.progress).items() if name != "train_s"}
    adam = trainer.optimizer.state_dict()
    moments = {(i, name): value.tolist() for i, kept in adam["state"].items() for name, value in kept.items()}
    return {
        "parameters": {name: value.tolist() for name, value in trainer.model.state_dict().items()},
        "moments": moments,
        "generator": torch.get_rng_state().tolist(),
        "progress": progress,
        "best": min(ppl for _, ppl in trainer.progress.history),
        "checkpoints": [path.name for path in checkpoint.folders(trainer.checkpoints)],
        "average": {
            name: value.tolist()
            for name, value in checkpoint.average_folders(checkpoint.folders(trainer.checkpoints), SCIENCE).items()
        },
    }


def test_the_fifth_batch_follows_a_stop_after_four_of_eight(tmp_path):  # R1
    whole = Lab(tmp_path / "whole").train()
    assert len(whole.batches.epoch(0)) == 8
    assert (whole.progress.step, whole.progress.epoch, whole.progress.position) == (20, 2, 4)
    assert whole.progress.history[0][0] == 5
    assert read_metrics(tmp_path / "whole" / "metrics.jsonl")[-2]["learning_rate"] == learning_rate(20, 8, 5)
    assert whole.optimizer.state_dict()["state"][0]["exp_avg"].abs().sum() > 0

    lab = Lab(tmp_path / "stopped")
    seen = []
    with pytest.raises(Stopped):
        lab.trainer(new_model(), lambda trainer: trainer.progress.step == 4).run()
    lab.tracker.finish(0)
    resumed = lab.trainer(new_model(seed=99), attempt=2)
    assert (resumed.progress.step, resumed.progress.epoch, resumed.progress.position) == (4, 0, 4)
    assert "resumed after update 4" in lab.said
    batches = resumed.batches.batches

    def noted(epoch, start):
        for place in batches(epoch, start):
            seen.append(place[:2])
            yield place

    resumed.batches.batches = noted
    resumed.run()
    lab.tracker.finish(0)
    assert seen == [(0, p) for p in range(4, 8)] + [(1, p) for p in range(8)] + [(2, p) for p in range(4)]
    assert result(resumed) == result(whole)


@functools.cache
def whole_result() -> dict[str, object]:
    with tempfile.TemporaryDirectory() as folder:
        return result(Lab(Path(folder)).train())


@settings(max_examples=15, deadline=None)
@given(st.dictionaries(st.integers(1, 19), st.booleans(), max_size=5))
def test_no_interruption_leaves_a_trace(interruptions):  # R1
    with tempfile.TemporaryDirectory() as folder:
        assert result(Lab(Path(folder)).train(interruptions)) == whole_result()


def test_resuming_under_another_rate_is_refused(tmp_path):  # R5
    lab = Lab(tmp_path)
    lab.train({4: True})
    with pytest.raises(ConfigError, match=r"optim.lr_scale: 1.0 then, 2.0 now"):
        Trainer(lab.cfg, {"optim.lr_scale": 2.0}, new_model(), EIGHT, DEV, lab.run.checkpoints, lab.tracker)


def test_dropout_differs_from_update_to_update_and_from_seed_to_seed():
    assert len({generator_seed(seed, step) for seed in range(1, 6) for step in range(200)}) == 1000
    assert len({generator_seed(1, step, rank) for step in range(200) for rank in range(5)}) == 1000
    assert generator_seed(3, 7, rank=0) == generator_seed(3, 7)


def test_tokens_are_counted_without_padding(tmp_path):
    trainer = Lab(tmp_path, train_steps=16).train()  # two epochs
    assert trainer.progress.src_tokens == 2 * EIGHT.src_lengths.sum()
    assert trainer.progress.tgt_tokens == 2 * EIGHT.tgt_lengths.sum()


def test_accumulation_takes_several_batches_an_update(tmp_path):
    trainer = Lab(tmp_path, train_steps=4, accumulate=2).train({2: True})
    assert (trainer.progress.epoch, trainer.progress.position) == (0, 8)


# What is logged


def test_every_logged_line_has_rate_norm_loss_and_speed(tmp_path):
    trainer = Lab(tmp_path).train()
    lines = read_metrics(tmp_path / "metrics.jsonl")
    training = [line for line in lines if "loss" in line]
    assert [line["step"] for line in training] == [4, 8, 12, 16, 20]
    assert [line["learning_rate"] for line in training] == [learning_rate(s, 8, 5) for s in (4, 8, 12, 16, 20)]
    for line in training:
        assert line["loss"] > 0 < line["gradient_norm"]
        assert line["src_tgt_tokens_per_s"] > line["tgt_tokens_per_s"] > 0 < line["steps_per_s"]
    dev = {line["step"]: line["dev_ppl"] for line in lines if "dev_ppl" in line}
    assert [list(point) for point in dev.items()] == trainer.progress.history
    assert list(dev) == [5, 10, 15, 20]


# Non-finite losses


def poisoned(lab: Lab, step: int, poison) -> str:
    """Train until the poison given after update `step` shows; give the error's message."""

    def should_stop(trainer: Trainer) -> bool:
        if trainer.progress.step == step:
            poison(trainer.model)
        return False

    with pytest.raises(NonFiniteLoss) as failed:
        lab.trainer(new_model(), should_stop).run()
    lab.tracker.finish(1)
    return str(failed.value)


def finite_lines(path: Path) -> list[dict[str, float]]:
    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    lines = [json.loads(line, parse_constant=refuse) for line in path.read_text().splitlines()]
    assert all(math.isfinite(value) for line in lines for value in line.values())
    return lines


def assert_all_finite(checkpoints: Path) -> None:
    for folder in checkpoint.folders(checkpoints):
        loaded = checkpoint.load(folder, SCIENCE)
        assert all(bool(torch.isfinite(value).all()) for value in loaded["model"].values())


def test_a_loss_that_is_not_finite_names_its_update_and_batch_and_is_nowhere_kept(tmp_path):
    lab = Lab(tmp_path, train_steps=20)
    message = poisoned(lab, 9, lambda model: model.embedding.weight.data.fill_(math.nan))
    # Update 10 is the second batch of the second epoch; it was read at update 10's evaluation.
    assert "loss is nan at update 10, epoch 1, batch 1; a lower optim.lr_scale" in message
    assert [path.name for path in checkpoint.folders(lab.run.checkpoints)] == ["step-000004", "step-000008"]
    assert_all_finite(lab.run.checkpoints)
    assert [line["step"] for line in finite_lines(lab.run.metrics)] == [4, 5, 8]


def test_a_gradient_that_is_not_finite_is_not_saved_either(tmp_path):
    lab = Lab(tmp_path, checkpoint_every_steps=3, eval_every_steps=0)

    def poison(model: Transformer) -> None:
        model.decoder[0].feed_forward_norm.norm.weight.register_hook(lambda gradient: gradient * math.inf)

    assert "the gradient's norm is inf at update 6, epoch 0, batch 5" in poisoned(lab, 5, poison)
    assert [path.name for path in checkpoint.folders(lab.run.checkpoints)] == ["step-000003"]
    assert_all_finite(lab.run.checkpoints)
    assert [line["step"] for line in finite_lines(lab.run.metrics)] == [4]
