import pytest

from ablate import doctor
from ablate.finding import Finding

SMALL = ["data=synthetic", "data.vocab_size=340", "data.num_train=60", "data.num_dev=7", "data.num_test=5"]


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATE_DATA", str(tmp_path / "data"))
    return tmp_path / "data"


def test_a_corpus_that_is_not_prepared_is_an_error_and_nothing_is_made(root, capsys):
    assert doctor.main(SMALL) == 1
    assert capsys.readouterr().out.startswith(
        "ERROR   corpus: data=synthetic is not prepared; give python -m ablate.prep"
    )
    assert not root.exists()


@pytest.mark.parametrize(("levels", "code"), [(["ok", "warning"], 0), (["ok", "error", "ok"], 1), ([], 0)])
def test_the_exit_code_says_whether_something_is_wrong(levels, code, monkeypatch, capsys):
    found = [Finding(level, "what", "two\nlines") for level in levels]
    monkeypatch.setattr(doctor, "SUBJECTS", {"data": lambda cfg: iter(found)})
    assert doctor.main([]) == code
    assert capsys.readouterr().out == "".join(f"{finding}\n" for finding in found)


def test_a_wrong_setting_is_one_message_and_exit_code_2(capsys):
    assert doctor.main(["data=nosuch"]) == 2
    assert "error: data='nosuch'" in capsys.readouterr().err


def test_what_is_named_is_looked_at_and_else_everything(monkeypatch):
    monkeypatch.setattr(doctor, "SUBJECTS", {"data": iter, "cluster": iter})
    assert doctor.subjects(["data=files", "model.dropout=0.3"]) == ["data"]
    assert doctor.subjects(["cluster.workers=2"]) == ["cluster"]
    assert doctor.subjects(["preset=smoke"]) == ["data", "cluster"]


def test_further_lines_stand_under_the_first():
    assert str(Finding("warning", "what", "two\nlines")) == "WARNING what: two\n        lines"
