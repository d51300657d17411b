"""How fast beam search is, beside other toolkits: `python benchmarks/decode_speed.py --shape small|base`.

Every contender translates the same random sentences of ragged lengths, all handed over at once, with beam 4 and length
penalty 0.6 into exactly 24 subwords: the end symbol can come last only. So all do the same work, whatever their
weights. What is counted: sentences × 24 subwords per second of wall time, encoder included, after one translation that
is not timed; and the most memory the process ever held. float32, CPU. The shapes whose names end in -mixed have
sentences of 4 to 60 subwords.

  ours               ablate.decode.translate_all, default batches of 64 sentences
  huggingface        generate of transformers' MarianMTModel
  ctranslate2        the same MarianMTModel, converted to CTranslate2; each thread has its share, as ours at small
  ctranslate2-intra  the same with all threads on one batch, CTranslate2's default
"""

import dataclasses
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from common import arguments, run, timed
from shapes import Sentences, Shape, marian, our_config, padded, sentences

SHAPES = {
    "small": Shape(128, 3, 4, 512, 4_000, num_sentences=64, shortest=12, longest=24, rounds=3),
    "base": Shape(512, 6, 8, 2048, 37_000, num_sentences=32, shortest=16, longest=32, rounds=1),
}
SHAPES |= {f"{name}-mixed": dataclasses.replace(shape, shortest=4, longest=60) for name, shape in SHAPES.items()}
BEAM, ALPHA, LENGTH = 4, 0.6, 24

# Translates all sentences; gives the length of each translation, end symbol included.
Translate = Callable[[], list[int]]


def ours(shape: Shape, src: Sentences, threads: int) -> Translate:
    """Translate as evaluation does."""
    from ablate.data.subword import EOS
    from ablate.decode import translate_all
    from ablate.model.inference import Decoder
    from ablate.model.transformer import Transformer

    class Forced(Decoder):
        """Ends every translation with its 24th subword and not before."""

        def step(self, state, ids):
            logits = super().step(state, ids)
            end = logits[:, EOS].clone()
            if state.length < LENGTH:
                logits[:, EOS] = -torch.inf
            else:
                logits.fill_(-torch.inf)[:, EOS] = end
            return logits

    cfg = our_config(shape, f"decode.beam_size={BEAM}", f"decode.length_penalty={ALPHA}")
    model = Forced(Transformer(cfg.model, shape.vocab_size).eval())
    ended = [torch.tensor([*words, EOS]).numpy() for words in src]
    return lambda: [len(found.ids) + 1 for found in translate_all(model, ended, cfg.decode, "cpu")]


def huggingface(shape: Shape, src: Sentences, threads: int) -> Translate:
    """Translate with `generate`."""
    model = marian(shape, dropout=0.0).eval()
    ids = torch.from_numpy(padded(src, eos_id=0, pad_id=shape.vocab_size - 1))
    batch = {"input_ids": ids, "attention_mask": (ids != shape.vocab_size - 1).long()}
    search = {"num_beams": BEAM, "length_penalty": ALPHA, "min_new_tokens": LENGTH, "max_new_tokens": LENGTH}

    def translate() -> list[int]:
        found = model.generate(**batch, **search)[:, 1:]  # without the decoder's first input
        return [len(row) for row in found]

    return translate


def convert(shape: Shape, folder: Path) -> None:
    """Turn a MarianMTModel into CTranslate2's format; its tokenizer's part is played by the ids in words."""
    from ctranslate2.converters.converter import Converter
    from ctranslate2.converters.transformers import MarianMTLoader

    vocabulary = {str(i): i for i in range(shape.vocab_size - 1)} | {"<pad>": shape.vocab_size - 1}

    class Marian(Converter):
        def _load(self):
            with torch.no_grad():
                tokenizer = SimpleNamespace(eos_token="0", unk_token="1", get_vocab=lambda: vocabulary)
                return MarianMTLoader()(marian(shape, dropout=0.0), tokenizer)

    Marian().convert(str(folder))


def ctranslate2(shape: Shape, src: Sentences, threads: int, share_batches: bool = False) -> Translate:
    """Translate with CTranslate2; another process converts, so that its memory does not count.

    Args:
        share_batches: all threads work on one batch, instead of each on its own.
    """
    from ctranslate2 import Translator

    folder = Path(tempfile.gettempdir()) / f"ctranslate2-{shape.d_model}-{shape.num_layers}"
    if not folder.exists():
        code = "import sys, decode_speed as d; d.convert(d.Shape(*map(int, sys.argv[2:])), d.Path(sys.argv[1]))"
        values = map(str, dataclasses.astuple(shape))
        subprocess.run([sys.executable, "-c", code, folder, *values], cwd=Path(__file__).parent, check=True)
    inter, intra = (1, threads) if share_batches else (threads, 1)
    translator = Translator(str(folder), device="cpu", compute_type="float32", inter_threads=inter, intra_threads=intra)
    words = [[*map(str, sentence), "0"] for sentence in src]
    search = {"beam_size": BEAM, "length_penalty": ALPHA, "min_decoding_length": LENGTH, "max_decoding_length": LENGTH}
    search["max_batch_size"] = -(-len(src) // inter)
    return lambda: [len(found.hypotheses[0]) for found in translator.translate_batch(words, **search)]


CONTENDERS: dict[str, Callable[[Shape, Sentences, int], Translate]] = {
    "ours": ours,
    "huggingface": huggingface,
    "ctranslate2": ctranslate2,
    "ctranslate2-intra": partial(ctranslate2, share_batches=True),
}


def work(name: str, shape: Shape, threads: int) -> dict[str, float]:
    """Measure one contender, in this process."""
    torch.set_num_threads(threads)
    torch.manual_seed(1)
    translate = CONTENDERS[name](shape, sentences(shape, seed=1), threads)
    lengths = translate()
    if lengths != [LENGTH] * shape.num_sentences:
        raise RuntimeError(f"{name} wrote {lengths} subwords instead of {LENGTH} for each of the sentences")
    return timed(lambda: sum(sum(translate()) for _ in range(shape.rounds)))


def main() -> None:
    """Measure one contender, or all in turns."""
    given = arguments(__doc__ or "", SHAPES, CONTENDERS, Path(__file__).stem)
    if given.worker:
        print(json.dumps(work(given.worker, SHAPES[given.shape], given.threads)))
    else:
        run(Path(__file__), given, SHAPES[given.shape])


if __name__ == "__main__":
    main()
