"""The layers of the model give what torch's own give, whichever kernels they use."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ablate.model import linear
from ablate.model.linear import Linear, PackedLinear, has_onednn

SHAPES = [(3, 5), (2, 4, 5), (1, 5), (0, 5)]


@pytest.fixture(params=["onednn", "torch"])
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Let all layers use oneDNN, or none."""
    if request.param == "onednn" and not has_onednn(torch.zeros(1)):
        pytest.skip("torch has no oneDNN here")
    monkeypatch.setattr(linear, "ONEDNN_FROM", 0 if request.param == "onednn" else 10**9)
    return str(request.param)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("relu", [True, False])
def test_a_layer_and_its_gradients_are_torchs(kernels: str, shape: tuple[int, ...], bias: bool, relu: bool) -> None:
    torch.manual_seed(1)
    ours, plain = Linear(5, 7, bias, relu), nn.Linear(5, 7, bias)
    plain.load_state_dict(ours.state_dict())
    x = torch.randn(shape, requires_grad=True)
    grad = torch.randn(*shape[:-1], 7)
    expected = plain(x).relu() if relu else plain(x)
    got = ours(x)
    torch.testing.assert_close(got, expected)
    wanted = torch.autograd.grad(expected, [x, *plain.parameters()], grad)
    torch.testing.assert_close(torch.autograd.grad(got, [x, *ours.parameters()], grad), wanted)


def test_a_gradient_worked_out_by_hand(kernels: str) -> None:
    layer = Linear(2, 1, relu=True)
    layer.load_state_dict({"weight": torch.tensor([[3.0, -2.0]]), "bias": torch.tensor([1.0])})
    x = torch.tensor([[1.0, 1.0], [1.0, 4.0]], requires_grad=True)
    out = layer(x)  # 3 − 2 + 1 = 2, and max(0, 3 − 8 + 1) = 0
    assert out.tolist() == [[2.0], [0.0]]
    (10 * out).sum().backward()
    assert x.grad is not None and x.grad.tolist() == [[30.0, -20.0], [0.0, 0.0]]
    assert layer.weight.grad is not None and layer.weight.grad.tolist() == [[10.0, 10.0]]
    assert layer.bias.grad is not None and layer.bias.grad.tolist() == [10.0]


def test_an_input_in_columns_of_another_is_read_rightly(kernels: str) -> None:
    layer, wide = Linear(5, 7), torch.randn(3, 9)
    torch.testing.assert_close(layer(wide[:, 2:7]), F.linear(wide[:, 2:7].clone(), layer.weight, layer.bias))


def test_autocast_is_heeded(kernels: str) -> None:
    layer = Linear(5, 7)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert layer(torch.randn(3, 5)).dtype == torch.bfloat16


@pytest.mark.skipif(not has_onednn(torch.zeros(1)), reason="torch has no oneDNN here")
@pytest.mark.parametrize("relu", [True, False])
def test_a_packed_layer_gives_the_same(relu: bool) -> None:
    layer, x = Linear(40, 70, relu=relu), torch.randn(3, 40)
    torch.testing.assert_close(PackedLinear(layer, torch.float32)(x), layer(x))
