import dataclasses
import functools
import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ablate.beam import BLOCK, beam_search, best_extensions, penalty
from ablate.config import ModelConfig
from ablate.loss import smoothed_loss
from ablate.model.embedding import PositionError
from ablate.model.inference import Decoder
from ablate.model.transformer import Transformer

PAD, EOS, A, B = 0, 1, 2, 3
SRC = torch.tensor([[3, 4, 5, 6, EOS], [7, 8, EOS, PAD, PAD], [9, EOS, PAD, PAD, PAD]])
SMALL = ModelConfig(
    num_layers=2,
    d_model=12,
    d_ff=20,
    num_heads=3,
    d_k=5,
    d_v=7,
    dropout=0.3,
    activation="relu",
    positional="sinusoid",
    max_positions=8,
    sinusoid_layout="halves",
    attention_bias=True,
    fused_init=True,
    decoder_start="zeros",
)


class Rows:
    """The state of a `Table`: what each row has read, and the source it belongs to."""

    def __init__(self, src: Tensor):
        self.sources = src.tolist()
        self.prefixes: list[tuple[int, ...]] = []

    def select(self, rows: Tensor, sentences: Tensor | None = None) -> None:
        self.prefixes = [self.prefixes[row] for row in rows.tolist()]
        if sentences is not None:
            self.sources = [self.sources[sentence] for sentence in sentences.tolist()]


