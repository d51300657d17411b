import dataclasses
import math
from typing import Any

import pytest
from configs import FILES, ON_SLURM, SMOKE, with_value
from hypothesis import given, settings
from hypothesis import strategies as st

from ablate.config import Config, flatten
from ablate.frozen import from_dict
from ablate.identity import SCIENCE, diff, fingerprint, science

DIGESTS = {"corpus": "c" * 64, "vocab": "d" * 64}


def identity(cfg: Config) -> str:
    return fingerprint(science(cfg, DIGESTS))


SECTIONS = [section for section in SCIENCE if section != "precision"]
SCIENCE_FIELDS = list(flatten({section: dataclasses.asdict(SMOKE)[section] for section in SECTIONS}))


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
    "compile": True,
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


def test_judging_the_test_set_makes_another_run():
    assert identity(with_value(SMOKE, "test_set", True)) != identity(SMOKE)
    assert "test_set" not in science(SMOKE, DIGESTS)


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
