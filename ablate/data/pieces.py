"""The vocabulary of text that others have tokenised and segmented: pieces between spaces, one id each."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import SupportsIndex

from ablate.data.subword import EOS, PAD, UNK
from ablate.rundir import write_bytes

CONTROLS = 3  # PAD, EOS, UNK
JOINED = "@@ "  # subword-nmt's sign that a word goes on


class Pieces:
    """Turn segmented text into ids and back into plain text.

    Ids: 0 PAD, 1 EOS, 2 UNK (for a piece that is not in the vocabulary, as the authors' program has it), then the lines
    of the vocabulary's file. `encode` takes segmented text; `decode` gives detokenised text, by sacremoses, which does
    not undo everything that Moses's tokenizer did.
    """

    def __init__(self, pieces: Sequence[str], lang: str):
        """Take the pieces in the order of their ids, and the language of the text that `decode` gives."""
        self._pieces, self._lang = list(pieces), lang
        self._ids = {piece: i + CONTROLS for i, piece in enumerate(pieces)}

    @classmethod
    def open(cls, path: Path, lang: str) -> "Pieces":
        """Read a vocabulary, a piece a line."""
        return cls(path.read_text("utf-8").split("\n")[:-1], lang)

    def save(self, path: Path) -> None:
        """Write the vocabulary."""
        write_bytes(path, "".join(f"{piece}\n" for piece in self._pieces).encode())

    @property
    def vocab_size(self) -> int:
        """Give the number of ids, PAD, EOS and UNK included."""
        return len(self._pieces) + CONTROLS

    def encode(self, text: str) -> list[int]:
        """Give the ids of segmented text, without EOS; none for an empty one."""
        return [self._ids.get(piece, UNK) for piece in text.split(" ") if piece]

    def encode_many(self, texts: Sequence[str]) -> list[list[int]]:
        """Give the ids of each text, without EOS."""
        return [self.encode(text) for text in texts]

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """Give the detokenised text of ids up to the first EOS; PAD is skipped, UNK becomes "UNK"."""
        kept: list[str] = []
        for i in map(int, ids):
            if i == EOS:
                break
            if i != PAD:
                kept.append("UNK" if i == UNK else self._pieces[i - CONTROLS])
        return detokenise(" ".join(kept), self._lang)


def detokenise(segmented: str, lang: str) -> str:
    """Join subwords to words, and words to text, as far as Moses's detokenizer can."""
    import sacremoses  # a quarter of a second that only this kind of text shall cost

    # as subword-nmt's own sed -r 's/(@@ )|(@@ ?$)//g'
    words = f"{segmented} ".replace(JOINED, "").split(" ")
    text: str = sacremoses.MosesDetokenizer(lang).detokenize(words)
    return text