class Table:
    """A model that looks the next probabilities up by source and prefix."""

    pad_id, eos_id, first_id, training, large = PAD, EOS, PAD, False, False

    def __init__(self, next_probabilities):
        self.next_probabilities = next_probabilities
        self.num_rows: list[int] = []

    def check_length(self, longest: int) -> None:
        pass

    def start(self, src: Tensor) -> Rows:
        return Rows(src)

    def step(self, state: Rows, ids: Tensor) -> Tensor:
        self.num_rows.append(len(ids))
        read = [()] * len(ids) if not state.prefixes else state.prefixes
        state.prefixes = [(*prefix, i) for prefix, i in zip(read, ids.tolist(), strict=True)]
        beam_size = len(ids) // len(state.sources)
        rows = [
            self.next_probabilities(state.sources[row // beam_size], prefix[1:])
            for row, prefix in enumerate(state.prefixes)
        ]
        return torch.tensor(rows).log()


def src_of(*lengths: int) -> Tensor:
    """Make sources of these lengths, end symbol included, padded."""
    rows = [[A] * (length - 1) + [EOS] + [PAD] * (max(lengths) - length) for length in lengths]
    return torch.tensor(rows)


def model_of(**changes) -> Transformer:
    torch.manual_seed(0)
    return Transformer(dataclasses.replace(SMALL, **changes), 11).eval()


@functools.cache
def trained() -> Transformer:
    """Half-teach a model to write its source backwards: what it writes depends on the source, and it is unsure."""
    torch.manual_seed(0)
    model = Transformer(dataclasses.replace(SMALL, dropout=0.0), 11)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(120):
        text = torch.randint(2, 11, (32, 1 + step % 4))
        src, tgt = (nn.functional.pad(side, (0, 1), value=EOS) for side in (text, text.flip(1)))
        hidden = model(src, tgt).flatten(0, 1)  # of sentences without padding
        loss_sum, _ = smoothed_loss(hidden, model.embedding.weight, tgt.flatten(), 0.1, "others")
        (loss_sum / tgt.numel()).backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.eval()


def early_or_late(source, prefix):
    """End at once with probability .55, else say `a` five times and then end."""
    if prefix == ():
        return [0.0, 0.55, 0.45, 0.0]
    return [0.0, 1.0, 0.0, 0.0] if len(prefix) == 5 else [0.0, 0.0, 1.0, 0.0]


def test_a_later_hypothesis_that_scores_better_is_returned():  # D2
    # ln .55 / 1 = −.598 is found first; ln .45 / (11/6)^.6 = −.555 beats it, five steps later.
    (found,) = beam_search(Table(early_or_late), src_of(1), 2, 0.6, 50)
    assert found.ids == [A] * 5
    assert found.log_prob == pytest.approx(math.log(0.45), abs=1e-6)
    assert found.score == pytest.approx(-0.555, abs=5e-4)


def test_without_length_penalty_the_likelier_is_returned_and_the_search_ends_at_once():
    table = Table(early_or_late)
    (found,) = beam_search(table, src_of(1), 2, 0.0, 50)
    assert found.ids == []
    assert found.score == found.log_prob == pytest.approx(math.log(0.55), abs=1e-6)
    assert len(table.num_rows) == 1


def test_the_penalty_is_that_of_wu_et_al():
    assert penalty(1, 0.6) == 1
    assert -4.0 / penalty(8, 0.6) > -5.0 / penalty(12, 0.6)
    assert -4.0 / 8**0.6 < -5.0 / 12**0.6  # what dividing by n^α would say


def test_beam_of_1_is_greedy():  # D1
    model = trained()
    found = beam_search(Decoder(model), SRC, 1, 0.0, 6)
    for row, hypothesis in zip(SRC, found, strict=True):
        source = row[row != PAD][None]
        ids: list[int] = []
        while len(ids) < source.shape[1] + 6:
            with torch.no_grad():
                logits = model.logits(model(source, torch.tensor([[*ids, EOS]])))[0, -1]
            logits[PAD] = -torch.inf
            ids.append(int(logits.argmax()))
            if ids[-1] == EOS:
                break
        assert hypothesis.ids == [i for i in ids if i != EOS]
    assert len({tuple(hypothesis.ids) for hypothesis in found}) == len(SRC)


def test_greedy_follows_the_likeliest_word_into_a_bad_end():  # D1
    def garden_path(source, prefix):
        return {(): [0, 0, 0.6, 0.4], (A,): [0, 0.1, 0.45, 0.45], (B,): [0, 1.0, 0, 0]}.get(prefix, [0, 1.0, 0, 0])

    (greedy,) = beam_search(Table(garden_path), src_of(1), 1, 0.0, 9)
    (beam,) = beam_search(Table(garden_path), src_of(1), 2, 0.0, 9)
    assert greedy.ids[0] == A
    assert greedy.log_prob == pytest.approx(math.log(0.6 * 0.45), abs=1e-6)
    assert beam.ids == [B]
    assert beam.log_prob == pytest.approx(math.log(0.4), abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 10_000), alpha=st.sampled_from([0.0, 0.6, 1.0]), max_extra=st.integers(0, 3))
def test_a_wide_beam_finds_the_best_of_all(seed: int, alpha: float, max_extra: int):
    def random_table(source, prefix):
        return np.random.default_rng([seed, *prefix]).dirichlet([0.5] * 3).tolist()

    def next_probabilities(source, prefix):
        return [0.0, *random_table(source, prefix)]

    limit = 1 + max_extra
    scores = {}
    for length in range(limit):
        for ids in itertools.product([A, B], repeat=length):
            log_prob = sum(math.log(random_table(None, ids[:t])[i - 1]) for t, i in enumerate((*ids, EOS)))
            scores[ids] = log_prob / ((5 + length + 1) / 6) ** alpha
    (found,) = beam_search(Table(next_probabilities), src_of(1), 24, alpha, max_extra)
    assert found.score == pytest.approx(max(scores.values()), abs=1e-4)
    assert scores[tuple(found.ids)] == pytest.approx(found.score, abs=1e-4)


@torch.no_grad()
def plain_search(model: Transformer, source: Tensor, k: int, alpha: float, limit: int) -> tuple[float, list[int]]:
    """Search as the definition has it, every prefix read from its beginning; gives score and ids."""
    live, best = [(0.0, [])], (-math.inf, [])
    for length in range(1, limit + 1):
        prefixes = torch.tensor([[*ids, EOS] for _, ids in live])
        scored = model.logits(model(source.expand(len(live), -1), prefixes))[:, -1].log_softmax(-1).tolist()
        extensions = [
            (log_prob + row[i], [*ids, i])
            for (log_prob, ids), row in zip(live, scored, strict=True)
            for i in range(1, len(row))  # no padding
        ]
        extensions.sort(reverse=True)
        ended = [(log_prob / penalty(length, alpha), ids[:-1]) for log_prob, ids in extensions[:k] if ids[-1] == EOS]
        best = max([best, *ended])
        live = [extension for extension in extensions if extension[1][-1] != EOS][:k]
        if best[0] >= live[0][0] / penalty(limit, alpha):
            return best
    return best if best[0] > -math.inf else (live[0][0] / penalty(limit, alpha), live[0][1])


@settings(max_examples=12, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 10_000),
    lengths=st.lists(st.integers(1, 6), min_size=1, max_size=4),
    k=st.integers(1, 5),
    alpha=st.sampled_from([0.0, 0.6, 1.0]),
    sharpness=st.sampled_from([0.3, 1.0, 3.0]),
)
def test_the_search_finds_what_the_plain_search_finds(
    seed: int, lengths: list[int], k: int, alpha: float, sharpness: float
):
    model = model_of()
    with torch.no_grad():
        generator = torch.Generator().manual_seed(seed)
        model.embedding.weight.normal_(std=sharpness * 12**-0.5, generator=generator)
    src = torch.randint(2, 11, (len(lengths), max(lengths)), generator=generator)
    for row, length in zip(src, lengths, strict=True):
        row[length - 1] = EOS
        row[length:] = PAD
    for row, length, found in zip(src, lengths, beam_search(Decoder(model), src, k, alpha, 20), strict=True):
        score, ids = plain_search(model, row[None, :length], k, alpha, length + 20)
        assert found.ids == ids
        assert found.score == pytest.approx(score, abs=1e-4)


