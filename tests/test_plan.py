import os
import subprocess
import sys
from pathlib import Path

import pytest
from records import finish

from ablate import device, launch, request
from ablate.compose import session
from ablate.config import LocalCluster
from ablate.cost import describe
from ablate.data import corpus as corpora
from ablate.data.source import data_root
from ablate.errors import ConfigError
from ablate.estimate import Lengths, guess
from ablate.frozen import load
from ablate.launch import freeze
from ablate.plan import Plan, older_runs, plan_from
from ablate.run import main as run_command
from ablate.rundir import RunDir, read_json, write_json

ROW_A = ["base", "A_h1", "A_h4", "A_h16", "A_h32"]


@pytest.fixture(autouse=True)
def own_folder(workplace):
    return workplace


@pytest.fixture
def mine(workplace):
    """Plan with rows of the user's own, given as the text that changes base, and a sweep `s` over some rows."""

    def plan_mine(rows: dict[str, str], sweep: list[str], *overrides: str, prepare: bool = True) -> Plan:
        for group in ("row", "sweep"):
            (workplace / "mine" / group).mkdir(parents=True, exist_ok=True)
        for row, change in rows.items():
            (workplace / "mine" / "row" / f"{row}.yaml").write_text(f"# @package _global_\n{change}\n")
        sweep_file = workplace / "mine" / "sweep" / "s.yaml"
        sweep_file.write_text(f"# @package sweep.s\ntitle: s\nrows: [{', '.join(sweep)}]\n")
        with session(str(workplace / "mine")):
            return plan_from(["preset=smoke", *overrides], prepare, say=lambda text: None)

    return plan_mine


def planned(*overrides: str, prepare: bool = True) -> Plan:
    with session():
        return plan_from(["preset=smoke", *overrides], prepare, say=lambda text: None)


def tree(*roots: Path) -> list[tuple[Path, int, int]]:
    """Take down every path under some folders with its size and its time of change."""
    found = [path for root in roots for path in (root, *root.rglob("*")) if path.exists()]
    return sorted((path, path.stat().st_size, path.stat().st_mtime_ns) for path in found)


def command(monkeypatch, capsys, *arguments: str) -> tuple[int, str, str]:
    """Give `python -m ablate.run` in this process."""
    monkeypatch.setattr(sys, "argv", ["ablate.run", *arguments])
    code = run_command()
    return code, *capsys.readouterr()


def test_several_sweeps_are_their_union_with_base_once_and_first():  # P1
    asked = planned("+sweep=[row_A,row_B]", prepare=False)
    assert list(asked.rows) == [*ROW_A, "B_dk16", "B_dk32"]
    assert [run.rows for run in asked.runs] == [[row] for row in asked.rows]


def test_a_sweeps_file_may_have_a_base_of_its_own_on_which_its_rows_stand(mine, workplace):
    rows = {"gelu": "model: {activation: gelu}"}
    mine(rows, ["gelu"], "+sweep=s", prepare=False)
    (workplace / "mine" / "sweep" / "deep.yaml").write_text(
        "# @package _global_\nmodel: {num_layers: 8, dropout: 0.3}\n"
        "sweep: {deep: {title: deep, rows: [gelu, D_drop0]}}\n"
    )
    asked = mine(rows, ["gelu"], "+sweep=deep", prepare=False)
    layers_and_dropout = {row: (cfg.model.num_layers, cfg.model.dropout) for row, cfg in asked.configs.items()}
    assert layers_and_dropout == {"base": (4, 0.3), "gelu": (4, 0.3), "D_drop0": (4, 0.0)}
    changes = {"model.num_layers": (3, 4), "model.dropout": (0.1, 0.3)}
    assert [run.changes for run in asked.runs] == [changes, changes, {"model.num_layers": (3, 4)}]  # P5


