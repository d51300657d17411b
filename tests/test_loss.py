import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from ablate.errors import ConfigError
from ablate.loss import smoothed_loss


def loss(hidden: Tensor, weight: Tensor, gold: Tensor, label_smoothing: float = 0.0, smoothing: str = "others"):
    return smoothed_loss(hidden, weight, gold, label_smoothing, smoothing)


def plain(hidden: Tensor, weight: Tensor, gold: Tensor, label_smoothing: float, smoothing: str = "others"):
    """Sum −Σ q ln p over tokens, q the smoothed target; and −ln p of the gold ids: the definition."""
    log_probs = (hidden @ weight.t()).log_softmax(-1)  # (N, V)
    one_hot = F.one_hot(gold, len(weight))
    if smoothing == "uniform":
        targets = (1 - label_smoothing) * one_hot + label_smoothing / len(weight)
    else:
        targets = (1 - label_smoothing) * one_hot + label_smoothing / (len(weight) - 1) * (1 - one_hot)
    return -(targets * log_probs).sum(), -(one_hot * log_probs).sum()


def of_probabilities(probabilities: list[list[float]], gold: list[int], *settings):
    """Take the loss of logits that are the logarithms of these probabilities."""
    logits = torch.tensor(probabilities).log()
    return loss(logits, torch.eye(logits.shape[1]), torch.tensor(gold), *settings)


@pytest.mark.parametrize(("smoothing", "expected"), [("others", 0.580034), ("uniform", 0.535362)])
def test_where_smoothing_puts_its_mass(smoothing: str, expected: float):
    probabilities = [[0.075, 0.7, 0.075, 0.075, 0.075]]
    loss_sum, _ = of_probabilities(probabilities, [1], 0.1, smoothing)
    assert loss_sum.item() == pytest.approx(expected, abs=1e-6)


def test_mean_loss_of_two_tokens():
    loss_sum, nll_sum = of_probabilities([[0.1, 0.8, 0.1], [0.2, 0.3, 0.5]], [1, 2])
    assert loss_sum.item() / 2 == pytest.approx(0.458145, abs=1e-6)
    assert nll_sum.item() == pytest.approx(loss_sum.item())


def test_gradient_is_probabilities_minus_targets():
    logits = torch.tensor([[0.6, 0.3, 0.1]]).log().requires_grad_()
    loss(logits, torch.eye(3), torch.tensor([1]))[0].backward()
    torch.testing.assert_close(logits.grad, torch.tensor([[0.6, -0.7, 0.1]]))


def test_perplexity_weighs_tokens_not_sentences():
    # 2 tokens at NLL 1 and 8 at NLL 2: exp(1.8) = 6.0496, not the 4.4817 of a mean of means.
    one, two = math.exp(-1), math.exp(-2)
    rows = [[1 - one, one]] * 2 + [[1 - two, two]] * 8
    _, nll_sum = of_probabilities(rows, [1] * 10)
    assert math.exp(nll_sum.item() / 10) == pytest.approx(6.0496, abs=5e-5)


def test_nll_does_not_know_of_smoothing():  # M10
    torch.manual_seed(0)
    hidden, weight, gold = torch.randn(6, 3), torch.randn(7, 3), torch.randint(1, 7, (6,))
    smoothed, unsmoothed = loss(hidden, weight, gold, 0.1), loss(hidden, weight, gold, 0.0)
    assert smoothed[1].item() == pytest.approx(unsmoothed[0].item(), rel=1e-6)
    assert smoothed[0].item() != pytest.approx(unsmoothed[0].item(), rel=1e-3)


def test_micro_batches_add_up_to_the_whole():  # M6
    torch.manual_seed(0)
    hidden, weight, gold = torch.randn(10, 3), torch.randn(7, 3), torch.randint(1, 7, (10,))

    def gradient(sizes: list[int]) -> Tensor:
        leaf = weight.clone().requires_grad_()
        for part_hidden, part_gold in zip(hidden.split(sizes), gold.split(sizes), strict=True):
            loss(part_hidden, leaf, part_gold, 0.1)[0].backward()
        return leaf.grad

    torch.testing.assert_close(gradient([2, 8]), gradient([10]))


