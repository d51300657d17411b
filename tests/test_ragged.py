import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ablate.model.ragged import HIDDEN, Ragged, collect, spread

PAD, EOS = 0, 1
IDS = torch.tensor([[7, EOS, PAD], [EOS, PAD, PAD], [5, 6, EOS]])


def test_tokens_come_one_sentence_after_another_with_their_places():
    ragged = Ragged.of(IDS, PAD)
    assert ragged.ids.tolist() == [7, EOS, EOS, 5, 6, EOS]
    assert ragged.positions.tolist() == [0, 1, 0, 0, 1, 2]
    assert ragged.slots.tolist() == [0, 1, 3, 6, 7, 8]
    assert ragged.mask.tolist() == [[[[0, 0, HIDDEN]]], [[[0, HIDDEN, HIDDEN]]], [[[0, 0, 0]]]]


def test_sentences_of_one_length_hide_nothing():
    ragged = Ragged.of(IDS[2:], PAD)
    assert ragged.mask is None
    assert ragged.tokens.tolist() == [[0, 1, 2]]


def test_rows_stand_in_their_slots_and_come_back():
    ragged, rows = Ragged.of(IDS, PAD), torch.randn(6, 4)
    rectangle = spread(rows, ragged)
    assert rectangle.shape == (3, 3, 4)
    assert torch.equal(rectangle[0, :2], rows[:2])
    assert torch.equal(rectangle[1, :1], rows[2:3])
    assert torch.equal(rectangle[2], rows[3:])
    assert torch.equal(collect(rectangle, ragged), rows)


@settings(deadline=None)
@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 9))
def test_gradients_go_the_same_way_and_not_through_padding(lengths: list[int], seed: int):
    torch.manual_seed(seed)
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]  # (B, L)
    ragged = Ragged.of(real.long(), PAD)
    rows = torch.randn(sum(lengths), 3, requires_grad=True)
    rectangle = torch.randn(*real.shape, 3, requires_grad=True)
    of_rectangle, of_rows = torch.randn(*real.shape, 3), torch.randn(sum(lengths), 3)
    spread(rows, ragged).backward(of_rectangle)
    collect(rectangle, ragged).backward(of_rows)
    assert torch.equal(rows.grad, of_rectangle[real])
    assert torch.equal(rectangle.grad, torch.zeros(*real.shape, 3).masked_scatter_(real[..., None], of_rows))
