"""How fast a Transformer trains, beside other toolkits: `python benchmarks/train_speed.py --shape small|base`.

Every contender trains a model of the same shape on the same batches of random sentences with ragged lengths: forward,
label-smoothed cross-entropy (0.1), backward, Adam. What is counted: source and target subwords, end symbols included,
padding not, per second of wall time, after one update that is not timed; and the most memory the process ever held.
float32 (but ours-bf16), CPU. Dropout is 0.1 where the paper has it; the peers' further dropouts, on attention and
inside the feed-forward network, are off. The peers get the fused Adam, too.

  ours         a run's own loop: ablate.train.Trainer
  ours-compile the same with compile=true; the seconds that compiling takes are not counted, and stand in the JSON
  ours-bf16    the same with precision=bf16: its products are in bfloat16, so compare it with ours alone
  torch        torch.nn.Transformer with tied embeddings
  huggingface  MarianMTModel of transformers
  joeynmt      JoeyNMT's model and loss
  products     only the matrix products that such an update cannot do without: the limit, no toolkit
"""

import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from common import arguments, run, timed
from shapes import Sentences, Shape, marian, num_tokens, our_config, padded, sentences
from torch import Tensor, nn

SHAPES = {
    "small": Shape(128, 2, 4, 512, 4_000, num_sentences=128, shortest=12, longest=24, rounds=12),
    "base": Shape(512, 6, 8, 2048, 37_000, num_sentences=32, shortest=16, longest=32, rounds=2),
}
NUM_BATCHES = 4
DROPOUT, SMOOTHING, RATE = 0.1, 0.1, 1e-4

Pair = tuple[Sentences, Sentences]  # a batch: sources, targets
Update = Callable[[int], None]  # trains on the batch with this number
BESIDE: dict[str, float] = {}  # what a contender has to tell beside its speed


def ours(shape: Shape, batches: list[Pair], *settings: str) -> Update:
    """Train as a run does."""
    from ablate.data.batch import Batch, gather
    from ablate.data.packed import Packed
    from ablate.data.subword import EOS
    from ablate.model.transformer import Transformer
    from ablate.rundir import RunDir
    from ablate.track import Tracker
    from ablate.train import Trainer

    same = ["optim.accumulate=1", f"model.dropout={DROPOUT}", f"optim.label_smoothing={SMOOTHING}"]
    cfg = our_config(shape, *same, *settings)
    ended = [[[*words.tolist(), EOS] for pair in batches for words in pair[side]] for side in (0, 1)]
    packed, size = Packed.of(*ended), shape.num_sentences
    ready = [gather(packed, torch.arange(i * size, (i + 1) * size).numpy()) for i in range(len(batches))]
    scratch = RunDir(Path(tempfile.mkdtemp(prefix="ablate-bench-")))
    model = Transformer(cfg.model, shape.vocab_size).train()
    with Tracker(scratch, attempt=1) as tracker:  # an update logs nothing
        trainer = Trainer(cfg, {}, model, packed, packed, scratch.checkpoints, tracker)
    if trainer.gain:
        BESIDE["compile_s"] = trainer.gain.compile_s

    def stream() -> Iterator[tuple[int, int, Batch]]:
        for number in range(sys.maxsize):
            yield 0, number, ready[number % len(ready)]

    endless = stream()
    return lambda number: trainer.update(endless)


def ours_compiled(shape: Shape, batches: list[Pair]) -> Update:
    """Train as a run with compile=true does."""
    return ours(shape, batches, "compile=true", f"optim.batch_tokens={shape.num_sentences * shape.longest}")


def ours_bf16(shape: Shape, batches: list[Pair]) -> Update:
    """Train as a run with precision=bf16 does."""
    return ours(shape, batches, "precision=bf16")


def adam(model: nn.Module) -> torch.optim.Adam:
    """Make the peers' optimiser."""
    return torch.optim.Adam(model.parameters(), lr=RATE, betas=(0.9, 0.98), eps=1e-9, fused=True)


