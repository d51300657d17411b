import dataclasses
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time

import pytest

from ablate.config import FilesData, SyntheticData
from ablate.data import corpus, source
from ablate.data.source import CorpusError
from ablate.data.subword import EOS
from ablate.data.synthetic import Grammar
from ablate.rundir import lock

SMALL = SyntheticData("synthetic", "en", "de", 340, 256, grammar_seed=5, num_train=60, num_dev=7, num_test=5)


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATE_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(source, "POLL_S", 0.01)
    return tmp_path / "data"


def quiet(line: str) -> None:
    pass


def listing(folder) -> list[str]:
    """Name what is in a folder, but for lock files."""
    return sorted(path.name for path in folder.iterdir() if path.suffix != ".lock") if folder.exists() else []


def from_files(folder, max_subwords: int = 256, **sides: list[str]) -> FilesData:
    """Write sides given as train_src=[line, …] and name them in a configuration."""
    kinds = [f"{split}_{kind}" for split in ("train", "dev", "test") for kind in ("src", "tgt", "tsv")]
    fields = dict.fromkeys(kinds)
    for side, lines in sides.items():
        (folder / side).write_bytes("".join(f"{line}\n" for line in lines).encode())
        fields[side] = str(folder / side)
    return FilesData("files", "en", "de", 300, max_subwords, **fields)


def test_the_packed_ids_of_every_split_decode_to_the_text():
    made = corpus.prepare(SMALL, quiet)
    pairs = [Grammar(5).pair(i) for i in range(72)]  # dev, test, train
    for split, expected in (("dev", pairs[:7]), ("test", pairs[7:12]), ("train", pairs[12:])):
        packed = made.split(split)
        decode = made.subwords.decode
        assert [(decode(packed.src(i)), decode(packed.tgt(i))) for i in range(len(packed))] == expected
        assert all(packed.src(i)[-1] == packed.tgt(i)[-1] == EOS for i in range(len(packed)))
        assert made.manifest["pairs"][split] == len(expected)
        assert made.manifest["subwords"][split]["tgt"] == packed.tgt_lengths.sum()
    assert made.text("dev", "tgt") == [de for _, de in pairs[:7]]


def test_find_writes_nothing_and_prepare_makes_it_once(root):
    assert corpus.find(SMALL) is None
    assert not root.exists()
    said: list[str] = []
    made = corpus.prepare(SMALL, said.append)
    assert said
    said.clear()
    assert corpus.prepare(SMALL, said.append).folder == made.folder
    assert not said
    assert corpus.find(SMALL).digests == made.digests


def test_digests_are_those_of_the_text_and_the_model():
    made = corpus.prepare(SMALL, quiet)
    pairs = [Grammar(5).pair(i) for i in range(72)]
    per_split = {
        split: hashlib.sha256("".join(f"{src}\n{tgt}\n" for src, tgt in part).encode()).hexdigest()
        for split, part in (("train", pairs[12:]), ("dev", pairs[:7]), ("test", pairs[7:12]))
    }
    combined = "".join(f"{split} {digest}\n" for split, digest in per_split.items())
    model = (made.folder / "subwords.model").read_bytes()
    assert made.digests == {
        "corpus": hashlib.sha256(combined.encode()).hexdigest(),
        "vocab": hashlib.sha256(model).hexdigest(),
    }


@pytest.mark.parametrize("change", [{"grammar_seed": 6}, {"vocab_size": 350}, {"max_subwords": 100}, {"num_dev": 8}])
def test_whatever_makes_another_corpus_makes_another_folder(change):
    folder = corpus.prepare(SMALL, quiet).folder
    assert corpus.find(dataclasses.replace(SMALL, **change)) is None
    assert corpus.prepare(dataclasses.replace(SMALL, **change), quiet).folder != folder


