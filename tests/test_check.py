import copy
import dataclasses
import math
import re

import pytest
from configs import ON_SLURM, SMOKE, with_value

from ablate.check import CHOICES, LOWEST, check
from ablate.compose import compose
from ablate.config import flatten
from ablate.errors import ConfigError

DOWNLOAD = compose(["preset=smoke", "data=multi30k"])


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("model.num_heads", 0),
        ("model.num_heads", -8),
        ("model.d_k", 0),
        ("model.d_v", 0),
        ("model.num_layers", 0),
        ("model.dropout", 1.0),
        ("model.dropout", -0.1),
        ("optim.label_smoothing", 1.0),
        ("optim.label_smoothing", -0.01),
        ("optim.lr_scale", 0.0),
        ("optim.adam_beta2", 1.0),
        ("optim.accumulate", 0),
        ("decode.beam_size", 0),
        ("data.vocab_size", 0),
        ("data.vocab_size", 1 << 31),
        ("seeds", 0),
        ("cluster.threads", 0),
        ("cluster.workers", -1),
        ("keep_checkpoints", 0),
    ],
)
def test_a_value_out_of_range_is_refused_with_field_value_and_range(name, value):
    with pytest.raises(ConfigError, match=f"{name}={value!r}: must be (at least|above)"):
        check(with_value(SMOKE, name, value))


@pytest.mark.parametrize(("name", "value"), [("data.timeout_s", 0.0), ("data.retries", -1)])
def test_what_only_a_download_has_is_in_its_range_too(name, value):
    with pytest.raises(ConfigError, match=f"{name}={value!r}: must be (at least|above) 0"):
        check(with_value(DOWNLOAD, name, value))


@pytest.mark.parametrize("name", list(LOWEST))
def test_the_lowest_value_of_a_range_is_allowed(name):
    cfg = next(cfg for cfg in (SMOKE, ON_SLURM, DOWNLOAD) if name in flatten(dataclasses.asdict(cfg)))
    cfg = with_value(cfg, name, LOWEST[name])
    if name == "cluster.timeout_min":
        cfg.cluster.stop_before_s = 59
    if name == "decode.beam_size":
        cfg.decode.length_penalty = 0.0  # greedy search has none
    if name == "keep_checkpoints":
        cfg.decode.average_checkpoints = 1
    check(cfg)


@pytest.mark.parametrize(
    ("changes", "field", "why"),
    [
        ({"gpus": 4, "ranks": 3}, "ranks", "is cluster.gpus: one process per GPU"),
        ({"gpus": 3, "nodes": 2}, "gpus", "must be a multiple of cluster.nodes=2: as many on each"),
        ({"nodes": 2}, "nodes", "has no more nodes than processes, as many on each"),
        ({"ranks": 3, "nodes": 2}, "nodes", "has no more nodes than processes, as many on each"),
        ({"gpu_type": "a100"}, "gpu_type", "has no effect without cluster.gpus"),
        ({"runs_per_job": 2, "gpus": 2}, "runs_per_job", "shares one GPU"),
        ({"runs_per_job": 2, "ranks": 2}, "runs_per_job", "shares one GPU"),
        ({"timeout_min": 1, "stop_before_s": 60}, "stop_before_s", "must be less than cluster.timeout_min"),
        ({"sbatch": ["-p gpu"]}, "sbatch", "'-p gpu' is no option such as '--exclude=n7'"),
        ({"sbatch": ["--exclusive", "--time=5"]}, "sbatch", "--time is cluster.timeout_min"),
        ({"sbatch": ["--no-requeue"]}, "sbatch", "--no-requeue is set so that jobs are found, read and put back"),
    ],
)
def test_what_does_not_fit_together_on_slurm_is_refused(changes, field, why):
    cfg = copy.deepcopy(ON_SLURM)
    cfg.cluster = dataclasses.replace(cfg.cluster, **changes)
    with pytest.raises(ConfigError, match=re.escape(why)) as refused:
        check(cfg)
    assert refused.value.field == f"cluster.{field}"


@pytest.mark.parametrize(
    ("field", "line"),
    [
        ("setup", "export WANDB_API_KEY={}"),
        ("setup", "wandb login --relogin 'local-{}'"),
        ("setup", "echo machine api.wandb.ai login user password wandb_v1_{} > ~/.netrc"),
        ("sbatch", "--export=ALL,WANDB_API_KEY={}"),
    ],
)
def test_a_key_for_wandb_is_refused_in_what_is_written_down_and_not_repeated(field, line):
    key = "0123456789abcdef" * 2 + "01234567"
    cfg = with_value(ON_SLURM, f"cluster.{field}", ["module load cuda", line.format(key)])
    with pytest.raises(ConfigError, match=rf"cluster\.{field}: seems to hold a key for W&B") as refused:
        check(cfg)
    assert key not in str(refused.value)


def test_what_only_fetches_a_key_for_wandb_is_allowed():
    commit = "0123456789abcdef" * 2 + "01234567"
    fetched = "export WANDB_API_KEY=$(cat ~/.wandb-key)"
    lines = [fetched, "export WANDB_BASE_URL=https://wandb.example", f"git checkout {commit}"]
    check(with_value(ON_SLURM, "cluster.setup", lines))


@pytest.mark.parametrize("name", ["", "a/b", "ablate?", "x" * 129])
def test_a_project_that_wandb_would_not_take_is_refused_before_any_run(name):
    with pytest.raises(ConfigError, match=r"tracking\.project=.*none of / \\ # \? % :"):
        check(with_value(SMOKE, "tracking.project", name))
    check(with_value(SMOKE, "tracking.project", "Table 3, ours"))


def test_gpus_without_effect_are_refused():
    with pytest.raises(ConfigError, match=r"cluster\.gpus=1: has no effect with device=cpu"):
        check(with_value(with_value(ON_SLURM, "cluster.gpus", 1), "device", "cpu"))


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(
    "name", ["model.dropout", "optim.lr_scale", "optim.adam_eps", "scale.width", "row.paper.ppl_dev"]
)
def test_nan_and_infinity_are_refused_in_every_number(name, value):
    with pytest.raises(ConfigError, match="must be a finite number"):
        check(with_value(SMOKE, name, value))


@pytest.mark.parametrize("name", list(CHOICES))
def test_an_unknown_choice_is_refused_with_all_valid_ones(name):
    with pytest.raises(ConfigError) as refused:
        check(with_value(SMOKE, name, "nonesuch"))
    assert refused.value.field == name
    assert all(choice in str(refused.value) for choice in CHOICES[name])


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"decode.average_checkpoints": 3, "keep_checkpoints": 2}, "decode.average_checkpoints"),
        ({"decode.beam_size": 1, "decode.length_penalty": 0.6}, "decode.length_penalty"),
        ({"precision": "bf16", "device": "mps"}, "precision"),
        ({"compile": True, "device": "mps"}, "compile"),
    ],
)
def test_settings_that_cannot_go_together_are_refused(changes, field):
    cfg = SMOKE
    for name, value in changes.items():
        cfg = with_value(cfg, name, value)
    with pytest.raises(ConfigError) as refused:
        check(cfg)
    assert refused.value.field == field
