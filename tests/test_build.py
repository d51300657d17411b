import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from ablate.config import SyntheticData
from ablate.data import build, corpus, pool, source
from ablate.data.source import Unfinished

DATA = SyntheticData("synthetic", "en", "de", 340, 40, grammar_seed=5, num_train=100, num_dev=9, num_test=5)


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch) -> Path:
    monkeypatch.setenv("ABLATE_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(build, "BLOCK", 7)
    return tmp_path / "data" / "corpora"


def quiet(line: str) -> None:
    pass


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def aside(root: Path) -> Path:
    (found,) = root.glob(".*.tmp")
    return found


def test_the_bytes_do_not_depend_on_how_many_processes_and_blocks_there_are(monkeypatch):
    made = {}
    for processes, block in ((1, 7), (2, 7), (3, 7), (1, 10_000)):
        monkeypatch.setattr(build, "BLOCK", block)
        prepared = corpus.prepare(DATA, quiet, processes)
        made[processes, block] = contents(prepared.folder)
        shutil.rmtree(prepared.folder)
    assert 0 < prepared.manifest["dropped"]["train: a side over 40 subwords"] < 100  # so blocks are of several sizes
    assert made[1, 7] == made[2, 7] == made[3, 7] == made[1, 10_000]


def killed_at(line: str) -> None:
    """Prepare in a process of its own that is killed when it says a line."""
    code = (
        "import os, signal\nfrom ablate.config import SyntheticData\nfrom ablate.data import build, corpus, source\n"
        "build.BLOCK, source.TELL_S = 7, 0\n"
        f"def say(text):\n    if text.startswith({line!r}): os.kill(os.getpid(), signal.SIGKILL)\n"
        f"corpus.prepare({DATA!r}, say, 1)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], timeout=300)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.parametrize(
    ("line", "again", "not_again"),
    [
        ("learning", ["learning", "packing train", "packing dev"], "reading"),
        ("packing train: 49 of", ["packing train, from pair 42 on", "packing dev"], "learning"),
        (
            "packing test",
            ["packing train, from pair 100 on", "packing dev, from pair 9 on", "packing test"],
            "learning",
        ),
        ("prepared", [], "packing"),
    ],
)
def test_a_killed_preparation_goes_on_where_it_was(root, line, again, not_again):
    whole = corpus.prepare(DATA, quiet)
    expected = contents(whole.folder)
    shutil.rmtree(whole.folder)
    killed_at(line)
    said: list[str] = []
    assert contents(corpus.prepare(DATA, said.append).folder) == expected
    for text in again:
        assert any(line.startswith(text) for line in said), (text, said)
    assert not any(line.startswith(not_again) for line in said)
    assert list(root.glob(".*.tmp")) == []


def test_a_full_disk_is_one_error_and_what_is_done_is_kept(root):
    folder = corpus.prepare(DATA, quiet).folder
    expected = contents(folder)
    shutil.rmtree(folder)
    half = folder.with_name(f".{folder.name}.tmp")
    half.mkdir()
    (half / "test.src.txt").symlink_to("/dev/full")  # the kernel's own full disk
    with pytest.raises(Unfinished, match="No space left on device; what is done is kept, the same command continues"):
        corpus.prepare(DATA, quiet)
    (half / "test.src.txt").unlink()
    (half / ".pieces.txt.77.tmp").touch()  # as a kill in the middle of a write leaves it
    assert (half / "train.src.txt").stat().st_size > 0
    assert contents(corpus.prepare(DATA, quiet).folder) == expected


def test_subwords_are_learned_from_a_stated_sample_evenly_spaced(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "LEARN_PAIRS", 40)
    seen: list[list[str]] = []
    train = build.Subwords.train

    def spy(sentences, vocab_size, path):
        seen.append(list(sentences))
        return train(seen[-1], vocab_size, path)

    monkeypatch.setattr(build.Subwords, "train", spy)
    made = corpus.prepare(DATA, quiet)
    packed = made.split("train")
    assert made.manifest["learned_on"] == 40
    assert "learned from 40 training pairs, evenly spaced" in made.describe()
    assert len(seen[0]) == 80  # both sides
    (tmp_path / "lines").write_text("".join(f"{i}\n" for i in range(100)))
    assert list(build._sample(tmp_path / "lines", 100)) == [str(i) for i in range(100) if i * 40 % 100 < 40]
    assert len(packed) > 0


@pytest.mark.parametrize("total", [1, 2, 39, 40, 41, 79, 80, 81, 1000])
def test_a_sample_has_as_many_lines_as_it_says(monkeypatch, tmp_path, total):
    monkeypatch.setattr(build, "LEARN_PAIRS", 40)
    (tmp_path / "lines").write_text("".join(f"{i}\n" for i in range(total)))
    taken = [int(line) for line in build._sample(tmp_path / "lines", total)]
    assert len(taken) == min(40, total)
    assert taken[0] == 0
    assert max(np.diff(taken), default=1) <= -(-total // 40)


def test_progress_tells_pairs_speed_and_time_left(monkeypatch):
    monkeypatch.setattr(source, "TELL_S", 0)
    said: list[str] = []
    corpus.prepare(DATA, said.append, 1)
    assert any(line.startswith("packing train: 70 of 100 pairs, ") and line.endswith(" s left") for line in said)


def die(number: int) -> int:
    if number == 3:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def test_a_killed_process_of_the_pool_is_an_error_and_not_a_hang():
    with pytest.raises(Unfinished, match="a process that encoded was killed"):
        list(pool.in_order(die, range(9), 2, quiet, ""))


def test_the_pool_runs_at_most_a_few_tasks_ahead():
    taken: list[int] = []

    def tasks():
        for number in range(100):
            taken.append(number)
            yield number

    results = pool.in_order(abs, tasks(), 2, quiet, "")
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    assert len(taken) <= 3 + 2 * pool.AHEAD + 1
    results.close()


def test_processes_of_the_pool_end_with_a_killed_parent(tmp_path):
    code = (
        "import os, sys, time, signal\nfrom ablate.data import pool\n"
        "def work(number):\n    print(os.getpid(), flush=True)\n    time.sleep(0.1)\n    return number\n"
        "for result in pool.in_order(work, range(10**6), 2, print, 'ready'):\n    pass\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        children: set[int] = set()
        while len(children) < 2:
            word = parent.stdout.readline().strip()
            children |= {int(word)} if word.isdecimal() else set()
        parent.kill()
        for child in children:
            while Path(f"/proc/{child}").exists():
                time.sleep(0.05)


def test_text_is_hashed_in_the_order_of_its_pairs():
    made = corpus.prepare(DATA, quiet)
    lines = zip(made.text("dev", "src"), made.text("dev", "tgt"), strict=True)
    assert (
        made.manifest["text_digests"]["dev"]
        == hashlib.sha256("".join(f"{s}\n{t}\n" for s, t in lines).encode()).hexdigest()
    )