@settings(max_examples=60, deadline=None)
@given(
    num_sentences=st.integers(1, 3),
    num_live=st.integers(1, 3),
    vocab_size=st.integers(1, 9 * BLOCK),
    count=st.integers(1, 9),
    num_values=st.sampled_from([3, 1000]),
    seed=st.integers(0, 1000),
)
def test_the_best_extensions_are_found_in_whatever_block_they_are(
    num_sentences, num_live, vocab_size, count, num_values, seed
):
    generator = torch.Generator().manual_seed(seed)
    live = torch.randint(5, (num_sentences, num_live), generator=generator).float()
    steps = torch.randint(num_values, (num_sentences, num_live, vocab_size), generator=generator).float()
    steps[:, :, 0] = -torch.inf
    tops, parents, tokens = best_extensions(live, steps.flatten(0, 1), count)
    for sentence in range(num_sentences):
        totals = live[sentence, :, None] + steps[sentence]
        expected = sorted(totals.flatten().tolist(), reverse=True)[:count]
        found = list(zip(parents[sentence].tolist(), tokens[sentence].tolist(), strict=True))
        assert tops[sentence].tolist() == expected + [-math.inf] * (count - len(expected))
        there = [place for place, top in zip(found, expected, strict=False) if top > -math.inf]
        assert [totals[place].item() for place in there] == expected[: len(there)]
        assert len(set(there)) == len(there)
        assert max(tokens[sentence]) < vocab_size  # the others are read by the model, too


def test_padding_is_never_produced():
    (found,) = beam_search(Table(lambda source, prefix: [0.9, 0.04, 0.03, 0.03]), src_of(3), 2, 0.6, 4)
    assert PAD not in found.ids
    model = model_of()
    with torch.no_grad():
        model.embedding.weight[PAD] = 10 * model.embedding.weight[A]
    src = torch.tensor([[3, 4, EOS], [7, EOS, PAD]])
    assert all(PAD not in hypothesis.ids for hypothesis in beam_search(Decoder(model), src, 3, 0.6, 5))


def test_a_search_that_never_ends_returns_its_best_live_hypothesis_at_its_own_limit():
    table = Table(lambda source, prefix: [0.0, 0.0, 0.3, 0.7])
    found = beam_search(table, src_of(4, 2), 2, 0.6, 3)
    assert [hypothesis.ids for hypothesis in found] == [[B] * (4 + 3), [B] * (2 + 3)]
    assert found[1].log_prob == pytest.approx(5 * math.log(0.7), abs=1e-5)
    assert found[1].score == pytest.approx(5 * math.log(0.7) / (10 / 6) ** 0.6, abs=1e-5)


