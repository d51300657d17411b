import dataclasses
import math

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from ablate.config import ModelConfig
from ablate.model.transformer import Transformer
from ablate.params import body_parameters, count_parameters, params_paper, train_flops

BASE = ModelConfig(
    num_layers=6,
    d_model=512,
    d_ff=2048,
    num_heads=8,
    d_k=64,
    d_v=64,
    dropout=0.1,
    activation="relu",
    positional="sinusoid",
    max_positions=256,
    sinusoid_layout="halves",
    attention_bias=True,
    fused_init=True,
    decoder_start="zeros",
)

# (row, its delta, the authors' accounting, millions the paper prints, 37,000 embedding rows and no extra)
ROWS = [
    ("base", {}, 65_126_400, 65, 63_082_496),
    ("A_h1", {"num_heads": 1, "d_k": 512, "d_v": 512}, 65_126_400, None, 63_082_496),
    ("A_h4", {"num_heads": 4, "d_k": 128, "d_v": 128}, 65_126_400, None, 63_082_496),
    ("A_h16", {"num_heads": 16, "d_k": 32, "d_v": 32}, 65_126_400, None, 63_082_496),
    ("A_h32", {"num_heads": 32, "d_k": 16, "d_v": 16}, 65_126_400, None, 63_082_496),
    ("B_dk16", {"d_k": 16}, 58_034_688, 58, 55_990_784),  # M1: 51 would mean that d_v shrank too
    ("B_dk32", {"d_k": 32}, 60_398_592, 60, 58_354_688),
    ("C_N2", {"num_layers": 2}, 35_700_736, 36, 33_656_832),
    ("C_N4", {"num_layers": 4}, 50_413_568, 50, 48_369_664),
    ("C_N8", {"num_layers": 8}, 79_839_232, 80, 77_795_328),
    ("C_d256", {"d_model": 256, "d_k": 32, "d_v": 32}, 27_856_896, 28, 26_834_944),
    ("C_d1024", {"d_model": 1024, "d_k": 128, "d_v": 128}, 167_976_960, 168, 163_889_152),
    ("C_ff1024", {"d_ff": 1024}, 52_531_200, 53, 50_487_296),
    ("C_ff4096", {"d_ff": 4096}, 90_316_800, 90, 88_272_896),
    ("D_drop0", {"dropout": 0.0}, 65_126_400, None, 63_082_496),
    ("D_drop2", {"dropout": 0.2}, 65_126_400, None, 63_082_496),
    ("D_ls0", {}, 65_126_400, None, 63_082_496),
    ("D_ls2", {}, 65_126_400, None, 63_082_496),
    # 218.3 where the paper prints 213
    ("big", {"d_model": 1024, "d_ff": 4096, "num_heads": 16, "dropout": 0.3}, 218_333_184, None, 214_245_376),
]

SMALL = dataclasses.replace(BASE, num_layers=2, d_model=12, d_ff=20, num_heads=3, d_k=5, d_v=7, max_positions=9)


def instantiated(model: ModelConfig, vocab_size: int) -> int:
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in Transformer(model, vocab_size).parameters())


@pytest.mark.parametrize(("row", "delta", "paper", "printed", "own"), ROWS, ids=[row[0] for row in ROWS])
def test_counts_of_table_3(row: str, delta: dict, paper: int, printed: int | None, own: int):
    model = dataclasses.replace(BASE, **delta)
    assert params_paper(model) == paper
    assert count_parameters(model, 37_000) == own
    assert instantiated(model, 37_000) == own
    if printed is not None:
        assert round(paper / 1e6) == printed


def test_learned_positions_add_a_table_for_each_side():
    model = dataclasses.replace(BASE, positional="learned", max_positions=100)
    assert count_parameters(model, 37_000) == 63_082_496 + 2 * 100 * 512
    assert instantiated(model, 37_000) == count_parameters(model, 37_000)


def test_the_body_of_base_has_no_final_norms():  # M2
    assert body_parameters(BASE) == 44_138_496


@pytest.mark.parametrize("attention_bias", [True, False])
@pytest.mark.parametrize("positional", ["sinusoid", "learned"])
def test_the_count_is_that_of_the_module(attention_bias: bool, positional: str):
    model = dataclasses.replace(SMALL, attention_bias=attention_bias, positional=positional)
    assert count_parameters(model, 31) == instantiated(model, 31)


def test_the_papers_accounting_has_biases_whatever_ours_has():
    assert params_paper(dataclasses.replace(BASE, attention_bias=False)) == 65_126_400


def test_the_module_has_one_matrix_of_embeddings():
    with torch.device("meta"):
        parameters = list(Transformer(BASE, 37_000).parameters())
    assert sum(37_000 in parameter.shape for parameter in parameters) == 1


def test_train_flops_are_the_products_torch_does():
    num_sentences, src_len, tgt_len, vocab_size = 4, 6, 5, 31
    model = Transformer(SMALL, vocab_size)
    src, tgt = torch.full((num_sentences, src_len), 3), torch.full((num_sentences, tgt_len), 3)
    with FlopCounterMode(display=False) as counter:
        model.logits(model(src, tgt)).sum().backward()
    num_tokens = float(num_sentences * src_len), float(num_sentences * tgt_len)
    expected = train_flops(SMALL, vocab_size, *num_tokens, float(src_len), float(tgt_len))
    assert counter.get_total_flops() == expected


def test_train_flops_of_base_are_near_six_per_parameter_and_token():
    # 6 operations per weight and token (Kaplan et al. 2020); half of the tokens pass the encoder, half the decoder.
    flops = train_flops(BASE, 37_000, 1e6, 1e6, 25.0, 25.0)
    assert math.isclose(flops, 6 * 1e6 * count_parameters(BASE, 37_000), rel_tol=0.02)