def test_no_tokens_are_zero():
    hidden = torch.randn(0, 3, requires_grad=True)
    loss_sum, nll_sum = loss(hidden, torch.randn(5, 3), torch.empty(0, dtype=torch.long), 0.1)
    loss_sum.backward()
    assert (loss_sum.item(), nll_sum.item()) == (0, 0)
    assert hidden.grad.shape == (0, 3)


def test_large_logits_do_not_overflow():
    loss_sum, nll_sum = loss(torch.tensor([[1e4, 0.0]]), torch.eye(2), torch.tensor([1]), 0.0)
    assert loss_sum.item() == nll_sum.item() == pytest.approx(1e4)


def test_an_unknown_smoothing_is_reloss():
    with pytest.raises(ConfigError, match=r"optim.smoothing='other'.*others, uniform"):
        loss(torch.zeros(1, 2), torch.eye(2), torch.tensor([1]), 0.1, "other")


@given(
    num_tokens=st.sampled_from([1, 5, 255, 256, 257, 600]),  # 256 rows of logits are held at once
    vocab_size=st.integers(2, 40),
    label_smoothing=st.sampled_from([0.0, 0.1, 0.5]),
    smoothing=st.sampled_from(["others", "uniform"]),
    seed=st.integers(0, 99),
)
def test_chunked_loss_equals_the_definition(num_tokens, vocab_size, label_smoothing, smoothing, seed):
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.randn(num_tokens, 3, generator=generator, dtype=torch.float64)
    weight = torch.randn(vocab_size, 3, generator=generator, dtype=torch.float64)
    gold = torch.randint(0, vocab_size, (num_tokens,), generator=generator)
    results = []
    for sums in (plain, loss):
        leaves = hidden.float().requires_grad_(), weight.float().requires_grad_()
        loss_sum, nll_sum = sums(*leaves, gold, label_smoothing, smoothing)
        (3 * loss_sum).backward()
        results.append((loss_sum.detach(), nll_sum, *(leaf.grad for leaf in leaves)))
    for ours, expected in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(ours, expected, rtol=1e-4, atol=1e-4)


def test_without_gradients_only_the_sums_are_made():
    hidden, weight = torch.randn(4, 3, requires_grad=True), torch.randn(5, 3, requires_grad=True)
    gold = torch.tensor([1, 2, 3, 4])
    with torch.no_grad():
        loss_sum, nll_sum = loss(hidden, weight, gold, 0.1)
    assert not loss_sum.requires_grad
    assert loss_sum.item() == pytest.approx(plain(hidden, weight, gold, 0.1)[0].item(), rel=1e-5)
    assert not nll_sum.requires_grad


def test_all_logits_are_never_held():
    class Largest(TorchDispatchMode):
        numel = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            out = func(*args, **(kwargs or {}))
            if isinstance(out, Tensor):
                self.numel = max(self.numel, out.numel())
            return out

    num_tokens, vocab_size = 1000, 50
    hidden, weight = torch.randn(num_tokens, 3, requires_grad=True), torch.randn(vocab_size, 3, requires_grad=True)
    with Largest() as largest:
        loss(hidden, weight, torch.ones(num_tokens, dtype=torch.long), 0.1)[0].backward()
    assert largest.numel == 256 * vocab_size


def test_the_loss_is_float32_under_autocast():
    torch.manual_seed(0)
    hidden, weight = torch.randn(9, 16, requires_grad=True), torch.randn(11, 16, requires_grad=True)
    gold = torch.randint(1, 11, (9,))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss_sum, nll_sum = loss(hidden, weight, gold, 0.1)
    loss_sum.backward()
    assert loss_sum.dtype == nll_sum.dtype == hidden.grad.dtype == weight.grad.dtype == torch.float32
    assert loss_sum.item() == pytest.approx(plain(hidden, weight, gold, 0.1)[0].item(), rel=2e-2)
