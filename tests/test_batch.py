import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ablate.data.batch import Batches, eval_batches, gather, share, source_batches
from ablate.data.packed import Packed
from ablate.data.subword import EOS, PAD
from ablate.errors import ConfigError

# Four pairs, (source, target) lengths with EOS: (2,3) (3,3) (5,4) (1,2).
SRC = [[3, EOS], [4, 5, EOS], [6, 7, 8, 9, EOS], [EOS]]
TGT = [[10, 11, EOS], [12, 13, EOS], [14, 15, 16, EOS], [17, EOS]]
FOUR = Packed.of(SRC, TGT)


def packed(lengths: list[tuple[int, int]]) -> Packed:
    return Packed.of([[5] * (s - 1) + [EOS] for s, _ in lengths], [[7] * (t - 1) + [EOS] for _, t in lengths])


def sets(batches: list[np.ndarray]) -> set[frozenset[int]]:
    return {frozenset(map(int, index)) for index in batches}


def test_padded_counts_sentences_times_the_longest_side():
    # Sorted by the longer side: 3 (2), 0 (3), 1 (3), 2 (5). Budget 8: 2·3 fits, 3·3 does not, 2·5 does not.
    assert sets(Batches(FOUR, 8, "padded", seed=1).epoch(0)) == {frozenset({3, 0}), frozenset({1}), frozenset({2})}


def test_tokens_counts_each_side_without_padding():
    # Budget 8: sources 1+2+3 = 6 and targets 2+3+3 = 8 fit; a fourth would make 11 and 12.
    assert sets(Batches(FOUR, 8, "tokens", seed=1).epoch(0)) == {frozenset({3, 0, 1}), frozenset({2})}


def test_padding_share_counts_both_sides():
    # {3,0}: 2·2 + 2·3, {1}: 3 + 3, {2}: 5 + 4; 25 positions, 23 tokens.
    assert Batches(FOUR, 8, "padded", seed=1).padding_share(0) == pytest.approx(2 / 25)


def test_a_batch_is_padded_at_the_end_and_counts_its_tokens():
    _, _, batch = next(b for b in Batches(FOUR, 8, "padded", seed=1).batches(0, 0) if len(b[2].index) == 2)
    assert batch.index.tolist() == [3, 0]
    assert batch.src.tolist() == [[EOS, PAD], [3, EOS]]
    assert batch.tgt.tolist() == [[17, EOS, PAD], [10, 11, EOS]]
    assert (batch.num_src_tokens, batch.num_tgt_tokens) == (3, 5)
    assert batch.src.dtype == batch.tgt.dtype == batch.index.dtype == np.int64


LENGTHS = st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), min_size=1, max_size=40)


@given(LENGTHS, st.integers(9, 60), st.sampled_from(["padded", "tokens"]), st.integers(0, 3), st.integers(0, 3))
def test_each_sentence_comes_once_an_epoch_within_the_budget(lengths, budget, counting, seed, epoch):
    data = packed(lengths)
    batches = Batches(data, budget, counting, seed)
    order = batches.epoch(epoch)
    assert sorted(np.concatenate(order)) == list(range(len(lengths)))
    for index in order:
        src, tgt = data.src_lengths[index], data.tgt_lengths[index]
        if counting == "padded":
            assert len(index) * max(src.max(), tgt.max()) <= budget
        else:
            assert max(src.sum(), tgt.sum()) <= budget


def test_the_order_is_a_function_of_seed_and_epoch():
    data = packed([(1 + i % 7, 1 + i % 5) for i in range(200)])

    def order(seed: int, epoch: int) -> list[list[int]]:
        return [index.tolist() for index in Batches(data, 20, "padded", seed).epoch(epoch)]

    assert order(1, 0) == order(1, 0)
    assert order(1, 0) != order(1, 1)
    assert order(1, 0) != order(2, 0)


def test_resuming_after_four_batches_gives_the_fifth():  # R1
    data = packed([(3, 3)] * 8)  # budget 3: 8 batches an epoch
    whole = list(itertools.islice(Batches(data, 3, "padded", seed=1).batches(0, 0), 20))
    assert [(e, p) for e, p, _ in whole] == [(e, p) for e in (0, 1) for p in range(8)] + [(2, p) for p in range(4)]
    epoch, position, _ = whole[3]
    resumed = itertools.islice(Batches(data, 3, "padded", seed=1).batches(epoch, position + 1), 16)
    for (e, p, batch), (resumed_e, resumed_p, resumed_batch) in zip(whole[4:], resumed, strict=True):
        assert (e, p, batch.index.tolist()) == (resumed_e, resumed_p, resumed_batch.index.tolist())
        assert batch.src.tobytes() == resumed_batch.src.tobytes()


