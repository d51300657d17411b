import copy
import dataclasses
import math
import pickle
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ablate.compose import compose
from ablate.config import (
    CHOICES,
    NOT_SAID,
    RANGES,
    SCIENCE,
    Config,
    ConfigError,
    check,
    diff,
    fingerprint,
    flatten,
    from_dict,
    load,
    nearest,
    save,
    scaled,
    science,
)

DIGESTS = {"corpus": "c" * 64, "vocab": "d" * 64}
SMOKE = compose(["preset=smoke"])  # in the paper's units
ON_SLURM = compose(["preset=smoke", "cluster=slurm"])
SLURM_ONLY = {f"cluster.{name}" for name in dataclasses.asdict(ON_SLURM.cluster) if not hasattr(SMOKE.cluster, name)}
FILES = compose(["preset=paper", "data=files", "data.train_src=a.en"])


def with_value(cfg: Config, name: str, value: Any) -> Config:
    """Copy a configuration with one dotted field changed."""
    changed = copy.deepcopy(cfg)
    *sections, field = name.split(".")
    place: Any = changed
    for section in sections:
        place = getattr(place, section)
    assert hasattr(place, field)
    setattr(place, field, value)
    return changed


def identity(cfg: Config) -> str:
    return fingerprint(science(cfg, DIGESTS))


SECTIONS = [section for section in SCIENCE if section != "precision"]
SCIENCE_FIELDS = list(flatten({section: dataclasses.asdict(SMOKE)[section] for section in SECTIONS}))


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


@pytest.mark.parametrize("name", [name for name, (low, *_) in RANGES.items() if name != "optim.lr_scale"])
def test_the_lowest_value_of_a_range_is_allowed(name):
    low = RANGES[name][0]
    cfg = with_value(ON_SLURM if name in SLURM_ONLY else SMOKE, name, low)
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
    ],
)
def test_settings_that_cannot_go_together_are_refused(changes, field):
    cfg = SMOKE
    for name, value in changes.items():
        cfg = with_value(cfg, name, value)
    with pytest.raises(ConfigError) as refused:
        check(cfg)
    assert refused.value.field == field


def test_the_error_names_the_nearest_valid_name():
    assert nearest("dropuot", ["d_model", "dropout"]) == "did you mean 'dropout'? valid: d_model, dropout"
    assert nearest("zzz", ["d_model", "dropout"]) == "valid: d_model, dropout"


def test_an_error_names_field_value_source_and_what_is_allowed():
    said = str(ConfigError("model.d_k", 0, "must be at least 1", "row/mine"))
    assert said == "model.d_k=0 (from row/mine): must be at least 1"


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


def changed_value(value: Any) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return value + "x"
    return value + (1 if isinstance(value, int) else 0.015625)


# max_positions has no effect on sinusoids: see below.
@pytest.mark.parametrize("name", [name for name in SCIENCE_FIELDS if name != "model.max_positions"])
def test_every_field_that_can_change_a_result_changes_the_fingerprint(name):
    value = flatten(dataclasses.asdict(SMOKE))[name]
    changed = with_value(SMOKE, name, changed_value(value))
    assert identity(changed) != identity(SMOKE)
    assert list(diff(science(SMOKE, DIGESTS), science(changed, DIGESTS))) == [name]  # P6: and diff names it


@pytest.mark.parametrize(
    ("positional", "without_effect", "effective"),
    [("sinusoid", "max_positions", "sinusoid_layout"), ("learned", "sinusoid_layout", "max_positions")],
)
def test_what_only_the_other_kind_of_positions_has_does_not_change_the_fingerprint(
    positional, without_effect, effective
):
    cfg = with_value(SMOKE, "model.positional", positional)

    def with_other(name: str) -> Config:
        return with_value(cfg, f"model.{name}", changed_value(getattr(cfg.model, name)))

    assert identity(with_other(without_effect)) == identity(cfg)
    assert identity(with_other(effective)) != identity(cfg)


@pytest.mark.parametrize("name", list(DIGESTS))
def test_other_text_or_subwords_have_another_fingerprint(name):
    assert fingerprint(science(SMOKE, DIGESTS | {name: "e" * 64})) != identity(SMOKE)


def test_the_precision_is_part_of_the_fingerprint():
    assert identity(with_value(SMOKE, "precision", "bf16")) != identity(with_value(SMOKE, "precision", "fp32"))


