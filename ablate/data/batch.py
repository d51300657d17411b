"""Batches of about equal size from sentences of about equal length, in an order that seed and epoch alone decide."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from jaxtyping import Int64, Integer

from ablate.data.packed import Packed
from ablate.data.subword import PAD
from ablate.errors import ConfigError

USUAL_LENGTH = 256  # subwords; nearly every sentence is shorter, and so is every one of training by default


@dataclass
class Batch:
    """Sentences padded to a rectangle with PAD; each ends in EOS."""

    index: Int64[np.ndarray, " batch"]  # their places in the split
    src: Int64[np.ndarray, "batch src_len"]
    tgt: Int64[np.ndarray, "batch tgt_len"]
    num_src_tokens: int  # EOS included, padding not
    num_tgt_tokens: int


class Batches:
    """The training batches of a split: every sentence exactly once an epoch, as few pad positions as may be.

    Sentences are sorted by length, equal lengths in random order, cut into batches, and the batches shuffled.
    """

    def __init__(self, packed: Packed, batch_tokens: int, counting: str, seed: int):
        """Take what decides the order.

        Args:
            packed: the split.
            batch_tokens: the most tokens of a batch, end symbols included.
            counting: "padded": sentences × longest side (the authors' program); "tokens": each side's tokens without
                padding (the paper's text).
            seed: of the order, at least 0.

        Raises:
            ConfigError: if a single sentence is longer than a batch may be.
        """
        self.packed, self.batch_tokens, self.counting, self.seed = packed, batch_tokens, counting, seed
        longest = int(max(packed.src_lengths.max(), packed.tgt_lengths.max()))
        if longest > batch_tokens:
            allowed = f"must be at least {longest}, the longest training sentence; or lower data.max_subwords"
            raise ConfigError("optim.batch_tokens", batch_tokens, allowed)

    def epoch(self, epoch: int) -> list[Int64[np.ndarray, " batch"]]:
        """Give the sentence numbers of each batch of an epoch, in order; a function of seed and epoch alone."""
        rng = np.random.default_rng(np.random.SeedSequence([self.seed, epoch]))
        order = _by_length(self.packed, rng.permutation(len(self.packed)))
        src_lengths, tgt_lengths = self.packed.src_lengths[order], self.packed.tgt_lengths[order]
        if self.counting == "padded":
            ends = _padded_ends(np.maximum(src_lengths, tgt_lengths), self.batch_tokens)
        else:
            ends = _token_ends(src_lengths, tgt_lengths, self.batch_tokens)
        batches = np.split(order, ends[:-1])
        return [batches[i] for i in rng.permutation(len(batches))]

    def batches(self, epoch: int, start: int) -> Iterator[tuple[int, int, Batch]]:
        """Give batches without end, from any point on, each with its epoch and its position in the epoch.

        To go on after batch (e, p) call `batches(e, p + 1)`; a start just past an epoch's last batch is the next epoch.
        """
        while True:
            order = self.epoch(epoch)
            if start > len(order):
                raise ValueError(f"epoch {epoch} has {len(order)} batches; cannot start at {start}")
            for position in range(start, len(order)):
                yield epoch, position, gather(self.packed, order[position])
            epoch, start = epoch + 1, 0

    def padding_share(self, epoch: int) -> float:
        """Give the share of pad positions among all source and target positions of an epoch."""
        positions = sum(
            len(index) * int(lengths[index].max())
            for index in self.epoch(epoch)
            for lengths in (self.packed.src_lengths, self.packed.tgt_lengths)
        )
        return 1 - (len(self.packed.src_ids) + len(self.packed.tgt_ids)) / positions


def share(packed: Packed, batches: list[Batch], rank: int, count: int) -> list[Batch]:
    """Take one process's share of an update's batches: about as much as each other's, and together exactly all of it.

    The batches, laid end to end with each as long as the others, are cut into `count` equal stretches: 8 batches on 4
    processes are two for each, on 16 half of one; on 3, the first gets two and two thirds of the third.

    Args:
        packed: the split that the batches are of.
        batches: of the update.
        rank: of the process.
        count: processes.

    Returns:
        Whole batches and parts of batches, without the columns that only other parts need; perhaps none.
    """
    shares = []
    for i, batch in enumerate(batches):
        edges = (min(max(edge * len(batches) - i * count, 0), count) for edge in (rank, rank + 1))  # in 1/count of it
        begin, end = (edge * len(batch.index) // count for edge in edges)
        if end - begin == len(batch.index):
            shares.append(batch)
        elif begin < end:
            shares.append(gather(packed, batch.index[begin:end]))
    return shares


def eval_batches(packed: Packed, batch_tokens: int) -> Iterator[Batch]:
    """Give the whole split once, in batches of at most `batch_tokens` padded tokens a side, short sentences first.

    A sentence longer than that is a batch by itself: evaluation never drops one. `index` says the original places.
    """
    order = _by_length(packed, np.arange(len(packed)))
    ends = _padded_ends(np.maximum(packed.src_lengths, packed.tgt_lengths)[order], batch_tokens)
    for index in np.split(order, ends[:-1]):
        yield gather(packed, index)


def source_batches(
    sentences: Sequence[Integer[np.ndarray, " _"]], batch_sentences: int
) -> Iterator[tuple[Int64[np.ndarray, " batch"], Int64[np.ndarray, "batch src_len"]]]:
    """Give (places, ids padded with PAD) of sentences that end in EOS, longest first, `batch_sentences` at once.

    Fewer where they are long: attention holds a matrix of length × length for each, and a batch's together are at most
    those of `batch_sentences` sentences of `USUAL_LENGTH` subwords. A longer sentence than that allows is a batch by
    itself: 64 of 5,000 subwords would ask base for 51 GB.
    """
    lengths = np.array([len(sentence) for sentence in sentences], dtype=np.int64)
    order = np.argsort(-lengths, kind="stable")
    start = 0
    while start < len(order):
        longest = max(int(lengths[order[start]]), USUAL_LENGTH)
        index = order[start : start + max(1, batch_sentences * USUAL_LENGTH**2 // longest**2)]
        start += len(index)
        src = np.full((len(index), lengths[index[0]]), PAD, dtype=np.int64)
        for row, i in enumerate(index):
            src[row, : lengths[i]] = sentences[i]
        yield index, src


def gather(packed: Packed, index: Int64[np.ndarray, " batch"]) -> Batch:
    """Make a batch of the sentences with these numbers."""
    return Batch(
        index=index,
        src=_pad(packed.src_ids, packed.src_offsets, index),
        tgt=_pad(packed.tgt_ids, packed.tgt_offsets, index),
        num_src_tokens=int(packed.src_lengths[index].sum()),
        num_tgt_tokens=int(packed.tgt_lengths[index].sum()),
    )


def _pad(
    ids: Integer[np.ndarray, " tokens"], offsets: Int64[np.ndarray, " bounds"], index: Int64[np.ndarray, " batch"]
) -> Int64[np.ndarray, "batch len"]:
    begins = offsets[index][:, None]  # (B, 1)
    columns = np.arange((offsets[index + 1] - offsets[index]).max())  # (L,)
    inside = columns < offsets[index + 1][:, None] - begins  # (B, L)
    padded = np.full(inside.shape, PAD, dtype=np.int64)
    padded[inside] = ids[(begins + columns)[inside]]
    return padded


def _by_length(packed: Packed, order: Int64[np.ndarray, " sentences"]) -> Int64[np.ndarray, " sentences"]:
    """Sort sentence numbers by the longer side, then by the source; ties keep the order given."""
    src, tgt = packed.src_lengths[order], packed.tgt_lengths[order]
    return order[np.lexsort((src, np.maximum(src, tgt)))]


def _padded_ends(longest: Int64[np.ndarray, " sentences"], budget: int) -> list[int]:
    """Cut ascending lengths where one more sentence would make sentences × longest exceed the budget."""
    ends, start = [], 0
    while start < len(longest):
        most = max(1, budget // int(longest[start]))
        window = longest[start : start + most]
        fitting = int(np.searchsorted(window * np.arange(1, len(window) + 1), budget, side="right"))
        start += max(1, fitting)
        ends.append(start)
    return ends


def _token_ends(src: Int64[np.ndarray, " sentences"], tgt: Int64[np.ndarray, " sentences"], budget: int) -> list[int]:
    """Cut where one more sentence would make either side's tokens exceed the budget."""
    ends, start = [], 0
    sums = np.cumsum(src), np.cumsum(tgt)
    while start < len(src):
        before = [int(total[start - 1]) if start else 0 for total in sums]
        start = min(int(np.searchsorted(t, b + budget, side="right")) for t, b in zip(sums, before, strict=True))
        ends.append(start)
    return ends