def test_resuming_after_the_last_batch_of_an_epoch_gives_the_next_epoch():  # R1
    batches = Batches(packed([(3, 3)] * 8), 3, "padded", seed=1)
    assert next(batches.batches(0, 8))[:2] == (1, 0)
    with pytest.raises(ValueError, match="epoch 0 has 8 batches; cannot start at 9"):
        next(batches.batches(0, 9))


@pytest.mark.parametrize("counting", ["padded", "tokens"])
def test_a_sentence_longer_than_a_batch_is_refused(counting):
    with pytest.raises(ConfigError, match=r"optim.batch_tokens=4: must be at least 5"):
        Batches(FOUR, 4, counting, seed=1)


def test_evaluation_keeps_every_sentence_whatever_its_length():  # T7
    data = packed([(3, 2), (5001, 40), (2, 2), (1, 5001)])
    batches = list(eval_batches(data, 64))
    assert sorted(int(i) for batch in batches for i in batch.index) == [0, 1, 2, 3]
    assert [batch.src.shape[0] for batch in batches] == [2, 1, 1]
    for batch in batches:
        for row, i in enumerate(batch.index):
            assert batch.src[row, : data.src_lengths[i]].tolist() == data.src(int(i)).tolist()
            assert (batch.src[row, data.src_lengths[i] :] == PAD).all()


def test_sources_come_longest_first_with_their_places():
    sentences = [np.array(ids, dtype=np.uint16) for ids in SRC]
    batches = [(index.tolist(), src.tolist()) for index, src in source_batches(sentences, 3)]
    assert batches == [
        ([2, 1, 0], [[6, 7, 8, 9, EOS], [4, 5, EOS, PAD, PAD], [3, EOS, PAD, PAD, PAD]]),
        ([3], [[EOS]]),
    ]


def test_long_sources_are_fewer_at_once():  # T7
    lengths = [5000, 512, 512, 500, 256, 200, 3, 3, 3]
    sentences = [np.array([5] * (n - 1) + [EOS]) for n in lengths]
    # Eight of 256 subwords hold 8 · 256² scores: two of 512 hold as many, and 5,000 alone holds more.
    assert [len(index) for index, _ in source_batches(sentences, 8)] == [1, 2, 2, 4]


# What each of several processes gets of an update


def sizes(num_batches: int, size: int, count: int) -> list[list[int]]:
    """Share batches of so many pairs among processes; gives the sizes that each gets."""
    packed = Packed.of([[3, EOS]] * (num_batches * size), [[4, EOS]] * (num_batches * size))
    batches = [gather(packed, np.arange(i * size, (i + 1) * size)) for i in range(num_batches)]
    return [[len(part.index) for part in share(packed, batches, rank, count)] for rank in range(count)]


def test_as_many_processes_as_divide_the_batches_get_whole_ones():
    assert sizes(num_batches=8, size=5, count=4) == [[5, 5]] * 4
    assert sizes(num_batches=8, size=5, count=1) == [[5] * 8]


def test_other_numbers_of_processes_get_equal_stretches():
    assert sizes(num_batches=1, size=6, count=2) == [[3], [3]]
    assert sizes(num_batches=2, size=6, count=3) == [[4], [2, 2], [4]]
    assert sizes(num_batches=8, size=6, count=3) == [[6, 6, 4], [2, 6, 6, 2], [4, 6, 6]]
    assert sizes(num_batches=1, size=2, count=3) == [[], [1], [1]]


@given(
    st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=7), min_size=1, max_size=9),
    st.integers(1, 12),
)
def test_the_shares_are_together_exactly_the_batches(lengths, count):
    flat = [n for batch in lengths for n in batch]
    packed = Packed.of([[*[3] * (n - 1), EOS] for n in flat], [[*[4] * (n % 3), EOS] for n in flat])
    ends = np.cumsum([len(batch) for batch in lengths])
    batches = [gather(packed, index) for index in np.split(np.arange(len(flat)), ends[:-1])]
    shares = [share(packed, batches, rank, count) for rank in range(count)]
    assert [i for parts in shares for part in parts for i in part.index] == list(range(len(flat)))
    for name in ("num_src_tokens", "num_tgt_tokens"):
        assert sum(getattr(part, name) for parts in shares for part in parts) == sum(getattr(b, name) for b in batches)
    for part in (part for parts in shares for part in parts):
        assert part.src.shape == (
            len(part.index),
            packed.src_lengths[part.index].max(),
        )  # no idle column
