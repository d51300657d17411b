import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ablate import compose as door
from ablate.compose import compose, compose_rows, session
from ablate.errors import ConfigError
from ablate.identity import fingerprint, science
from ablate.scale import scaled

REPOSITORY = Path(__file__).parents[1]
CHANGE = "# @package _global_\n"


@pytest.fixture
def mine(tmp_path):
    """Make a folder of the user's own configuration, to be filled."""
    for group in ("row", "sweep"):
        (tmp_path / "mine" / group).mkdir(parents=True)
    return tmp_path / "mine"


def identity(overrides: list[str], config_dir: str | None = None) -> str:
    return fingerprint(science(scaled(compose(overrides, config_dir)), {}))


def test_without_a_row_the_row_is_base():
    cfg = compose(["preset=smoke"])
    assert (cfg.row.name, cfg.row.block, cfg.row.paper.bleu_dev) == ("base", "base", 25.8)
    assert cfg == compose(["preset=smoke", "+row=base"])


def test_the_default_preset_is_quick():
    cfg = compose([])
    assert (cfg.preset, cfg.data.name, cfg.scale.width, cfg.scale.depth) == ("quick", "homeassistant", 0.25, 0.5)


def test_a_row_with_another_d_k_leaves_d_v():  # M1
    model = compose(["+row=B_dk16", "preset=smoke"]).model
    assert (model.d_k, model.d_v, model.num_heads) == (16, 64, 8)


def test_a_setting_goes_on_top_of_the_row_wherever_it_stands():
    for overrides in (["+row=A_h4", "model.d_k=64"], ["model.d_k=64", "+row=A_h4"]):
        model = compose([*overrides, "preset=smoke"]).model
        assert (model.num_heads, model.d_k, model.d_v) == (4, 64, 128)


@pytest.mark.parametrize("written", ["0.1", ".1", "1e-1", "0.10", "1.0e-1", "10e-2"])
def test_one_number_is_one_fingerprint_on_the_command_line_and_in_a_row_file(written, mine):
    base = identity(["preset=smoke"])
    assert identity(["preset=smoke", f"model.dropout={written}", f"optim.label_smoothing={written}"]) == base
    (mine / "row" / "same.yaml").write_text(CHANGE + f"model: {{dropout: {written}}}\n")
    assert identity(["preset=smoke", "+row=same"], str(mine)) == base


@pytest.mark.parametrize("written", ["nan", "inf", "-inf"])
def test_nan_and_infinity_are_refused(written):
    with pytest.raises(ConfigError, match="must be a finite number"):
        compose(["preset=smoke", f"optim.lr_scale={written}"])


MISTAKES = {  # what is typed: all that the error must say
    "model.dropuot=0.3": ["model.dropuot", "did you mean 'dropout'?", "num_heads"],
    "+model.dropuot=0.3": ["model.dropuot", "did you mean 'dropout'?"],  # P3
    "modle.dropout=0.3": ["modle", "did you mean 'model'?"],
    "+rwo=A_h1": ["rwo", "did you mean 'row'?"],
    "sedes=3": ["sedes", "did you mean 'seeds'?"],
    "recpie=text": ["recpie", "did you mean 'recipe'?"],
    "data.train_src=x": ["data.train_src", "is a field of data=files only"],
    "+model.d_k=3": ["model.d_k", "say it without the +"],
    "~model.dropout": ["model.dropout", "does not support deletion"],
    "model.num_heads=null": ["model.num_heads", "not Optional"],
    "data.num_trian=7": ["data.num_trian", "did you mean 'num_train'?"],
    "cluster.worker=7": ["cluster.worker", "did you mean 'workers'?"],
    "+row=A_h5": ["row='A_h5'", "did you mean 'A_h", "E_learned"],
    "+row=A_h1,A_h4": ["row='A_h1,A_h4'", "one run has one row"],
    "+row=[A_h1,A_h4]": ["row='[A_h1,A_h4]'", "one run has one row"],
    "+sweep=rowA": ["sweep='rowA'", "did you mean 'row_A'?", "table3"],
    "+sweep=[row_A,row_F]": ["sweep='row_F'", "did you mean 'row_", "table3"],
    "+sweep=row_A,row_B": ["sweep='row_A,row_B'", "'+sweep=[row_A,row_B]'"],  # P1
    "sweep=row_A": ["sweep", "+sweep=row_A"],
    "row=A_h1": ["row", "+row=A_h1"],
    "preset=quik": ["preset='quik'", "did you mean 'quick'?", "paper, quick, smoke"],
    "model=huge": ["model='huge'", "base, big"],
    "data=wmd": ["data='wmd'", "files, homeassistant, multi30k, synthetic, wmt14_ende, wmt14_enfr, wmt16_ende_bpe32k"],
    "data.name=wmt": ["data.name='wmt'", "files"],
    "model.d_k=wide": ["model.d_k", "'wide'", "Integer"],
    "seeds=1.5": ["seeds", "'1.5'", "Integer"],
    "optim.train_steps=1e5": ["optim.train_steps", "Integer"],
    "model.num_heads=0": ["row='base'", "model.num_heads=0", "at least 1"],
    "model.activation=rleu": ["model.activation='rleu'", "did you mean 'relu'?"],
    "~model": ["model.num_layers", "has no value"],
    "runs_dir=a=b": ["runs_dir='a=b'", "'NAME=\"VALUE\"'"],
    "+model.activation=a(b": ["model.activation='a(b'", "'NAME=\"VALUE\"'"],
    "model.dropout": ["model.dropout: say NAME=VALUE"],
    "model dropout=0.3": ["model dropout=0.3: say NAME=VALUE"],
    "+sweep=[row_A,": ["sweep='[row_A,'", "'NAME=[A, B]'"],
    "preset=1": ["preset=1: is no name; ", "paper, quick, smoke"],
    "+sweep=[row_A,2]": ["sweep=2: ", "table3"],
    "model=null": ["model=None: ", "base, big"],
    "data=": ["data='': ", "homeassistant"],
    "=3": ["'=3'", "say NAME=VALUE"],
}


