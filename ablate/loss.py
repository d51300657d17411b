"""Label-smoothed cross-entropy (section 5.4), as sums over tokens.

The caller divides Σ loss by Σ tokens over all micro-batches and processes: a mean of means is another loss.
Axes: N tokens, V vocabulary.
"""

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ablate.errors import ConfigError
from ablate.model.linear import product

NUM_ROWS = {"cpu": 256, "gpu": 4096}  # of logits held at once: what a cache, or a GPU, does best with


def smoothed_targets(label_smoothing: float, smoothing: str, vocab_size: int) -> tuple[float, float]:
    """Give the probability that smoothing puts on the gold id, and on each other id.

    Args:
        label_smoothing: the paper's ε.
        smoothing: "others" spreads ε over the V − 1 other ids (the authors' program), "uniform" over all V (torch's).
        vocab_size: V.

    Raises:
        ConfigError: for another `smoothing`.
    """
    if smoothing == "others":
        return 1 - label_smoothing, label_smoothing / (vocab_size - 1)
    if smoothing == "uniform":
        return 1 - label_smoothing + label_smoothing / vocab_size, label_smoothing / vocab_size
    raise ConfigError("optim.smoothing", smoothing, "valid: others, uniform")


class _SmoothedLoss(torch.autograd.Function):
    """Σ loss and Σ NLL of hidden states; the gradients are made beside them, so each logit is computed once."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, gold: Tensor, on_gold: float, on_other: float, train: bool
    ) -> tuple[Tensor, Tensor]:
        device = hidden.device.type
        autocast = torch.is_autocast_enabled(device)
        dtype = torch.get_autocast_dtype(device) if autocast else hidden.dtype  # of the three big products
        hidden_cast, weight_cast = hidden.to(dtype), weight.to(dtype)
        loss, nll = hidden.new_zeros((), dtype=torch.float32), hidden.new_zeros((), dtype=torch.float32)
        grad_hidden = torch.empty_like(hidden) if train else None
        grad_weight = torch.empty_like(weight) if train else None
        num_rows = min(NUM_ROWS["cpu" if device == "cpu" else "gpu"], len(gold))
        for start in range(0, len(gold), max(num_rows, 1)):
            part = slice(start, start + num_rows)
            gold_ids = gold[part, None]
            logits = product(hidden_cast[part], weight_cast).float()  # (rows, V)
            gold_logits, largest = logits.gather(1, gold_ids), logits.amax(1, keepdim=True)
            if on_other > 0:
                loss -= on_other * logits.sum()
            probs = torch.softmax(logits, 1, out=logits)  # in place
            log_total = largest - probs.amax(1, keepdim=True).log()  # of Σ exp(logits), whose share `largest` has
            loss += log_total.sum() - (on_gold - on_other) * gold_logits.sum()
            nll += (log_total - gold_logits).sum()
            if grad_hidden is not None and grad_weight is not None:
                probs.sub_(on_other).scatter_add_(1, gold_ids, torch.full_like(gold_logits, on_other - on_gold))
                grad_logits = probs.to(dtype)  # probabilities minus targets
                grad_hidden[part] = product(grad_logits, weight_cast.t())
                if dtype == torch.float32:
                    grad_weight.addmm_(grad_logits.t(), hidden_cast[part], beta=int(start > 0))
                else:
                    of_part = grad_logits.t() @ hidden_cast[part]
                    grad_weight = grad_weight.add_(of_part) if start else grad_weight.copy_(of_part)
                del grad_logits
            del logits, probs  # or the next part's would be held beside them
        if grad_weight is not None and not len(gold):
            grad_weight.zero_()
        ctx.save_for_backward(grad_hidden, grad_weight)
        ctx.mark_non_differentiable(nll)
        return loss, nll

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        grad_hidden, grad_weight = ctx.saved_tensors  # ours alone, so they may be overwritten
        return grad_hidden.mul_(grads[0]), grad_weight.mul_(grads[0]), None, None, None, None


def smoothed_loss(
    hidden: Float[Tensor, "N d_model"],
    weight: Float[Tensor, "V d_model"],
    gold: Int[Tensor, "N"],
    label_smoothing: float,
    smoothing: str,
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """Sum the smoothed cross-entropy of the tokens whose logits are `hidden @ weight.T`, in nats and in float32.

    The N × V logits are never held: the output layer runs on some rows at a time. On a CPU this takes half the time
    of torch's `log_softmax`. Under autocast the products run in its type, the rest in float32. Backward may be called
    once.

    Args:
        hidden: the decoder's output, `Transformer.predict`.
        weight: the output matrix, likewise.
        gold: the right ids.
        label_smoothing: as in `smoothed_targets`.
        smoothing: as in `smoothed_targets`.

    Returns:
        Σ loss, with gradients to `hidden` and `weight`; Σ negative log-likelihood without smoothing and gradient.
    """
    on_gold, on_other = smoothed_targets(label_smoothing, smoothing, weight.shape[0])
    loss, nll = _SmoothedLoss.apply(hidden, weight, gold.long(), on_gold, on_other, torch.is_grad_enabled())  # type: ignore[no-untyped-call]
    return loss, nll
