"""A prepared corpus: text, cleaned and split, its subwords, and its packed ids, made once and found again by key."""

import dataclasses
import hashlib
import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import sentencepiece

from ablate.config import PATHS, DataConfig
from ablate.data import files, homeassistant, multi30k, synthetic
from ablate.data.packed import Packed, Writer, dtype_of
from ablate.data.source import SIDES, SPLITS, CorpusError, Counts, Pairs, Source, data_root, read_lines, waiting_lock
from ablate.data.subword import Subwords
from ablate.rundir import Held, lock, read_json, sync_folder, write_json

__all__ = ["Corpus", "CorpusError", "data_root", "find", "prepare", "reopen"]

PREPARATION_VERSION = "1"  # raise it when this package would make other bytes from the same text
ENCODE_PAIRS = 10_000  # pairs encoded at once
SOURCES: dict[str, Callable[[Any], Source]] = {
    "homeassistant": homeassistant.source,
    "synthetic": synthetic.source,
    "files": files.source,
    "multi30k": multi30k.source,
}


class Corpus:
    """A prepared corpus in its folder.

    Attributes:
        folder: where it lies.
        manifest: name, languages, origin, licence, pairs, subwords, dropped, mended, digests, versions.
        digests: "corpus": SHA-256 over the cleaned text of all splits; "vocab": SHA-256 of the SentencePiece model.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.manifest: dict[str, Any] = read_json(folder / "manifest.json")
        self.digests: dict[str, str] = self.manifest["digests"]

    @property
    def subwords(self) -> Subwords:
        """Open the shared subword vocabulary."""
        return Subwords.open(self.folder / "subwords.model")

    def split(self, name: str) -> Packed:
        """Open the token ids of train, dev or test.

        Raises:
            CorpusError: if the corpus has no such split; names those it has.
        """
        self._check(name, list(self.manifest["pairs"]))
        return Packed.open(self.folder, name, self.manifest["dtype"])

    def text(self, name: str, side: str) -> list[str]:
        """Read the sentences of dev or test in the corpus's order; `side` is src or tgt."""
        self._check(name, [split for split in self.manifest["pairs"] if split != "train"])
        if side not in SIDES:
            raise CorpusError(f"no side {side!r}; there are: {', '.join(SIDES)}")
        return list(read_lines(self.folder / f"{name}.{side}.txt"))

    def _check(self, name: str, available: list[str]) -> None:
        if name not in available:
            raise CorpusError(f"{self.manifest['name']} has no {name!r}; there are: {', '.join(available)}")

    def describe(self) -> str:
        """Say in a few lines what the corpus is and what was dropped to make it."""
        made = self.manifest
        lines = [
            f"{made['name']}, {made['languages']['src']} → {made['languages']['tgt']}: {made['origin']}",
            f"licence: {made['licence']}",
        ]
        for split, pairs in made["pairs"].items():
            tokens = made["subwords"][split]
            lines.append(f"{split}: {pairs:,} pairs, {tokens['src']:,} + {tokens['tgt']:,} subwords")
        for what in ("dropped", "mended"):
            lines += [f"{what}: {count:,} × {reason}" for reason, count in made[what].items()]
        shortened = ", ".join(f"{name} {digest[:12]}" for name, digest in self.digests.items())
        return "\n".join([*lines, f"vocabulary: {made['vocab_size']:,} ids; digests: {shortened}", str(self.folder)])


def find(data: DataConfig) -> Corpus | None:
    """Give the prepared corpus if it is there; writes nothing and downloads nothing.

    Raises:
        ConfigError, CorpusError: for settings no corpus can be made of.
    """
    return _find(_folder(data, SOURCES[data.name](data)))


def reopen(folder: Path, digests: dict[str, str]) -> Corpus:
    """Open a prepared corpus where a plan found it; the user's files need not be there any more.

    Raises:
        CorpusError: if it is gone, or is not the one the digests name.
    """
    corpus = _find(folder)
    if corpus is None:
        raise CorpusError(f"{folder}: the prepared corpus is not there any more; give the command that planned the run")
    if corpus.digests != digests:
        raise CorpusError(f"{folder}: holds {corpus.digests}, the run was planned with {digests}")
    return corpus


def prepare(data: DataConfig, say: Callable[[str], None] = print) -> Corpus:
    """Give the prepared corpus, making it first if it is not there: once, whoever else asks at the same time.

    It is made aside and renamed, so that no other process sees a part of it; what killed processes left is swept.

    Args:
        data: which corpus, and its segmentation.
        say: takes each line of progress.

    Raises:
        ConfigError, CorpusError: for what the user can mend; nothing is left behind.
    """
    source = SOURCES[data.name](data)
    folder = _folder(data, source)
    if found := _find(folder):
        return found
    with waiting_lock(_lock_of(folder), folder.name, say):
        if found := _find(folder):
            return found
        aside = _aside_of(folder)
        shutil.rmtree(aside, ignore_errors=True)  # of a killed preparation: its lock is ours now
        _sweep(folder.parent)
        aside.mkdir(parents=True)
        try:
            write_json(aside / "manifest.json", _build(data, source, aside, say))
            if _folder(data, SOURCES[data.name](data)) != folder:
                raise CorpusError(f"the files of data={data.name} changed while they were read; try again")
            for path in (*aside.iterdir(), aside):
                sync_folder(path)
            aside.rename(folder)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
    return Corpus(folder)


