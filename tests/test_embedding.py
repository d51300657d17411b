import dataclasses
import math

import pytest
import torch

from ablate.config import ModelConfig
from ablate.model.embedding import SINUSOID_ROWS, Embedding, PositionError, Positions, dropout, sinusoid

PAD = 0
SINUSOID = ModelConfig(
    num_layers=1,
    d_model=6,
    d_ff=20,
    num_heads=3,
    d_k=5,
    d_v=7,
    dropout=0.0,
    activation="relu",
    positional="sinusoid",
    max_positions=9,
    sinusoid_layout="halves",
    attention_bias=True,
    fused_init=True,
    decoder_start="zeros",
)
LEARNED = dataclasses.replace(SINUSOID, positional="learned")


@pytest.mark.parametrize(
    ("layout", "position", "expected"),
    [
        ("interleaved", 0, [0, 1, 0, 1]),
        ("interleaved", 1, [0.841471, 0.540302, 0.010000, 0.999950]),
        ("interleaved", 2, [0.909297, -0.416147, 0.019999, 0.999800]),
        ("halves", 0, [0, 0, 1, 1]),
        ("halves", 1, [0.841471, 0.0001, 0.540302, 1.0]),
    ],
)
def test_sinusoids_of_width_4(layout: str, position: int, expected: list[float]):
    table = sinusoid(3, 4, layout)
    torch.testing.assert_close(table[position], torch.tensor(expected, dtype=torch.float32), rtol=0, atol=1e-6)


@pytest.mark.parametrize("layout", ["interleaved", "halves"])
@pytest.mark.parametrize("d_model", [1, 2, 3, 5])
def test_narrow_and_odd_widths_are_finite_and_tell_positions_apart(layout: str, d_model: int):
    table = sinusoid(7, d_model, layout)
    assert table.shape == (7, d_model)
    assert table.isfinite().all()
    assert len(table.unique(dim=0)) == 7


def test_width_2_has_one_wave_in_either_layout():
    expected = torch.tensor([[math.sin(position), math.cos(position)] for position in range(3)])
    torch.testing.assert_close(sinusoid(3, 2, "halves"), expected)
    torch.testing.assert_close(sinusoid(3, 2, "interleaved"), expected)


def test_sinusoids_have_no_limit():
    positions = Positions(SINUSOID)
    expected = sinusoid(5000, 6, "halves")
    torch.testing.assert_close(positions(0, 3), expected[:3])
    torch.testing.assert_close(positions(SINUSOID_ROWS - 2, 5), expected[SINUSOID_ROWS - 2 : SINUSOID_ROWS + 3])
    positions.check_length(5000)
    torch.testing.assert_close(positions(4997, 3), expected[4997:])
    assert not positions.state_dict()  # sinusoids are not in checkpoints


def test_learned_positions_end_with_an_error_that_says_what_to_do():  # M4
    positions = Positions(LEARNED)
    positions.check_length(9)
    assert positions(4, 5).shape == (5, 6)
    for too_long in (lambda: positions.check_length(10), lambda: positions(0, 10), lambda: positions(9, 1)):
        with pytest.raises(PositionError, match=r"model.max_positions=9.* 10 subwords.*positional=sinusoid"):
            too_long()
    assert issubclass(PositionError, ValueError)


def test_embeddings_are_scaled_and_padding_is_zero():
    torch.manual_seed(0)
    embedding = Embedding(vocab_size=5, d_model=6, pad_id=PAD)
    out = embedding(torch.tensor([[2, PAD, 4]]))
    torch.testing.assert_close(out[0, 0], embedding.weight[2] * math.sqrt(6))
    assert embedding.weight[PAD].ne(0).all()
    assert out[0, 1].eq(0).all()
    out.sum().backward()
    assert embedding.weight.grad[[PAD, 1, 3]].eq(0).all()
    torch.testing.assert_close(embedding.weight.grad[[2, 4]], torch.full((2, 6), math.sqrt(6)))


def test_the_gradient_of_the_matrix_is_that_of_all_its_uses():
    torch.manual_seed(0)
    embedding, ids, other = Embedding(5, 6, PAD), torch.tensor([2, PAD, 4, 2]), torch.randn(4, 6)
    embedded, matrix = embedding.look_up(ids)
    ((embedded + other) @ matrix.t()).sin().sum().backward()
    weight = embedding.weight.detach().clone().requires_grad_()
    plain = weight[ids] * math.sqrt(6) * (ids != PAD)[:, None]
    ((plain + other) @ weight.t()).sin().sum().backward()
    torch.testing.assert_close(embedding.weight.grad, weight.grad)


def test_embeddings_start_with_variance_one_over_d_model():
    torch.manual_seed(0)
    assert Embedding(1000, 64, PAD).weight.std().item() == pytest.approx(1 / 8, rel=0.02)


@pytest.mark.parametrize("p", [0.1, 0.2, 0.3, 0.5])
def test_dropout_keeps_the_expectation(p: float):
    torch.manual_seed(0)
    out = dropout(torch.ones(1001, 1003), p, training=True)
    kept = out[out != 0]
    share = round(p * 2**16) / 2**16
    assert abs(share - p) <= 2**-17
    torch.testing.assert_close(kept, torch.full_like(kept, 1 / (1 - share)))  # exact for the rounded probability
    deviation = math.sqrt(p * (1 - p) / out.numel())
    assert abs(len(kept) / out.numel() - (1 - p)) < 4 * deviation


@pytest.mark.parametrize("p", [1e-9, 1 - 1e-9])
def test_a_probability_near_0_or_1_drops_neither_nothing_nor_everything(p: float):
    torch.manual_seed(0)
    out = dropout(torch.ones(1024, 1024), p, training=True)
    assert 0 < int((out == 0).sum()) < out.numel()
    assert out.isfinite().all()


def test_dropped_elements_are_independent():
    torch.manual_seed(0)
    kept = dropout(torch.ones(2**20), 0.5, training=True).ne(0).float() * 2 - 1
    for distance in (1, 2, 3, 4, 8):  # four elements share a draw
        assert abs((kept[distance:] * kept[:-distance]).mean().item()) < 4 / 2**10


def test_dropout_has_the_gradient_of_its_mask():
    torch.manual_seed(0)
    x = torch.ones(3, 5, 7, requires_grad=True)
    out = dropout(x, 0.3, training=True)
    out.sum().backward()
    torch.testing.assert_close(x.grad, out.detach())


def test_dropout_adds_what_it_leaves_to_a_residual():
    x, residual = torch.randn(3, 5, requires_grad=True), torch.randn(3, 5, requires_grad=True)
    torch.manual_seed(0)
    alone = dropout(x, 0.3, training=True)
    torch.manual_seed(0)
    out = dropout(x, 0.3, True, residual)
    torch.testing.assert_close(out, residual + alone)
    out.sum().backward()
    torch.testing.assert_close(x.grad, alone.detach() / x.detach())
    assert residual.grad.eq(1).all()
    for p, training in ((0.0, True), (0.3, False)):
        assert torch.equal(dropout(x, p, training, residual), residual + x)


def test_the_seed_governs_dropout():
    x = torch.ones(5, 7)
    draws = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        draws.append(dropout(x, 0.5, training=True))
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


@pytest.mark.parametrize(("p", "training"), [(0.0, True), (0.5, False)])
def test_no_dropout_draws_nothing(p: float, training: bool):  # M8
    x, before = torch.randn(5, 7), torch.get_rng_state()
    assert torch.equal(dropout(x, p, training), x)
    assert torch.equal(torch.get_rng_state(), before)
