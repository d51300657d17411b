import gzip
from pathlib import Path

import pytest
from servers import access, serving

from ablate.compose import compose
from ablate.data import corpus, multi30k
from ablate.data.source import CorpusError, Counts
from ablate.data.synthetic import Grammar
from ablate.errors import ConfigError
from ablate.identity import science

PLACE = "raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw"
SIZES = {"train": 29_000, "val": 1_014, "test_2016_flickr": 1_000}


def archives(**lines: int) -> dict[str, bytes]:
    """Make files of the original layout; `lines` gives other numbers of lines than the original's."""
    pairs, files = [Grammar(3).pair(i) for i in range(500)], {}
    for name, size in (SIZES | lines).items():
        for place, language in enumerate(("en", "de")):
            text = "".join(f"{pairs[i % 500][place]}\n" for i in range(size))
            files[f"{PLACE}/{name}.{language}.gz"] = gzip.compress(text.encode(), 1)
    return files


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATE_DATA", str(tmp_path / "data"))


def read(data) -> dict[str, list[tuple[str, str]]]:
    found: dict[str, list[tuple[str, str]]] = {}
    for split, src, tgt in multi30k.source(data).read(Counts(), lambda line: None, Path("unused")):
        found.setdefault(split, []).append((src, tgt))
    return found


def test_its_six_files_are_fetched_and_paired():
    with serving(**archives()) as server:
        found = read(access(mirror=server.url))
    assert {split: len(pairs) for split, pairs in found.items()} == {"train": 29_000, "dev": 1_014, "test": 1_000}
    assert found["train"][499] == Grammar(3).pair(499)
    assert len(server.asked) == 6


def test_other_numbers_of_pairs_are_refused():
    with (
        serving(**archives(val=1_013)) as server,
        pytest.raises(CorpusError, match=r"1,013 pairs; Multi30k's dev has 1,014"),
    ):
        read(access(mirror=server.url))


@pytest.mark.parametrize(("change", "field"), [({"tgt_lang": "en"}, "tgt"), ({"src_lang": "fr"}, "src")])
def test_other_languages_are_refused(change, field):
    data = access()
    for name, value in change.items():
        setattr(data, name, value)
    with pytest.raises(ConfigError, match=f"data.{field}_lang"):
        multi30k.source(data)


def test_where_it_was_fetched_from_makes_no_other_corpus(tmp_path):
    """Whole, from a loopback server to a prepared corpus; then from a folder, and from nowhere."""
    files = archives()
    with serving(**files) as server:
        made = corpus.prepare(access(mirror=server.url), lambda line: None)
    assert made.manifest["pairs"] == {"train": 29_000, "dev": 1_014, "test": 1_000}
    for place, content in files.items():
        (tmp_path / Path(place).name).write_bytes(content)
    for again in (access(folder=str(tmp_path)), access(mirror="http://elsewhere", timeout_s=1.0, retries=0)):
        found = corpus.find(again)
        assert found is not None
        assert found.folder == made.folder


def test_where_it_was_fetched_from_makes_no_other_run():
    plain, mirrored = (science(compose(["data=multi30k", *more]), {}) for more in ([], ["data.mirror=http://x"]))
    assert plain == mirrored
    assert "data.timeout_s" not in plain
