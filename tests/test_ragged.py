import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ablate.model.ragged import HIDDEN, Ragged, to_heads, to_rows

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


def test_rows_stand_in_their_slots():
    rows = torch.randn(6, 4)
    rectangle = rows[Ragged.of(IDS, PAD).tokens]
    assert rectangle.shape == (3, 3, 4)
    assert torch.equal(rectangle[0, :2], rows[:2])
    assert torch.equal(rectangle[1, :1], rows[2:3])
    assert torch.equal(rectangle[2], rows[3:])


@settings(deadline=None)
@given(
    lengths=st.lists(st.integers(1, 5), min_size=1, max_size=6),
    num_heads=st.integers(1, 3),
    widths=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    seed=st.integers(0, 9),
)
def test_heads_and_rows_and_their_gradients_are_those_of_plain_indexing(lengths, num_heads, widths, seed):
    torch.manual_seed(seed)
    real = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]  # (B, L)
    sentences = Ragged.of(real.long(), PAD)
    rows = torch.randn(sum(lengths), num_heads * sum(widths), requires_grad=True)

    def plain(part: Tensor) -> Tensor:  # (N, h · d) → (B, h, L, d), zero where there is no token
        rectangle = part.new_zeros(*real.shape, part.shape[1]).masked_scatter(real[..., None], part)
        return rectangle.unflatten(2, (num_heads, -1)).transpose(1, 2)

    found = to_heads(rows, sentences, num_heads, tuple(widths))
    expected = [plain(part) for part in rows.split([num_heads * width for width in widths], dim=1)]
    grads = [torch.randn_like(part) for part in expected]
    for ours, theirs in zip(found, expected, strict=True):
        visible = real[:, None, :, None].expand_as(theirs)
        assert torch.equal(ours[visible], theirs[visible])
        back = to_rows(ours, sentences)
        assert torch.equal(back, ours.transpose(1, 2)[real].flatten(1))
    (of_rows,) = torch.autograd.grad(found, rows, grads, retain_graph=True)
    assert torch.equal(of_rows, torch.autograd.grad(expected, rows, grads)[0])

    heads = torch.randn_like(expected[0]).requires_grad_()
    grad = torch.randn(sum(lengths), num_heads * widths[0])
    (of_heads,) = torch.autograd.grad(to_rows(heads, sentences), heads, grad)
    assert torch.equal(of_heads, plain(grad))
