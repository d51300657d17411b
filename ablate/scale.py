"""The preset's scale, applied to the paper's numbers."""

import dataclasses
import math
from fractions import Fraction
from typing import Any

from ablate.check import check
from ablate.config import Config, Scale
from ablate.errors import ConfigError


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
