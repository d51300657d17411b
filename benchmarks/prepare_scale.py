"""Preparing a corpus of WMT14's size: `python benchmarks/prepare_scale.py [--pairs 4500000] [--processes 1 2]`.

The text is made up: 200,000 words of syllables a side, as frequent as Zipf's law says, sentences of about 23 of them.
`ablate.prepare` makes a corpus of it with the paper's 37,000 subwords, once for each number of processes. Told are the
seconds of each step, sentences a second (both sides count) over all of them, seconds of processor time, the most memory
that all its processes held together (proportional set size, once a second; Linux only), and whether the bytes are
the same. Beside it, SentencePiece's own `encode` on blocks of the same text: sentences per second of processor time.
"""

import argparse
import hashlib
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import numpy as np
import psutil
import sentencepiece
from common import about, children_cpu_s
from prepare_speed import STEPS

from ablate.data.source import digest_of

HERE = Path(__file__).parent
SYLLABLES = [
    begin + vowel + end
    for begin in (*"bdfghklmnprstvwz", "br", "st", "tr", "sch")
    for vowel in (*"aeiouäö", "ei", "au")
    for end in ("", "n", "r", "l", "s", "ng")
]
WORDS, AT_ONCE, ENCODED = 200_000, 20_000, 100_000  # words a side; sentences made at once; those encoded by the library
VOCAB_SIZE, SAMPLE_S = 37_000, 1.0


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
    command = [sys.executable, "-m", "ablate.prepare", "data=files", f"data.vocab_size={VOCAB_SIZE}"]
    command += [f"data.{split}_{side}={text}/{split}.{side}" for split in ("train", "dev") for side in ("src", "tgt")]
    command += ["--processes", str(processes)]
    seconds, most, said = dict.fromkeys(STEPS.values(), 0.0), 0, data.with_suffix(".log")
    begun = last = time.perf_counter()
    cpu_s = children_cpu_s()
    with (
        open(said, "w") as log,
        subprocess.Popen(command, env=os.environ | {"ABLATE_DATA": str(data)}, stdout=log, stderr=log) as process,
    ):
        while process.poll() is None:
            most = max(most, memory(process.pid))
            time.sleep(SAMPLE_S)
            now = time.perf_counter()
            words = [line.split()[0] for line in said.read_text().splitlines() if line]
            seconds[STEPS[next((word for word in reversed(words) if word in STEPS), "preparing")]] += now - last
            last = now
    if process.returncode:
        raise SystemExit(f"the preparation ended with {process.returncode}:\n{said.read_text()}")
    (folder,) = (path for path in (data / "corpora").iterdir() if not path.name.startswith("."))
    digest = hashlib.sha256()
    for path in sorted(folder.iterdir()):
        digest.update(f"{path.name} {digest_of(path)}\n".encode())
    made = {"wall_s": last - begun, "cpu_s": children_cpu_s() - cpu_s, "peak_mb": most / 1e6}
    return {**seconds, **made, "sha256": digest.hexdigest(), "load_1_min": round(os.getloadavg()[0], 2)}


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


def markdown(results: dict[int, dict[str, float | str]]) -> str:
    """Write the table."""
    steps = list(STEPS.values())
    head = ["processes", *(f"{step}: s" for step in steps), "all: s", "CPU s"]
    head += ["sentences per CPU s", "per s", "peak MB"]
    lines = [f"| {' | '.join(head)} |", f"|{'--:|' * len(head)}"]
    for processes, one in results.items():
        cells = [f"{one[key]:,.0f}" for key in (*steps, "wall_s", "cpu_s", "per_cpu_s", "per_s", "peak_mb")]
        lines.append(f"| {' | '.join([str(processes), *cells])} |")
    return "\n".join(lines)


def main() -> None:
    """Write the text, prepare it, and say how long it took."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=4_500_000, help="of training (default: %(default)s)")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2], help="(default: 1 2)")
    given = parser.parse_args()
    told = about()
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
            one["per_cpu_s"] = 2 * given.pairs / float(one["cpu_s"])
        same = len({one["sha256"] for one in results.values()}) == 1
        told |= {"pairs": given.pairs, "results": results, "same_bytes": same}
        told["library_per_cpu_s"] = rate = library_rate(text, data)
    print(f"{markdown(results)}\n\nThe same bytes: {same}. SentencePiece's encode alone: {rate:,.0f} per CPU second.")
    (HERE / "results" / "prepare_scale.json").write_text(json.dumps(told, indent=1) + "\n")


if __name__ == "__main__":
    main()
