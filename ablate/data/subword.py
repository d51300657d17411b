"""The shared subword vocabulary: byte-pair encoding by SentencePiece, made to give back every text it was given."""

import io
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import SupportsIndex

import sentencepiece

from ablate.data.source import CorpusError
from ablate.rundir import write_bytes

PAD, EOS, UNK = 0, 1, 2
SPACE = "▁"  # U+2581, SentencePiece's sign for a space
UNLEARNABLE = str.maketrans(dict.fromkeys("\0\t▁▅", " "))  # SentencePiece skips lines with these, or misreads them
LONG_WORD = re.compile(r"(\S{1000})")  # its trainer aborts on words above 65,535 characters


class Subwords:
    """Turn text into ids and back, exactly: `decode(encode(text)) == text` for every text without a newline.

    Ids: 0 PAD, 1 EOS, 2 UNK (never produced: what was not learned is spelt in bytes), 256 bytes, learned pieces.
    The model file expects one space in front of each sentence, which `encode` adds and `decode` takes away.
    SentencePiece would turn U+2581 into a space; we spell it in bytes.
    """

    def __init__(self, model: bytes, num_threads: int = -1):
        """Open a model.

        Args:
            model: the bytes of its file.
            num_threads: that encode; -1: all cores.
        """
        self._model = sentencepiece.SentencePieceProcessor(model_proto=model, num_threads=num_threads)
        self._space_sign = [self._model.piece_to_id(f"<0x{byte:02X}>") for byte in SPACE.encode()]

    @classmethod
    def train(cls, sentences: Iterable[str], vocab_size: int, path: Path) -> "Subwords":
        """Learn exactly `vocab_size` ids from sentences and write the model; the same sentences give the same bytes.

        Raises:
            CorpusError: if the text allows only a smaller vocabulary or needs a larger one; names the bound.
        """
        model = io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=_learnable(sentences),
                model_writer=model,
                model_type="bpe",
                vocab_size=vocab_size,
                pad_id=PAD,
                eos_id=EOS,
                unk_id=UNK,
                bos_id=-1,
                pad_piece="▅pad",  # no learned piece holds U+2585, so no text can spell a control id
                eos_piece="▅eos",
                unk_piece="▅unk",
                byte_fallback=True,
                character_coverage=1.0,
                normalization_rule_name="identity",
                remove_extra_whitespaces=False,
                add_dummy_prefix=False,
                max_sentence_length=1 << 30,  # the most it takes; its default of 4,192 bytes skips longer ones silently
                num_threads=1,
                minloglevel=2,
            )
        except RuntimeError as err:
            raise CorpusError(_explain(str(err), vocab_size)) from err
        write_bytes(path, model.getvalue())
        return cls(model.getvalue())

    @property
    def vocab_size(self) -> int:
        """Give the number of ids, PAD, EOS, UNK and the 256 bytes included."""
        return int(self._model.get_piece_size())

    def encode(self, text: str) -> list[int]:
        """Give the ids of a text, without EOS; none for an empty one."""
        return self.encode_many([text])[0]

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Give the ids of each text, without EOS; much faster than one at a time."""
        many: list[list[int]] = self._model.encode([" " + text if text else "" for text in texts])
        for i, text in enumerate(texts):
            if SPACE in text:
                first, *others = self._model.encode((" " + text).split(SPACE))
                many[i] = first + [piece for other in others for piece in self._space_sign + other]
        return many

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """Give the text of ids up to the first EOS; PAD is skipped, bytes that are no UTF-8 become U+FFFD."""
        kept = [int(i) for i in ids]
        if EOS in kept:
            kept = kept[: kept.index(EOS)]
        text: str = self._model.decode([i for i in kept if i != PAD])
        return text.removeprefix(" ")


def _learnable(sentences: Iterable[str]) -> Iterator[str]:
    """Make text that SentencePiece's trainer neither skips nor trips over."""
    for sentence in sentences:
        yield " " + LONG_WORD.sub(r"\1 ", sentence.translate(UNLEARNABLE))


def _explain(message: str, vocab_size: int) -> str:
    """Turn the trainer's message into one that names the field and the bound."""
    if bound := re.search(r"too high.*<= (\d+)", message):
        return f"data.vocab_size={vocab_size}: the training text allows at most {bound[1]}"
    if bound := re.search(r"smaller than required_chars. \d+ vs (\d+)", message):
        return (
            f"data.vocab_size={vocab_size}: must be at least {bound[1]}: 3 control ids, 256 bytes, and each character"
        )
    return f"data.vocab_size={vocab_size}: no subwords could be learned: {message}"