def test_sweeps_that_overlap_plan_a_row_once(mine):  # P1
    asked = mine({}, ["E_learned", "base", "E_learned"], "+sweep=[s,row_E]", prepare=False)
    assert list(asked.rows) == ["base", "E_learned"]
    assert len(asked.runs) == 2


def test_rows_that_pair_heads_with_widths_are_runs_of_their_own_not_a_grid():  # P2
    asked = planned("+sweep=row_A", prepare=False)
    sizes = {row: (cfg.model.num_heads, cfg.model.d_k, cfg.model.d_v) for row, cfg in asked.configs.items()}
    # h × d_k is 512 in the paper and 32 at a sixteenth of the width.
    assert sizes == {
        "base": (8, 4, 4),
        "A_h1": (1, 32, 32),
        "A_h4": (4, 8, 8),
        "A_h16": (16, 2, 2),
        "A_h32": (32, 1, 1),
    }
    assert len(asked.runs) == 5


def test_seeds_count_from_one_and_share_the_rows_fingerprint(workplace):
    asked = planned("+row=A_h4", "seeds=3")
    runs = asked.rows["A_h4"]
    assert [run.cfg.seed for run in runs] == [1, 2, 3]
    assert len({run.fingerprint for run in runs}) == 1
    folders = [workplace / "runs" / "smoke" / "A_h4" / runs[0].fingerprint / f"seed{seed}" for seed in (1, 2, 3)]
    assert [run.run.path for run in runs] == folders


def test_the_configuration_of_a_run_is_finished():
    cfg = planned("device=cpu").runs[0].cfg
    assert (cfg.device, cfg.precision, cfg.sweep) == ("cpu", "fp32", {})
    assert (cfg.model.d_model, cfg.scale.width) == (32, 1.0)


def test_a_row_and_a_sweep_do_not_go_together():
    with pytest.raises(ConfigError, match="row='A_h1': cannot go with a sweep"):
        planned("+sweep=row_B", "+row=A_h1", prepare=False)


@pytest.mark.parametrize("setting", ["seed=2", "row.name=mine"])
def test_what_the_plan_sets_itself_is_refused(setting):
    with pytest.raises(ConfigError, match=rf"{setting}: is the plan's to set"):
        planned(setting, prepare=False)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("model.d_k=24", r"row='base': does not fit preset smoke.*model\.d_k=24.*not a whole number"),
        ("device=cuda", r"device='cuda': is not present; this machine has: cpu"),
        ("precision=fp16", r"precision='fp16': .*valid: auto, fp32, bf16"),
        ("model.dropout=1.0", r"model\.dropout=1\.0: must be at least 0 and below 1"),
    ],
)
def test_what_cannot_run_is_refused_before_a_corpus_is_fetched(setting, message, monkeypatch, workplace):  # P3
    monkeypatch.setattr(device, "torch_has", lambda name: False)
    monkeypatch.setattr(corpora, "prepare", lambda data, say: pytest.fail("a corpus was prepared"))
    with pytest.raises(ConfigError, match=message):
        planned("+sweep=row_A", setting)
    assert tree(workplace) == tree(workplace)[:1]


def test_a_test_set_that_the_corpus_has_not_is_refused(workplace):
    (workplace / "pairs.tsv").write_text("ab ab\tba\n" * 9)
    files = ["data=files", "data.train_tsv=pairs.tsv", "data.dev_tsv=pairs.tsv", "data.vocab_size=262"]
    with pytest.raises(ConfigError, match=r"test_set=True .*: data=files has no test set here"):
        planned("preset=smoke", *files, "test_set=true")


def test_rows_of_different_corpora_are_refused(mine):
    with pytest.raises(ConfigError, match="row='small': has another corpus"):
        mine({"small": "data: {vocab_size: 400}"}, ["small"], "+sweep=s", prepare=False)


def test_auto_takes_the_device_that_is_there(monkeypatch):
    monkeypatch.setattr(request, "resolve_device", lambda name: "cuda")
    cfg = planned(prepare=False).runs[0].cfg
    assert (cfg.device, cfg.precision) == ("cuda", "bf16")