OUTSIDE = {
    "seed": 7,
    "seeds": 3,
    "device": "cuda",
    "runs_dir": "/elsewhere",
    "keep_checkpoints": 9,
    "log_every_steps": 1,
    "plan_only": True,
    "preset": "mine",
    "cluster.workers": 5,
    "cluster.ranks": 2,
    "cluster.threads": 4,
    "cluster.sustained_gflops": 1.0,
    "cluster.name": "slurm",
    "tracking.mode": "none",
    "tracking.project": "other",
    "tracking.entity": "me",
    "tracking.model_artifact": True,
    "row.name": "other",
    "row.block": "Z",
    "row.cites": "nothing",
    "row.paper.bleu_dev": 1.0,
}


@pytest.mark.parametrize("name", list(OUTSIDE))
def test_what_cannot_change_a_result_does_not_change_the_fingerprint(name):
    assert identity(with_value(SMOKE, name, OUTSIDE[name])) == identity(SMOKE)


def test_where_a_run_happens_does_not_change_the_fingerprint():
    assert identity(ON_SLURM) == identity(SMOKE)


def test_judging_the_test_set_makes_another_run_and_not_judging_it_leaves_older_runs_what_they_were(tmp_path):
    assert "test_set" not in science(SMOKE, DIGESTS)
    assert identity(with_value(SMOKE, "test_set", True)) != identity(SMOKE)
    save(SMOKE, tmp_path / "config.yaml")
    frozen = (tmp_path / "config.yaml").read_text().replace("test_set: false\n", "")  # as before there was the field
    (tmp_path / "config.yaml").write_text(frozen)
    assert load(tmp_path / "config.yaml") == SMOKE


def test_every_field_is_either_science_or_known_not_to_be():
    names = set(flatten(dataclasses.asdict(SMOKE)))
    told = {*SCIENCE_FIELDS, *OUTSIDE, "precision", "test_set", "row.paper.ppl_dev", "row.paper.params_m"}
    told |= {f"scale.{name}" for name in ("width", "depth", "steps")}  # applied before hashing
    assert names == told


def test_where_the_users_files_lie_does_not_change_the_fingerprint():
    assert identity(with_value(FILES, "data.train_src", "/moved/a.en")) == identity(FILES)


@settings(max_examples=40, deadline=None)  # omegaconf is slow
@given(st.floats(min_value=0, max_value=0.96875, allow_nan=False), st.sampled_from(["repr", "e", "float"]))
def test_one_number_has_one_fingerprint_however_it_is_written(value, form):
    written = {"repr": repr(value), "e": f"{value:.17e}", "float": value}[form]
    tree = dataclasses.asdict(SMOKE)
    tree["model"]["dropout"] = written
    assert identity(from_dict(tree)) == identity(with_value(SMOKE, "model.dropout", value))


def test_minus_zero_is_zero_and_an_integer_is_its_float():
    assert identity(with_value(SMOKE, "model.dropout", -0.0)) == identity(with_value(SMOKE, "model.dropout", 0.0))
    tree = dataclasses.asdict(SMOKE)
    tree["optim"]["lr_scale"] = 1
    assert identity(from_dict(tree)) == identity(with_value(SMOKE, "optim.lr_scale", 1.0))


@settings(max_examples=40, deadline=None)
@given(
    st.dictionaries(st.text(), st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()))
)
def test_the_order_of_the_keys_does_not_change_the_fingerprint(facts):
    assert fingerprint(dict(reversed(facts.items()))) == fingerprint(facts)
    assert len(fingerprint(facts)) == 12


def test_a_fingerprint_of_nan_is_refused():
    with pytest.raises(ValueError, match="JSON"):
        fingerprint({"model.dropout": math.nan})


def test_diff_gives_both_values_and_none_for_a_missing_key():
    assert diff({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}) == {"b": (2, 3), "c": (None, 4)}


@pytest.mark.parametrize("cfg", [SMOKE, FILES, scaled(SMOKE)], ids=["smoke", "files", "scaled"])
def test_a_frozen_configuration_reads_back_as_it_was(cfg, tmp_path):
    save(cfg, tmp_path / "config.yaml")
    assert load(tmp_path / "config.yaml") == cfg


def test_an_unknown_corpus_is_refused_with_the_known_ones():
    tree = dataclasses.asdict(SMOKE)
    tree["data"]["name"] = "wmt"
    with pytest.raises(ConfigError, match=r"data\.name='wmt': valid: homeassistant, synthetic, files"):
        from_dict(tree)


def test_an_error_that_comes_from_another_process_says_the_same():
    for value in (None, 3, NOT_SAID):
        err = ConfigError("model.num_layers", value, "must be at least 1", "row/mine")
        again = pickle.loads(pickle.dumps(err))
        assert (type(again), str(again), again.field) == (ConfigError, str(err), "model.num_layers")
    unsaid = ConfigError("model.num_layers", NOT_SAID, "must be at least 1", "row/mine")
    assert str(pickle.loads(pickle.dumps(unsaid))) == "model.num_layers (from row/mine): must be at least 1"
