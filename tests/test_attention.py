import dataclasses
import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from ablate.config import ModelConfig
from ablate.model.attention import (
    CrossAttention,
    SelfAttention,
    attend,
    fused,
    narrow_product,
    softmax,
    softmax_backward,
)
from ablate.model.ragged import HIDDEN, Ragged

SMALL = ModelConfig(
    num_layers=1,
    d_model=12,
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
TWO = dataclasses.replace(SMALL, d_model=2, num_heads=1, d_k=2, d_v=2, attention_bias=False)

X = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]])  # (1, 3, 2)
CAUSAL_WEIGHTS = [[1, 0, 0], [0.330238, 0.669762, 0], [0.248255, 0.248255, 0.503490]]


def close(ours: Tensor, expected: list, atol: float = 1e-6) -> None:
    torch.testing.assert_close(ours, torch.tensor(expected, dtype=ours.dtype), rtol=0, atol=atol)


def weights_of(query: Tensor, key: Tensor, **kwargs) -> Tensor:
    """Read the attention weights of one head: with the identity as values they are the output."""
    return attend(query[None, None], key[None, None], torch.eye(len(key))[None, None], **kwargs)[0, 0]


def of_lengths(*lengths: int) -> Ragged:
    """Make sentences of these lengths; their ids are all 1."""
    return Ragged.of((torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long(), pad_id=0)


def whole(attention: SelfAttention, x: Tensor, causal: bool = False) -> Tensor:
    """Attend within sentences that are all of the same length."""
    return attention(x.flatten(0, 1), of_lengths(*[x.shape[1]] * len(x)), causal).view_as(x)


@torch.no_grad()
def set_projections(attention: SelfAttention, qkv: list[list[float]], out: list[list[float]]) -> None:
    """Set weights written as the paper writes them, for row vectors from the left."""
    attention.qkv.weight.copy_(torch.tensor(qkv).t())
    attention.out.weight.copy_(torch.tensor(out).t())


def test_weights_of_the_worked_example():
    expected = [[0.401112, 0.197776, 0.401112], [0.197776, 0.401112, 0.401112], [0.248255, 0.248255, 0.503490]]
    close(weights_of(X[0], X[0]), expected)
    close(weights_of(X[0], X[0], causal=True), CAUSAL_WEIGHTS)


def test_output_of_the_worked_example():
    attention = SelfAttention(TWO)  # W_Q = W_K = I, W_V = diag(2, 1), W_O = I
    set_projections(attention, [[1.0, 0, 1, 0, 2, 0], [0, 1, 0, 1, 0, 1]], [[1.0, 0], [0, 1]])
    close(whole(attention, X)[0], [[1.604448, 0.598888], [1.197776, 0.802224], [1.503490, 0.751745]])
    causal = torch.tensor(CAUSAL_WEIGHTS) @ X[0] @ torch.diag(torch.tensor([2.0, 1.0]))
    torch.testing.assert_close(whole(attention, X, causal=True)[0], causal, rtol=0, atol=2e-6)


def test_two_heads_of_the_worked_example():
    attention = SelfAttention(dataclasses.replace(TWO, num_heads=2, d_k=1, d_v=1))
    each_reads_its_coordinate = [[1.0, 0, 1, 0, 1, 0], [0, 1, 0, 1, 0, 1]]
    set_projections(attention, each_reads_its_coordinate, [[1.0, 0], [0, 1]])
    close(whole(attention, X)[0, 0], [0.844638, 0.666667])
    set_projections(attention, each_reads_its_coordinate, [[1.0, 1], [0, 1]])
    close(whole(attention, X)[0, 0], [0.844638, 1.511304])


@pytest.mark.parametrize(
    ("scores", "expected", "atol"),
    [
        ([2.0, 1.0, 0.0], [0.665241, 0.244728, 0.090031], 1e-6),
        ([0.0, 10.0], [0.000045, 0.999955], 1e-6),
        ([10.0, 0.0, -5.0], [1.0, 0.0, 0.0], 5e-5),  # saturated
    ],
)
def test_weights_are_the_softmax_of_the_scores(scores: list[float], expected: list[float], atol: float):
    close(weights_of(torch.ones(1, 1), torch.tensor(scores)[:, None])[0], expected, atol)


def test_scores_have_unit_variance_at_any_d_k():
    torch.manual_seed(0)
    num_keys, d_k = 200, 100
    query, key = torch.randn(num_keys, d_k), torch.randn(num_keys, d_k)
    log_weights = weights_of(query, key).log()
    scores = log_weights - log_weights.mean(1, keepdim=True)  # the normaliser falls out
    assert (query @ key.t()).var().item() == pytest.approx(100, rel=0.1)
    assert scores.var().item() == pytest.approx(1, rel=0.1)


def test_one_heads_scores_at_8192_positions_take_128_mib_in_fp16():
    class Largest(TorchDispatchMode):
        nbytes = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor):
                self.nbytes = max(self.nbytes, out.nbytes)
            return out

    with FakeTensorMode(), Largest() as largest:  # shapes without memory
        x = torch.empty(1, 1, 8192, 64, dtype=torch.float16)
        attend(x, x, x)
    assert largest.nbytes == 128 * 2**20