def test_asking_for_another_precision_than_the_rows_own_is_a_change(monkeypatch):
    monkeypatch.setattr(request, "resolve_device", lambda name: "cuda")
    assert planned("precision=fp32", prepare=False).runs[0].changes == {"precision": ("bf16", "fp32")}


@pytest.mark.parametrize("setting", ["model=big", "decode=greedy"])
def test_a_setting_on_top_of_a_row_makes_other_runs_that_do_not_count_for_it(setting):  # P5
    changed = planned("+row=A_h1", setting)
    finish(changed.runs[0], ppl=9.0, bleu=9.0)
    assert changed.runs[0].changes
    assert "do not count as the rows" in describe(changed, workers=1)
    assert planned("+row=A_h1", setting).runs[0].state.name == "done"
    row = planned("+row=A_h1")
    assert row.runs[0].fingerprint != changed.runs[0].fingerprint
    assert row.runs[0].state.name == "new"
    assert row.runs[0].changes == {}
    assert "do not count" not in describe(row, workers=1)


def test_a_setting_that_repeats_the_rows_value_is_the_row():  # P5
    assert planned("+row=A_h1", "model.dropout=1e-1").runs[0].changes == {}


def test_where_and_how_runs_go_is_no_change():
    settings = ["cluster.workers=3", "tracking=none", "keep_checkpoints=5", "log_every_steps=1", "seeds=2"]
    assert planned("+row=A_h1", *settings).runs[0].changes == {}
    assert planned("+row=A_h1", *settings).runs[0].fingerprint == planned("+row=A_h1").runs[0].fingerprint


def test_runs_under_an_older_default_are_not_reused_and_the_key_is_named():  # P6
    before = planned("optim.warmup_steps=17")
    finish(before.runs[0], ppl=9.0, bleu=9.0)
    now = planned()
    assert now.runs[0].state.name == "new"
    assert older_runs(now, "base") == {before.runs[0].fingerprint: {"optim.warmup_steps": (17, 30)}}
    assert "differ and are not used: optim.warmup_steps 17 → 30" in describe(now, workers=1)


def test_a_frozen_run_is_untouched_by_a_later_plan(monkeypatch):  # P8
    frozen = planned("+row=A_h4").runs[0]
    freeze(frozen)
    before = frozen.run.config.read_bytes()
    planned("+row=A_h4", "model.dropout=0.3")
    assert frozen.run.config.read_bytes() == before
    assert load(frozen.run.config) == frozen.cfg


def test_equal_points_run_once_and_fill_both_cells(mine):  # P9
    # Half of 7 and of 8 layers, rounded up, is 4; 512 is base's width.
    rows = {"N7": "model: {num_layers: 7}", "again": "model: {d_model: 512}"}
    asked = mine(rows, ["C_N8", "N7", "again"], "+sweep=s", "seeds=2")
    assert [(run.rows, run.cfg.seed) for run in asked.runs] == [
        (["base", "again"], 1),
        (["base", "again"], 2),
        (["C_N8", "N7"], 1),
        (["C_N8", "N7"], 2),
    ]
    assert asked.rows["N7"] == asked.rows["C_N8"]
    finish(asked.rows["N7"][0], ppl=9.0, bleu=9.0)  # in C_N8's folder, and found from N7 alone too
    assert mine(rows, ["N7"], "+row=N7").runs[0].state.name == "done"


def test_hours_are_operations_over_a_stated_rate_until_there_are_measured_ones():
    asked = planned("cluster.sustained_gflops=2")
    run = asked.runs[0]
    assert asked.hours(run) == pytest.approx(run.flops / 2e9 / 3600)
    assert "cluster.sustained_gflops=2; nothing measured here yet" in describe(asked, workers=1)
    finish(run, ppl=9.0, bleu=9.0)
    asked = planned("cluster.sustained_gflops=2", "seeds=2")
    assert [asked.hours(run) for run in asked.runs] == pytest.approx([0.01, 0.01])  # 36 s each, one measured


