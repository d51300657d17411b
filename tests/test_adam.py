import subprocess
import sys

import pytest
import torch

from ablate.adam import Adam
from ablate.compose import PACKAGE

SETTINGS = {"beta1": 0.9, "beta2": 0.98, "eps": 1e-9}
SHAPES = [(3, 5), (7,), (2, 1, 4)]


def parameters(seed: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(shape, generator=generator, requires_grad=True) for shape in SHAPES]


def give_gradients(params: list[torch.Tensor], seed: int) -> None:
    for param, gradient in zip(params, parameters(seed), strict=True):
        param.grad = gradient.detach()


def torchs(params: list[torch.Tensor]) -> torch.optim.Adam:
    return torch.optim.Adam(params, lr=0.0, betas=(SETTINGS["beta1"], SETTINGS["beta2"]), eps=1e-9, fused=True)


def test_two_steps_worked_out_by_hand():
    param = torch.tensor([1.0], requires_grad=True)
    adam = Adam([param], beta1=0.5, beta2=0.75, eps=1.0)
    param.grad = torch.tensor([2.0])
    adam.step(0.3)  # mean 1, unbiased 1 / (1 - 0.5) = 2; square 1, unbiased 1 / (1 - 0.75) = 4
    assert param.item() == pytest.approx(1 - 0.3 * 2 / (2 + 1))
    param.grad = torch.tensor([-1.0])
    adam.step(0.7)  # mean 0, so it stays where it is
    assert param.item() == pytest.approx(0.8)


def test_its_steps_are_those_of_torchs_adam_bit_for_bit():
    ours, theirs = parameters(seed=1), parameters(seed=1)
    adam, reference = Adam(ours, **SETTINGS), torchs(theirs)
    for step in range(1, 6):
        give_gradients(ours, seed=10 + step)
        give_gradients(theirs, seed=10 + step)
        adam.step(0.01 / step)
        reference.param_groups[0]["lr"] = 0.01 / step
        reference.step()
    for own, other in zip(ours, theirs, strict=True):
        assert torch.equal(own, other)


@pytest.mark.parametrize("make", [lambda params: Adam(params, **SETTINGS), torchs])
def test_it_goes_on_from_its_own_moments_and_from_torchs(make):
    ours, others = parameters(seed=1), parameters(seed=1)
    whole, first = Adam(ours, **SETTINGS), make(others)
    if isinstance(first, torch.optim.Adam):
        first.param_groups[0]["lr"] = 0.01
    give_gradients(ours, seed=2)
    give_gradients(others, seed=2)
    whole.step(0.01)
    first.step(0.01) if isinstance(first, Adam) else first.step()
    resumed = Adam(others, **SETTINGS)
    resumed.load_state_dict(first.state_dict())
    for optimizer, params in ((whole, ours), (resumed, others)):
        give_gradients(params, seed=3)
        optimizer.step(0.02)
    for own, other in zip(ours, others, strict=True):
        assert torch.equal(own, other)


def test_a_parameter_that_no_gradient_reached_is_our_bug():
    params = parameters(seed=1)
    give_gradients(params, seed=2)
    params[1].grad = None
    with pytest.raises(AssertionError, match="every parameter"):
        Adam(params, **SETTINGS).step(0.1)


def test_training_does_not_load_torchs_compiler(tmp_path):
    code = (
        "import sys, torch\nfrom ablate.train import Adam\nx = torch.ones(3, requires_grad=True)\n"
        "adam = Adam([x], 0.9, 0.98, 1e-9)\nx.sum().backward()\nadam.step(0.1)\n"
        "adam.load_state_dict(adam.state_dict())\n"
        "assert 'torch._dynamo' not in sys.modules"
    )
    environment = {"PYTHONPATH": str(PACKAGE.parent)}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=environment, check=True)