def test_the_folder_is_keyed_by_the_files_content_not_their_names(tmp_path):
    lines = ["ab ab ac", "ba ca"] * 9
    data = from_files(tmp_path, train_src=lines, train_tgt=lines, dev_src=["ab"], dev_tgt=["ba"])
    data.vocab_size = 263  # 3 + 256 + a, b, c and the space
    folder = corpus.prepare(data, quiet).folder
    os.rename(tmp_path / "dev_src", tmp_path / "moved")
    assert corpus.prepare(dataclasses.replace(data, dev_src=str(tmp_path / "moved")), quiet).folder == folder
    (tmp_path / "moved").write_text("ac\n")
    assert corpus.find(dataclasses.replace(data, dev_src=str(tmp_path / "moved"))) is None


def test_a_sentence_of_5000_subwords_is_dropped_from_training_and_kept_in_dev(tmp_path):  # T7
    short = ["a b c d", "b c d a"] * 9
    long = "☃" * 1700  # not a learned character, so each takes three bytes: 5,100 subwords
    data = from_files(
        tmp_path,
        train_src=[*short, "a"],
        train_tgt=[*short, "a b " * 5000],
        dev_src=[long, "a"],
        dev_tgt=["b", "c"],
    )
    data.vocab_size = 264  # 3 + 256 + a, b, c, d and the space
    made = corpus.prepare(data, quiet)
    assert made.manifest["dropped"] == {"train: a side over 256 subwords": 1}
    assert len(made.split("train")) == 18
    assert made.split("train").tgt_lengths.max() <= 256
    assert len(made.split("dev")) == 2
    assert made.split("dev").src_lengths[0] > 5000
    assert made.text("dev", "src") == [long, "a"]


def test_max_subwords_counts_the_end_symbol(tmp_path):
    lines = ["a", "aa", "aaa"]  # with a vocabulary of bytes and characters: ▁ and one id a letter, and EOS
    data = from_files(tmp_path, 4, train_src=lines, train_tgt=lines, dev_src=lines, dev_tgt=lines)
    data.vocab_size = 261  # 3 + 256 + a and the space
    made = corpus.prepare(data, quiet)
    assert made.split("dev").src_lengths.tolist() == [3, 4, 5]
    assert made.split("train").src_lengths.tolist() == [3, 4]
    with pytest.raises(CorpusError, match=r"data.max_subwords=2: no training pair is that short"):
        corpus.prepare(dataclasses.replace(data, max_subwords=2), quiet)


def test_a_split_or_side_that_is_not_there_names_those_that_are(tmp_path):
    lines = ["ab ab"] * 3
    data = from_files(tmp_path, train_src=lines, train_tgt=lines, dev_src=lines, dev_tgt=lines)
    data.vocab_size = 262
    made = corpus.prepare(data, quiet)
    with pytest.raises(CorpusError, match=r"files has no 'test'; there are: train, dev"):
        made.split("test")
    with pytest.raises(CorpusError, match=r"files has no 'train'; there are: dev"):
        made.text("train", "src")
    with pytest.raises(CorpusError, match=r"no side 'source'; there are: src, tgt"):
        made.text("dev", "source")


def test_what_fails_leaves_nothing_behind(root, tmp_path):  # T4, T5
    with pytest.raises(CorpusError, match=r"data.vocab_size=90000: the training text allows at most"):
        corpus.prepare(dataclasses.replace(SMALL, vocab_size=90_000), quiet)
    lines = ["a b", "b a"]
    with pytest.raises(CorpusError, match=r"dev: .*dev_src has 1 lines, .*dev_tgt has 2; they must be equal"):
        corpus.prepare(from_files(tmp_path, train_src=lines, train_tgt=lines, dev_src=["a"], dev_tgt=lines), quiet)
    assert listing(root / "corpora") == []


def test_files_that_change_while_they_are_read_are_refused(root, tmp_path):
    lines = ["ab ab"] * 3
    data = from_files(tmp_path, train_src=lines, train_tgt=lines, dev_src=lines, dev_tgt=lines)
    data.vocab_size = 262
    with pytest.raises(CorpusError, match="changed while they were read"):
        corpus.prepare(data, lambda line: (tmp_path / "dev_src").write_text("b\nb\nb\n") and None)
    assert listing(root / "corpora") == []


