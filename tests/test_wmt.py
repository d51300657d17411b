import dataclasses
from pathlib import Path

import pytest
import sacrebleu.dataset
import wmt14
from servers import serving
from wmt14 import STATMT, pairs, text, trust

from ablate.compose import compose
from ablate.config import WmtData
from ablate.data import corpus, wmt
from ablate.data.source import CorpusError, Counts, Unfinished
from ablate.errors import ConfigError


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATE_DATA", str(tmp_path / "data"))


def config(name: str = "wmt14_ende", **changes: object) -> WmtData:
    fields = {"vocab_size": 512, "timeout_s": 5.0, "retries": 0} | changes
    return dataclasses.replace(compose([f"data={name}"]).data, **fields)


def read(data: WmtData, folder: Path) -> tuple[dict[str, list[tuple[str, str]]], Counts]:
    found: dict[str, list[tuple[str, str]]] = {"train": [], "dev": [], "test": []}
    counts = Counts()
    for split, src, tgt in wmt.source(data).read(counts, lambda line: None, folder / "scratch"):
        found[split].append((src, tgt))
    return found, counts


def zipped(begin: int, end: int) -> list[tuple[str, str]]:
    return list(zip(*pairs(begin, end), strict=True))


def test_english_german_has_three_parts_and_both_newstests(tmp_path, monkeypatch):
    files = wmt14.files()
    trust(monkeypatch, files)
    with serving(**files) as server:
        found, counts = read(config(mirror=server.url), tmp_path)
    assert found == {"train": zipped(0, 450), "dev": zipped(500, 509), "test": zipped(600, 611)}
    assert not counts.dropped
    assert [path for path, _ in server.asked] == [
        f"{STATMT}/wmt13/training-parallel-europarl-v7.tgz",
        f"{STATMT}/wmt13/training-parallel-commoncrawl.tgz",
        "data.statmt.org/wmt16/translation-task/training-parallel-nc-v11.tgz",
        "statmt.org/wmt13/test.tgz",
        "statmt.org/wmt14/test-full.tgz",
    ]


def test_english_french_has_five_and_german_english_is_english_german_turned_round(tmp_path, monkeypatch):
    files = wmt14.files("fr")
    trust(monkeypatch, files)
    with serving(**files) as server:
        found, _ = read(config("wmt14_enfr", mirror=server.url), tmp_path)
    assert found == {"train": zipped(0, 480), "dev": zipped(500, 509), "test": zipped(600, 611)}
    assert f"{STATMT}/wmt14/training-parallel-nc-v9.tgz" in [path for path, _ in server.asked]


def test_every_reason_for_dropping_is_counted_by_part_and_nothing_shifts(tmp_path, monkeypatch):  # T1, T3
    kept = [("one\u2028two  three ", "eins zwei"), ("a \x07 b\x07\x00c", "x"), (" ".join("w" * 80), "y " * 80)]
    dropped = [
        ("", "x"),
        ("a", "\u00a0"),
        ("x", "\x07"),
        (" ".join("w" * 81), "y " * 80),
        ("a " * 10, "x"),
        ("x", "a " * 28),
    ]
    src, tgt = zip(*kept, *dropped, ("z", "z"), strict=True)
    broken = text(list(src)) + b"bad \xff\n" + b"last\n"
    files = wmt14.files(commoncrawl=(broken, text([*tgt, "schlecht", "letzte"])))
    trust(monkeypatch, files)
    with serving(**files) as server:
        found, counts = read(config(mirror=server.url), tmp_path)
    assert found["train"][300:-50] == [
        ("one two three", "eins zwei"),
        ("a bc", "x"),
        (" ".join("w" * 80), " ".join("y" * 80)),
        ("z", "z"),
        ("last", "letzte"),
    ]
    assert counts.dropped == {
        "commoncrawl: a side is empty": 3,
        "commoncrawl: a side over 80 words": 1,
        "commoncrawl: one side over 9 times the other's words": 2,
        "commoncrawl: a side is not UTF-8": 1,
    }


def test_short_sides_are_dropped_and_counted_where_it_is_asked(tmp_path, monkeypatch):
    files = wmt14.files(commoncrawl=(b"a b\na\na b c\n", b"x y\nx y\nx\n"))
    trust(monkeypatch, files)
    with serving(**files) as server:
        found, counts = read(config(mirror=server.url, min_words=2), tmp_path)
    assert found["train"][300] == ("a b", "x y")
    assert counts.dropped["commoncrawl: a side under 2 words"] == 2


