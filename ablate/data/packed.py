"""A split as token ids on disk: one flat file a side, memory-mapped, so that a corpus of any size costs no memory."""

from array import array
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Int64, Integer

from ablate.data.subword import EOS


def dtype_of(vocab_size: int) -> str:
    """Give the narrowest type that holds every id: uint16 up to 65,536 ids, else uint32."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


class Writer:
    """Write the two sides of a split sentence by sentence; `close` makes the folder readable for `Packed.open`."""

    def __init__(self, folder: Path, split: str, dtype: str):
        self.files = {side: open(folder / f"{split}.{side}.ids", "wb") for side in ("src", "tgt")}  # noqa: SIM115
        self.offsets = {side: array("q", [0]) for side in self.files}
        self.folder, self.split, self.dtype = folder, split, dtype

    def add(self, src: Sequence[int], tgt: Sequence[int]) -> None:
        """Append a pair, given without its end symbols, which are added here."""
        for side, ids in (("src", src), ("tgt", tgt)):
            self.files[side].write(np.array([*ids, EOS], dtype=self.dtype).tobytes())
            self.offsets[side].append(self.offsets[side][-1] + len(ids) + 1)

    def close(self) -> dict[str, int]:
        """Finish the files; give the number of subwords of each side, end symbols included."""
        for side, file in self.files.items():
            file.close()
            np.save(self.folder / f"{self.split}.{side}.offsets.npy", np.frombuffer(self.offsets[side], np.int64))
        return {side: offsets[-1] for side, offsets in self.offsets.items()}


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
        for side in ("src", "tgt"):
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
