"""The authors' own segmentation: WMT16 English-German, tokenised, with 32,000 joint merges, from a local folder."""

import itertools
from pathlib import Path

from ablate.config import SegmentedData
from ablate.data.lines import aligned, filled, text_lines
from ablate.data.pieces import CONTROLS, Pieces
from ablate.data.source import Counts, Pairs, Source, check_languages, digest_of
from ablate.errors import ConfigError

VOCABULARY = "vocab.bpe.32000"
FILES = {
    "train": "train.tok.clean.bpe.32000",
    "dev": "newstest2013.tok.bpe.32000",
    "test": "newstest2014.tok.bpe.32000",
}


def source(data: SegmentedData) -> Source:
    """Check that the files are there and hash them; the text is read later. The test set may be missing.

    Raises:
        ConfigError: for a missing folder or file, other languages, or a vocabulary of another size than said.
        CorpusError: for a vocabulary that is not UTF-8.
    """
    check_languages(data, ("en", "de"))
    if data.folder is None:
        raise ConfigError("data.folder", None, f"is needed: the folder that holds {VOCABULARY} and {FILES['train']}.en")
    folder = Path(data.folder).expanduser()
    paths = {
        split: [folder / f"{name}.{side}" for side in (data.src_lang, data.tgt_lang)] for split, name in FILES.items()
    }
    if not any(path.exists() for path in paths["test"]):
        del paths["test"]
    for path in (folder / VOCABULARY, *(path for sides in paths.values() for path in sides)):
        if not path.is_file():
            raise ConfigError("data.folder", data.folder, f"has no {path.name} (from {Path.cwd()})")
    pieces = vocabulary(folder / VOCABULARY)
    if (size := len(pieces) + CONTROLS) != data.vocab_size:
        allowed = f"must be {size:,}: {VOCABULARY} and {CONTROLS} control ids"
        raise ConfigError("data.vocab_size", data.vocab_size, allowed)
    return Source(
        origin=f"WMT16 English-German, tokenised, 32,000 joint BPE merges (subword-nmt), in {folder}",
        licence="as WMT16's",
        identity={path.name: digest_of(path) for path in (folder / VOCABULARY, *itertools.chain(*paths.values()))},
        read=lambda counts, say, scratch: _read(paths, counts),
        pieces=Pieces(pieces, data.tgt_lang),
    )


def vocabulary(path: Path) -> list[str]:
    """Read the pieces of a vocabulary: the first word of each line, for some have counts beside it."""
    return [line.split(" ")[0] for line in text_lines("vocabulary", path, Counts()) if line]


def vocab_size(folder: str | None) -> int:
    """Count the ids of the authors' vocabulary; 37,000 (section 5.1: about) until `source` finds it missing."""
    path = Path(folder or "").expanduser() / VOCABULARY
    return len(vocabulary(path)) + CONTROLS if folder is not None and path.is_file() else 37_000


def _read(paths: dict[str, list[Path]], counts: Counts) -> Pairs:
    for split, (src, tgt) in paths.items():
        pairs = aligned(split, src, tgt, text_lines(split, src, counts), text_lines(split, tgt, counts))
        yield from filled(split, pairs, counts)
