import hashlib

import pytest

from ablate import record
from ablate.record import RecordError
from ablate.rundir import RunDir, write_json


@pytest.fixture
def run(tmp_path) -> RunDir:
    return RunDir(tmp_path / "seed1")


def test_a_record_reads_back_with_its_schema(run):
    record.write(run, {"row": "base", "dev": {"ppl": 4.92}})
    assert record.read(run) == {"schema": 1, "row": "base", "dev": {"ppl": 4.92}}


def test_a_run_without_a_record_has_none(run):
    assert record.read(run) is None


@pytest.mark.parametrize("schema", [0, 2, None])
def test_a_record_of_another_schema_is_refused_with_both_numbers(schema, run):
    write_json(run.record, {"schema": schema, "row": "base"})
    with pytest.raises(RecordError, match=f"schema={schema}, this version of ablate reads 1"):
        record.read(run)


def test_a_record_holds_no_nan(run):
    with pytest.raises(ValueError, match="JSON"):
        record.write(run, {"dev": {"ppl": float("nan")}})
    assert not run.record.exists()


def test_only_times_and_places_may_differ_between_equal_runs():
    kept = {"row": "base", "seed": 1, "train": {"loss": 3.0}, "dev": {"ppl": 4.92}}
    assert record.comparable({**kept, "timing": {"train_s": 1.0}, "provenance": [{"host": "a"}]}) == kept


def test_the_code_digest_is_of_every_python_file_and_its_name(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "PACKAGE", tmp_path)
    (tmp_path / "data").mkdir()
    (tmp_path / "b.py").write_text("b")
    (tmp_path / "data" / "a.py").write_text("a")
    first = record.code_digest()
    assert first == hashlib.sha256(b"b.py\0b\0data/a.py\0a\0").hexdigest()[:12]
    (tmp_path / "notes.txt").write_text("not code")
    assert record.code_digest() == first
    (tmp_path / "data" / "a.py").write_text("changed")
    assert record.code_digest() != first
    (tmp_path / "data" / "a.py").write_text("a")
    (tmp_path / "b.py").rename(tmp_path / "c.py")
    assert record.code_digest() != first


def test_an_attempt_flags_code_that_changed_since_the_run_was_planned():  # P8
    same, other, unplanned = (
        record.attempt(code, "python -m ablate.run +row=base", "cpu: x86_64", threads=2)
        for code in (record.code_digest(), "0" * 12, None)
    )
    assert (same["code_changed"], other["code_changed"], unplanned["code_changed"]) == (False, True, False)
    assert (same["device"], same["threads"], same["command"]) == ("cpu: x86_64", 2, "python -m ablate.run +row=base")
    assert {"torch", "sentencepiece", "sacrebleu", "hydra-core"} <= set(same["versions"])


def test_outside_a_checkout_there_is_no_commit(tmp_path, monkeypatch):
    monkeypatch.setattr(record, "PACKAGE", tmp_path / "ablate")
    (tmp_path / "ablate").mkdir()
    assert record.git("rev-parse", "HEAD") is None
    (tmp_path / ".git").mkdir()  # not a repository that git can read
    assert record.git("rev-parse", "HEAD") is None
