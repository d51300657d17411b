"""Read parallel text line by line as it was given: what ends a line, what is mended, and when two sides fit."""

import gzip
import itertools
import unicodedata
import zlib
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import AnyStr

from ablate.data.source import CorpusError, Counts, Pairs

BOM = b"\xef\xbb\xbf"
LONGEST = 16 << 20  # bytes of a line; what is longer is no sentence, and might not fit into memory


def lines(where: str, path: Path, counts: Counts) -> Iterator[bytes]:
    """Give a file's lines, plain or .gz; only the newline byte ends one. Strips a BOM and CRs, and counts that.

    Args:
        where: the split, or the part of it, that begins each reason counted.
        path: the file.
        counts: takes what was mended.

    Raises:
        CorpusError: if the file cannot be unpacked, or for a line above `LONGEST`; names the line.
    """
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else open(path, "rb") as file:
            for number, raw in enumerate(iter(partial(file.readline, LONGEST + 1), b""), start=1):
                if len(raw) > LONGEST:
                    raise CorpusError(f"{path}, line {number}: has over {LONGEST:,} bytes; must be a sentence a line")
                raw = raw.removesuffix(b"\n")
                if number == 1 and raw.startswith(BOM):
                    counts.mended[f"{where}: a byte-order mark at the file's beginning, taken away"] += 1
                    raw = raw.removeprefix(BOM)
                if b"\r" in raw:
                    if raw.endswith(b"\r"):
                        counts.mended[f"{where}: CR at a line's end, taken away"] += 1
                        raw = raw.removesuffix(b"\r")
                    if b"\r" in raw:
                        counts.mended[f"{where}: CR inside a line, now a space"] += 1
                        raw = raw.replace(b"\r", b" ")
                yield raw
    except (gzip.BadGzipFile, EOFError, zlib.error) as err:
        raise CorpusError(f"{path}, after line {number}: cannot be unpacked ({err})") from err


def text_lines(where: str, path: Path, counts: Counts) -> Iterator[str]:
    """Give a file's lines as text; see `lines`.

    Raises:
        CorpusError: for a line that is not UTF-8, too.
    """
    for number, raw in enumerate(lines(where, path, counts), start=1):
        try:
            yield raw.decode("utf-8")
        except UnicodeDecodeError as err:
            raise CorpusError(f"{path}, line {number}: is not UTF-8 ({err.reason} at byte {err.start + 1})") from err


def aligned(
    where: str, src: Path, tgt: Path, src_lines: Iterator[AnyStr], tgt_lines: Iterator[AnyStr]
) -> Iterator[tuple[AnyStr, AnyStr]]:
    """Pair the lines of two files.

    Raises:
        CorpusError: after the last pair, with both counts, if one file has more lines.
    """
    for number, pair in enumerate(itertools.zip_longest(src_lines, tgt_lines)):
        if None in pair:
            longer = number + 1 + sum(1 for _ in (tgt_lines if pair[0] is None else src_lines))
            counts = (number, longer) if pair[0] is None else (longer, number)
            raise CorpusError(f"{where}: {src} has {counts[0]:,} lines, {tgt} has {counts[1]:,}; they must be equal")
        yield pair


def filled(split: str, pairs: Iterator[tuple[str, str]], counts: Counts) -> Pairs:
    """Say of which split pairs are; drop and count those of training with an empty side.

    An empty line of dev or test counts in its score, so only training loses it.
    """
    for src, tgt in pairs:
        if split == "train" and not (src.strip() and tgt.strip()):
            counts.dropped["train: a side is empty"] += 1
        else:
            yield split, src, tgt


def tidy(text: str) -> tuple[str, int]:
    """Take out control characters and collapse white space to single spaces; gives the number of words, too."""
    if not text.isprintable():
        text = "".join(c for c in text if c.isspace() or unicodedata.category(c) != "Cc")
    words = text.split()
    return " ".join(words), len(words)
