import random

import numpy as np
import pytest

from ablate.config import FilesData
from ablate.data import corpus, examine
from ablate.data.synthetic import Grammar

PAIRS = [Grammar(8).pair(i) for i in range(1200)]


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATE_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(examine, "WINDOW", 100)
    monkeypatch.setattr(examine, "CHUNK", 70)


def shuffled(seed: int = 1) -> list[tuple[str, str]]:
    """Give a corpus's training pairs in an order in which neighbours have nothing in common."""
    pairs = PAIRS[:1000]
    random.Random(seed).shuffle(pairs)
    return pairs


def made(folder, train: list[tuple[str, str]], dev: list[tuple[str, str]] | None = None, **changes) -> corpus.Corpus:
    fields = {}
    for split, pairs in (("train", train), ("dev", dev or PAIRS[1000:])):
        for side, texts in zip(("src", "tgt"), zip(*pairs, strict=True), strict=True):
            fields[f"{split}_{side}"] = str(folder / f"{split}.{side}")
            (folder / f"{split}.{side}").write_text("".join(f"{text}\n" for text in texts))
    rest = dict.fromkeys(("test_src", "test_tgt", "train_tsv", "dev_tsv", "test_tsv"))
    settings = {"src_lang": "en", "tgt_lang": "de", "vocab_size": 512} | changes
    data = FilesData("files", max_subwords=256, **settings, **fields, **rest)
    return corpus.prepare(data, lambda line: None)


def found(one: corpus.Corpus) -> dict[str, examine.Finding]:
    return {finding.what: finding for finding in examine.examine(one)}


def test_a_sound_corpus_has_nothing_wrong(tmp_path):
    findings = found(made(tmp_path, shuffled()))
    assert {finding.level for finding in findings.values()} == {"ok"}, findings
    assert findings["train"].said == "1,000 pairs"
    assert findings["copies"].said.startswith("0 of 1,000 training pairs (0.00%)")


def test_lengths_are_counted_in_subwords_without_the_end(tmp_path):
    finding = found(made(tmp_path, shuffled()))["lengths"]
    assert "src median" in finding.said
    shares = [line.split("%")[0].split()[-1] for line in finding.said.splitlines()[2:]]
    assert sum(map(float, shares)) == pytest.approx(100, abs=0.5)


def test_copies_are_counted_and_named(tmp_path):
    pairs = shuffled()
    for i in range(3, 1000, 50):  # 20 of them, 2 %
        pairs[i] = (pairs[i][0], pairs[i][0])
    finding = found(made(tmp_path, pairs))["copies"]
    assert finding.level == "warning"
    assert finding.said.startswith(
        "20 of 1,000 training pairs (2.00%) have the same text on both sides, such as 3, 53, 103"
    )


def test_swapped_sides_and_pairs_of_one_language_are_told(tmp_path):
    pairs = shuffled()
    for i in range(0, 1000, 50):
        pairs[i] = pairs[i][::-1]
    for i in range(25, 1000, 50):
        pairs[i] = (pairs[i][0], PAIRS[i][0])
    findings = found(made(tmp_path, pairs))
    swapped = int(findings["sides swapped"].said.split(" of ")[0])
    one = int(findings["one language"].said.split(" of ")[0])
    assert 18 <= swapped <= 20
    assert 18 <= one <= 24
    assert (findings["sides swapped"].level, findings["one language"].level) == ("warning", "warning")


def test_a_corpus_under_the_wrong_names_is_an_error(tmp_path):
    backwards = [(tgt, src) for src, tgt in shuffled()]
    finding = found(made(tmp_path, backwards, [(tgt, src) for src, tgt in PAIRS[1000:]]))["language names"]
    assert finding.level == "error"
    assert finding.said.startswith("src looks de (")
    assert finding.said.endswith("named en → de")


def test_of_a_text_without_common_words_no_language_is_told(tmp_path):
    strange = [("abcdefgh", "ijklmnop")] * 9
    finding = found(made(tmp_path, shuffled(), strange))["language names"]
    assert (finding.level, finding.said) == ("ok", "src cannot be told, tgt cannot be told; named en → de")