def tensors(batches: list[Pair], eos_id: int, pad_id: int) -> list[tuple[Tensor, Tensor]]:
    """Give the batches in a toolkit's ids."""
    return [tuple(torch.from_numpy(padded(side, eos_id, pad_id)) for side in pair) for pair in batches]  # type: ignore[misc]


def shifted(tgt: Tensor, first_id: int) -> Tensor:
    """Give what the decoder reads."""
    return F.pad(tgt[:, :-1], (1, 0), value=first_id)


class TorchTransformer(nn.Module):
    """What a user of torch.nn.Transformer writes around it: tied embeddings, sinusoids, masks."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.scale = math.sqrt(shape.d_model)
        self.embedding = nn.Embedding(shape.vocab_size, shape.d_model, padding_idx=0)
        nn.init.normal_(self.embedding.weight, std=1 / self.scale)
        sizes = (shape.d_model, shape.num_heads, shape.num_layers, shape.num_layers, shape.d_ff, DROPOUT)
        self.transformer = nn.Transformer(*sizes, batch_first=True)
        self.dropout = nn.Dropout(DROPOUT)
        for module in self.transformer.modules():
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0  # the paper has none on attention
            elif isinstance(module, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
                module.dropout.p = 0.0  # nor between the feed-forward network's two layers
        angle = torch.arange(512)[:, None] * 10_000.0 ** -(torch.arange(0, shape.d_model, 2) / shape.d_model)
        self.register_buffer("positions", torch.cat([angle.sin(), angle.cos()], dim=1))

    def embed(self, ids: Tensor) -> Tensor:
        """Embed ids and add positions."""
        return self.dropout(self.embedding(ids) * self.scale + self.positions[: ids.shape[1]])

    def forward(self, src: Tensor, tgt_in: Tensor) -> Tensor:
        """Give logits."""
        padding, length = src == 0, tgt_in.shape[1]
        later = torch.ones(length, length, dtype=torch.bool).triu(1)
        masks: dict[str, Any] = {"src_key_padding_mask": padding, "memory_key_padding_mask": padding, "tgt_mask": later}
        hidden = self.transformer(self.embed(src), self.embed(tgt_in), **masks, tgt_is_causal=True)
        return F.linear(hidden, self.embedding.weight)


def plain(model: nn.Module, logits_of: Callable[[Tensor, Tensor], Tensor], ready: list, first_id: int, pad_id: int):
    """Give the update of a model that yields logits."""
    optimizer = adam(model)
    model.train()

    def update(number: int) -> None:
        src, tgt = ready[number % len(ready)]
        logits = logits_of(src, shifted(tgt, first_id))
        loss = F.cross_entropy(logits.flatten(0, 1), tgt.flatten(), ignore_index=pad_id, label_smoothing=SMOOTHING)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    return update


def torch_transformer(shape: Shape, batches: list[Pair]) -> Update:
    """Train torch.nn.Transformer."""
    model = TorchTransformer(shape)
    return plain(model, model, tensors(batches, eos_id=1, pad_id=0), first_id=2, pad_id=0)


def huggingface(shape: Shape, batches: list[Pair]) -> Update:
    """Train transformers' MarianMTModel."""
    model, pad_id = marian(shape, DROPOUT), shape.vocab_size - 1

    def logits_of(src: Tensor, tgt_in: Tensor) -> Tensor:
        mask = (src != pad_id).long()
        return model(input_ids=src, attention_mask=mask, decoder_input_ids=tgt_in, use_cache=False).logits

    return plain(model, logits_of, tensors(batches, eos_id=0, pad_id=pad_id), first_id=pad_id, pad_id=pad_id)