@pytest.mark.parametrize("typed", list(MISTAKES))
def test_a_mistake_on_the_command_line_names_the_field_and_the_nearest_valid_one(typed):
    overrides = [typed] if typed.startswith("preset=") else ["preset=smoke", typed]
    with pytest.raises(ConfigError) as refused:
        compose(overrides)
    said = str(refused.value)
    assert all(part in said for part in MISTAKES[typed]), said
    assert "\n" not in said
    assert "Config search path" not in said


ROW_MISTAKES = {  # a row file: all that the error must say
    "model: {d_kk: 16}": ["model.d_kk", "row/bad", "did you mean 'd_k'?"],  # P3
    "model: {d_k: wide}": ["model.d_k", "row/bad", "'wide'"],
    "row: {blok: A}": ["row.blok", "row/bad", "did you mean 'block'?"],
    "model: {d_k: 16": ["row/bad.yaml", "line 2"],
    "model: {d_k: 0}": ["row='bad'", "model.d_k=0", "at least 1"],
    "optim: {label_smoothing: 1.0}": ["row='bad'", "optim.label_smoothing=1.0", "below 1"],
}


def test_a_group_may_be_given_fields_instead_of_a_name():
    assert compose(["preset=smoke", "model={num_layers: 5}"]).model.num_layers == 5


def test_a_value_in_quotes_of_its_own_may_hold_any_character():
    assert compose(["preset=smoke", 'runs_dir="a=b, (c)"']).runs_dir == "a=b, (c)"


@pytest.mark.parametrize("text", list(ROW_MISTAKES))
def test_a_mistake_in_a_row_file_names_the_row_the_key_and_the_nearest_valid_one(text, mine):
    (mine / "row" / "bad.yaml").write_text(f"{CHANGE}{text}\n")
    with pytest.raises(ConfigError) as refused:
        compose(["preset=smoke", "+row=bad"], str(mine))
    said = str(refused.value)
    assert all(part in said for part in ROW_MISTAKES[text]), said


def test_a_sweep_file_without_its_first_line_is_told_what_that_is(mine):
    (mine / "sweep" / "bare.yaml").write_text("title: mine\nrows: [base]\n")
    with pytest.raises(ConfigError, match=r"sweep \(from sweep/bare\): .* begin with '# @package sweep.NAME'"):
        compose(["preset=smoke", "+sweep=bare"], str(mine))