def test_hours_and_memory_are_by_the_cost_model_if_no_rate_is_stated():
    asked = planned("+sweep=row_C", "device=cpu")
    lengths, model = Lengths.of(asked.corpus.split("train")), guess(Lengths(), "cpu", 0.0).model
    for run in asked.runs:
        assert asked.hours(run) == pytest.approx(60 * model.update_s(run.science, lengths) / 3600)
        assert run.memory_mb == model.peak_mb(run.science, lengths)
    assert "MB: the most that training holds" in describe(asked, workers=1)
    finish(asked.runs[0], ppl=9.0, bleu=9.0)  # 36 s: the others are longer by as much
    after = planned("+sweep=row_C", "device=cpu")
    pace = 36.0 / asked.runs[0].guessed_s
    assert after.hours(after.runs[1]) == pytest.approx(pace * asked.hours(asked.runs[1]))


def test_a_rows_own_time_goes_before_the_rate_of_all():
    asked = planned("+row=A_h4", "seeds=2")
    record = finish(asked.runs[0], ppl=9.0, bleu=9.0)
    finish(asked.runs[0], ppl=9.0, bleu=9.0, timing={**record["timing"], "train_s": 72.0})
    asked = planned("+row=A_h4", "seeds=2")
    assert asked.pace == pytest.approx(72.0 / asked.runs[0].guessed_s)
    assert [asked.hours(run) for run in asked.runs] == pytest.approx([0.02, 0.02])
    finish(asked.runs[0], 9.0, 9.0, provenance=[{**record["provenance"][0], "host": "elsewhere"}])
    asked = planned("+row=A_h4", "seeds=2", "cluster.sustained_gflops=2")
    assert asked.hours(asked.runs[1]) == pytest.approx(asked.runs[1].flops / 2e9 / 3600)


def test_a_rate_is_of_the_plans_own_runs_or_else_of_the_presets():
    finish(planned("+row=A_h4").runs[0], ppl=9.0, bleu=9.0)
    asked = planned("+row=A_h1")
    assert asked.time_source.endswith(f"times {asked.pace:.2f}, the median of 1 finished runs here")


def test_only_runs_on_the_same_device_tell_the_rate():
    asked = planned("device=cpu")
    record = finish(asked.runs[0], ppl=9.0, bleu=9.0)
    on_gpu = {**record["provenance"][0], "device": "cuda: some card"}
    finish(asked.runs[0], ppl=9.0, bleu=9.0, provenance=[on_gpu])
    assert "nothing measured here yet" in planned("device=cpu").time_source


def test_without_the_corpus_what_is_done_is_said_to_be_unknown():
    said = describe(planned("data.num_train=61", prepare=False), workers=1)
    assert "unknown: corpus not prepared" in said
    assert "1 runs: which of them are done is unknown." in said


@pytest.mark.parametrize("prepared", [True, False])
def test_plan_only_writes_nothing(prepared, workplace, monkeypatch, capsys):  # P10
    if prepared:
        finish(planned("+sweep=row_A").runs[0], ppl=9.0, bleu=9.0)
    else:
        monkeypatch.setenv("ABLATE_DATA", str(workplace / "data"))
    before = tree(workplace, data_root())
    code, out, err = command(monkeypatch, capsys, "+sweep=row_A", "preset=smoke", "plan_only=true")
    assert (code, err) == (0, "")
    assert all(row in out for row in ROW_A)
    assert ("5 runs: 1 done, 4 to run" if prepared else "not prepared") in out
    assert tree(workplace, data_root()) == before


