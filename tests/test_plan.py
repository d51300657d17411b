import pytest
from configs import write_rows
from records import finish
from tiny import tree

from ablate import device, request
from ablate.compose import session
from ablate.cost import describe
from ablate.data import corpus as corpora
from ablate.errors import ConfigError
from ablate.estimate import Lengths, guess
from ablate.frozen import load
from ablate.launch import freeze
from ablate.plan import Plan, look_again, older_runs, plan_from
from ablate.rundir import RunDir, read_json, write_json


@pytest.fixture(autouse=True)
def own_folder(workplace):
    return workplace


def planned(*overrides: str, prepare: bool = True, mine: str | None = None) -> Plan:
    with session(mine):
        return plan_from(["preset=smoke", *overrides], prepare, say=lambda text: None)


def test_seeds_count_from_one_and_share_the_rows_fingerprint(workplace):
    asked = planned("+row=A_h4", "seeds=3")
    runs = asked.rows["A_h4"]
    assert [run.cfg.seed for run in runs] == [1, 2, 3]
    assert len({run.fingerprint for run in runs}) == 1
    folders = [workplace / "runs" / "smoke" / "A_h4" / runs[0].fingerprint / f"seed{seed}" for seed in (1, 2, 3)]
    assert [run.run.path for run in runs] == folders


def test_looking_again_shows_what_became_of_the_same_runs_all_seeds_of_them():
    asked = planned("seeds=2")
    finish(asked.runs[1], ppl=9.0, bleu=9.0)
    assert [run.state.name for run in asked.runs] == ["new", "new"]
    assert [run.state.name for run in look_again(asked).runs] == ["new", "done"]
    every = plan_from(["preset=smoke"], prepare=False, every_seed=True)
    assert [run.state.name for run in look_again(every).runs] == ["new", "done"]


def test_the_configuration_of_a_run_is_finished():
    cfg = planned("device=cpu").runs[0].cfg
    assert (cfg.device, cfg.precision, cfg.sweep) == ("cpu", "fp32", {})
    assert (cfg.model.d_model, cfg.scale.width) == (32, 1.0)


def test_asking_for_another_precision_than_the_rows_own_is_a_change(monkeypatch):
    monkeypatch.setattr(request, "resolve_device", lambda name: "cuda")
    assert planned("precision=fp32", prepare=False).runs[0].changes == {"precision": ("bf16", "fp32")}


@pytest.mark.parametrize("setting", ["model=big", "decode=greedy"])
def test_a_setting_on_top_of_a_row_makes_other_runs_that_do_not_count_for_it(setting):  # P5
    changed = planned("+row=A_h1", setting)
    finish(changed.runs[0], ppl=9.0, bleu=9.0)
    assert changed.runs[0].changes
    assert "not the rows as they stand" in describe(changed, workers=1)
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


@pytest.mark.parametrize("kept", ["a whole folder", "a record alone"])
def test_runs_under_an_older_default_are_not_reused_and_the_key_is_named(kept):  # P6
    before = planned("optim.warmup_steps=17")
    finish(before.runs[0], ppl=9.0, bleu=9.0)
    if kept == "a record alone":
        before.runs[0].run.identity.unlink()
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


def test_equal_points_run_once_and_fill_both_cells(workplace):  # P9
    # Half of 7 and of 8 layers, rounded up, is 4; 512 is base's width.
    rows = {"N7": "model: {num_layers: 7}", "again": "model: {d_model: 512}"}
    mine = write_rows(workplace, rows, ["C_N8", "N7", "again"])
    asked = planned("+sweep=s", "seeds=2", mine=mine)
    assert [(run.rows, run.cfg.seed) for run in asked.runs] == [
        (["base", "again"], 1),
        (["base", "again"], 2),
        (["C_N8", "N7"], 1),
        (["C_N8", "N7"], 2),
    ]
    assert asked.rows["N7"] == asked.rows["C_N8"]
    finish(asked.rows["N7"][0], ppl=9.0, bleu=9.0)  # in C_N8's folder, and found from N7 alone too
    assert planned("+row=N7", mine=mine).runs[0].state.name == "done"


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


def test_without_the_corpus_what_is_done_is_said_to_be_unknown():
    said = describe(planned("data.num_train=61", prepare=False), workers=1)
    assert "unknown: corpus not prepared" in said
    assert "1 runs: which of them are done is unknown." in said


def test_a_change_of_corpus_is_told_without_the_fields_that_only_one_of_them_has(workplace):
    sides = (("src", "en"), ("tgt", "de"))
    for _, side in sides:
        (workplace / f"t.{side}").write_text("".join(f"{side} word {i} and more words\n" for i in range(40)))
    files = [f"data.{split}_{lang}={workplace}/t.{code}" for split in ("train", "dev") for lang, code in sides]
    changes = planned("data=files", "data.vocab_size=300", *files).runs[0].changes
    assert changes["data.name"] == ("synthetic", "files")
    assert not {key for key in changes if key.startswith("data.num_")}


def test_records_do_not_speak_for_a_text_that_was_edited_since(workplace, monkeypatch):
    def write(word: str) -> None:
        for side in ("en", "de"):
            (workplace / f"t.{side}").write_text("".join(f"{side} word {i} and more {word}\n" for i in range(40)))

    sides = (("src", "en"), ("tgt", "de"))
    files = [f"data.{split}_{lang}={workplace}/t.{code}" for split in ("train", "dev") for lang, code in sides]
    asked = ["data=files", "data.vocab_size=300", *files]
    write("words")
    finish(planned(*asked).runs[0], ppl=9.0, bleu=9.0)
    monkeypatch.setenv("ABLATE_DATA", str(workplace / "nothing"))
    assert planned(*asked, prepare=False).runs[0].state.name == "done"
    write("sentences")
    assert planned(*asked, prepare=False).runs[0].state.name == "new"


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
