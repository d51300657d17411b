"""The user's own parallel text: two files a split, line by line, or one tab-separated file; plain or .gz."""

import itertools
from collections.abc import Iterator
from pathlib import Path

from ablate.config import FilesData
from ablate.data.lines import aligned, filled, text_lines
from ablate.data.source import SPLITS, CorpusError, Counts, Pairs, Source, digest_of
from ablate.errors import ConfigError


def source(data: FilesData) -> Source:
    """Check the fields against each other and hash the files; the text is read later.

    Raises:
        ConfigError: for a missing field or file, or one too many.
    """
    paths = {split: _paths(data, split) for split in SPLITS}
    named = {field: path for fields in paths.values() for field, path in fields.items()}
    return Source(
        origin="your files " + ", ".join(map(str, named.values())),
        licence="yours",
        identity={field: digest_of(path) for field, path in named.items()},
        read=lambda counts, say, scratch: itertools.chain.from_iterable(
            _split(split, fields, counts) for split, fields in paths.items()
        ),
    )


def _paths(data: FilesData, split: str) -> dict[str, Path]:
    """Give the fields of a split that are set, with their paths: two files, one table, or, for test, none."""
    fields = {f"{split}_{kind}": getattr(data, f"{split}_{kind}") for kind in ("src", "tgt", "tsv")}
    given = [field for field, value in fields.items() if value is not None]
    src, tgt, tsv = fields
    if given not in ([], [src, tgt], [tsv]):
        field = given[0]
        raise ConfigError(f"data.{field}", fields[field], f"set data.{src} and data.{tgt}, or data.{tsv} alone")
    if not given and split != "test":
        raise ConfigError(f"data.{src}", None, f"is needed, with data.{tgt}; or data.{tsv}")
    paths = {field: Path(fields[field]).expanduser() for field in given}
    for field, path in paths.items():
        if not path.is_file():
            raise ConfigError(f"data.{field}", str(path), f"no such file (from {Path.cwd()})")
    return paths


def _split(split: str, fields: dict[str, Path], counts: Counts) -> Pairs:
    if not fields:
        return
    if f"{split}_tsv" in fields:
        pairs = _table(split, fields[f"{split}_tsv"], counts)
    else:
        src_path, tgt_path = fields.values()
        src_lines, tgt_lines = (text_lines(split, path, counts) for path in (src_path, tgt_path))
        pairs = aligned(split, src_path, tgt_path, src_lines, tgt_lines)
    empty = True
    for pair in filled(split, pairs, counts):
        empty = False
        yield pair
    if empty:
        raise CorpusError(f"data.{next(iter(fields))}: no sentences in {', '.join(map(str, fields.values()))}")


def _table(split: str, path: Path, counts: Counts) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(text_lines(split, path, counts), start=1):
        columns = line.split("\t")
        if len(columns) != 2:
            raise CorpusError(f"{path}, line {number}: {len(columns)} columns; must be source TAB target")
        yield columns[0], columns[1]