def test_a_wrong_setting_ends_the_command_in_one_line_with_nothing_written(workplace, monkeypatch, capsys):  # P3
    (workplace / "mine" / "row").mkdir(parents=True)
    (workplace / "mine" / "row" / "bad.yaml").write_text("# @package _global_\nmodel: {d_kk: 16}\n")
    before = tree(workplace)
    for arguments, parts in (
        (["--config-dir", "mine", "+row=bad"], ["row/bad", "model.d_kk", "did you mean 'd_k'?"]),
        (["+model.dropuot=0.3"], ["model.dropuot", "did you mean 'dropout'?"]),
        (["+sweep=row_A,row_B"], ["'+sweep=[row_A,row_B]'"]),
        (["model.num_heads=0"], ["model.num_heads=0: must be at least 1"]),
        (["+sweep=[row_A,row_F]"], ["sweep='row_F'"]),
    ):
        code, out, err = command(monkeypatch, capsys, *arguments, "preset=smoke")
        assert code == 2
        assert out == ""
        assert err.startswith("error: ")
        assert err.count("\n") == 1
        assert all(part in err for part in parts), err
    assert tree(workplace) == before


def test_a_folder_that_cannot_be_written_is_said_in_one_line(workplace, monkeypatch, capsys):
    (workplace / "file").touch()
    code, _, err = command(monkeypatch, capsys, "preset=smoke", "runs_dir=file/runs")
    assert (code, err.count("\n")) == (2, 1)
    assert err.startswith("error: [Errno 20] Not a directory: ")


def test_ctrl_c_ends_all_jobs_of_m(workplace, monkeypatch, capsys):
    begun = []

    def interrupted(overrides, *others):
        begun.append(overrides)
        return 130

    monkeypatch.setattr("ablate.run.do", interrupted)
    assert command(monkeypatch, capsys, "-m", "preset=smoke", "+row=A_h1,A_h4")[0] == 130
    assert begun == [["preset=smoke", "+row=A_h1"]]


def test_ctrl_c_while_planning_is_no_traceback(monkeypatch, capsys):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr("ablate.run.do", interrupted)
    code, _, err = command(monkeypatch, capsys, "preset=smoke")
    assert (code, err) == (130, "interrupted\n")


def test_a_command_after_a_wrong_one_in_the_same_process_is_judged_by_itself(monkeypatch, capsys):
    assert command(monkeypatch, capsys, "preset=smoke", "seeds=0")[0] == 2
    assert command(monkeypatch, capsys, "preset=smoke", "plan_only=true")[0] == 0


def test_the_command_plans_the_same_rows_from_another_directory(workplace):  # P4
    (workplace / "analysis").mkdir()
    arguments = [sys.executable, "-m", "ablate.run", "+sweep=row_A", "preset=smoke", "plan_only=true"]
    done = subprocess.run(arguments, cwd=workplace / "analysis", capture_output=True, text=True, env={**os.environ})
    assert done.returncode == 0, done.stderr
    assert [line.split()[0] for line in done.stdout.splitlines() if " 60 " in line] == ROW_A


@pytest.mark.parametrize(
    ("asked", "there", "found"),
    [("auto", [], "cpu"), ("auto", ["cuda"], "cuda"), ("cpu", ["cuda"], "cpu"), ("cuda", ["cuda"], "cuda")],
)
def test_a_device_is_what_was_asked_for_or_the_one_that_is_there(asked, there, found, monkeypatch):
    monkeypatch.setattr(device.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(device, "torch_has", lambda name: name in there)
    assert device.resolve_device(asked) == found


def test_a_device_that_is_not_there_is_refused(monkeypatch):
    monkeypatch.setattr(device, "torch_has", lambda name: False)
    for name in ("cuda", "mps"):
        with pytest.raises(ConfigError, match=f"device='{name}': is not present; this machine has: cpu"):
            device.resolve_device(name)


@pytest.mark.parametrize(
    ("workers", "threads", "physical", "logical", "at_once"),
    [
        (3, 1, 8, 16, 3),
        (0, 1, 8, 16, 8),
        (0, 3, 8, 16, 2),
        (0, 16, 8, 16, 1),
        (0, 2, None, 6, 3),
        (0, 1, None, None, 1),
    ],
)
def test_as_many_runs_go_at_once_as_asked_or_as_the_physical_cores_carry(
    workers, threads, physical, logical, at_once, monkeypatch
):
    monkeypatch.setattr(launch.psutil, "cpu_count", lambda logical=True, cores=(physical, logical): cores[logical])
    assert launch.num_workers(LocalCluster("local", 1, threads, 1.0, workers)) == at_once


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("optim.batch_tokens=9", r"optim.batch_tokens=9 \(from row A_h4\): a training sentence has \d\d subwords"),
        ("model.max_positions=9", r"model.max_positions=9 \(from row A_h4\): sequences may have \d\d subwords here"),
    ],
)
def test_sentences_too_long_for_the_configuration_are_refused_before_anything_starts(setting, message, workplace):
    with pytest.raises(ConfigError, match=message):
        planned("+row=A_h4", "model.positional=learned", setting)
    assert not (workplace / "runs").exists()


