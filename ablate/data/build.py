"""Make a corpus in stages, each of which a killed preparation need not do again: text, subwords, packed ids.

Text streams through; only blocks of `BLOCK` pairs are in memory. Blocks are encoded on all cores and written in order,
so that the bytes do not depend on how many there are.
"""

import hashlib
import itertools
import os
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ablate.data import packed
from ablate.data.packed import Side, Writer, dtype_of
from ablate.data.pieces import Pieces
from ablate.data.pool import in_order
from ablate.data.source import SIDES, SPLITS, CorpusError, Counts, Pairs, Progress, Say, Source, digest_of
from ablate.data.subword import Subwords
from ablate.rundir import read_json, write_json

BLOCK = 10_000  # pairs encoded at once
LEARN_PAIRS = 1_000_000  # of training, evenly spaced, that subwords are learned from; all if there are no more
TEXT, MODEL, PIECES = "text.json", "subwords.model", "pieces.txt"
# What is there only until the corpus is; train's text is what its ids decode to.
PARTS = (TEXT, "train.*.txt", "raw", ".*.tmp", *packed.PARTS)


def build(source: Source, folder: Path, vocab_size: int, max_subwords: int, say: Say, processes: int) -> dict[str, Any]:
    """Make every file of a corpus but its manifest, of which it gives what it knows; goes on where another was killed.

    Args:
        source: of the text.
        folder: where the files go; what is there is of a preparation of the same corpus.
        vocab_size: ids of the shared subwords.
        max_subwords: of a side in training, its end symbol included; longer pairs are dropped and counted.
        say: takes each line of progress.
        processes: that encode; the result is the same.

    Raises:
        CorpusError: for text or sizes that do not make a corpus.
    """
    text = read_json(folder / TEXT)
    if text is None:
        counts = Counts()
        text = _write_text(source.read(counts, say, folder / "raw"), folder, say)
        text |= {"dropped": dict(counts.dropped), "mended": dict(counts.mended)}
        write_json(folder / TEXT, text)
    if missing := {"train", "dev"} - set(text["digests"]):
        raise CorpusError(f"no sentences for {', '.join(sorted(missing))} after cleaning")
    learned = _make_vocabulary(source, folder, text["pairs"]["train"], vocab_size, say)
    subwords = open_vocabulary(folder)
    pairs, tokens, dropped = {}, {}, dict(text["dropped"])
    for split in text["digests"]:
        limit = max_subwords if split == "train" else None
        total, bounds = text["pairs"][split], text["blocks"][split]
        pairs[split], tokens[split], too_long = _pack(folder, split, total, bounds, limit, say, processes)
        if too_long:
            dropped[f"train: a side over {max_subwords:,} subwords"] = too_long
    combined = "".join(f"{split} {digest}\n" for split, digest in text["digests"].items())
    return {
        "pairs": pairs,
        "subwords": tokens,
        "dropped": dropped,
        "mended": text["mended"],
        "vocab_size": subwords.vocab_size,
        **learned,
        "dtype": dtype_of(subwords.vocab_size),
        "digests": {
            "corpus": hashlib.sha256(combined.encode()).hexdigest(),
            "vocab": digest_of(vocabulary_of(folder)),
        },
        "text_digests": text["digests"],
    }


def _make_vocabulary(source: Source, folder: Path, pairs: int, vocab_size: int, say: Say) -> dict[str, int]:
    """Learn subwords, or write down those that the source has; gives on how many pairs they were learned."""
    if source.pieces is not None:
        source.pieces.save(folder / PIECES)
        return {}
    learned_on = min(LEARN_PAIRS, pairs)
    if not (folder / MODEL).exists():
        say(f"learning {vocab_size:,} subwords from {learned_on:,} of {pairs:,} training pairs")
        sample = (_sample(folder / f"train.{side}.txt", pairs) for side in SIDES)
        Subwords.train(itertools.chain.from_iterable(sample), vocab_size, folder / MODEL)
    return {"learned_on": learned_on}


def open_vocabulary(folder: Path, lang: str = "", num_threads: int = -1) -> Subwords | Pieces:
    """Open a corpus's vocabulary, of whichever kind it is.

    Args:
        folder: the corpus's.
        lang: of the text that `Pieces` decodes.
        num_threads: that encode with `Subwords`; -1: all cores.
    """
    if (folder / PIECES).exists():
        return Pieces.open(folder / PIECES, lang)
    return Subwords((folder / MODEL).read_bytes(), num_threads)


def vocabulary_of(folder: Path) -> Path:
    """Name the file of a corpus's vocabulary, of whichever kind it is."""
    return folder / (PIECES if (folder / PIECES).exists() else MODEL)