@pytest.mark.parametrize("lag", [1, -1, 2])
def test_a_side_that_slipped_by_a_line_is_found_where_it_did(tmp_path, lag):  # T3
    src, tgt = (list(side) for side in zip(*shuffled(), strict=True))
    tgt[400:600] = tgt[400 + lag : 600 + lag]
    finding = found(made(tmp_path, list(zip(src, tgt, strict=True))))["alignment"]
    assert finding.level == "error"
    assert finding.said == "2 of 10 stretches of 100 pairs fit better a line or two off: 400-499, 500-599"


def test_sides_in_different_orders_are_an_error(tmp_path):
    src, tgt = (list(side) for side in zip(*shuffled(), strict=True))
    random.Random(3).shuffle(tgt)
    finding = found(made(tmp_path, list(zip(src, tgt, strict=True))))["order"]
    assert finding.level == "error"
    assert "are both sides in one order?" in finding.said


def test_a_corpus_of_one_pair_is_examined_without_a_complaint_about_its_lengths(tmp_path):
    findings = found(made(tmp_path, PAIRS[:1], PAIRS[1:2], vocab_size=320))
    assert {finding.level for finding in findings.values()} == {"ok"}, findings
    assert "order" not in findings


def test_pairs_of_unequal_length_are_counted(tmp_path):
    pairs = shuffled()
    for i in range(7, 1000, 40):
        pairs[i] = (pairs[i][0], " ".join([pairs[i][1]] * 5))
    finding = found(made(tmp_path, pairs))["lengths unequal"]
    assert finding.level == "warning"
    assert finding.said.startswith("25 of 1,000 training pairs (2.50%)")


def test_what_training_has_seen_of_dev_is_told(tmp_path):
    finding = found(made(tmp_path, shuffled(), [*PAIRS[1000:1150], *PAIRS[:50]]))["seen before"]
    assert finding.level == "warning"
    assert finding.said == "25.0% of dev's sources stand in train, too"


def test_a_damaged_corpus_is_an_error_and_nothing_else_is_said(tmp_path):
    one = made(tmp_path, shuffled())
    path = one.folder / "train.tgt.ids"
    path.write_bytes(path.read_bytes()[:-20])
    findings = found(one)
    assert [findings[split].level for split in findings] == ["error", "ok"]
    assert "tgt has 1,000 sentences" in findings["train"].said
    ids = np.memmap(one.folder / "dev.src.ids", dtype="uint16", mode="r+")
    ids[5] = 600
    ids.flush()
    assert found(one)["dev"].said.startswith("src has ids beyond the vocabulary")


def truncate(path, size: int) -> None:
    path.write_bytes(path.read_bytes()[:size])


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda folder: truncate(folder / "dev.src.ids", 21), "multiple of the data-type size"),
        (lambda folder: truncate(folder / "dev.src.ids", 0), "empty file"),
        (lambda folder: truncate(folder / "dev.tgt.offsets.npy", 300), "dev: "),
        (lambda folder: truncate(folder / "dev.tgt.offsets.npy", 0), "dev: "),
        (lambda folder: (folder / "dev.tgt.ids").unlink(), "No such file"),
        (lambda folder: np.save(folder / "dev.tgt.offsets.npy", np.r_[0, 99_999, 1:200]), "tgt has 200 sentences"),
        (lambda folder: (folder / "dev.tgt.txt").write_text("x\n" * 200), "the text is another"),
        (lambda folder: (folder / "dev.src.txt").write_text("x\n" * 199), "zip"),
        (lambda folder: (folder / "subwords.model").write_bytes(b"x"), "the vocabulary is another"),
    ],
)
def test_whatever_is_damaged_is_a_finding_and_no_traceback(tmp_path, damage, said):
    one = made(tmp_path, shuffled())
    damage(one.folder)
    finding = found(one)["dev"]
    assert finding.level == "error"
    assert said in str(finding)
    assert f"delete {one.folder} and prepare it again" in finding.said
