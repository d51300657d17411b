"""Steps that torch's compiler takes as they are: those that it cannot compile, or makes slower than torch has them."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LIBRARY = torch.library.Library("ablate", "DEF")


def opaque(schema: str, kernel: Callable[..., Tensor], like: Callable[..., Tensor], random: bool = False) -> Any:
    """Give a function that does what `kernel` does, and that is one step of a compiled region.

    Args:
        schema: name, arguments and result as torch's operators declare them.
        kernel: the work, on a CPU, without a gradient; its result shares no memory with its arguments.
        like: gives an empty tensor of the result's shape and type.
        random: whether it draws from torch's generator.
    """
    name = schema.partition("(")[0]
    LIBRARY.define(schema, tags=(torch.Tag.nondeterministic_seeded,) if random else ())
    LIBRARY.impl(name, kernel, "CPU")
    torch.library.register_fake(f"ablate::{name}", like, lib=LIBRARY)
    operator = getattr(torch.ops.ablate, name)

    def step(*arguments: Any) -> Tensor:
        result: Tensor = operator(*arguments) if torch.compiler.is_compiling() else kernel(*arguments)
        return result

    return step
