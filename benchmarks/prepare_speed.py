"""How fast a corpus is prepared, beside SentencePiece alone: `python benchmarks/prepare_speed.py [--pairs 50000]`.

The text is made up, the same for both: words of random letters, as frequent as Zipf's law says, sentences of 5 to 30 of
them. One process per contender and round, in turns; one thread; medians. Seconds of processor time by step, sentences a
second (both sides count) over all steps, and the most memory the process held, interpreter and libraries included.
Nothing is downloaded.

  ours           what `python -m ablate.prepare --processes 1 data=files …` does: read, check, clean and write the text
                 with digests of it, learn subwords, encode and pack, flush to the disk
  sentencepiece  its trainer on the files with the same settings, then `encode` of blocks of lines, written as 16-bit
                 ids; no checks, no cleaning, no digests, no flush
"""

import argparse
import json
import os
import sys
import tempfile
import time
from itertools import islice
from pathlib import Path

import numpy as np
from common import about, child, medians, peak_mb, take_turns

from ablate.config import FilesData
from ablate.data import corpus
from ablate.data.source import SIDES

HERE = Path(__file__).parent
VOCAB_SIZE, BLOCK = 8_000, 10_000  # subwords; lines encoded at once
STEPS = {"preparing": "read, clean, write", "learning": "learn subwords", "packing": "encode, pack"}


def write_text(folder: Path, pairs: int) -> None:
    """Write two files of so many sentences, and two of a hundred for the dev set."""
    rng = np.random.default_rng(1)
    letters = np.array(list("etaoinshrdlucmfwypvbgkjqxz"))
    words = np.array(["".join(rng.choice(letters, size)) for size in rng.integers(2, 11, 40_000)])
    frequency = 1 / np.arange(1, len(words) + 1)
    for split, number in (("train", pairs), ("dev", 100)):
        for side in SIDES:
            lengths = rng.integers(5, 31, number)
            drawn = rng.choice(words, lengths.sum(), p=frequency / frequency.sum())
            lines = (" ".join(part) for part in np.split(drawn, np.cumsum(lengths)[:-1]))
            (folder / f"{split}.{side}").write_text("".join(f"{line}\n" for line in lines))


class Steps:
    """Processor seconds by step; a step lasts until the next begins."""

    def __init__(self, first: str) -> None:
        self.seconds: dict[str, float] = dict.fromkeys(STEPS.values(), 0.0)
        self.step, self.since, self.begun = first, time.process_time(), time.perf_counter()

    def begin(self, step: str) -> None:
        """Begin a step."""
        now = time.process_time()
        self.seconds[self.step] += now - self.since
        self.step, self.since = step, now

    def numbers(self, sentences: int) -> dict[str, float]:
        """End the last step and give what was measured."""
        self.begin(self.step)
        wall_s, cpu_s = time.perf_counter() - self.begun, sum(self.seconds.values())
        return {**self.seconds, "per_s": sentences / wall_s, "per_cpu_s": sentences / cpu_s, "peak_mb": peak_mb()}


def ours(text: Path, scratch: Path, pairs: int) -> dict[str, float]:
    """Prepare as the command does; its messages tell the steps."""
    os.environ["ABLATE_DATA"] = str(scratch)
    named = {f"{split}_{side}": str(text / f"{split}.{side}") for split in ("train", "dev") for side in SIDES}
    others = dict.fromkeys(("test_src", "test_tgt", "train_tsv", "dev_tsv", "test_tsv"))
    steps = Steps(STEPS["preparing"])

    def say(message: str) -> None:
        if step := STEPS.get(message.split()[0]):
            steps.begin(step)

    corpus.prepare(FilesData("files", "en", "de", VOCAB_SIZE, 256, **named, **others), say, processes=1)
    return steps.numbers(2 * pairs)


def sentencepiece(text: Path, scratch: Path, pairs: int) -> dict[str, float]:
    """Learn and encode as one would with SentencePiece alone."""
    import sentencepiece as library

    steps = Steps(STEPS["learning"])
    settings = {"model_type": "bpe", "byte_fallback": True, "character_coverage": 1.0, "bos_id": -1, "pad_id": 3}
    settings |= {"normalization_rule_name": "identity", "num_threads": 1, "minloglevel": 2}
    files = [text / f"train.{side}" for side in SIDES]
    model = scratch / "subwords"
    library.SentencePieceTrainer.train(
        input=",".join(map(str, files)), model_prefix=str(model), vocab_size=VOCAB_SIZE, **settings
    )
    steps.begin(STEPS["packing"])
    processor = library.SentencePieceProcessor(model_file=f"{model}.model")
    for path in files:
        with open(path) as lines, open(scratch / f"{path.name}.ids", "wb") as packed:
            while block := [line.rstrip("\n") for line in islice(lines, BLOCK)]:
                for ids in processor.encode(block, add_eos=True):
                    packed.write(np.array(ids, np.uint16).tobytes())
    return steps.numbers(2 * pairs)


CONTENDERS = {"ours": ours, "sentencepiece": sentencepiece}


def markdown(middle: dict[str, dict[str, float]]) -> str:
    """Write the table."""
    steps = list(STEPS.values())
    head = ["", *(f"{step}: CPU s" for step in steps), "sentences per CPU s", "per s", "peak MB"]
    lines = [f"| {' | '.join(head)} |", f"|---|{'--:|' * (len(head) - 1)}"]
    for name, one in middle.items():
        cells = [name, *(f"{one[step]:.2f}" for step in steps)]
        cells += [f"{one[key]:,.0f}" for key in ("per_cpu_s", "per_s", "peak_mb")]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> None:
    """Measure one contender, or all in turns."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=50_000, help="of training sentences (default: %(default)s)")
    parser.add_argument("--repeats", type=int, default=3, help="processes per contender (default: %(default)s)")
    parser.add_argument("--worker", nargs=2, metavar=("NAME", "TEXT"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        name, text = given.worker
        print(json.dumps(CONTENDERS[name](Path(text), Path(tempfile.mkdtemp()), given.pairs)))
        return
    told = about()
    with tempfile.TemporaryDirectory() as folder:
        write_text(Path(folder), given.pairs)

        def measure(name: str) -> dict[str, float]:
            asked = ["--worker", name, folder, "--pairs", str(given.pairs)]
            numbers: dict[str, float] = child([__file__, *asked], 1, folder)
            print(f"{name:<14} {numbers['per_cpu_s']:10,.0f} sentences per CPU second", file=sys.stderr)
            return numbers

        results, failed = take_turns(list(CONTENDERS), given.repeats, measure)
    print(markdown(medians(results)))
    written = {**told, "pairs": given.pairs, "vocab_size": VOCAB_SIZE, "results": results, "failed": failed}
    (HERE / "results" / "prepare_speed.json").write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