def test_a_change_of_corpus_is_told_without_the_fields_that_only_one_of_them_has(workplace):
    for side in ("en", "de"):
        (workplace / f"t.{side}").write_text("".join(f"{side} word {i} and more words\n" for i in range(40)))
    files = [f"data.{split}_{lang}={workplace}/t.{code}" for split in ("train", "dev") for lang, code in SIDES]
    changes = planned("data=files", "data.vocab_size=300", *files).runs[0].changes
    assert changes["data.name"] == ("synthetic", "files")
    assert not {key for key in changes if key.startswith("data.num_")}


SIDES = (("src", "en"), ("tgt", "de"))


def test_several_jobs_leave_nothing_behind_when_they_only_plan(monkeypatch, capsys, workplace):  # P10
    code, out, err = command(monkeypatch, capsys, "-m", "preset=smoke", "+row=A_h1,A_h4", "plan_only=true")
    assert (code, err) == (0, "")
    assert "A_h1 " in out and "A_h4 " in out
    assert list(workplace.iterdir()) == []


def test_a_command_leaves_the_environment_as_it_was(monkeypatch, capsys):
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    assert command(monkeypatch, capsys, "preset=smoke", "plan_only=true")[0] == 0
    assert "HYDRA_FULL_ERROR" not in os.environ


def test_a_run_knows_the_command_that_does_it_again(monkeypatch):
    def commands(*overrides):
        return [run.command for run in planned(*overrides, prepare=False).runs]

    asked = ["+sweep=row_A", "seeds=2", "runs_dir=elsewhere", "plan_only=true", "model.dropout=0.3"]
    assert commands(*asked)[:3] == [
        "python -m ablate.run +row=base preset=smoke model.dropout=0.3 seeds=1",
        "python -m ablate.run +row=base preset=smoke model.dropout=0.3 seeds=2",
        "python -m ablate.run +row=A_h1 preset=smoke model.dropout=0.3 seeds=1",
    ]
    monkeypatch.setattr(sys, "argv", ["ablate.run", "--config-dir", "my rows"])
    assert commands() == ["python -m ablate.run --config-dir 'my rows' +row=base preset=smoke seeds=1"]


def test_records_tell_the_corpus_where_it_is_not_prepared(workplace, monkeypatch):
    done = planned("+row=A_h4").runs[0]
    finish(done, ppl=9.0, bleu=9.0)
    monkeypatch.setenv("ABLATE_DATA", str(workplace / "elsewhere"))
    there = planned("+row=A_h4", prepare=False)
    assert (there.corpus, there.runs[0].fingerprint, there.runs[0].state.name) == (None, done.fingerprint, "done")
    assert planned("+row=A_h4", "data.num_train=61", prepare=False).digests == {}  # another corpus than the record's
    record = read_json(done.run.record)
    record["science"]["digest.vocab"] = "0" * 64
    write_json(RunDir(done.run.path.with_name("seed2")).record, record)
    assert planned("+row=A_h4", prepare=False).digests == {}  # two that differ