def test_what_nobody_went_on_with_for_a_week_is_swept(root):
    for name in ("killed", "running", "fresh"):
        (root / "corpora" / f".{name}.tmp").mkdir(parents=True)
        if name != "fresh":
            os.utime(root / "corpora" / f".{name}.tmp", times=(0, time.time() - 8 * 24 * 3600))
    with lock(root / "corpora" / ".running.lock"):
        made = corpus.prepare(SMALL, quiet)
    assert listing(root / "corpora") == [".fresh.tmp", ".running.tmp", made.folder.name]


def test_a_preparation_that_was_killed_can_be_given_again(root):
    """Killed for real, at every file it writes: the next one makes the same corpus and nothing is left."""
    whole = corpus.prepare(SMALL, say=quiet)
    digests, files = whole.digests, listing(whole.folder)
    code = (
        "import os, signal, sys\nfrom ablate.config import SyntheticData\nfrom ablate.data import corpus\n"
        "left = int(sys.argv[1])\n"
        "def say(text):\n"
        "    global left\n    left -= 1\n"
        "    if left == 0: os.kill(os.getpid(), signal.SIGKILL)\n"
        f"corpus.prepare({SMALL!r}, say)\n"
    )
    for lines_said in (1, 2, 3, 5):  # preparing, learning, packing train, packing test
        shutil.rmtree(whole.folder)
        done = subprocess.run([sys.executable, "-c", code, str(lines_said)], timeout=300)
        assert done.returncode == -signal.SIGKILL
        assert corpus.find(SMALL) is None
        again = corpus.prepare(SMALL, say=quiet)
        assert (again.digests, listing(again.folder)) == (digests, files)
        assert listing(root / "corpora") == [again.folder.name]


def test_two_processes_prepare_one_corpus_once():
    code = (
        "import json, sys; from ablate.config import SyntheticData; from ablate.data.corpus import prepare\n"
        f"said = []; made = prepare({SMALL!r}, said.append); print(json.dumps([str(made.folder), said]))"
    )
    started = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    answers = [json.loads(process.communicate(timeout=60)[0]) for process in started]
    assert answers[0][0] == answers[1][0]
    assert sum(any("learning" in line for line in said) for _, said in answers) == 1


def test_while_another_prepares_we_say_so_and_wait(root):
    folder = corpus.prepare(SMALL, quiet).folder
    moved = folder.rename(folder.with_name("elsewhere"))
    said: list[str] = []
    found: list[corpus.Corpus] = []
    with lock(folder.with_name(f".{folder.name}.lock")):
        waiter = threading.Thread(target=lambda: found.append(corpus.prepare(SMALL, said.append)))
        waiter.start()
        while not said:
            time.sleep(0.01)
        moved.rename(folder)
    waiter.join(timeout=30)
    assert [made.folder for made in found] == [folder]
    assert len(said) == 1
    assert said[0].startswith(f"waiting for {folder.name}: process {os.getpid()} on ")


def test_describe_says_source_licence_counts_and_digests(tmp_path):
    short = ["ab ab", "ba ba"] * 3
    data = from_files(tmp_path, train_src=[*short, ""], train_tgt=[*short, "a"], dev_src=["a\r"], dev_tgt=["b"])
    data.vocab_size = 262
    made = corpus.prepare(data, quiet)
    text = made.describe()
    for part in (
        "files, en → de: your files ",
        "licence: yours",
        "train: 6 pairs, ",
        "dev: 1 pairs, ",
        "dropped: 1 × train: a side is empty",
        "mended: 1 × dev: CR at a line's end, taken away",
        "vocabulary: 262 ids",
        f"vocab {made.digests['vocab'][:12]}",
        str(made.folder),
    ):
        assert part in text
