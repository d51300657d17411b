import dataclasses
import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from ablate.config import ModelConfig
from ablate.model import inference
from ablate.model.inference import CACHE_BLOCK, Decoder, attend_beams, take_
from ablate.model.linear import PackedLinear, has_kernels
from ablate.model.ragged import HIDDEN
from ablate.model.transformer import Transformer

PAD, EOS, VOCAB_SIZE = 0, 1, 17
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
    max_positions=90,
    sinusoid_layout="halves",
    attention_bias=True,
    fused_init=True,
    decoder_start="zeros",
)
SRC = torch.tensor([[3, 4, 5, 6, EOS], [7, 8, EOS, PAD, PAD], [9, EOS, PAD, PAD, PAD]])


def make(**changes) -> Transformer:
    torch.manual_seed(0)
    return Transformer(dataclasses.replace(SMALL, **changes), VOCAB_SIZE).eval()


def expected(model: Transformer, src: Tensor, prefixes: list[list[int]]) -> Tensor:
    """Score what follows each prefix, read as a whole: the plain model."""
    tgt = torch.tensor([[*prefix, EOS] for prefix in prefixes])
    with torch.no_grad():
        return model.logits(model(src, tgt))[:, -1]


@torch.no_grad()
@pytest.mark.parametrize("packed_from", [0, 2**15])
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"decoder_start": "eos"},
        {"positional": "learned"},
        {"attention_bias": False, "activation": "gelu"},
    ],
)
def test_decoding_step_by_step_equals_the_whole(changes: dict, packed_from: int, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(inference, "PACKED_FROM", packed_from)
    model, length = make(**changes), CACHE_BLOCK + 3  # the cache grows once
    decoder = Decoder(model)
    tgt = torch.randint(2, VOCAB_SIZE, (3, length), generator=torch.Generator().manual_seed(0))
    whole = model.logits(model(SRC, tgt))
    state = decoder.start(SRC)
    for t in range(length):
        ids = tgt[:, t - 1] if t > 0 else torch.full((3,), decoder.first_id)
        torch.testing.assert_close(decoder.step(state, ids), whole[:, t], rtol=1e-4, atol=1e-5)
        state.select(torch.arange(3))


@settings(max_examples=30, deadline=None)
@given(data=st.data(), num_beams=st.integers(1, 5))
def test_beams_and_sentences_can_be_reordered_and_dropped(data: st.DataObject, num_beams: int):
    model = make()
    decoder = Decoder(model)
    with pytest.MonkeyPatch.context() as patch, torch.no_grad():
        patch.setattr(inference, "CACHE_BLOCK", 2)  # it is full every other position
        state, left = decoder.start(SRC), [0, 1, 2]
        prefixes: list[list[int]] = [[], [], []]  # of each row
        ids = [decoder.first_id] * 3
        for _ in range(9):
            logits = decoder.step(state, torch.tensor(ids))
            src = SRC[[left[row * len(left) // len(prefixes)] for row in range(len(prefixes))]]
            torch.testing.assert_close(logits, expected(model, src, prefixes), rtol=1e-4, atol=1e-5)
            kept = data.draw(st.lists(st.sampled_from(range(len(left))), min_size=1, unique=True))
            before = len(prefixes) // len(left)
            parents = [s * before + data.draw(st.integers(0, before - 1)) for s in kept for _ in range(num_beams)]
            dropped = torch.tensor(kept) if kept != list(range(len(left))) or data.draw(st.booleans()) else None
            state.select(torch.tensor(parents), dropped)
            left = [left[sentence] for sentence in kept]
            ids = [data.draw(st.integers(2, VOCAB_SIZE - 1)) for _ in parents]
            prefixes = [[*prefixes[row], i] for row, i in zip(parents, ids, strict=True)]


def test_beams_attend_to_what_they_see_of_their_sentence_head_by_head():
    torch.manual_seed(0)
    num_sentences, k, h, d_k, d_v, entries = 2, 4, 3, 5, 7, 6
    query = torch.randn(num_sentences, k, h, d_k)
    keys, values = torch.randn(num_sentences, h, entries, d_k), torch.randn(num_sentences, h, entries, d_v)
    seen = torch.rand(num_sentences, k, entries) > 0.4
    seen[..., 0] = True
    expected = torch.empty(num_sentences, k, h, d_v)
    for s, beam, head in itertools.product(range(num_sentences), range(k), range(h)):
        visible = seen[s, beam]
        scores = keys[s, head, visible] @ query[s, beam, head] / 5**0.5
        expected[s, beam, head] = scores.softmax(0) @ values[s, head, visible]
    mask = torch.where(seen, 0.0, HIDDEN).repeat_interleave(h, 0)  # (B · h, k, E)
    found = attend_beams(query.reshape(8, 15), keys.transpose(2, 3).flatten(0, 1), values.flatten(0, 1), mask, h)
    torch.testing.assert_close(found, expected.view(8, 21))


@torch.no_grad()
def test_entries_in_nobodys_past_are_dropped():
    decoder = Decoder(make())
    state = decoder.start(SRC)
    decoder.step(state, torch.tensor([0, 0, 0]))
    state.select(torch.arange(12) // 4)
    for _ in range(2 * CACHE_BLOCK):
        decoder.step(state, torch.full((12,), 5))
        state.select(torch.arange(12) // 4 * 4)  # all four go on from the first
    # Each position leaves one entry; only those since the last collection have four.
    assert state.visible.shape[1] < 1 + 2 * CACHE_BLOCK + CACHE_BLOCK
    assert state.layers[0].keys.shape[2] < 1 + 2 * CACHE_BLOCK + CACHE_BLOCK


@pytest.mark.skipif(not has_kernels(torch.zeros(1)), reason="torch has no oneDNN here")
def test_weights_are_packed_and_the_model_is_left_as_it_was(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(inference, "PACKED_FROM", 0)
    model = make()
    decoder = Decoder(model)
    assert not [module for module in model.modules() if isinstance(module, PackedLinear)]
    assert not [module for module in decoder.model.modules() if isinstance(module, nn.Linear)]
    assert decoder.model.embedding.weight is model.embedding.weight


def test_where_nothing_can_be_packed_the_plain_layers_are_used(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    model = make()
    decoder = Decoder(model)
    assert not [module for module in decoder.model.modules() if isinstance(module, PackedLinear)]
    ids = torch.full((3,), decoder.first_id)
    with torch.no_grad():
        torch.testing.assert_close(decoder.step(decoder.start(SRC), ids), expected(model, SRC, [[], [], []]))


def test_taking_in_place_gives_what_indexing_gives():
    x = torch.arange(10.0).view(5, 2)
    before, index = x.clone(), torch.tensor([4, 1, 0])
    taken = take_(x, index)
    assert torch.equal(taken, before[index])
    assert taken.data_ptr() == x.data_ptr()