def _write_text(pairs: Pairs, folder: Path, say: Say) -> dict[str, Any]:
    """Write each split's sides as lines.

    Returns:
        digests: each split's SHA-256 over src NEWLINE tgt NEWLINE of all its pairs; pairs: how many; blocks: of each
        split, the byte at which each block of `BLOCK` pairs begins, in its source and in its target, and the ends.
    """
    splits: dict[str, _Text] = {}
    say("reading")
    progress = Progress("reading", None, say)
    with ExitStack() as stack:
        for split, src, tgt in pairs:
            if split not in splits:
                files = [stack.enter_context(open(folder / f"{split}.{side}.txt", "wb")) for side in SIDES]
                splits[split] = _Text(files[0], files[1])
            splits[split].add(src, tgt)
            progress.add(1)
        for text in splits.values():
            text.finish()
    ordered = {split: splits[split] for split in SPLITS if split in splits}
    return {
        "digests": {split: text.digest.hexdigest() for split, text in ordered.items()},
        "pairs": {split: text.pairs for split, text in ordered.items()},
        "blocks": {split: text.blocks for split, text in ordered.items()},
    }


class _Text:
    """The two text files of a split, and the digest of both."""

    def __init__(self, src: BinaryIO, tgt: BinaryIO):
        self.files = (src, tgt)
        self.digest, self.pairs = hashlib.sha256(), 0
        self.blocks: list[list[int]] = []

    def add(self, src: str, tgt: str) -> None:
        if self.pairs % BLOCK == 0:
            self.blocks.append([file.tell() for file in self.files])
        self.pairs += 1
        lines = f"{src}\n".encode(), f"{tgt}\n".encode()
        self.files[0].write(lines[0])
        self.files[1].write(lines[1])
        self.digest.update(lines[0] + lines[1])

    def finish(self) -> None:
        self.blocks.append([file.tell() for file in self.files])
        for file in self.files:
            file.flush()
            os.fsync(file.fileno())


def _sample(path: Path, total: int) -> Iterator[str]:
    """Give `LEARN_PAIRS` lines of a file, evenly spaced; all if it has no more."""
    wanted = min(LEARN_PAIRS, total)
    with open(path, encoding="utf-8", newline="\n") as file:
        for number, line in enumerate(file):
            if number * wanted % total < wanted:
                yield line.removesuffix("\n")


@dataclass(frozen=True)
class Block:
    """A stretch of a split's text: the bytes where it begins and ends on each side."""

    paths: tuple[Path, Path]
    begins: tuple[int, int]
    ends: tuple[int, int]
    limit: int | None  # drop pairs with a side of more subwords, its end symbol included


def _pack(
    folder: Path, split: str, total: int, bounds: list[list[int]], limit: int | None, say: Say, processes: int
) -> tuple[int, dict[str, int], int]:
    """Encode a split into its packed files; gives pairs kept, subwords by side, and pairs dropped as too long."""
    paths = (folder / f"{split}.src.txt", folder / f"{split}.tgt.txt")
    blocks = len(bounds) - 1
    with Writer(folder, split, dtype_of(open_vocabulary(folder).vocab_size)) as writer:
        done, dropped = writer.marked.get("blocks", 0), writer.marked.get("dropped", 0)
        stretches = itertools.islice(itertools.pairwise(bounds), done, None)
        tasks = (Block(paths, (begin[0], begin[1]), (end[0], end[1]), limit) for begin, end in stretches)
        begun = min(done * BLOCK, total)
        say(f"packing {split}" + (f", from pair {begun:,} on" if begun else ""))
        progress = Progress(f"packing {split}", total, say, begun)
        processes = max(1, min(processes, blocks - done))
        results = in_order(encode_block, tasks, processes, open_here, folder, writer.dtype)
        for number, (src, tgt, too_long) in enumerate(results, start=done + 1):
            writer.add(src, tgt)
            dropped += too_long
            if progress.add(len(src.lengths) + too_long) or number == blocks:  # now and then, and at the end
                writer.mark(blocks=number, dropped=dropped)
        kept, tokens = writer.close()
    if not kept:
        raise CorpusError(f"data.max_subwords={limit}: no training pair is that short")
    return kept, tokens, dropped


_subwords: Subwords | Pieces
_dtype: str


def open_here(folder: Path, dtype: str) -> None:
    """Make this process ready for `encode_block`."""
    global _subwords, _dtype
    _subwords, _dtype = open_vocabulary(folder, num_threads=1), dtype


def encode_block(block: Block) -> tuple[Side, Side, int]:
    """Encode a block's pairs: both sides, each sentence ended by EOS, and how many pairs were too long."""
    sides = []
    for path, begin, end in zip(block.paths, block.begins, block.ends, strict=True):
        with open(path, "rb") as file:
            file.seek(begin)
            lines = file.read(end - begin).decode().split("\n")[:-1]
        sides.append(_subwords.encode_many(lines))
    src, tgt = sides
    read = len(src)
    if block.limit is not None:
        most = block.limit - 1  # EOS comes yet
        kept = [i for i in range(read) if len(src[i]) <= most and len(tgt[i]) <= most]
        if len(kept) < read:
            src, tgt = [src[i] for i in kept], [tgt[i] for i in kept]
    return Side.of(src, _dtype), Side.of(tgt, _dtype), read - len(src)
