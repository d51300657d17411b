import sys

import pytest
from configs import write_rows

from ablate import request
from ablate.compose import session
from ablate.data import corpus as corpora
from ablate.errors import ConfigError
from ablate.request import Request, check_corpus

ROW_A = ["base", "A_h1", "A_h4", "A_h16", "A_h32"]


def read(*overrides: str, mine: str | None = None) -> Request:
    with session(mine):
        return request.read(["preset=smoke", *overrides])


def test_several_sweeps_are_their_union_with_base_once_and_first():  # P1
    assert list(read("+sweep=[row_A,row_B]").rows) == [*ROW_A, "B_dk16", "B_dk32"]


def test_sweeps_that_overlap_give_a_row_once(tmp_path):  # P1
    mine = write_rows(tmp_path, {}, ["E_learned", "base", "E_learned"])
    assert list(read("+sweep=[s,row_E]", mine=mine).rows) == ["base", "E_learned"]


def test_a_sweeps_file_may_have_a_base_of_its_own_on_which_its_rows_stand(tmp_path):
    mine = write_rows(tmp_path, {"gelu": "model: {activation: gelu}"}, ["gelu"])
    (tmp_path / "mine" / "sweep" / "deep.yaml").write_text(
        "# @package _global_\nmodel: {num_layers: 8, dropout: 0.3}\n"
        "sweep: {deep: {title: deep, rows: [gelu, D_drop0]}}\n"
    )
    asked = read("+sweep=deep", mine=mine)
    for configs, expected in (
        (asked.rows, {"base": (4, 0.3), "gelu": (4, 0.3), "D_drop0": (4, 0.0)}),
        (asked.plain, {"base": (3, 0.1), "gelu": (3, 0.1), "D_drop0": (3, 0.0)}),  # P5
    ):
        assert {row: (cfg.model.num_layers, cfg.model.dropout) for row, cfg in configs.items()} == expected
    assert asked.command("gelu", 2) == "python -m ablate.run +sweep=deep preset=smoke seeds=2"


def test_rows_that_pair_heads_with_widths_are_no_grid():  # P2
    rows = read("+sweep=row_A").rows
    # h × d_k is 512 in the paper and 32 at a sixteenth of the width.
    assert {row: (cfg.model.num_heads, cfg.model.d_k, cfg.model.d_v) for row, cfg in rows.items()} == {
        "base": (8, 4, 4),
        "A_h1": (1, 32, 32),
        "A_h4": (4, 8, 8),
        "A_h16": (16, 2, 2),
        "A_h32": (32, 1, 1),
    }


@pytest.mark.parametrize(
    "asked", [["+row=A_h1", "+extra=few"], ["+extra=few", "+row=A_h1"], ["+sweep=row_A", "+extra=few"]]
)
def test_a_row_stands_on_every_group_in_whatever_order_they_are_named(tmp_path, asked):
    mine = write_rows(tmp_path, {}, [])
    (tmp_path / "mine" / "extra").mkdir()
    (tmp_path / "mine" / "extra" / "few.yaml").write_text("# @package _global_\nmodel: {num_heads: 4, dropout: 0.3}\n")
    model = read(*asked, mine=mine).rows["A_h1"].model
    assert (model.num_heads, model.dropout) == (1, 0.3)


def test_a_row_and_a_sweep_do_not_go_together():
    with pytest.raises(ConfigError, match="row='A_h1': cannot go with a sweep"):
        read("+sweep=row_B", "+row=A_h1")


@pytest.mark.parametrize("setting", ["seed=2", "row.name=mine"])
def test_what_the_plan_sets_itself_is_refused(setting):
    with pytest.raises(ConfigError, match=rf"{setting}: is the plan's to set"):
        read(setting)


def test_rows_of_different_corpora_are_refused(tmp_path):
    mine = write_rows(tmp_path, {"small": "data: {vocab_size: 400}"}, ["small"])
    with pytest.raises(ConfigError, match="row='small': has another corpus"):
        read("+sweep=s", mine=mine)


def test_auto_takes_the_device_that_is_there(monkeypatch):
    monkeypatch.setattr(request, "resolve_device", lambda name: "cuda")
    cfg = read().rows["base"]
    assert (cfg.device, cfg.precision) == ("cuda", "bf16")


def test_a_run_knows_the_command_that_does_it_again(monkeypatch):
    asked = ["+sweep=row_A", "seeds=2", "runs_dir=elsewhere", "plan_only=true", "model.dropout=0.3"]
    assert read(*asked).command("A_h1", 2) == "python -m ablate.run +row=A_h1 preset=smoke model.dropout=0.3 seeds=2"
    monkeypatch.setattr(sys, "argv", ["ablate.run", "--config-dir", "my rows"])
    assert read().command("base", 1) == "python -m ablate.run --config-dir 'my rows' +row=base preset=smoke seeds=1"


def test_a_test_set_that_the_corpus_has_not_is_refused(workplace):
    (workplace / "pairs.tsv").write_text("ab ab\tba\n" * 9)
    files = ["data=files", "data.train_tsv=pairs.tsv", "data.dev_tsv=pairs.tsv", "data.vocab_size=262"]
    cfg = read(*files, "test_set=true").rows["base"]
    corpus = corpora.prepare(cfg.data, lambda text: None)
    with pytest.raises(ConfigError, match=r"test_set=True .*: data=files has no test set here"):
        check_corpus("base", cfg, corpus)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("optim.batch_tokens=9", r"optim.batch_tokens=9 \(from row A_h4\): a training sentence has \d\d subwords"),
        ("model.max_positions=9", r"model.max_positions=9 \(from row A_h4\): sequences may have \d\d subwords here"),
    ],
)
def test_sentences_too_long_for_the_configuration_are_refused(setting, message):
    cfg = read("+row=A_h4", "model.positional=learned", setting).rows["A_h4"]
    with pytest.raises(ConfigError, match=message):
        check_corpus("A_h4", cfg, corpora.prepare(cfg.data, lambda text: None))
