import os
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ablate.model import linear
from ablate.model.linear import Linear, PackedLinear, has_kernels, product

needs_onednn = pytest.mark.skipif(not has_kernels(torch.zeros(1)), reason="torch has no oneDNN here")


@pytest.fixture
def any_is_large(monkeypatch):
    monkeypatch.setattr(linear, "LARGE", 0)


@needs_onednn
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("axes", [(7,), (2, 3)])
def test_onednn_gives_torchs_results_and_gradients(any_is_large, bias, axes):
    torch.manual_seed(1)
    ours, plain = Linear(5, 11, bias=bias), nn.Linear(5, 11, bias=bias)
    plain.load_state_dict(ours.state_dict())
    x = torch.randn(*axes, 5)
    inputs = [x.clone().requires_grad_() for _ in range(2)]
    outputs = [layer(x) for layer, x in zip((ours, plain), inputs, strict=True)]
    assert "_Linear" in outputs[0].grad_fn.name() and "_Linear" not in outputs[1].grad_fn.name()
    torch.testing.assert_close(*outputs)
    upstream = torch.randn(*axes, 11)
    for output in outputs:
        output.backward(upstream)
    torch.testing.assert_close(*(x.grad for x in inputs))
    for of_ours, of_plain in zip(ours.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(of_ours.grad, of_plain.grad)


@needs_onednn
def test_a_small_layer_is_torchs_own_bit_for_bit():
    torch.manual_seed(1)
    layer = Linear(512, 1023)  # one row less than 2^19 weights need
    x = torch.randn(9, 512)
    assert torch.equal(layer(x), F.linear(x, layer.weight, layer.bias))
    assert "_Linear" not in layer(x).grad_fn.name()
    assert "_Linear" in Linear(512, 1024)(x).grad_fn.name()


@needs_onednn
def test_under_autocast_a_large_layer_runs_in_bfloat16(any_is_large):
    layer = Linear(5, 11)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(torch.randn(3, 5)).dtype == torch.bfloat16


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("transposed", [False, True])
def test_products_are_the_same_however_they_are_made(monkeypatch, dtype, transposed):
    torch.manual_seed(1)
    weight = torch.randn(5, 11).t() if transposed else torch.randn(11, 5)
    x, weight = torch.randn(7, 5).to(dtype), weight.to(dtype)
    expected = (x.double() @ weight.double().t()).to(dtype)
    tolerance = {"rtol": 1e-5, "atol": 1e-5} if dtype == torch.float32 else {"rtol": 2e-2, "atol": 2e-2}
    for large in (0, 2**19):
        monkeypatch.setattr(linear, "LARGE", large)
        torch.testing.assert_close(product(x, weight), expected, **tolerance)


@needs_onednn
def test_a_packed_layer_gives_what_it_was_packed_from():
    torch.manual_seed(1)
    layer = nn.Linear(64, 48)
    x = torch.randn(3, 4, 64)
    with torch.no_grad():
        packed, residual = PackedLinear(layer.weight, layer.bias), torch.randn(3, 4, 48)
        torch.testing.assert_close(packed(x), layer(x))
        torch.testing.assert_close(packed(x, residual), layer(x) + residual)


@needs_onednn
def test_layers_with_ever_other_numbers_of_rows_do_not_fill_the_memory():
    # Each number of rows takes a kernel of its own, in the megabytes: 300 of them grew a process by 1.1 GB.
    code = (
        "import psutil, torch\n"
        "from ablate.model.linear import Linear\n"
        "torch.set_num_threads(1)\n"
        "layer, held = Linear(512, 2048), []\n"
        "for rows in range(300, 600):\n"
        "    layer(torch.randn(rows, 512)).sum().backward()\n"
        "    held.append(psutil.Process().memory_info().rss / 2**20)\n"
        "print(held[-1] - held[100])\n"
    )
    env = {name: value for name, value in os.environ.items() if not name.endswith("_CACHE_CAPACITY")}
    env["OMP_NUM_THREADS"] = "1"
    grown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env).stdout
    assert float(grown) < 100