def test_the_end_symbol_counts_towards_the_limit():
    # Ends surely after two words: three subwords fit into 1 + 2, two words alone into 1 + 1.
    table = Table(lambda source, prefix: [0.0, 1.0, 0.0, 0.0] if len(prefix) == 2 else [0.0, 0.0, 0.9, 0.1])
    ended, cut = (beam_search(table, src_of(1), 2, 0.0, max_extra)[0] for max_extra in (2, 1))
    assert ended.ids == cut.ids == [A, A]
    assert ended.score == cut.score == pytest.approx(2 * math.log(0.9), abs=1e-6)


def test_more_beams_than_continuations_do_no_harm():
    (found,) = beam_search(Table(lambda source, prefix: [0.0, 0.4, 0.6, 0.0]), src_of(1), 7, 0.0, 2)
    assert found.ids == []
    assert found.score == pytest.approx(math.log(0.4), abs=1e-6)


def test_sentences_that_are_done_leave_the_batch():
    def copies(source, prefix):
        probabilities = [0.0, 0.02, 0.02, 0.02]
        probabilities[source[len(prefix)]] = 0.96
        return probabilities

    table = Table(copies)
    src = torch.tensor([[A, A, B, A, EOS], [B, EOS, PAD, PAD, PAD], [B, A, EOS, PAD, PAD]])
    found = beam_search(table, src, 2, 0.0, 0)
    assert [hypothesis.ids for hypothesis in found] == [[A, A, B, A], [B], [B, A]]
    assert table.num_rows == [3, 6, 4, 2, 2]  # one row per sentence at first


def test_ties_are_broken_the_same_way_each_time():
    uniform = Table(lambda source, prefix: [0.0, 0.2, 0.4, 0.4])
    first, second = (beam_search(uniform, src_of(3, 5), 3, 0.6, 4) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("beam_size", [1, 4])
def test_the_rest_of_the_batch_does_not_matter(beam_size: int):
    decoder = Decoder(trained())
    together = beam_search(decoder, SRC, beam_size, 0.6, 6)
    for row, hypothesis in zip(SRC, together, strict=True):
        (alone,) = beam_search(decoder, row[row != PAD][None], beam_size, 0.6, 6)
        assert alone.ids == hypothesis.ids
        assert alone.score == pytest.approx(hypothesis.score, rel=1e-4)


def test_the_score_is_that_of_the_returned_ids():
    model = trained()
    for row, found in zip(SRC, beam_search(Decoder(model), SRC, 4, 0.6, 20), strict=True):
        assert 0 < len(found.ids) < 10
        tgt = torch.tensor([[*found.ids, EOS]])
        with torch.no_grad():
            log_probs = model.logits(model(row[None], tgt)).log_softmax(-1)
        assert found.log_prob == pytest.approx(log_probs.gather(2, tgt[..., None]).sum().item(), rel=1e-4)
        assert found.score == pytest.approx(found.log_prob / ((5 + tgt.shape[1]) / 6) ** 0.6)


def test_learned_positions_that_are_too_few_stop_before_the_first_step(monkeypatch: pytest.MonkeyPatch):  # M4
    model = model_of(positional="learned")  # 8 positions
    src = torch.tensor([[3, 4, EOS]])
    beam_search(Decoder(model), src, 2, 0.6, 5)
    monkeypatch.setattr(Decoder, "start", lambda *args: pytest.fail("decoding has started"))
    with pytest.raises(PositionError, match=r"model.max_positions=8.* 9 subwords"):
        beam_search(Decoder(model), src, 2, 0.6, 6)


def test_a_model_in_training_mode_is_refused():
    with pytest.raises(ValueError, match="training"):
        beam_search(Decoder(model_of().train()), torch.tensor([[3, EOS]]), 2, 0.6, 3)