def test_sentences_do_not_see_each_other():
    torch.manual_seed(0)
    x, sentences = torch.randn(3 + 5, 12), of_lengths(3, 5)
    for causal in (False, True):
        attention, changed = SelfAttention(SMALL), x.clone()
        changed[:3] += 100
        before, after = attention(x, sentences, causal), attention(changed, sentences, causal)
        assert torch.equal(before[3:], after[3:])
        torch.testing.assert_close(before[:3], whole(attention, x[None, :3], causal)[0])


def test_targets_see_their_own_source_only():
    torch.manual_seed(0)
    attention, x, memory = CrossAttention(SMALL), torch.randn(4 + 2, 12), torch.randn(3 + 5, 12)
    changed = memory.clone()
    changed[:3] += 100
    before, after = (attention(x, of_lengths(4, 2), m, of_lengths(3, 5)) for m in (memory, changed))
    assert torch.equal(before[4:], after[4:])
    assert not torch.allclose(before[:4], after[:4])
    torch.testing.assert_close(before[:4], attention(x[:4], of_lengths(4), memory[:3], of_lengths(3)))


def test_a_causal_query_does_not_see_later_keys():
    torch.manual_seed(0)
    attention, x = SelfAttention(SMALL), torch.randn(2, 5, 12)
    changed = x.clone()
    changed[:, 3:] += 100
    before, after = whole(attention, x, causal=True), whole(attention, changed, causal=True)
    assert torch.equal(before[:, :3], after[:, :3])
    assert not torch.allclose(before[:, 3:], after[:, 3:])


def test_a_sentence_with_all_keys_hidden_stays_finite():  # M3
    torch.manual_seed(0)
    attention, x, memory = CrossAttention(SMALL), torch.randn(2 + 1 + 4, 12), torch.randn(4 + 4, 12, requires_grad=True)
    out = attention(x, of_lengths(2, 1, 4), memory, of_lengths(4, 0, 4))
    out.sum().backward()
    assert out.isfinite().all()
    assert memory.grad.isfinite().all()
    assert all(parameter.grad.isfinite().all() for parameter in attention.parameters())
    others = attention(x[[0, 1, 3, 4, 5, 6]], of_lengths(2, 4), memory, of_lengths(4, 4))
    torch.testing.assert_close(out[[0, 1, 3, 4, 5, 6]], others)