def test_sides_of_unequal_length_are_refused_with_both_counts(tmp_path, monkeypatch):  # T4
    files = wmt14.files(europarl=(b"a\nb\nc\n", b"x\n"))
    trust(monkeypatch, files)
    message = r"europarl-v7: .*europarl-v7.de-en.en has 3 lines, .*europarl-v7.de-en.de has 1; they must be equal"
    with serving(**files) as server, pytest.raises(CorpusError, match=message):
        read(config(mirror=server.url), tmp_path)


def test_a_test_set_is_read_as_sacrebleu_reads_it(tmp_path):
    sentences = ["  two  spaces ", "Q &amp; A &quot;x&quot;", "no\u2028break\u00a0here", "a</seg> b", "<b>", ""]
    (tmp_path / "x.sgm").write_bytes(wmt14.sgm(sentences))
    known = sacrebleu.dataset.DATASETS["wmt13"]
    known._convert_format(str(tmp_path / "x.sgm"), str(tmp_path / "theirs"))
    theirs = (tmp_path / "theirs").read_text("utf-8").split("\n")[:-1]
    assert list(wmt.segments("dev", tmp_path / "x.sgm", Counts())) == theirs
    assert len(theirs) == 6


def test_the_test_set_of_wmt14_is_the_full_one():
    assert sacrebleu.dataset.DATASETS["wmt14/full"].data[0].endswith("test-full.tgz")  # 3,003 lines; wmt14 has 2,737
    remote, names = wmt.newstest(config(), "test")
    assert remote.url.endswith("/wmt14/test-full.tgz")
    assert remote.md5 == "a8cd784e006feb32ac6f3d9ec7eb389a"  # as sacreBLEU 2.6 has it
    assert names == ("newstest2014-deen-src.en.sgm", "newstest2014-deen-ref.de.sgm")


def test_another_test_set_than_sacrebleus_is_refused(tmp_path):
    with (
        serving(**wmt14.files()) as server,
        pytest.raises(Unfinished, match=r"test.tgz.* has MD5 .*, its publisher says"),
    ):
        read(config(mirror=server.url), tmp_path)


def test_a_missing_part_is_known_before_the_first_is_read(tmp_path, monkeypatch):
    files = wmt14.files()
    trust(monkeypatch, files)
    del files["statmt.org/wmt14/test-full.tgz"]
    with serving(**files) as server, pytest.raises(Unfinished, match=r"test-full.tgz: the server says 404"):
        read(config(mirror=server.url), tmp_path)
    assert not (tmp_path / "scratch").exists()


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("wmt14_ende", {"tgt_lang": "fr"}, r"data.tgt_lang='fr': must be the other of en and de"),
        ("wmt14_ende", {"src_lang": "cs"}, r"data.src_lang='cs': must be en or de"),
        ("wmt14_ende", {"news_commentary": "v12"}, r"data.news_commentary='v12': must be v9 or v11"),
        ("wmt14_enfr", {"news_commentary": "v11"}, r"data.news_commentary='v11': must be v9: v11 has no French"),
        ("wmt14_ende", {"min_words": 0}, r"data.max_words=80: must be at least data.min_words=0, and that at least 1"),
        ("wmt14_ende", {"max_words": 4, "min_words": 5}, r"data.max_words=4: must be at least data.min_words=5"),
        ("wmt14_ende", {"max_ratio": 0.5}, r"data.max_ratio=0.5: must be at least 1"),
    ],
)
def test_settings_that_make_no_corpus_are_refused(name, change, message):
    with pytest.raises(ConfigError, match=message):
        wmt.source(config(name, **change))


def test_a_corpus_is_made_whatever_breaks_on_the_way(tmp_path, monkeypatch):
    """From the server to packed ids: a connection that breaks, a server gone, a full run; the same as in one go."""
    files = wmt14.files()
    trust(monkeypatch, files)
    with serving(**files) as server:
        server.cut = [3000]
        with pytest.raises(Unfinished, match="the connection ended after 3,000 of"):
            corpus.prepare(config(mirror=server.url), lambda line: None)
        made = corpus.prepare(config(mirror=server.url), lambda line: None, processes=2)
    assert made.manifest["pairs"] == {"train": 450, "dev": 9, "test": 11}
    assert sorted(path.name for path in (tmp_path / "data" / "corpora").iterdir() if path.suffix != ".lock") == [
        made.folder.name
    ]
    monkeypatch.setenv("ABLATE_DATA", str(tmp_path / "other"))
    with serving(**files) as server:
        assert corpus.prepare(config(mirror=server.url), lambda line: None, processes=1).digests == made.digests
