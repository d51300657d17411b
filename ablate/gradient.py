"""The gradient of one update, over all its micro-batches and processes."""

from dataclasses import dataclass

import torch
from torch import Tensor

from ablate.data.batch import Batch
from ablate.loss import smoothed_loss
from ablate.model.ragged import Ragged
from ablate.model.transformer import Transformer
from ablate.parallel import ALONE, Group


@dataclass
class Update:
    """What one update did, on all ranks; tensors stay on the device until somebody reads them."""

    loss_sum: Tensor
    nll_sum: Tensor
    num_tokens: Tensor  # target tokens, padding excluded


def accumulate_gradients(
    model: Transformer,
    batches: list[Batch],
    label_smoothing: float,
    smoothing: str,
    device: str,
    bf16: bool = False,
    group: Group = ALONE,
) -> Update:
    """Put the gradient of Σ loss / Σ target tokens into `.grad`, over all micro-batches and ranks.

    Dividing once, by the tokens of all, is what makes micro-batches and ranks of any size equal one big batch: a mean
    of means does not.

    Args:
        model: its `.grad` fields must be None.
        batches: the micro-batches of this rank.
        label_smoothing: the paper's ε.
        smoothing: see `ablate.loss.smoothed_targets`.
        device: where the model is.
        bf16: run the matrix products in bfloat16.
        group: the processes that have the other micro-batches.
    """
    exact = torch.float32 if device == "mps" else torch.float64  # Apple's GPUs have no float64
    zero = torch.zeros((), dtype=exact, device=device)
    loss_sum, nll_sum = zero.clone(), zero.clone()
    tgt_tokens = sum(batch.num_tgt_tokens for batch in batches)
    num_tokens = group.total(torch.full((), tgt_tokens, dtype=exact, device=device))  # torch.tensor waits for a GPU
    share = (1 / num_tokens).float()  # of a token in the mean
    for batch in batches:
        src, tgt = (
            Ragged.of(torch.from_numpy(ids), model.pad_id, always_mask=model.compiled is not None).to(device)
            for ids in (batch.src, batch.tgt)
        )
        with torch.autocast(device, dtype=torch.bfloat16, enabled=bf16):
            hidden, output = model.predict(src, tgt)  # (N, d_model), (V, d_model)
            loss, nll = smoothed_loss(hidden, output, tgt.ids, label_smoothing, smoothing)
        loss.backward(share)
        loss_sum += loss.detach()
        nll_sum += nll.detach()
    loss_sum, nll_sum = group.total(torch.stack([loss_sum, nll_sum])).unbind()
    group.total_gradients(model.parameters())
    return Update(loss_sum, nll_sum, num_tokens)
