import gzip
from pathlib import Path

import pytest

from ablate.config import FilesData
from ablate.data import files, lines
from ablate.data.source import CorpusError, Counts
from ablate.errors import ConfigError


def config(**fields: object) -> FilesData:
    kinds = [f"{split}_{kind}" for split in ("train", "dev", "test") for kind in ("src", "tgt", "tsv")]
    paths = dict.fromkeys(kinds) | {field: str(path) for field, path in fields.items()}
    return FilesData("files", "en", "de", 300, 256, **paths)


class Folder:
    """Files for a corpus whose dev set is (d, e), and reading them."""

    def __init__(self, path: Path):
        self.path = path
        self.fields: dict[str, Path] = {}
        self.counts = Counts()
        self.put(dev_src=b"d\n", dev_tgt=b"e\n")

    def put(self, suffix: str = ".txt", **contents: bytes) -> "Folder":
        for field, content in contents.items():
            self.fields[field] = self.path / (field + suffix)
            self.fields[field].write_bytes(content)
        return self

    def read(self, split: str) -> list[tuple[str, str]]:
        self.counts = Counts()
        triples = list(files.source(config(**self.fields)).read(self.counts, print, self.path))
        return [(src, tgt) for name, src, tgt in triples if name == split]


@pytest.fixture
def folder(tmp_path) -> Folder:
    return Folder(tmp_path)


def test_only_the_newline_ends_a_line(folder):  # T1
    src, tgt = "one\u2028two\nthree\x85four\x0bfive\n".encode(), b"eins\nzwei\n"
    pairs = folder.put(train_src=src, train_tgt=tgt).read("train")
    assert pairs == [("one\u2028two", "eins"), ("three\x85four\x0bfive", "zwei")]


def test_carriage_returns_and_a_byte_order_mark_are_mended_and_counted(folder):  # T2
    src = b"\xef\xbb\xbfa\r\nb\rc\n\xef\xbb\xbfd"
    pairs = folder.put(train_src=src, train_tgt=b"x\ny\nz\n").read("train")
    assert pairs == [("a", "x"), ("b c", "y"), ("\ufeffd", "z")]
    assert folder.counts.mended == {
        "train: a byte-order mark at the file's beginning, taken away": 1,
        "train: CR at a line's end, taken away": 1,
        "train: CR inside a line, now a space": 1,
    }


def test_an_empty_side_drops_the_training_pair_and_shifts_nothing(folder):  # T3
    assert folder.put(train_src=b"a\n\nc\n", train_tgt=b"x\ny\nz\n").read("train") == [("a", "x"), ("c", "z")]
    assert folder.counts.dropped == {"train: a side is empty": 1}


def test_dev_and_test_keep_their_empty_lines(folder):  # T8
    folder.put(train_src=b"a\n", train_tgt=b"x\n", test_src=b"a\n\nc\n", test_tgt=b"\ny\nz\n")
    assert folder.read("test") == [("a", ""), ("", "y"), ("c", "z")]
    assert not folder.counts.dropped


@pytest.mark.parametrize(("src", "tgt", "sizes"), [(b"a\nb\nc\n", b"x\n", (3, 1)), (b"a\n", b"x\ny\nz\nw", (1, 4))])
def test_unequal_line_counts_are_refused_with_both_counts_and_paths(folder, src, tgt, sizes):  # T4
    folder.put(train_src=src, train_tgt=tgt)
    with pytest.raises(CorpusError, match=rf"train_src.txt has {sizes[0]} lines, .*train_tgt.txt has {sizes[1]};"):
        folder.read("train")


def test_compressed_files_are_read(folder):
    folder.put(train_src=b"a\n").put(".gz", train_tgt=gzip.compress(b"x\n"))
    assert folder.read("train") == [("a", "x")]
    folder.put(".gz", train_tgt=gzip.compress(b"x\n" * 9999)[:-9])
    with pytest.raises(CorpusError, match=r"train_tgt.gz, after line \d+: cannot be unpacked"):
        folder.read("train")


def test_a_table_has_two_columns(folder):
    assert folder.put(train_tsv=b"a b\tx y\nc\tz\r\n").read("train") == [("a b", "x y"), ("c", "z")]
    for line, columns in ((b"only one", 1), (b"a\tb\tc", 3)):
        folder.put(train_tsv=b"a\tx\n" + line)
        with pytest.raises(CorpusError, match=rf"train_tsv.txt, line 2: {columns} columns; must be source TAB target"):
            folder.read("train")


def test_what_is_not_utf8_is_named_by_file_and_line(folder):
    folder.put(train_src=b"a\nb \xff\n", train_tgt=b"x\ny\n")
    with pytest.raises(CorpusError, match=r"train_src.txt, line 2: is not UTF-8 \(invalid start byte at byte 3\)"):
        folder.read("train")


@pytest.mark.parametrize("suffix", [".txt", ".gz"])
def test_a_line_that_is_no_sentence_is_named_before_it_fills_the_memory(folder, monkeypatch, suffix):
    monkeypatch.setattr(lines, "LONGEST", 5)
    pack = gzip.compress if suffix == ".gz" else bytes
    folder.put(suffix, train_src=pack(b"abcd\nabc\n"), train_tgt=pack(b"x\ny\n"))
    assert folder.read("train") == [("abcd", "x"), ("abc", "y")]
    folder.put(suffix, train_src=pack(b"abcd\nabcdef\n"))
    with pytest.raises(CorpusError, match=r"train_src\.\w+, line 2: has over 5 bytes; must be a sentence a line"):
        folder.read("train")


def test_a_file_without_sentences_is_refused(folder):
    for contents in (b"", b"\n \n"):
        folder.put(train_src=contents, train_tgt=contents)
        with pytest.raises(CorpusError, match=r"data.train_src: no sentences in .*train_src.txt"):
            folder.read("train")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, r"data.train_src=None: is needed, with data.train_tgt; or data.train_tsv"),
        ({"train_src": "f"}, r"data.train_src='.*f': set data.train_src and data.train_tgt, or data.train_tsv alone"),
        ({"train_tgt": "f"}, r"data.train_tgt='.*f': set data.train_src and data.train_tgt, or data.train_tsv alone"),
        ({"train_src": "f", "train_tgt": "f", "train_tsv": "f"}, r"data.train_src=.*: set .* or data.train_tsv alone"),
        ({"train_tsv": "f"}, r"data.dev_src=None: is needed, with data.dev_tgt; or data.dev_tsv"),
        ({"train_tsv": "f", "dev_tsv": "f", "test_src": "f"}, r"data.test_src=.*: set data.test_src and data.test_tgt"),
        ({"train_tsv": "missing", "dev_tsv": "f"}, r"data.train_tsv='.*missing': no such file"),
    ],
)
def test_fields_are_checked_against_each_other(tmp_path, fields, message):
    (tmp_path / "f").write_bytes(b"a\tx\n")
    with pytest.raises(ConfigError, match=message):
        files.source(config(**{field: tmp_path / name for field, name in fields.items()}))
