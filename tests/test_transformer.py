import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn

from ablate.config import ModelConfig
from ablate.model import transformer
from ablate.model.embedding import sinusoid
from ablate.model.ragged import Ragged
from ablate.model.transformer import AddNorm, FeedForward, Transformer

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
    max_positions=40,
    sinusoid_layout="halves",
    attention_bias=True,
    fused_init=True,
    decoder_start="zeros",
)
SRC = torch.tensor([[3, 4, 5, 6, EOS], [7, 8, EOS, PAD, PAD]])
TGT = torch.tensor([[9, 10, 11, EOS], [12, EOS, PAD, PAD]])


def make(**changes) -> Transformer:
    """Build a small model in evaluation mode, always from the same seed."""
    torch.manual_seed(0)
    return Transformer(dataclasses.replace(SMALL, **changes), VOCAB_SIZE).eval()


def ragged(ids: Tensor) -> Ragged:
    return Ragged.of(ids, PAD)


def first_input(stack: nn.ModuleList, run) -> Tensor:
    """Catch what the first layer of a stack reads while `run` runs."""
    caught: list[Tensor] = []
    handle = stack[0].register_forward_pre_hook(lambda module, args: caught.append(args[0].detach()))
    run()
    handle.remove()
    return caught[0]


def test_feed_forward_and_norm_of_the_worked_example():
    tiny = dataclasses.replace(SMALL, d_model=2, d_ff=3, dropout=0.0)
    feed_forward, x = FeedForward(tiny), torch.tensor([[[1.0, -2.0]]])
    with torch.no_grad():
        feed_forward.inner.weight.copy_(torch.tensor([[1.0, 0, 1], [0, 1, 1]]).t())
        feed_forward.out.weight.copy_(torch.tensor([[1.0, 0], [0, 1], [1, 1]]).t())
        feed_forward.inner.bias.zero_()
        feed_forward.out.bias.zero_()
    assert feed_forward(x).tolist() == [[[1, 0]]]
    torch.testing.assert_close(AddNorm(tiny)(x, feed_forward(x)), torch.tensor([[[1.0, -1.0]]]), rtol=0, atol=1e-6)


def test_norms_are_the_papers_and_no_more():  # M2
    norms = [module for module in make().modules() if isinstance(module, nn.LayerNorm)]
    assert len(norms) == 2 * 2 + 2 * 3
    assert {norm.eps for norm in norms} == {1e-6}


def test_every_output_row_of_both_stacks_is_normalised():
    model = make()
    for out in (model.encode(ragged(SRC)), model.predict(ragged(SRC), ragged(TGT))[0]):
        torch.testing.assert_close(out.mean(-1), torch.zeros(len(out)), rtol=0, atol=1e-6)
        torch.testing.assert_close(out.var(-1, correction=0), torch.ones(len(out)), rtol=1e-3, atol=0)


def test_dropout_is_at_sublayer_outputs_and_embeddings_of_tokens_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
):
    shapes = []
    monkeypatch.setattr(transformer, "dropout", lambda x, p, *others: shapes.append((tuple(x.shape), p)) or x)
    model = make().train()
    model(SRC, TGT)
    src_side, tgt_side = ((8, 12), 0.3), ((6, 12), 0.3)  # tokens
    assert shapes == [src_side] * (1 + 2 * 2) + [tgt_side] * (1 + 2 * 3)
    assert not [module for module in model.modules() if isinstance(module, nn.Dropout)]


def test_without_dropout_training_passes_are_identical():  # M8
    model = make(dropout=0.0)
    before = torch.get_rng_state()
    model.train()
    first, second = model(SRC, TGT), model(SRC, TGT)
    assert torch.equal(first, second)
    assert torch.equal(first, model.eval()(SRC, TGT))
    assert torch.equal(torch.get_rng_state(), before)


def test_with_dropout_training_passes_differ():
    model = make().train()
    assert not torch.allclose(model(SRC, TGT), model(SRC, TGT))


@pytest.mark.parametrize("start", ["zeros", "eos"])
def test_decoder_reads_the_target_one_late(start: str):
    model = make(decoder_start=start)
    embedded = model.embedding.weight.detach() * math.sqrt(12)
    first = torch.zeros(12) if start == "zeros" else embedded[EOS]
    rows = torch.stack([first, embedded[9], embedded[10], embedded[11]])
    read = first_input(model.decoder, lambda: model(SRC, TGT))
    torch.testing.assert_close(read[:4], rows + sinusoid(4, 12, "halves"))


