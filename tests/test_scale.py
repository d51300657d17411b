import pytest
from configs import SMOKE, with_value

from ablate.errors import ConfigError
from ablate.scale import scaled


def test_scaling_multiplies_widths_rounds_layers_up_and_leaves_heads():
    cfg = with_value(SMOKE, "model.num_layers", 5)
    cfg.model.d_k, cfg.model.d_v, cfg.optim.train_steps = 48, 80, 100_000
    small = scaled(cfg)  # smoke: width 1/16, depth 1/2, steps 0.0006
    model = small.model
    assert (model.d_model, model.d_ff, model.d_k, model.d_v) == (32, 128, 3, 5)
    assert (model.num_layers, model.num_heads, small.optim.train_steps) == (3, 8, 60)
    assert small.optim.warmup_steps == cfg.optim.warmup_steps
    assert (small.scale.width, small.scale.depth, small.scale.steps) == (1, 1, 1)
    assert scaled(small) == small
    assert cfg.model.d_model == 512  # the argument is untouched


@pytest.mark.parametrize(("width", "d_k", "scaled_d_k"), [(0.1, 30, 3), (0.7, 10, 7), (0.3, 10, 3)])
def test_a_factor_is_the_decimal_that_was_written(width, d_k, scaled_d_k):
    cfg = with_value(with_value(SMOKE, "scale.width", width), "model.d_k", d_k)
    cfg.model.d_model = cfg.model.d_ff = cfg.model.d_v = 100
    assert scaled(cfg).model.d_k == scaled_d_k  # 0.1 × 30 in floats is 3.0000000000000004


@pytest.mark.parametrize("name", ["d_model", "d_ff", "d_k", "d_v"])
def test_a_width_that_does_not_stay_whole_is_refused(name):
    with pytest.raises(ConfigError, match=rf"model.{name}=24: × scale.width=0.0625 is 1.5, not a whole number"):
        scaled(with_value(SMOKE, f"model.{name}", 24))


@pytest.mark.parametrize(("name", "factor"), [("width", 0.0), ("depth", -1.0), ("steps", 1.5)])
def test_a_scale_outside_its_range_is_refused(name, factor):
    with pytest.raises(ConfigError, match=f"scale.{name}={factor}: must be above 0 and at most 1"):
        scaled(with_value(SMOKE, f"scale.{name}", factor))


def test_a_run_has_at_least_one_layer_and_one_step():
    cfg = with_value(with_value(SMOKE, "model.num_layers", 1), "optim.train_steps", 1)
    assert (scaled(cfg).model.num_layers, scaled(cfg).optim.train_steps) == (1, 1)
