"""A prepared corpus: text, cleaned and split, its subwords, and its packed ids, made once and found again by key."""

import dataclasses
import hashlib
import json
import shutil
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import sentencepiece

from ablate.config import DataConfig
from ablate.data import files, homeassistant, multi30k, segmented, synthetic, wmt
from ablate.data.build import PARTS, PIECES, build, open_vocabulary
from ablate.data.fetch import FULL
from ablate.data.packed import Packed
from ablate.data.pieces import Pieces, detokenise
from ablate.data.pool import cores
from ablate.data.source import SIDES, CorpusError, Say, Source, Unfinished, data_root, making, read_lines
from ablate.data.subword import Subwords
from ablate.identity import PATHS
from ablate.rundir import Held, lock, read_json, sync_folder, write_json

__all__ = ["Corpus", "CorpusError", "data_root", "find", "prepare", "reopen"]

PREPARATION_VERSION = "2"  # raise it when this package would make other bytes from the same text
STALE_S = 7 * 24 * 3600  # after which an unfinished preparation is swept
SOURCES: dict[str, Callable[[Any], Source]] = {
    "homeassistant": homeassistant.source,
    "synthetic": synthetic.source,
    "files": files.source,
    "multi30k": multi30k.source,
    "wmt14_ende": wmt.source,
    "wmt14_enfr": wmt.source,
    "wmt16_ende_bpe32k": segmented.source,
}


class Corpus:
    """A prepared corpus in its folder.

    Attributes:
        folder: where it lies.
        manifest: name, languages, origin, licence, pairs, subwords, dropped, mended, digests, versions.
        digests: "corpus": SHA-256 over the cleaned text of all splits; "vocab": SHA-256 of the vocabulary's file.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.manifest: dict[str, Any] = read_json(folder / "manifest.json")
        self.digests: dict[str, str] = self.manifest["digests"]

    @property
    def subwords(self) -> Subwords | Pieces:
        """Open the shared subword vocabulary."""
        return open_vocabulary(self.folder, self.manifest["languages"]["tgt"])

    def split(self, name: str) -> Packed:
        """Open the token ids of train, dev or test.

        Raises:
            CorpusError: if the corpus has no such split; names those it has.
        """
        self._check(name, list(self.manifest["pairs"]))
        return Packed.open(self.folder, name, self.manifest["dtype"])

    def text(self, name: str, side: str) -> list[str]:
        """Read the sentences of dev or test in the corpus's order, as plain text; `side` is src or tgt."""
        self._check(name, [split for split in self.manifest["pairs"] if split != "train"])
        if side not in SIDES:
            raise CorpusError(f"no side {side!r}; there are: {', '.join(SIDES)}")
        lines = list(read_lines(self.folder / f"{name}.{side}.txt"))
        if (self.folder / PIECES).exists():
            return [detokenise(line, self.manifest["languages"][side]) for line in lines]
        return lines

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
        learned = f" learned from {made['learned_on']:,} training pairs, evenly spaced" if "learned_on" in made else ""
        shortened = ", ".join(f"{name} {digest[:12]}" for name, digest in self.digests.items())
        return "\n".join(
            [*lines, f"vocabulary: {made['vocab_size']:,} ids{learned}; digests: {shortened}", str(self.folder)]
        )


def find(data: DataConfig) -> Corpus | None:
    """Give the prepared corpus if it is there; writes nothing and downloads nothing.

    Raises:
        ConfigError, CorpusError: for settings no corpus can be made of.
    """
    return _find(_folder(data, SOURCES[data.name](data)))


def reopen(folder: Path, digests: dict[str, str]) -> Corpus:
    """Open a prepared corpus where a plan found it, or moved to here; the user's files need not be there any more.

    Raises:
        CorpusError: if it is gone, or is not the one the digests name.
    """
    corpus = _find(folder) or _find(data_root() / "corpora" / folder.name)  # whose name is of all that it was made of
    if corpus is None:
        raise CorpusError(f"{folder}: the prepared corpus is not there any more; give the command that planned the run")
    if corpus.digests != digests:
        raise CorpusError(f"{folder}: holds {corpus.digests}, the run was planned with {digests}")
    return corpus


def of_digests(digests: dict[str, str]) -> Corpus | None:
    """Find a prepared corpus by its text and vocabulary, whatever its limit of length."""
    for manifest in sorted((data_root() / "corpora").glob("[!.]*/manifest.json")):
        with suppress(OSError, ValueError):  # another, damaged or just being deleted
            if (read_json(manifest) or {}).get("digests") == digests:
                return Corpus(manifest.parent)
    return None


def prepare(data: DataConfig, say: Say = print, processes: int = 0) -> Corpus:
    """Give the prepared corpus, making it first if it is not there: once, whoever else asks at the same time.

    It is made aside and renamed, so that no other process sees a part of it. Where a preparation was killed, could not
    download, or filled the disk, the next one goes on; what nobody went on with for a week is swept.

    Args:
        data: which corpus, and its segmentation.
        say: takes each line of progress.
        processes: that encode; 0: one for each core; the result is the same.

    Raises:
        ConfigError, CorpusError: for what the user can mend.
    """
    source = SOURCES[data.name](data)
    folder = _folder(data, source)
    if found := _find(folder):
        return found
    with making(folder, say):
        if found := _find(folder):
            return found
        aside = _aside_of(folder)
        _sweep(folder.parent)
        aside.mkdir(parents=True, exist_ok=True)
        try:
            if not (aside / "manifest.json").is_file():
                _make(data, source, aside, say, processes or cores())
            _tidy(aside)
            if _folder(data, SOURCES[data.name](data)) != folder:
                raise CorpusError(f"the files of data={data.name} changed while they were read; try again")
        except Unfinished:
            raise
        except ValueError:  # the settings or the text will be others next time
            shutil.rmtree(aside, ignore_errors=True)
            raise
        except OSError as err:
            if err.errno in FULL:
                raise Unfinished(f"{aside}: {err.strerror}; what is done is kept, the same command continues") from err
            raise
        aside.rename(folder)
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


def _aside_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.tmp")


def _sweep(root: Path) -> None:
    """Delete what other preparations left a week ago and nobody is at: its lock is free."""
    for aside in root.glob(".*.tmp"):
        with suppress(Held, FileNotFoundError), lock(aside.with_suffix(".lock")):
            if time.time() - aside.stat().st_mtime > STALE_S:
                shutil.rmtree(aside)


def _make(data: DataConfig, source: Source, folder: Path, say: Say, processes: int) -> None:
    """Make every file of a corpus."""
    say(f"preparing {data.name}: {source.origin}")
    start_s = time.monotonic()
    made = build(source, folder, data.vocab_size, data.max_subwords, say, processes)
    manifest = {
        "name": data.name,
        "languages": {"src": data.src_lang, "tgt": data.tgt_lang},
        "origin": source.origin,
        "licence": source.licence,
        **made,
        "source": source.identity,
        "versions": {"preparation": PREPARATION_VERSION, "sentencepiece": sentencepiece.__version__},
    }
    write_json(folder / "manifest.json", manifest)
    say(f"prepared {data.name} in {time.monotonic() - start_s:.0f} s")


def _tidy(folder: Path) -> None:
    """Delete what only making a corpus needs, and flush the rest to the disk."""
    for path in (path for pattern in PARTS for path in folder.glob(pattern)):
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    for path in (*folder.iterdir(), folder):
        sync_folder(path)
