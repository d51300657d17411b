from pathlib import Path

import numpy as np
import torch
from processes import together
from test_train import new_model, sentences

from ablate.data.batch import Batch, gather
from ablate.gradient import accumulate_gradients
from ablate.parallel import ALONE, Group


def batch_of(*index: int) -> Batch:
    """Take pairs whose targets have 2, 3, 5, 3 and 9 tokens."""
    return gather(sentences([(4, 2), (6, 3), (2, 5), (7, 3), (3, 9)]), np.array(index))


def gradients(
    *batches: Batch, dropout: float = 0.0, bf16: bool = False, group: Group = ALONE
) -> dict[str, torch.Tensor]:
    model = new_model(dropout).train()
    update = accumulate_gradients(model, list(batches), 0.1, "others", "cpu", bf16, group)
    assert int(update.num_tokens) == (sum(batch.num_tgt_tokens for batch in batches) if group.count == 1 else 12)
    return {name: p.grad for name, p in model.named_parameters()}


def assert_same(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    for name, gradient in ours.items():
        torch.testing.assert_close(gradient, theirs[name], rtol=2e-5, atol=1e-7)


def test_micro_batches_of_2_and_8_tokens_give_the_gradient_of_10():  # M6
    assert (batch_of(0).num_tgt_tokens, batch_of(1, 2).num_tgt_tokens) == (2, 8)
    whole = gradients(batch_of(0, 1, 2))
    assert_same(gradients(batch_of(0), batch_of(1, 2)), whole)
    mean_of_means = [gradients(batch_of(0)), gradients(batch_of(1, 2))]
    name = "embedding.weight"
    wrong = (mean_of_means[0][name] + mean_of_means[1][name]) / 2
    assert not torch.allclose(wrong, whole[name], rtol=1e-2)  # the test can tell them apart


def test_bf16_on_a_cpu_gives_the_gradient_to_its_precision():
    batches = batch_of(0, 1), batch_of(2, 3, 4)
    exact, rounded, again = gradients(*batches), gradients(*batches, bf16=True), gradients(*batches, bf16=True)
    for name, gradient in rounded.items():
        assert gradient.dtype == torch.float32
        assert torch.equal(gradient, again[name])
        error = (gradient - exact[name]).norm() / exact[name].norm().clamp(min=1e-2)
        assert error < 0.05, name  # bfloat16 has 8 bits: one rounding is up to 0.4 %
    assert any(not torch.equal(gradient, exact[name]) for name, gradient in rounded.items())


def compare_two_ranks(group: Group, folder: Path) -> None:
    whole = gradients(batch_of(3, 4))
    mine = batch_of(3 + group.rank)
    assert mine.num_tgt_tokens == (3, 9)[group.rank]
    assert_same(gradients(mine, group=group), whole)


def test_two_processes_with_3_and_9_tokens_give_the_gradient_of_12(tmp_path):  # M7
    together(2, compare_two_ranks, tmp_path)


def test_without_dropout_two_training_passes_are_identical():  # M8
    ones, twos = gradients(batch_of(0, 1, 2, 3, 4)), gradients(batch_of(0, 1, 2, 3, 4))
    assert all(torch.equal(ones[name], twos[name]) for name in ones)
    model = new_model(dropout=0.0).train()
    torch.manual_seed(1)
    before = torch.get_rng_state()
    accumulate_gradients(model, [batch_of(4)], 0.1, "others", "cpu")
    assert torch.equal(torch.get_rng_state(), before)  # nothing random was asked for
    accumulate_gradients(new_model(dropout=0.1).train(), [batch_of(4)], 0.1, "others", "cpu")
    assert not torch.equal(torch.get_rng_state(), before)
