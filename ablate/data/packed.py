"""A split as token ids on disk: one flat file a side, memory-mapped, so that a corpus of any size costs no memory."""

import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from itertools import chain, product
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Int64, Integer

from ablate.data.source import SIDES
from ablate.data.subword import EOS
from ablate.rundir import read_json, write_json

PARTS = ("*.lengths", "*.mark.json")  # what a Writer leaves that a reader does not need


def dtype_of(vocab_size: int) -> str:
    """Give the narrowest type that holds every id: uint16 up to 65,536 ids, else uint32."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


@dataclass
class Side:
    """One side of some sentences: all ids in a row, each sentence ended by EOS, and the sentences' lengths."""

    ids: Integer[np.ndarray, " tokens"]
    lengths: Int64[np.ndarray, " sentences"]

    @classmethod
    def of(cls, sentences: Iterable[list[int]], dtype: str) -> "Side":
        """Put sentences in a row, given without their end symbols, which are added here."""
        ended = [[*ids, EOS] for ids in sentences]
        lengths = np.fromiter(map(len, ended), np.int64, len(ended))
        return cls(np.fromiter(chain.from_iterable(ended), dtype, int(lengths.sum())), lengths)


class Writer:
    """Write the two sides of a split block by block; `close` makes the folder readable for `Packed.open`.

    After `mark`, another Writer of the same folder goes on from there: what came later is written again.

    Attributes:
        marked: what the last `mark` was given; empty if there is none.
    """

    def __init__(self, folder: Path, split: str, dtype: str):
        self.folder, self.split, self.dtype = folder, split, dtype
        found = read_json(self._mark) or {"sizes": {}, "noted": {}}
        self.marked: dict[str, Any] = found["noted"]
        self._opened = ExitStack()
        self.files: dict[str, BinaryIO] = {}
        for side, kind in product(SIDES, ("ids", "lengths")):
            path = folder / f"{split}.{side}.{kind}"
            path.touch()
            os.truncate(path, found["sizes"].get(path.name, 0))
            self.files[path.name] = self._opened.enter_context(open(path, "ab"))  # noqa: SIM115

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    @property
    def _mark(self) -> Path:
        return self.folder / f"{self.split}.mark.json"

    def add(self, src: Side, tgt: Side) -> None:
        """Append a block of pairs."""
        for name, side in zip(SIDES, (src, tgt), strict=True):
            self.files[f"{self.split}.{name}.ids"].write(side.ids.astype(self.dtype, copy=False).tobytes())
            self.files[f"{self.split}.{name}.lengths"].write(side.lengths.tobytes())

    def mark(self, **noted: int) -> None:
        """Make a point from which another Writer can go on, though the power fails now."""
        for file in self.files.values():
            file.flush()
            os.fsync(file.fileno())
        write_json(self._mark, {"sizes": {name: file.tell() for name, file in self.files.items()}, "noted": noted})

    def close(self) -> tuple[int, dict[str, int]]:
        """Finish the files; give the number of pairs, and of subwords of each side, end symbols included.

        The files that `mark` and another Writer need stay, in case that something later fails: `PARTS` names them.
        """
        tokens, pairs = {}, 0
        self._opened.close()
        for side in SIDES:
            lengths = np.fromfile(self.folder / f"{self.split}.{side}.lengths", np.int64)
            offsets = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
            np.save(self.folder / f"{self.split}.{side}.offsets.npy", offsets)
            tokens[side], pairs = int(offsets[-1]), len(lengths)
        return pairs, tokens


class Packed:
    """The token ids of a split; sentence i of a side is `ids[offsets[i]:offsets[i + 1]]` and ends in EOS."""

    def __init__(
        self,
        src_ids: Integer[np.ndarray, " src_tokens"],
        src_offsets: Int64[np.ndarray, " bounds"],
        tgt_ids: Integer[np.ndarray, " tgt_tokens"],
        tgt_offsets: Int64[np.ndarray, " bounds"],
    ):
        # Plain arrays over the mapped pages: slicing np.memmap itself costs several times as much.
        self.src_ids, self.src_offsets = np.asarray(src_ids), np.asarray(src_offsets)
        self.tgt_ids, self.tgt_offsets = np.asarray(tgt_ids), np.asarray(tgt_offsets)

    @classmethod
    def open(cls, folder: Path, split: str, dtype: str) -> "Packed":
        """Map a split that `Writer` wrote; nothing is read until it is used."""
        parts: list[Any] = []
        for side in SIDES:
            parts.append(np.memmap(folder / f"{split}.{side}.ids", dtype=dtype, mode="r"))
            parts.append(np.load(folder / f"{split}.{side}.offsets.npy"))
        return cls(*parts)

    @classmethod
    def of(cls, src: Sequence[Sequence[int]], tgt: Sequence[Sequence[int]]) -> "Packed":
        """Pack sentences in memory, given with their EOS: for tests and for text that is in no corpus."""
        parts: list[Any] = []
        for side in (src, tgt):
            parts.append(np.array([i for sentence in side for i in sentence], dtype=np.uint32))
            parts.append(np.cumsum([0, *map(len, side)], dtype=np.int64))
        return cls(*parts)

    def __len__(self) -> int:
        return len(self.src_offsets) - 1

    def src(self, i: int) -> Integer[np.ndarray, " src_len"]:
        """Give the ids of source sentence i, ending in EOS."""
        return self.src_ids[self.src_offsets[i] : self.src_offsets[i + 1]]

    def tgt(self, i: int) -> Integer[np.ndarray, " tgt_len"]:
        """Give the ids of target sentence i, ending in EOS."""
        return self.tgt_ids[self.tgt_offsets[i] : self.tgt_offsets[i + 1]]

    @cached_property
    def src_lengths(self) -> Int64[np.ndarray, " sentences"]:
        """Give every source sentence's length in subwords, EOS included."""
        return np.diff(self.src_offsets)

    @cached_property
    def tgt_lengths(self) -> Int64[np.ndarray, " sentences"]:
        """Give every target sentence's length in subwords, EOS included."""
        return np.diff(self.tgt_offsets)