@settings(max_examples=50)
@given(
    num_heads=st.integers(1, 4),
    tgt_len=st.integers(1, 18),
    src_len=st.integers(1, 18),
    d_k=st.integers(1, 10),
    d_v=st.integers(1, 10),
    kind=st.sampled_from(["all", "mask", "causal"]),
    seed=st.integers(0, 99),
)
def test_explicit_attention_equals_torchs_fused_one(num_heads, tgt_len, src_len, d_k, d_v, kind, seed):
    generator = torch.Generator().manual_seed(seed)
    if kind == "causal":
        src_len = tgt_len
    query = torch.randn(2, num_heads, tgt_len, d_k, generator=generator, requires_grad=True)
    key = torch.randn(2, num_heads, src_len, d_k, generator=generator, requires_grad=True)
    value = torch.randn(2, num_heads, src_len, d_v, generator=generator, requires_grad=True)
    mask = torch.rand(2, 1, 1, src_len, generator=generator).gt(0.7).float() * HIDDEN if kind == "mask" else None
    if mask is not None:
        mask[..., 0] = 0  # no sentence is empty: what attends to nothing but hidden keys means nothing
    expected = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, is_causal=kind == "causal")
    torch.testing.assert_close(fused(query, key, value, mask, kind == "causal"), expected, rtol=1e-4, atol=1e-5)
    ours = attend(query, key, value, mask, causal=kind == "causal")
    grad = torch.randn(expected.shape, generator=generator)
    for found, plain in zip(
        *(torch.autograd.grad(x, (query, key, value), grad) for x in (ours, expected)), strict=True
    ):
        torch.testing.assert_close(found, plain, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("fused", "query", "key_value"),
    [
        (True, math.sqrt(6 / (512 + 1536)), math.sqrt(6 / (512 + 1024))),
        (False, math.sqrt(6 / 1024), math.sqrt(6 / 1024)),
    ],
)
def test_initial_weights_fill_the_range_of_their_fans(fused: bool, query: float, key_value: float):
    torch.manual_seed(0)
    base = dataclasses.replace(SMALL, d_model=512, num_heads=8, d_k=64, d_v=64, fused_init=fused)
    qkv, kv = SelfAttention(base).qkv.weight, CrossAttention(base).kv.weight
    for weight, bound in ((qkv, query), (kv, key_value)):
        assert weight.abs().max().item() == pytest.approx(bound, rel=1e-4)
        assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=1e-2)  # of a uniform distribution
    assert query == pytest.approx(0.0541 if fused else 0.0765, abs=5e-5)
    assert key_value == pytest.approx(0.0625 if fused else 0.0765, abs=5e-5)


def test_unfused_fans_are_those_of_each_matrix():
    torch.manual_seed(0)
    model = dataclasses.replace(SMALL, d_model=300, num_heads=2, d_k=50, d_v=600, fused_init=False)
    query, key, value = SelfAttention(model).qkv.weight.split([100, 100, 1200])
    for weight, bound in ((query, 0.1225), (key, 0.1225), (value, 0.0632)):  # √(6/400), √(6/1500)
        assert weight.abs().max().item() == pytest.approx(bound, rel=2e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("num_keys", [1, 2, 7, 8, 9, 15, 16, 17])
def test_softmax_and_its_gradient_are_torchs_for_few_keys_and_many(num_keys: int, dtype: torch.dtype):
    generator = torch.Generator().manual_seed(num_keys)
    scores = 90 * torch.randn(3, 5, num_keys, generator=generator)  # exp() of it would not do
    scores[0] /= 90
    scores[1, 0, 0], scores[2, 0] = HIDDEN, HIDDEN
    scores, grad = scores.to(dtype).requires_grad_(), torch.randn(scores.shape, generator=generator).to(dtype)
    expected = scores.softmax(-1)
    found = softmax(scores.detach())
    torch.testing.assert_close(found, expected.detach())
    expected.backward(grad)
    torch.testing.assert_close(softmax_backward(grad, found), scores.grad)


@pytest.mark.parametrize("width", [1, 4, 8, 9])
def test_a_narrow_product_is_a_product(width: int):
    a, b = torch.randn(3, 5, 7), torch.randn(3, width, 7).transpose(1, 2)
    torch.testing.assert_close(narrow_product(a, b), a @ b)
    torch.testing.assert_close(narrow_product(a, b, 0.25), 0.25 * (a @ b))
