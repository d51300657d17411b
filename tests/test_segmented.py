import dataclasses
from pathlib import Path

import pytest

from ablate.compose import compose, session
from ablate.config import SegmentedData
from ablate.data import corpus
from ablate.data.pieces import Pieces, detokenise
from ablate.data.source import CorpusError
from ablate.data.subword import EOS, PAD, UNK
from ablate.errors import ConfigError
from ablate.plan import plan_from
from ablate.rundir import write_text

EN = ["A ho@@ use &quot; here &quot; .", "It is R@@ ed , isn &apos;t it ?"]
DE = ["Ein Haus , z.B. hier .", "Es ist ro@@ t , nicht wahr ?"]


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The authors' files in small, with their names."""
    monkeypatch.setenv("ABLATE_DATA", str(tmp_path / "data"))
    pieces = dict.fromkeys(" ".join(EN + DE).split())
    del pieces["nicht"]
    (tmp_path / "vocab.bpe.32000").write_text("".join(f"{piece}\n" for piece in pieces))
    for name, repeat in (("train.tok.clean.bpe.32000", 3), ("newstest2013.tok.bpe.32000", 1)):
        for language, lines in (("en", EN), ("de", DE)):
            (tmp_path / f"{name}.{language}").write_text("".join(f"{line}\n" for line in lines * repeat))
    return tmp_path


def config(folder: Path | None, **changes: object) -> SegmentedData:
    size = 3
    if folder is not None:
        size += len((folder / "vocab.bpe.32000").read_text().splitlines())
    where = None if folder is None else str(folder)
    return dataclasses.replace(SegmentedData("wmt16_ende_bpe32k", "en", "de", size, 256, where), **changes)


def test_the_files_are_packed_as_they_are_segmented(folder):
    made = corpus.prepare(config(folder), lambda line: None)
    pieces = (folder / "vocab.bpe.32000").read_text().splitlines()
    packed = made.split("train")
    assert len(packed) == 6
    assert packed.src(0).tolist() == [*(3 + pieces.index(piece) for piece in EN[0].split()), EOS]
    assert UNK in packed.tgt(1)  # nicht
    assert made.subwords.vocab_size == len(pieces) + 3 == made.manifest["vocab_size"]
    assert sorted(made.manifest["pairs"]) == ["dev", "train"]


def test_translations_and_references_are_plain_text(folder):
    made = corpus.prepare(config(folder), lambda line: None)
    assert made.text("dev", "src") == ['A house "here".', "It is Red, isn't it?"]
    assert made.text("dev", "tgt") == ["Ein Haus, z.B. hier.", "Es ist rot, nicht wahr?"]
    assert made.subwords.decode(made.split("dev").tgt(1)) == "Es ist rot, UNK wahr?"


def test_a_test_set_is_there_if_its_files_are(folder):
    for language in ("en", "de"):
        (folder / f"newstest2014.tok.bpe.32000.{language}").write_text("A .\n")
    assert corpus.prepare(config(folder), lambda line: None).manifest["pairs"]["test"] == 1
    (folder / "newstest2014.tok.bpe.32000.de").unlink()
    with pytest.raises(ConfigError, match=r"data.folder=.*: has no newstest2014.tok.bpe.32000.de"):
        corpus.prepare(config(folder), lambda line: None)


@pytest.mark.parametrize("name", ["vocab.bpe.32000", "train.tok.clean.bpe.32000.de", "newstest2013.tok.bpe.32000.en"])
def test_a_missing_file_is_named(folder, name):
    data = config(folder)
    (folder / name).unlink()
    with pytest.raises(ConfigError, match=rf"data.folder=.*: has no {name}"):
        corpus.find(data)


def test_settings_that_do_not_fit_the_files_are_refused(folder):
    with pytest.raises(ConfigError, match=r"data.folder=None: is needed"):
        corpus.find(config(None))
    with pytest.raises(ConfigError, match=r"data.vocab_size=7: must be 27: vocab.bpe.32000 and 3 control ids"):  # T5
        corpus.find(config(folder, vocab_size=7))
    with pytest.raises(ConfigError, match=r"data.tgt_lang='fr'"):
        corpus.find(config(folder, tgt_lang="fr"))


def test_other_files_make_another_corpus_and_another_place_does_not(folder, tmp_path):
    made = corpus.prepare(config(folder), lambda line: None)
    moved = folder / "moved"
    moved.mkdir()
    for path in folder.glob("*.32000*"):
        path.rename(moved / path.name)
    assert corpus.find(config(moved)).folder == made.folder
    (moved / "train.tok.clean.bpe.32000.en").write_text("A .\n" * 6)
    assert corpus.find(config(moved)) is None


def test_a_vocabulary_with_counts_beside_it_is_read(folder):
    lines = (folder / "vocab.bpe.32000").read_text().splitlines()
    made = corpus.prepare(config(folder), lambda line: None)
    (folder / "vocab.bpe.32000").write_text("".join(f"{line} {i}\n" for i, line in enumerate(lines)))
    again = corpus.prepare(config(folder), lambda line: None)
    assert (again.digests, again.folder != made.folder) == (made.digests, True)


def test_a_vocabulary_with_other_line_ends_is_the_same(folder):
    made = corpus.prepare(config(folder), lambda line: None)
    path = folder / "vocab.bpe.32000"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    assert corpus.prepare(config(folder), lambda line: None).digests == made.digests
    data = config(folder)
    path.write_bytes(b"a\n\xff\n")
    with pytest.raises(CorpusError, match=r"vocab.bpe.32000, line 2: is not UTF-8"):
        corpus.find(data)


def test_the_files_say_how_large_the_vocabulary_is(folder):
    overrides = ["data=wmt16_ende_bpe32k", f"data.folder={folder}"]
    assert compose(overrides).data == config(folder)
    assert compose([*overrides, "data.vocab_size=7"]).data.vocab_size == 7
    for elsewhere in ("null", str(folder / "nowhere")):  # said when the corpus is looked for, with what it lacks
        data = compose([*overrides[:1], f"data.folder={elsewhere}"]).data
        with pytest.raises(ConfigError, match=r"data.folder=.*vocab.bpe.32000"):
            corpus.find(data)


def test_a_preset_of_ones_own_has_it_for_its_corpus(folder):
    preset = "# @package _global_\ndefaults: [paper, override /data: wmt16_ende_bpe32k, _self_]\npreset: bpe\n"
    write_text(folder / "mine" / "preset" / "bpe.yaml", f"{preset}data: {{ folder: {folder} }}\n")
    with session(str(folder / "mine")):
        (planned,) = plan_from(["preset=bpe"], prepare=True, say=lambda line: None).runs
    assert planned.changes == {}
    assert planned.cfg.data == config(folder)
    assert planned.cfg.optim.train_steps == 100_000


def test_pieces_pass_over_padding_and_end_at_the_end():
    pieces = Pieces(["ro@@", "t", "!"], "de")
    assert pieces.encode(" ro@@  t x ") == [3, 4, UNK]
    assert pieces.encode("") == []
    assert pieces.decode([PAD, 3, 4, 5, EOS, 4]) == "rot!"


@pytest.mark.parametrize(
    ("segmented", "text"),
    [
        ("a@@ b@@", "ab"),
        ("x &amp; y", "x & y"),
        ("&#91; a &#93;", "[a]"),
        ("", ""),
        ("a @-@ b", "a-b"),
        ("@@ x", "x"),
    ],
)
def test_what_was_tokenised_and_segmented_is_joined(segmented, text):
    assert detokenise(segmented, "de") == text
