"""Archives that came from elsewhere: whether they are whole, and taking single files out of them safely."""

import gzip
import lzma
import os
import shutil
import tarfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ablate.data.source import CorpusError

CHUNK = 1 << 20
LIMIT = 100 << 30  # bytes that an archive may hold; the largest of WMT14 unpacks to 9 GB
DAMAGED = (tarfile.TarError, EOFError, gzip.BadGzipFile, zlib.error, lzma.LZMAError)


class DamagedArchive(CorpusError):
    """An archive that cannot be read to its end, or is not to be: it is too large."""


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except DAMAGED as err:
        raise DamagedArchive(f"{path}: cannot be unpacked ({err})") from err


def read_through(path: Path, name: str) -> None:
    """Make sure that a file is whole and what its name says, before it is trusted.

    Compression carries a checksum of what was packed; an archive without it at least has an end.

    Args:
        path: the file.
        name: tells by its ending what it is; of others than .gz, .tgz and .tar only emptiness is seen.

    Raises:
        DamagedArchive: if it is empty, truncated, altered, something else, or unpacks to more than `LIMIT`.
    """
    packed = name.endswith((".gz", ".tgz"))
    with _naming(path), gzip.open(path) if packed else open(path, "rb") as file:
        if not path.stat().st_size:
            raise EOFError("it is empty")
        if name.endswith((".tgz", ".tar")):
            with tarfile.open(fileobj=file, mode="r:") as archive:
                for _ in archive:
                    _check_size(archive.offset, path)
                if not packed:  # tarfile takes a broken entry for the end, which is a block of zeros
                    file.seek(archive.offset)
                    if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                        raise EOFError("it breaks off")
        while packed and file.read(CHUNK):
            _check_size(file.tell(), path)


def _check_size(size: int, path: Path) -> None:
    if size > LIMIT:
        raise DamagedArchive(f"{path}: holds more than {LIMIT:,} bytes; refused")


def unpack(path: Path, wanted: dict[str, Path]) -> None:
    """Take files out of a tar archive, each to a path of ours; a path that is there already is left alone.

    The archive's own names only say which file is which, by their last part: none of them becomes a path, no link is
    followed or made, no owner or mode is taken over. Each file is there whole, or not at all.

    Args:
        path: the archive, plain or compressed.
        wanted: the last part of a name in the archive → where the file goes.

    Raises:
        CorpusError: for a name that is missing or no plain file.
        DamagedArchive: if it is truncated, altered, or holds more than `LIMIT` up to the last wanted file.
    """
    missing = {name: place for name, place in wanted.items() if not place.exists()}
    if not missing:
        return
    seen: list[str] = []
    total = 0
    with _naming(path), tarfile.open(path) as archive:
        for member in archive:
            name = member.name.rpartition("/")[2]
            total += member.size
            _check_size(total, path)
            seen.append(name)
            if name in missing:
                _take(path, archive, member, missing.pop(name))
            if not missing:
                return
    there = ", ".join(sorted(set(seen))[:20])
    raise CorpusError(f"{path}: has no {' and no '.join(missing)}; there are: {there}")


def _take(path: Path, archive: tarfile.TarFile, member: tarfile.TarInfo, place: Path) -> None:
    if not member.isreg():
        raise CorpusError(f"{path}: {member.name} is no plain file; refused")
    packed = archive.extractfile(member)
    assert packed is not None, "a plain file has content"
    place.parent.mkdir(parents=True, exist_ok=True)
    aside = place.with_name(f".{place.name}.tmp")
    with packed, open(aside, "wb") as file:
        shutil.copyfileobj(packed, file, CHUNK)
    if aside.stat().st_size != member.size:
        raise DamagedArchive(f"{path}: ends within {member.name}")
    os.replace(aside, place)
