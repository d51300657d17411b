import gzip
import io
import os
import tarfile

import pytest

from ablate.data import archive as archives
from ablate.data.archive import DamagedArchive, read_through, unpack
from ablate.data.source import CorpusError

TEXT = os.urandom(100_000)


def pack(path, *members: tuple[str, bytes] | tarfile.TarInfo, mode: str = "w:gz"):
    """Write an archive of files (name, content) and of members as they are."""
    with tarfile.open(path, mode) as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    return path


def link(kind: bytes, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo("training/a.en")
    info.type, info.linkname = kind, target
    return info


def everything(folder) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


@pytest.mark.parametrize("mode", ["w", "w:gz"])
@pytest.mark.parametrize("name", ["a.en", "./a.en", "training/a.en"])
def test_only_what_is_wanted_is_taken_wherever_it_stands_in_the_archive(tmp_path, mode, name):
    path = pack(tmp_path / "x.tar", ("training/other", b"z"), (name, TEXT), ("training/a.de", b"de"), mode=mode)
    unpack(path, {"a.en": tmp_path / "out" / "src", "a.de": tmp_path / "out" / "tgt"})
    assert (tmp_path / "out" / "src").read_bytes() == TEXT
    assert (tmp_path / "out" / "tgt").read_bytes() == b"de"
    assert everything(tmp_path) == ["out/src", "out/tgt", "x.tar"]


@pytest.mark.parametrize("name", ["../../a.en", "/tmp/ablate-evil/a.en", "..", "x/../../a.en"])
def test_no_path_of_the_archive_becomes_one_of_ours(tmp_path, name):
    path = pack(tmp_path / "x.tgz", (name, b"evil"), ("good/b.en", b"good"))
    unpack(path, {"b.en": tmp_path / "deep" / "out" / "b"})
    assert everything(tmp_path) == ["deep/out/b", "x.tgz"]
    if name != "..":
        unpack(path, {"a.en": tmp_path / "deep" / "out" / "a"})
        assert everything(tmp_path) == ["deep/out/a", "deep/out/b", "x.tgz"]


@pytest.mark.parametrize(
    ("kind", "target"),
    [
        (tarfile.SYMTYPE, "/etc/passwd"),
        (tarfile.LNKTYPE, "training/b.en"),
        (tarfile.FIFOTYPE, ""),
        (tarfile.CHRTYPE, ""),
        (tarfile.DIRTYPE, ""),
    ],
)
def test_what_is_no_plain_file_is_refused(tmp_path, kind, target):
    path = pack(tmp_path / "x.tgz", ("training/b.en", b"b"), link(kind, target))
    with pytest.raises(CorpusError, match=r"x.tgz: training/a.en is no plain file; refused"):
        unpack(path, {"a.en": tmp_path / "out"})
    assert everything(tmp_path) == ["x.tgz"]


def test_an_archive_above_the_limit_is_refused_before_it_is_written(tmp_path, monkeypatch):
    monkeypatch.setattr(archives, "LIMIT", 9_999_999)
    path = pack(tmp_path / "x.tgz", ("a.en", bytes(10_000_000)))  # a bomb: it packs to 10 kB
    assert path.stat().st_size < 20_000
    with pytest.raises(CorpusError, match="holds more than 9,999,999 bytes; refused"):
        unpack(path, {"a.en": tmp_path / "out"})
    assert everything(tmp_path) == ["x.tgz"]
    path = pack(tmp_path / "x.tgz", ("other", bytes(10_000_000)), ("a.en", b"a"))
    with pytest.raises(CorpusError, match="refused"):
        unpack(path, {"a.en": tmp_path / "out"})
    monkeypatch.setattr(archives, "LIMIT", 10_000_001)
    unpack(path, {"a.en": tmp_path / "out"})


def test_what_is_missing_is_named_with_what_is_there(tmp_path):
    path = pack(tmp_path / "x.tgz", ("training/a.en", b"a"), ("training/a.fr", b"a"))
    with pytest.raises(CorpusError, match=r"x.tgz: has no a.de; there are: a.en, a.fr"):
        unpack(path, {"a.en": tmp_path / "en", "a.de": tmp_path / "de"})


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_truncated_archive_leaves_no_file_that_looks_whole(tmp_path, mode):
    path = pack(tmp_path / "x.tar", ("a.en", TEXT), mode=mode)
    path.write_bytes(path.read_bytes()[:50_000])
    with pytest.raises(DamagedArchive, match=r"x.tar: "):
        unpack(path, {"a.en": tmp_path / "out"})
    assert not (tmp_path / "out").exists()
    path.write_bytes(b"no archive at all")
    with pytest.raises(DamagedArchive, match=r"x.tar: cannot be unpacked"):
        unpack(path, {"a.en": tmp_path / "out"})


def test_what_is_unpacked_already_is_left_alone(tmp_path):
    path = pack(tmp_path / "x.tgz", ("a.en", b"en"), ("a.de", b"de"))
    (tmp_path / "en").write_bytes(b"as it was")
    unpack(path, {"a.en": tmp_path / "en", "a.de": tmp_path / "de"})
    assert (tmp_path / "en").read_bytes() == b"as it was"
    path.unlink()
    unpack(path, {"a.en": tmp_path / "en", "a.de": tmp_path / "de"})


@pytest.mark.parametrize("name", ["x.gz", "x.tgz", "x.tar"])
def test_reading_through_finds_what_is_cut_off(tmp_path, name):
    path = tmp_path / "file"
    if name == "x.gz":
        path.write_bytes(gzip.compress(TEXT))
    else:
        pack(path, ("b", b"b"), ("a", TEXT), mode="w" if name == "x.tar" else "w:gz")
    read_through(path, name)
    whole = path.read_bytes()
    path.write_bytes(whole[:90_000])
    with pytest.raises(DamagedArchive):
        read_through(path, name)
    if name != "x.tar":  # without compression there is no checksum over the content
        path.write_bytes(whole[:5000] + bytes([whole[5000] ^ 1]) + whole[5001:])
        with pytest.raises(DamagedArchive):
            read_through(path, name)


@pytest.mark.parametrize("name", ["x", "x.gz", "x.tgz", "x.tar"])
def test_an_empty_file_is_damaged(tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(DamagedArchive, match=r"file: cannot be unpacked \(it is empty\)"):
        read_through(tmp_path / "file", name)


@pytest.mark.parametrize("name", ["x.gz", "x.tgz", "x.tar"])
def test_a_page_is_no_archive(tmp_path, name):
    page = b"<!DOCTYPE html><p>Please sign in.</p>\n" * 50
    (tmp_path / "file").write_bytes(page)
    with pytest.raises(DamagedArchive):
        read_through(tmp_path / "file", name)
    (tmp_path / "file").write_bytes(gzip.compress(page))
    if name == "x.gz":
        read_through(tmp_path / "file", name)
    else:
        with pytest.raises(DamagedArchive):
            read_through(tmp_path / "file", name)


@pytest.mark.parametrize("cut", [1536, 1536 + 100])  # after the first entry, which takes 512 + 1,024; in the next one
def test_an_archive_that_breaks_off_between_its_entries_is_damaged(tmp_path, cut):
    path = pack(tmp_path / "x.tar", ("a", bytes(1000)), ("b", b"b"), mode="w")
    read_through(path, "x.tar")
    whole = path.read_bytes()
    path.write_bytes(whole[:cut])
    with pytest.raises(DamagedArchive, match="it breaks off"):
        read_through(path, "x.tar")
    path.write_bytes(whole[:cut] + b"#" * (len(whole) - cut))
    with pytest.raises(DamagedArchive):
        read_through(path, "x.tar")


@pytest.mark.parametrize("name", ["x.gz", "x.tgz"])
def test_reading_through_ends_at_the_limit(tmp_path, monkeypatch, name):
    path = tmp_path / "file"
    if name == "x.gz":
        path.write_bytes(gzip.compress(bytes(10_000_000)))
    else:
        pack(path, ("a", bytes(10_000_000)))
    monkeypatch.setattr(archives, "LIMIT", 11_000_000)
    read_through(path, name)
    monkeypatch.setattr(archives, "LIMIT", 9_999_999)
    with pytest.raises(DamagedArchive, match="holds more than 9,999,999 bytes; refused"):
        read_through(path, name)
