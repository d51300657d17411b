"""Preparing a corpus of WMT14's size: `python benchmarks/prepare_scale.py [--pairs 4500000] [--processes 1 2]`.

The text is made up: 200,000 words of syllables a side, as frequent as Zipf's law says, sentences of about 23 of them.
It is prepared with the paper's 37,000 subwords, once for each number of processes. Told are the seconds of each,
sentences a second (both sides count), the most memory that all its processes held together (proportional set size,
sampled four times a second; Linux only), whether the bytes are the same, and SentencePiece's own `encode` on blocks of
the same text, one thread.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
import sentencepiece
from common import machine, versions

from ablate.record import git

HERE = Path(__file__).parent
SYLLABLES = [
    begin + vowel + end
    for begin in (*"bdfghklmnprstvwz", "br", "st", "tr", "sch")
    for vowel in (*"aeiouäö", "ei", "au")
    for end in ("", "n", "r", "l", "s", "ng")
]
WORDS, AT_ONCE, ENCODED = 200_000, 20_000, 100_000  # words a side; sentences made at once; those encoded by the library


def write_side(path: Path, pairs: int, seed: int) -> None:
    """Write one side of so many pairs."""
    rng = np.random.default_rng(seed)
    words: dict[str, None] = {}
    while len(words) < WORDS:
        words["".join(rng.choice(SYLLABLES, rng.integers(1, 5)))] = None
    lexicon = np.array(sorted(words, key=len), dtype=object)  # frequent words are short
    upto = np.cumsum(1 / np.arange(1, WORDS + 1))
    with open(path, "w") as file:
        for first in range(0, pairs, AT_ONCE):
            lengths = np.clip(rng.gamma(3, 8, min(AT_ONCE, pairs - first)).astype(int), 1, 80)
            drawn = lexicon[np.searchsorted(upto, rng.random(lengths.sum()) * upto[-1])]
            for sentence in np.split(drawn, np.cumsum(lengths)[:-1]):
                file.write(" ".join(sentence) + "\n")


def prepare(text: Path, data: Path, processes: int) -> dict[str, float | str]:
    """Run the command in processes of its own, and watch them."""
    command = [sys.executable, "-m", "ablate.prepare", "data=files", "data.vocab_size=37000"]
    command += [f"data.{split}_{side}={text}/{split}.{side}" for split in ("train", "dev") for side in ("src", "tgt")]
    begun, most = time.perf_counter(), 0
    env = {**psutil.Process().environ(), "ABLATE_DATA": str(data)}
    with subprocess.Popen([*command, "--processes", str(processes)], env=env, stdout=subprocess.DEVNULL) as process:
        while process.poll() is None:
            most = max(most, memory(process.pid))
            time.sleep(0.25)
    if process.returncode:
        raise SystemExit(f"the preparation ended with {process.returncode}")
    (folder,) = (path for path in (data / "corpora").iterdir() if not path.name.startswith("."))
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        with open(path, "rb") as file:
            digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return {"wall_s": time.perf_counter() - begun, "peak_mb": most / 2**20, "sha256": digest.hexdigest()}


def memory(pid: int) -> int:
    """Count the bytes that a process and its children hold together; what they share counts once."""
    try:
        whole = [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]
        return sum(one.memory_full_info().pss for one in whole)
    except psutil.Error:
        return 0


def library_rate(text: Path, data: Path) -> float:
    """Measure sentences per second of processor time of SentencePiece's own loop."""
    (model,) = data.glob("corpora/*/subwords.model")
    processor = sentencepiece.SentencePieceProcessor(model_file=str(model), num_threads=1)
    with open(text / "train.src") as lines:
        block = [line.rstrip("\n") for line in islice(lines, ENCODED)]
    start = time.process_time()
    for first in range(0, len(block), 10_000):
        processor.encode(block[first : first + 10_000])
    return len(block) / (time.process_time() - start)


def main() -> None:
    """Write the text, prepare it, and say how long it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=4_500_000, help="of training (default: %(default)s)")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2], help="(default: 1 2)")
    given = parser.parse_args()
    told: dict[str, object] = {"machine": machine(), "versions": versions()}
    told["commit"] = git("rev-parse", "--short", "HEAD")
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder)
        for seed, side in enumerate(("src", "tgt")):
            write_side(text / f"train.{side}", given.pairs, seed)
            write_side(text / f"dev.{side}", 3000, seed + 2)
        results = {}
        for processes in given.processes:
            data = text / f"data{processes}"
            results[processes] = one = prepare(text, data, processes)
            one["per_s"] = 2 * given.pairs / float(one["wall_s"])
            print(
                f"{processes} processes: {one['wall_s']:.0f} s, {one['per_s']:,.0f} sentences/s, "
                f"{one['peak_mb']:,.0f} MB"
            )
        same = len({one["sha256"] for one in results.values()}) == 1
        told |= {"pairs": given.pairs, "results": results, "same_bytes": same}
        told["library_per_cpu_s"] = rate = library_rate(text, data)
    print(f"the same bytes: {same}; SentencePiece's encode alone: {rate:,.0f} sentences per CPU second")
    (HERE / "results" / "prepare_scale.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