def _folder(data: DataConfig, source: Source) -> Path:
    paths = {name.removeprefix("data.") for name in PATHS}
    made_from = {
        "data": {name: value for name, value in dataclasses.asdict(data).items() if name not in paths},
        "source": source.identity,
        "preparation": PREPARATION_VERSION,
        "sentencepiece": sentencepiece.__version__,
    }
    key = hashlib.sha256(json.dumps(made_from, sort_keys=True).encode()).hexdigest()[:12]
    return data_root() / "corpora" / f"{data.name}-{key}"


def _find(folder: Path) -> Corpus | None:
    return Corpus(folder) if (folder / "manifest.json").is_file() else None


def _lock_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


def _aside_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.tmp")


def _sweep(root: Path) -> None:
    """Delete what killed preparations of other corpora left: a temporary folder whose lock nobody holds."""
    for aside in root.glob(".*.tmp"):
        with suppress(Held), lock(aside.with_suffix(".lock")):
            shutil.rmtree(aside)


def _build(data: DataConfig, source: Source, folder: Path, say: Callable[[str], None]) -> dict[str, Any]:
    """Make every file of a corpus but its manifest, which is returned."""
    counts = Counts()
    say(f"preparing {data.name}: {source.origin}")
    text_digests = _write_text(source.read(counts, say, folder / "raw"), folder)
    if missing := {"train", "dev"} - set(text_digests):
        raise CorpusError(f"{data.name} has no sentences for {', '.join(sorted(missing))} after cleaning")
    say(f"learning {data.vocab_size:,} subwords")
    train = (read_lines(folder / f"train.{side}.txt") for side in SIDES)
    subwords = Subwords.train(itertools.chain.from_iterable(train), data.vocab_size, folder / "subwords.model")
    pairs, tokens = {}, {}
    for split in text_digests:
        say(f"packing {split}")
        pairs[split], tokens[split] = _pack(folder, split, subwords, data.max_subwords, counts)
    for side in SIDES:
        (folder / f"train.{side}.txt").unlink()  # `decode` of the packed ids gives it back
    combined = "".join(f"{split} {digest}\n" for split, digest in text_digests.items())
    return {
        "name": data.name,
        "languages": {"src": data.src_lang, "tgt": data.tgt_lang},
        "origin": source.origin,
        "licence": source.licence,
        "pairs": pairs,
        "subwords": tokens,
        "dropped": dict(counts.dropped),
        "mended": dict(counts.mended),
        "vocab_size": subwords.vocab_size,
        "dtype": dtype_of(subwords.vocab_size),
        "digests": {
            "corpus": hashlib.sha256(combined.encode()).hexdigest(),
            "vocab": hashlib.sha256((folder / "subwords.model").read_bytes()).hexdigest(),
        },
        "text_digests": text_digests,
        "source": source.identity,
        "versions": {"preparation": PREPARATION_VERSION, "sentencepiece": sentencepiece.__version__},
    }


def _write_text(pairs: Pairs, folder: Path) -> dict[str, str]:
    """Write each split's sides as lines; give each split's SHA-256 over src NEWLINE tgt NEWLINE of all its pairs."""
    opened: dict[str, list[Any]] = {}
    digests: dict[str, Any] = {}
    with ExitStack() as stack:
        for split, src, tgt in pairs:
            if split not in opened:
                opened[split] = [stack.enter_context(open(folder / f"{split}.{side}.txt", "wb")) for side in SIDES]
                digests[split] = hashlib.sha256()
            for file, sentence in zip(opened[split], (src, tgt), strict=True):
                line = sentence.encode() + b"\n"
                file.write(line)
                digests[split].update(line)
    return {split: digests[split].hexdigest() for split in SPLITS if split in digests}


def _pack(
    folder: Path, split: str, subwords: Subwords, max_subwords: int, counts: Counts
) -> tuple[int, dict[str, int]]:
    """Encode a split into its packed files; drop over-long pairs of training alone. Gives pairs and subwords kept."""
    writer, kept = Writer(folder, split, dtype_of(subwords.vocab_size)), 0
    for src, tgt in _encoded(folder, split, subwords):
        if split == "train" and max(len(src), len(tgt)) + 1 > max_subwords:
            counts.dropped[f"train: a side over {max_subwords:,} subwords"] += 1
        else:
            writer.add(src, tgt)
            kept += 1
    tokens = writer.close()
    if not kept:
        raise CorpusError(f"data.max_subwords={max_subwords}: no training pair is that short")
    return kept, tokens


def _encoded(folder: Path, split: str, subwords: Subwords) -> Iterator[tuple[list[int], list[int]]]:
    pairs = zip(*(read_lines(folder / f"{split}.{side}.txt") for side in SIDES), strict=True)
    while block := list(itertools.islice(pairs, ENCODE_PAIRS)):
        src, tgt = zip(*block, strict=True)
        yield from zip(subwords.encode_many(src), subwords.encode_many(tgt), strict=True)