def test_a_preset_may_set_any_field(mine):
    (mine / "preset").mkdir()
    fields = "seeds: 4\nprecision: bf16\nkeep_checkpoints: 5\nlog_every_steps: 7\n"
    (mine / "preset" / "own.yaml").write_text(f"{CHANGE}preset: own\nscale: {{width: 1, depth: 1, steps: 1}}\n{fields}")
    cfg = compose(["preset=own"], str(mine))
    assert (cfg.seeds, cfg.precision, cfg.keep_checkpoints, cfg.log_every_steps) == (4, "bf16", 5, 7)
    assert compose(["preset=own", "seeds=2"], str(mine)).seeds == 2
    assert compose(["preset=smoke"]).log_every_steps == 5


def test_a_mistake_in_any_other_file_of_ones_own_names_that_file(mine):
    (mine / "optim").mkdir()
    (mine / "optim" / "slow.yaml").write_text("defaults: [adam, _self_]\nwarmup_step: 8000\n")
    with pytest.raises(
        ConfigError, match=r"warmup_step \(from optim/slow\): no such field; did you mean 'warmup_steps'"
    ):
        compose(["preset=smoke", "optim=slow"], str(mine))


def test_a_row_file_without_its_package_line_is_refused(mine):
    (mine / "row" / "bad.yaml").write_text("model: {d_k: 16}\n")
    with pytest.raises(ConfigError, match=r"row\.model \(from row/bad\): no such field"):
        compose(["preset=smoke", "+row=bad"], str(mine))


def test_a_folder_of_ones_own_adds_rows_and_sweeps(mine):
    (mine / "row" / "gelu.yaml").write_text(CHANGE + "row: {block: mine}\nmodel: {activation: gelu}\n")
    (mine / "sweep" / "ideas.yaml").write_text("# @package sweep.ideas\ntitle: Ideas\nrows: [gelu, A_h1]\n")
    with session(str(mine)):
        cfg = compose(["preset=smoke", "+row=gelu"])
        asked = compose(["preset=smoke", "+sweep=[ideas,row_E]"])
    assert (cfg.row.name, cfg.row.block, cfg.model.activation) == ("gelu", "mine", "gelu")
    assert {name: sweep.rows for name, sweep in asked.sweep.items()} == {
        "ideas": ["gelu", "A_h1"],
        "row_E": ["E_learned"],
    }


def test_a_folder_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(ConfigError, match=r"--config-dir=.*nowhere.*is not a folder"):
        compose([], str(tmp_path / "nowhere"))


def test_rows_are_found_from_any_working_directory(workplace):  # P4
    assert compose(["+row=A_h1", "preset=smoke"]).model.num_heads == 1


def test_a_missing_root_of_rows_is_an_error_and_never_base(monkeypatch, tmp_path):  # P4
    monkeypatch.setattr(door, "root", lambda name: tmp_path if name == "sweeps" else REPOSITORY / name)
    for asked in ("+row=A_h1", "+sweep=row_A"):
        with pytest.raises(ConfigError, match=r"(row|sweep): there are none: .* is missing"):
            compose(["preset=smoke", asked])


def test_the_roots_may_lie_inside_the_package_as_in_a_wheel(tmp_path):  # P4
    shutil.copytree(REPOSITORY / "ablate", tmp_path / "ablate")
    code = "from ablate.compose import compose; print(compose(['+row=A_h1', 'preset=smoke']).model.num_heads)"
    command = [sys.executable, "-P", "-c", code]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def ask() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)

    missing = ask()
    assert missing.returncode != 0
    for part in ("conf", "sweeps"):
        shutil.copytree(REPOSITORY / part, tmp_path / "ablate" / part)
    found = ask()
    assert (found.returncode, found.stdout) == (0, "1\n"), found.stderr


@pytest.mark.parametrize("cores", [1, 2])
def test_rows_composed_on_any_number_of_cores_are_those_composed_one_by_one(monkeypatch, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(cores))
    rows = ["A_h4", "E_learned", "base", "C_N2", "D_ls0"]
    settings = ["preset=smoke", "model.d_ff=1024"]
    assert list(compose_rows(rows, settings).items()) == [(row, compose([*settings, f"+row={row}"])) for row in rows]


@pytest.mark.parametrize("cores", [1, 2])
def test_a_wrong_row_is_named_whichever_core_composed_it(monkeypatch, cores):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(cores))
    with pytest.raises(ConfigError, match=r"^row='A_h5': .*A_h4") as caught:
        compose_rows(["base", "A_h1", "C_N2", "A_h5"], ["preset=smoke"])
    assert caught.value.field == "row"
