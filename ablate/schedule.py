"""The learning rate: linear warm-up, then the inverse square root of the step."""

import math


def learning_rate(step: int, d_model: int, warmup_steps: int, lr_scale: float = 1.0) -> float:
    """Give the learning rate of one update (section 5.3, equation 3).

    lr_scale · d_model^-0.5 · min(step^-0.5, step · warmup_steps^-1.5), so step 1 of the paper's base has 1.7469e-7
    and the peak, at step = warmup_steps, 6.98771e-4.

    Args:
        step: the update, counted from 1 for the first.
        d_model: the model's width.
        warmup_steps: updates of linear increase.
        lr_scale: factor on the whole; 1 is the paper.

    Raises:
        ValueError: if `step` is below 1: its rate would be 0 or undefined.
    """
    if step < 1:
        raise ValueError(f"step={step}: updates count from 1")
    return lr_scale * math.pow(d_model, -0.5) * min(math.pow(step, -0.5), step * math.pow(warmup_steps, -1.5))
