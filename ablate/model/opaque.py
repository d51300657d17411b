"""Steps that torch's compiler takes as they are, on a CPU: it cannot compile them, or they are slower when it does."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LIBRARY = torch.library.Library("ablate", "DEF")


def opaque(schema: str, kernel: Callable[..., Tensor], like: Callable[..., Tensor], random: bool = False) -> Any:
    """Give a function that does what `kernel` does, and that is one step of a compiled region on a CPU.

    Args:
        schema: name, arguments and result as torch's operators declare them.
        kernel: the work, without a gradient; its first argument is a tensor, its result shares no memory with any.
        like: gives an empty tensor of the result's shape and type.
        random: whether it draws from torch's generator.
    """
    name = schema.partition("(")[0]
    LIBRARY.define(schema, tags=(torch.Tag.nondeterministic_seeded,) if random else ())
    LIBRARY.impl(name, kernel, "CPU")
    torch.library.register_fake(f"ablate::{name}", like, lib=LIBRARY)
    operator = getattr(torch.ops.ablate, name)

    def step(x: Tensor, *others: Any) -> Tensor:
        compiling = torch.compiler.is_compiling() and x.device.type == "cpu"
        result: Tensor = operator(x, *others) if compiling else kernel(x, *others)
        return result

    return step