def joeynmt(shape: Shape, batches: list[Pair]) -> Update:
    """Train JoeyNMT's Transformer with its own loss."""
    from joeynmt.model import build_model
    from joeynmt.vocabulary import Vocabulary

    names = {f"{name}_token": f"<{name}>" for name in ("unk", "pad", "bos", "eos")}
    ids = {f"{name}_id": number for number, name in enumerate(("unk", "pad", "bos", "eos"))}
    vocabulary = Vocabulary([], SimpleNamespace(**names, **ids, sep_token=None, lang_tags=[]))
    vocabulary._itos += [str(number) for number in range(len(vocabulary), shape.vocab_size)]  # `add_tokens` is O(V²)
    side = {"type": "transformer", "num_layers": shape.num_layers, "num_heads": shape.num_heads}
    side |= {"hidden_size": shape.d_model, "ff_size": shape.d_ff, "dropout": DROPOUT, "layer_norm": "post"}
    side |= {"embeddings": {"embedding_dim": shape.d_model, "scale": True, "dropout": DROPOUT}}
    settings = {"encoder": side, "decoder": side, "tied_embeddings": True, "tied_softmax": True}
    model = build_model(settings, vocabulary, vocabulary)
    model.loss_function = ("crossentropy", SMOOTHING)
    model.train()
    optimizer = adam(model)
    pad_id, first_id = 1, 2
    ready = tensors(batches, eos_id=3, pad_id=pad_id)

    def update(number: int) -> None:
        src, tgt = ready[number % len(ready)]
        src_mask, tgt_mask = (src != pad_id)[:, None], (tgt != pad_id)[:, None]
        batch = {"src": src, "src_mask": src_mask, "src_length": src_mask.sum(-1)[:, 0], "trg": tgt}
        loss = model(return_type="loss", trg_input=shifted(tgt, first_id), trg_mask=tgt_mask, **batch)[0]
        optimizer.zero_grad(set_to_none=True)
        (loss / tgt_mask.sum()).backward()
        optimizer.step()

    return update


def products(shape: Shape, batches: list[Pair]) -> Update:
    """Do an update's products with weights, forward and back, on tokens alone: no attention scores, nothing between."""
    d, ff, n = shape.d_model, shape.d_ff, shape.num_layers
    src_layer = [(d, 3 * d), (d, d), (d, ff), (ff, d)]
    tgt_layer = [(d, 3 * d), (d, d), (d, d), (d, d), (d, ff), (ff, d)]
    of_src, of_tgt = [*src_layer, (d, 2 * d)] * n, tgt_layer * n + [(d, shape.vocab_size)]  # (d, 2d): the memory's
    weights = {size: torch.randn(size) for size in {*of_src, *of_tgt}}
    longest = max(num_tokens(side) for pair in batches for side in pair)
    inputs = {width: torch.randn(longest, width) for width in (d, ff)}

    def update(number: int) -> None:
        src, tgt = batches[number % len(batches)]
        for sizes, rows in ((of_src, num_tokens(src)), (of_tgt, num_tokens(tgt))):
            for size in sizes:
                x, weight = inputs[size[0]][:rows], weights[size]
                y = x @ weight
                y @ weight.t()  # the gradient of x
                x.t() @ y  # of the weight

    return update


CONTENDERS: dict[str, Callable[[Shape, list[Pair]], Update]] = {
    "ours": ours,
    "torch": torch_transformer,
    "huggingface": huggingface,
    "joeynmt": joeynmt,
    "products": products,
    "ours-bf16": ours_bf16,
    "ours-compile": ours_compiled,
}


def work(name: str, shape: Shape, threads: int) -> dict[str, float]:
    """Measure one contender, in this process."""
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    batches = [(sentences(shape, 2 * i), sentences(shape, 2 * i + 1)) for i in range(NUM_BATCHES)]
    update = CONTENDERS[name](shape, batches)
    update(0)

    def updates() -> int:
        for number in range(1, shape.rounds + 1):
            update(number)
        return sum(num_tokens(side) for i in range(1, shape.rounds + 1) for side in batches[i % NUM_BATCHES])

    return timed(updates) | BESIDE


def main() -> None:
    """Measure one contender, or all in turns."""
    given = arguments(__doc__ or "", SHAPES, CONTENDERS, Path(__file__).stem)
    if given.worker:
        print(json.dumps(work(given.worker, SHAPES[given.shape], given.threads)))
    else:
        run(Path(__file__), given, SHAPES[given.shape])


if __name__ == "__main__":
    main()