def test_encoder_reads_embeddings_and_positions():
    model = make(sinusoid_layout="interleaved")
    read = first_input(model.encoder, lambda: model.encode(ragged(SRC)))
    expected = model.embedding.weight.detach()[SRC] * math.sqrt(12) + sinusoid(5, 12, "interleaved")
    torch.testing.assert_close(read, expected[SRC != PAD])


def test_padding_does_not_change_the_output():
    model = make()
    alone = model(SRC[1:, :3], TGT[1:, :2])
    torch.testing.assert_close(model(SRC, TGT)[1:, :2], alone)


def test_the_pad_row_does_not_reach_the_encoder():  # M5
    model = make()
    before = model.encode(ragged(SRC))
    before.square().sum().backward()
    assert model.embedding.weight.grad[PAD].eq(0).all()
    with torch.no_grad():
        model.embedding.weight[PAD] += 100
    assert torch.equal(model.encode(ragged(SRC)), before)


def test_after_a_step_that_moves_the_pad_row_padding_still_contributes_nothing():  # M5
    model = make()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    nn.functional.cross_entropy(model.logits(model(SRC, TGT)).flatten(0, 1), TGT.flatten(), ignore_index=PAD).backward()
    assert model.embedding.weight.grad[PAD].ne(0).any()  # as a wrong answer of the output layer
    optimizer.step()
    torch.testing.assert_close(model.encode(ragged(SRC))[5:], model.encode(ragged(SRC[1:, :3])))


def test_a_prediction_sees_only_earlier_targets():
    model, changed = make(), TGT.clone()
    changed[0, 2] = 14
    before, after = model(SRC, TGT), model(SRC, changed)
    assert torch.equal(before[0, :3], after[0, :3])
    assert not torch.allclose(before[0, 3], after[0, 3])
    assert torch.equal(before[1, :2], after[1, :2])


def test_a_source_of_padding_alone_stays_finite():  # M3
    model = make()
    src = torch.cat([SRC, torch.full((1, 5), PAD)])
    tgt = torch.cat([TGT, TGT[:1]])
    out = model.predict(ragged(src), ragged(tgt))[0]
    out.square().sum().backward()
    assert out.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in model.parameters())
    torch.testing.assert_close(out[:6], model.predict(ragged(SRC), ragged(TGT))[0])


@torch.no_grad()
def test_without_positions_the_encoder_permutes_with_its_input():
    model, order = make(), torch.tensor([3, 0, 4, 2, 1])
    once, permuted = ragged(SRC[:1]), ragged(SRC[:1, order])
    assert not torch.allclose(model.encode(permuted), model.encode(once)[order], atol=1e-3)
    model.src_positions.table.zero_()
    torch.testing.assert_close(model.encode(permuted), model.encode(once)[order])


def test_logits_use_the_embedding_matrix():
    model = make()
    hidden = model(SRC, TGT)
    torch.testing.assert_close(model.logits(hidden), hidden @ model.embedding.weight.t())
    assert [name for name in model.state_dict() if VOCAB_SIZE in model.state_dict()[name].shape] == ["embedding.weight"]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"activation": "gelu"},
        {"attention_bias": False},
        {"positional": "learned"},
        {"decoder_start": "eos", "sinusoid_layout": "interleaved", "fused_init": False},
    ],
)
def test_every_variant_trains_all_its_parameters(changes: dict):
    model = make(**changes).train()
    model.logits(model(SRC, TGT)).square().sum().backward()
    for name, parameter in model.named_parameters():
        # A key bias moves all scores of a query alike, which the softmax ignores: its gradient is rounding.
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().max() > 1e-6, name


def test_the_seed_decides_the_initial_parameters():
    first, second = make().state_dict(), make().state_dict()
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_biases_start_at_zero_and_other_matrices_fill_their_fans():
    torch.manual_seed(0)
    model = Transformer(dataclasses.replace(SMALL, d_model=200, d_ff=400, num_heads=4, d_k=50, d_v=50), VOCAB_SIZE)
    assert all(module.bias.eq(0).all() for module in model.modules() if isinstance(module, nn.Linear))
    layer = model.decoder[0]
    for linear, fans in (
        (layer.attention.out, 200 + 200),
        (layer.cross_attention.query, 200 + 200),
        (layer.cross_attention.kv, 200 + 400),
        (layer.feed_forward.inner, 200 + 400),
        (layer.feed_forward.out, 400 + 200),
    ):
        assert linear.weight.abs().max().item() == pytest.approx(math.sqrt(6 / fans), rel=1e-3)
