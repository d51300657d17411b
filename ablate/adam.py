"""Adam (section 5.3; Kingma & Ba 2015), one fused kernel for all parameters.

The same numbers as `torch.optim.Adam(fused=True)`, bit for bit, whose kernel this is; but making one of those imports
torch's compiler, which takes a second of every run.
"""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


class Adam:
    """Adam without weight decay; the learning rate is given to every step."""

    def __init__(self, parameters: Iterable[Tensor], beta1: float, beta2: float, eps: float) -> None:
        """Begin with moments of zero.

        Args:
            parameters: float32 leaves, on one device.
            beta1: decay of the mean of gradients, β₁.
            beta2: decay of the mean of their squares, β₂.
            eps: added to the root of the latter, ε.
        """
        self.parameters = list(parameters)
        self.beta1, self.beta2, self.eps = beta1, beta2, eps
        self.means = [torch.zeros_like(p, memory_format=torch.preserve_format) for p in self.parameters]
        self.squares = [torch.zeros_like(p, memory_format=torch.preserve_format) for p in self.parameters]
        self.steps = [torch.zeros((), dtype=torch.float32, device=p.device) for p in self.parameters]

    @torch.no_grad()
    def step(self, rate: float) -> None:
        """Move every parameter against its `.grad`, at this learning rate."""
        gradients = [p.grad for p in self.parameters if p.grad is not None]
        assert len(gradients) == len(self.parameters), "every parameter takes part in every update"
        torch._foreach_add_(self.steps, 1)
        torch._fused_adam_(
            self.parameters,
            gradients,
            self.means,
            self.squares,
            [],
            self.steps,
            lr=rate,
            beta1=self.beta1,
            beta2=self.beta2,
            weight_decay=0.0,
            eps=self.eps,
            amsgrad=False,
            maximize=False,
        )

    def state_dict(self) -> dict[str, Any]:
        """Give the moments as `torch.optim.Adam` names them, by the parameters' order; not copied."""
        states = zip(self.steps, self.means, self.squares, strict=True)
        names = ("step", "exp_avg", "exp_avg_sq")
        return {"state": {i: dict(zip(names, state, strict=True)) for i, state in enumerate(states)}}

    @torch.no_grad()
    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Go on from what `state_dict` gave, or `torch.optim.Adam`'s for the same parameters."""
        for i, own in self.state_dict()["state"].items():
            for name, tensor in own.items():
                tensor.copy_(saved["state"][i][name])
