import gc

import pytest

from ablate.ask import no_garbage, plan_of, reader
from ablate.plan import plan_from


@pytest.fixture(autouse=True)
def own_folder(workplace):
    return workplace


def asked(*arguments: str):
    return plan_of(reader("table", "", ("md",)).parse_intermixed_args(list(arguments)))


def test_nothing_named_is_the_whole_table():
    plan = asked("--preset", "smoke")
    assert (plan.preset, plan.seeds, len(plan.rows)) == ("smoke", 1, 20)


def test_sweeps_settings_and_their_short_forms_go_in_any_order():
    plan = asked("preset=smoke", "row_E", "--seeds", "2", "row_B", "model.dropout=0.3", "--runs", "there")
    assert list(plan.rows) == ["base", "E_learned", "B_dk16", "B_dk32"]
    assert (plan.seeds, plan.runs_dir.name, plan.configs["base"].model.dropout) == (2, "there", 0.3)


def test_unless_it_is_said_how_many_every_seed_that_was_run_is_read(monkeypatch, own_folder):
    monkeypatch.setenv("ABLATE_DATA", str(own_folder / "data"))
    ran = plan_from(["preset=smoke", "+sweep=row_E", "seeds=3"], prepare=True, say=lambda text: None)
    ran.rows["E_learned"][2].run.path.mkdir(parents=True)
    ran.rows["E_learned"][2].run.identity.write_text("{}")
    assert {row: len(runs) for row, runs in asked("preset=smoke", "row_E").rows.items()} == {"base": 3, "E_learned": 3}
    assert asked("preset=smoke", "row_B").seeds == 1  # that run is of none of these rows
    assert (asked("preset=smoke", "row_E", "--seeds", "2").seeds, asked("preset=smoke", "row_E", "seeds=1").seeds) == (
        2,
        1,
    )


def test_several_sweeps_may_be_one_word():
    assert list(asked("row_E,row_B", "preset=smoke").rows) == ["base", "E_learned", "B_dk16", "B_dk32"]


def test_that_a_corpus_is_missing_is_said_and_none_is_made(own_folder, monkeypatch, capsys):
    monkeypatch.setenv("ABLATE_DATA", str(own_folder / "data"))
    asked("row_E", "preset=smoke")
    assert "the corpus is not prepared here" in capsys.readouterr().err
    assert not (own_folder / "data").exists()


def test_garbage_is_collected_again_afterwards():
    assert gc.isenabled()
    with pytest.raises(KeyError), no_garbage():
        assert not gc.isenabled()
        raise KeyError
    assert gc.isenabled()
