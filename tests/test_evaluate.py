import math

import pytest
import torch

from ablate import evaluate
from ablate.bleu import ScoreError
from ablate.config import ModelConfig
from ablate.data.packed import Packed
from ablate.evaluate import clean, perplexity
from ablate.model.transformer import Transformer

V = 11
MODEL = ModelConfig(
    num_layers=1,
    d_model=6,
    d_ff=10,
    num_heads=2,
    d_k=3,
    d_v=5,
    dropout=0.5,
    activation="relu",
    positional="sinusoid",
    max_positions=64,
    sinusoid_layout="halves",
    attention_bias=True,
    fused_init=True,
    decoder_start="zeros",
)
# Every sentence ends in 1, the end symbol.
DEV = Packed.of(
    [[3, 4, 1], [5, 1], [6, 7, 8, 9, 10, 1], [4, 4, 4, 1]], [[5, 1], [6, 7, 8, 1], [9, 1], [10, 3, 4, 5, 6, 7, 1]]
)


@pytest.fixture
def model() -> Transformer:
    torch.manual_seed(1)
    return Transformer(MODEL, V)


def num_tokens(packed: Packed) -> int:
    return int(sum(packed.tgt_lengths))


def test_a_model_that_knows_nothing_has_the_perplexity_of_its_vocabulary(model):
    with torch.no_grad():
        model.embedding.weight.zero_()  # every logit is 0
    measured = perplexity(model, DEV, 1000, "cpu")
    assert measured.ppl == pytest.approx(V, rel=1e-6)
    assert measured.nll_per_token == pytest.approx(math.log(V), rel=1e-6)
    assert measured.num_tokens == num_tokens(DEV)


def test_the_end_symbol_counts_and_padding_does_not(model):
    assert perplexity(model, DEV, 1000, "cpu").num_tokens == (1 + 3 + 1 + 6) + 4  # sentences of different lengths


def test_perplexity_is_of_all_tokens_together_and_not_a_mean_of_batches(model, monkeypatch):
    # recipe: 2 tokens at NLL 1 and 8 at NLL 2 give exp(18 / 10) = 6.0496, not exp(1.5) = 4.4817.
    packed = Packed.of([[3, 1], [3, 1]], [[4, 1], [4, 4, 4, 4, 4, 4, 4, 1]])

    def fake_loss(hidden, weight, tgt, *others):
        total = torch.tensor(len(tgt) * {2: 1.0, 8: 2.0}[len(tgt)], dtype=torch.float64)
        return total, total

    monkeypatch.setattr(evaluate, "smoothed_loss", fake_loss)
    measured = perplexity(model, packed, 8, "cpu")
    assert measured.num_tokens == 10
    assert measured.ppl == pytest.approx(6.0496, abs=5e-5)


def test_batches_change_perplexity_only_up_to_rounding(model):
    one_by_one, together = (perplexity(model, DEV, size, "cpu") for size in (1, 1000))
    assert one_by_one.ppl == pytest.approx(together.ppl, rel=1e-6)


def test_dropout_and_smoothing_play_no_part_and_the_mode_is_left_as_it_was(model):  # M10
    model.train()
    first = perplexity(model, DEV, 20, "cpu")
    assert model.training
    assert perplexity(model, DEV, 20, "cpu") == first
    model.eval()
    assert perplexity(model, DEV, 20, "cpu") == first
    assert not model.training
    with torch.no_grad():  # by hand: the NLL of each gold token of each sentence alone
        total = 0.0
        for i in range(len(DEV)):
            src, tgt = (torch.from_numpy(side(i).astype("int64"))[None] for side in (DEV.src, DEV.tgt))
            logits = model(src, tgt) @ model.embedding.weight.T
            total -= float(logits.double().log_softmax(-1).gather(-1, tgt[..., None]).sum())
    assert first.nll_per_token == pytest.approx(total / num_tokens(DEV), rel=1e-5)


@pytest.mark.parametrize("nll", [math.nan, math.inf, 1e6])
def test_a_diverged_model_is_an_error_and_no_number(nll, model, monkeypatch):
    broken = torch.tensor(nll, dtype=torch.float64)
    monkeypatch.setattr(evaluate, "smoothed_loss", lambda *arguments: (broken, broken))
    with pytest.raises(ScoreError, match="the model has diverged"):
        perplexity(model, DEV, 1000, "cpu")


def test_a_translation_stays_on_one_line():
    assert clean("one\ntwo\r\nthree\rfour") == "one two  three four"
    assert clean("a\u2028b") == "a\u2028b"  # only a newline ends a line of our files
