"""Every configuration file on disk, in every preset; and every row against Table 3."""

import csv
import itertools
from pathlib import Path

import pytest

from ablate.compose import ROOTS, compose, root, session
from ablate.config import Config
from ablate.params import params_paper
from ablate.scale import scaled

MODEL = ("num_layers", "d_model", "d_ff", "num_heads", "d_k", "d_v", "dropout", "positional")
OPTIM = ("train_steps", "label_smoothing")
PAPER = ("ppl_dev", "bleu_dev", "params_m")
with open(Path(__file__).with_name("table3.csv"), newline="") as file:
    TABLE3 = {line["row"]: line for line in csv.DictReader(file)}


def names(group: str) -> list[str]:
    """List the files of a group in either root."""
    return sorted(path.stem for part in ROOTS for path in (root(part) / group).glob("*.yaml"))


PRESETS = ("smoke", "quick", "multi30k", "paper")


@pytest.fixture(scope="module")
def rows() -> dict[str, Config]:
    """Compose every row at the paper's scale."""
    with session():
        return {row: compose([f"+row={row}", "preset=paper", "data=synthetic"]) for row in names("row")}


def test_there_is_a_file_for_each_row_of_the_paper_and_no_other():
    assert names("row") == sorted(TABLE3)


def test_every_preset_on_disk_is_tested_here():
    assert names("preset") == sorted(PRESETS)


@pytest.mark.parametrize("row", list(TABLE3))
def test_a_row_has_every_value_of_its_line_in_the_paper(row, rows):
    line, cfg = TABLE3[row], rows[row]
    assert (cfg.row.name, cfg.row.block) == (row, line["block"])
    for fields, section in ((MODEL, cfg.model), (OPTIM, cfg.optim)):
        for field in fields:
            value = getattr(section, field)
            assert value == type(value)(line[field]), field
    for field in PAPER:
        assert getattr(cfg.row.paper, field) == (float(line[field]) if line[field] else None), field
    assert cfg.row.cites.startswith("Table 3, ")


@pytest.mark.parametrize("row", list(TABLE3))
def test_a_row_changes_exactly_what_the_paper_changes(row, rows):
    base, cfg = rows["base"], rows[row]
    changed = [
        name
        for section in ("model", "data", "optim", "decode")
        for name, value in vars(getattr(cfg, section)).items()
        if value != getattr(getattr(base, section), name)
    ]
    assert sorted(changed) == sorted(TABLE3[row]["changed"].split())


def test_base_is_the_base_of_the_paper(rows):
    # Table 3, line 1, and sections 5.3, 5.4 and 6.1: pinned, so that nobody moves every row by editing one file.
    base = rows["base"]
    model = [getattr(base.model, name) for name in MODEL]
    assert model == [6, 512, 2048, 8, 64, 64, 0.1, "sinusoid"]
    assert base.model.activation == "relu"
    optim = base.optim
    assert (optim.train_steps, optim.warmup_steps, optim.lr_scale, optim.label_smoothing) == (100_000, 4000, 1.0, 0.1)
    assert (optim.adam_beta1, optim.adam_beta2, optim.adam_eps) == (0.9, 0.98, 1e-9)
    assert (optim.batch_tokens, optim.accumulate) == (4096, 8)  # 8 GPUs × 4,096 in the authors' program
    decode = base.decode
    assert (decode.beam_size, decode.length_penalty, decode.max_extra, decode.average_checkpoints) == (4, 0.6, 50, 1)
    assert (base.scale.width, base.scale.depth, base.scale.steps) == (1, 1, 1)
    # The authors' recipe is the default.
    assert (base.model.attention_bias, base.model.fused_init) == (True, True)
    assert (base.model.sinusoid_layout, base.model.decoder_start) == ("halves", "zeros")
    assert (optim.smoothing, optim.batch_counting) == ("others", "padded")


@pytest.mark.parametrize("row", [row for row, line in TABLE3.items() if line["params_m"] and row != "big"])
def test_the_papers_accounting_gives_its_column_of_parameters(row, rows):
    assert round(params_paper(rows[row].model) / 1e6) == int(TABLE3[row]["params_m"])


def test_big_is_the_one_cell_that_cannot_be_derived(rows):
    assert params_paper(rows["big"].model) == 218_333_184  # the paper prints 213


@pytest.mark.parametrize("preset", list(PRESETS))
def test_every_row_is_valid_in_every_preset(preset):
    with session():
        for row in names("row"):
            cfg = scaled(compose([f"+row={row}", f"preset={preset}"]))
            assert (cfg.row.name, cfg.preset, cfg.row.block) == (row, preset, TABLE3[row]["block"])


@pytest.mark.parametrize("row", list(TABLE3))
def test_the_papers_preset_leaves_every_number_as_it_is(row, rows):
    assert scaled(rows[row]) == rows[row]


@pytest.mark.parametrize("group", ["data", "decode", "protocol", "recipe", "model", "tracking", "cluster", "optim"])
def test_every_file_of_every_group_is_valid_in_every_preset(group):
    with session():
        for preset, name in itertools.product(PRESETS, names(group)):
            row = "big" if name == "table2_big" else "base"  # 20 checkpoints are more than a preset's base writes
            scaled(compose([f"+row={row}", f"preset={preset}", f"{group}={name}"]))


def test_the_protocols_are_those_of_the_two_tables():
    # Section 6.1: base averages its last 5 checkpoints, big its last 20, written every 10 minutes; Table 3 none.
    with session():
        found = {name: compose(["preset=paper", f"protocol={name}"]) for name in names("protocol")}
    told = {name: (cfg.test_set, cfg.decode.average_checkpoints, cfg.keep_checkpoints) for name, cfg in found.items()}
    assert told == {"table3": (False, 1, 2), "table2_base": (True, 5, 5), "table2_big": (True, 20, 20)}
    minutes = {"table2_base": 0.4 / 60, "table2_big": 1.0 / 60}  # an update, on the paper's 8 GPUs
    for name, minutes_per_update in minutes.items():
        assert found[name].optim.checkpoint_every_steps * minutes_per_update == pytest.approx(10)


def test_every_sweep_names_rows_that_there_are():
    with session():
        for preset in PRESETS:
            cfg = compose([f"+sweep=[{','.join(names('sweep'))}]", f"preset={preset}"])
            assert list(cfg.sweep) == names("sweep")
            for sweep in cfg.sweep.values():
                assert sweep.title
                assert set(sweep.rows) <= set(names("row"))


def test_the_sweeps_are_the_blocks_of_the_table():
    with session():
        cfg = compose([f"+sweep=[{','.join(names('sweep'))}]", "preset=smoke"])
    sweeps = {name: sweep.rows for name, sweep in cfg.sweep.items()}
    for block in "ABCDE":
        assert sweeps[f"row_{block}"] == [row for row, line in TABLE3.items() if line["block"] == block]
    assert sweeps["table3"] == [row for row in TABLE3 if row != "base"]
    assert [TABLE3[row]["block"] for row in sweeps["smoke"]] == ["A", "B", "C", "D", "E", "big"]
