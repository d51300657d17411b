import gzip
import hashlib
import io
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import tarfile
import threading
import time
from urllib.error import URLError

import pytest
from servers import access, serving
from wmt14 import tar

from ablate.data import fetch as fetching
from ablate.data import source
from ablate.data.fetch import Remote, fetch
from ablate.data.source import CorpusError, Unfinished
from ablate.errors import ConfigError
from ablate.rundir import read_json

PLACE = "files.example/a/text.gz"
FILE = Remote(f"https://{PLACE}")
TEXT = os.urandom(3_000_000)  # does not compress, so that a part of the file is a part of the text
CONTENT = gzip.compress(TEXT, 1)


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setenv("ABLATE_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(fetching, "FIRST_PAUSE_S", 0.01)
    monkeypatch.setattr(source, "POLL_S", 0.01)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "data" / "downloads"


@pytest.fixture
def server():
    with serving(**{PLACE: CONTENT}) as server:
        yield server


def quiet(line: str) -> None:
    pass


def left(root) -> list[str]:
    """Name what is in the downloads, but for lock files."""
    return sorted(path.name for path in root.rglob("*") if path.is_file() and path.suffix != ".lock")


def test_a_file_is_fetched_once_from_the_mirror_and_its_digest_kept(server, root):
    said = []
    path = fetch(FILE, access(mirror=server.url + "/"), said.append)
    assert path == root / PLACE
    assert path.read_bytes() == CONTENT
    assert said == [f"downloading text.gz, {len(CONTENT) / 1e6:.1f} MB"]
    assert read_json(root / "digests.json") == {PLACE: hashlib.sha256(CONTENT).hexdigest()}
    assert fetch(FILE, access(mirror=server.url), said.append) == path
    assert server.asked == [(PLACE, None)]
    assert left(root) == ["digests.json", "text.gz"]


def test_a_broken_connection_is_continued_where_it_broke(server, root):
    server.cut = [1_000_000, 700_000]
    said = []
    assert fetch(FILE, access(mirror=server.url, retries=1), said.append).read_bytes() == CONTENT
    assert server.asked == [(PLACE, None), (PLACE, "bytes=1000000-"), (PLACE, "bytes=1700000-")]
    assert f"text.gz: the connection ended after 1,000,000 of {len(CONTENT):,} bytes; again in 0 s" in said
    assert left(root) == ["digests.json", "text.gz"]


@pytest.mark.parametrize("lacks", ["ranges", "tags"])
def test_a_server_that_cannot_continue_sends_it_all_again(server, root, lacks):
    setattr(server, lacks, False)
    server.cut = [1_000_000]
    assert fetch(FILE, access(mirror=server.url), quiet).read_bytes() == CONTENT
    assert len(server.asked) == 2


def test_a_part_of_another_file_is_not_continued(server, root):
    server.cut = [1_000_000]
    with pytest.raises(CorpusError):
        fetch(FILE, access(mirror=server.url, retries=0), quiet)
    server.files[PLACE] = other = gzip.compress(b"another text " * 99)
    assert fetch(FILE, access(mirror=server.url), quiet).read_bytes() == other


def test_a_server_that_lost_what_it_had_is_asked_from_the_beginning(server, root):
    server.cut = [1_000_000]
    with pytest.raises(CorpusError):
        fetch(FILE, access(mirror=server.url, retries=0), quiet)
    server.answers = [416]
    assert fetch(FILE, access(mirror=server.url), quiet).read_bytes() == CONTENT
    assert [ranges for _, ranges in server.asked] == [None, "bytes=1000000-", None]


def test_after_a_kill_the_download_continues(server, root):
    server.stall = threading.Event()
    code = (
        "from servers import access; from ablate.data.fetch import Remote, fetch\n"
        f"fetch(Remote({FILE.url!r}), access(mirror={server.url!r}), print)"
    )
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([os.path.dirname(__file__), *sys.path])}
    process = subprocess.Popen([sys.executable, "-c", code], env=env, stdout=subprocess.DEVNULL)
    part = root / "files.example" / "a" / ".text.gz.part"
    while not part.exists() or part.stat().st_size < len(CONTENT) // 2:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    server.stall.set()
    assert not (root / PLACE).exists()
    assert fetch(FILE, access(mirror=server.url), quiet).read_bytes() == CONTENT
    assert server.asked[1] == (PLACE, f"bytes={len(CONTENT) // 2}-")
    assert left(root) == ["digests.json", "text.gz"]


def test_a_complete_part_needs_no_server(server, root):
    path = fetch(FILE, access(mirror=server.url), quiet)
    path.rename(path.with_name(".text.gz.part"))
    (path.with_name(".text.gz.part.json")).write_text(json.dumps({"validator": None, "total": len(CONTENT)}))
    assert fetch(FILE, access(mirror="http://127.0.0.1:9"), quiet) == path


@pytest.mark.parametrize("code", [429, 500, 503])
def test_a_server_that_is_not_well_is_asked_again(server, code):
    server.answers = [code, code]
    said = []
    fetch(FILE, access(mirror=server.url, retries=2), said.append)
    assert [line for line in said if line.startswith(f"text.gz: {code} ")] == said[:2]


def test_pauses_double_and_a_server_may_ask_for_longer_ones(server, monkeypatch):
    paused = []
    monkeypatch.setattr(fetching.time, "sleep", paused.append)
    server.answers = [500] * 9
    with pytest.raises(CorpusError, match=r"text.gz: 500 Internal Server Error; tried 9 times"):
        fetch(FILE, access(mirror=server.url, retries=8), quiet)
    assert paused == [0.01 * 2**number for number in range(8)]


def test_what_will_not_get_better_is_said_at_once(server):
    with pytest.raises(
        CorpusError, match=r"other.gz: the server says 404 Not Found; give data.mirror=URL, or data.folder"
    ):
        fetch(Remote("https://files.example/other.gz"), access(mirror=server.url), quiet)
    assert len(server.asked) == 1


def test_a_server_that_falls_silent_is_given_up_after_the_time_limit(server, root):
    server.stall = threading.Event()
    with pytest.raises(CorpusError, match=r"text.gz: TimeoutError: timed out; tried 1 times. What has come is kept"):
        fetch(FILE, access(mirror=server.url, timeout_s=0.2, retries=0), quiet)
    server.stall.set()
    fetch(FILE, access(mirror=server.url), quiet)
    assert server.asked[-1] == (PLACE, f"bytes={len(CONTENT) // 2}-")


def test_nobody_there_is_an_error_that_says_what_was_tried():
    with pytest.raises(
        CorpusError, match=r"http://127.0.0.1:9/files.example/a/text.gz: ConnectionRefusedError: .*; tried 2 times"
    ):
        fetch(FILE, access(mirror="http://127.0.0.1:9", retries=1), quiet)


@pytest.mark.parametrize("mirror", ["http://", "http://x:port", "http://a b"])
def test_an_address_that_cannot_be_is_not_tried_again(mirror, monkeypatch):
    monkeypatch.setattr(fetching.time, "sleep", lambda seconds: pytest.fail("tried again"))
    with pytest.raises(Unfinished, match=r"http:.*files.example/a/text.gz: .*; give data.mirror=URL"):
        fetch(FILE, access(mirror=mirror), quiet)


def test_a_server_whose_certificate_is_wrong_is_not_tried_again(monkeypatch):
    def urlopen(*asked, **how):
        raise URLError(ssl.SSLCertVerificationError(1, "certificate verify failed"))

    monkeypatch.setattr(fetching, "urlopen", urlopen)
    monkeypatch.setattr(fetching.time, "sleep", lambda seconds: pytest.fail("tried again"))
    with pytest.raises(Unfinished, match="certificate verify failed"):
        fetch(FILE, access(mirror="https://files.example"), quiet)


@pytest.mark.parametrize("mirror", ["no address", "ftp//x"])
def test_a_mirror_that_is_no_address_is_refused(mirror):
    with pytest.raises(ConfigError, match=r"data.mirror=.*: must begin with http"):
        fetch(FILE, access(mirror=mirror), quiet)


@pytest.mark.parametrize("damage", [lambda whole: whole[:-1000], lambda whole: whole[:5000] + b"x" + whole[5001:]])
def test_a_damaged_file_is_refused_and_the_next_one_is_not_held_to_its_digest(server, root, damage):
    server.files[PLACE] = damage(CONTENT)
    with pytest.raises(CorpusError, match=r"what came as https://files.example/a/text.gz is damaged \("):
        fetch(FILE, access(mirror=server.url), quiet)
    assert left(root) == []
    server.files[PLACE] = CONTENT
    assert fetch(FILE, access(mirror=server.url), quiet).read_bytes() == CONTENT


PAGE = b"<html>Please sign in.</html>"


@pytest.mark.parametrize("sent", [b"", PAGE, gzip.compress(PAGE)], ids=["nothing", "page", "packed page"])
def test_what_is_no_archive_is_refused_and_the_next_one_is_not_held_to_its_digest(server, root, sent):
    archive = Remote("https://files.example/b.tgz")
    server.files["files.example/b.tgz"] = sent
    with pytest.raises(Unfinished, match=r"what came as https://files.example/b.tgz is damaged \("):
        fetch(archive, access(mirror=server.url), quiet)
    assert left(root) == []
    server.files["files.example/b.tgz"] = tar({"x": b"x"})
    assert fetch(archive, access(mirror=server.url), quiet).exists()


def test_a_page_in_place_of_the_file_is_said_at_once(server, root):
    server.kind = "text/html; charset=utf-8"
    with pytest.raises(
        Unfinished, match=r"text.gz: the server sends a page \(text/html\), not the file; give data.mirror"
    ):
        fetch(FILE, access(mirror=server.url), quiet)
    assert len(server.asked) == 1
    assert left(root) == []


def test_a_server_that_continues_elsewhere_than_asked_is_asked_from_the_beginning(server, root):
    server.cut, server.shift = [1_000_000], 7
    assert fetch(FILE, access(mirror=server.url), quiet).read_bytes() == CONTENT
    assert [ranges for _, ranges in server.asked] == [None, "bytes=1000000-", None]


def test_a_whole_file_of_another_digest_is_refused_from_wherever_it_comes(server, root, tmp_path):
    path = fetch(FILE, access(mirror=server.url), quiet)
    path.unlink()
    server.files[PLACE] = gzip.compress(b"altered")
    with pytest.raises(CorpusError, match=r"has SHA-256 [0-9a-f]{64}, .*digests.json says [0-9a-f]{64}"):
        fetch(FILE, access(mirror=server.url), quiet)
    assert left(root) == ["digests.json"]
    (tmp_path / "text.gz").write_bytes(gzip.compress(b"altered"))
    with pytest.raises(CorpusError, match=r"has SHA-256 [0-9a-f]{64}, .*digests.json says [0-9a-f]{64}"):
        fetch(FILE, access(folder=str(tmp_path)), quiet)
    path.write_bytes(gzip.compress(b"altered"))
    with pytest.raises(CorpusError, match="Delete it and fetch it again"):
        fetch(FILE, access(mirror=server.url), quiet)


def test_a_lock_file_of_ones_own_is_written_and_enforced(server, root, tmp_path):
    mine = tmp_path / "mine.json"
    path = fetch(FILE, access(mirror=server.url, lock_file=str(mine)), quiet)
    assert read_json(mine) == {PLACE: hashlib.sha256(CONTENT).hexdigest()}
    mine.write_text(json.dumps({PLACE: "0" * 64}))
    with pytest.raises(CorpusError, match=r"mine.json says 0000"):
        fetch(FILE, access(mirror=server.url, lock_file=str(mine)), quiet)
    assert path.exists()
    mine.write_text("[]")
    path.unlink()
    with pytest.raises(ConfigError, match=r"data.lock_file='.*mine.json': must hold a JSON object"):
        fetch(FILE, access(mirror=server.url, lock_file=str(mine)), quiet)
    assert fetch(FILE, access(mirror="http://127.0.0.1:9"), quiet) == path  # what had come was kept


def test_a_publishers_digest_is_enforced_at_once(server, root):
    with pytest.raises(CorpusError, match=r"has MD5 [0-9a-f]{32}, its publisher says 00;"):
        fetch(Remote(FILE.url, md5="00"), access(mirror=server.url), quiet)
    assert left(root) == []
    fetch(Remote(FILE.url, md5=hashlib.md5(CONTENT).hexdigest()), access(mirror=server.url), quiet)


@pytest.mark.parametrize("place", [PLACE, "text.gz"])
def test_a_local_folder_takes_the_place_of_the_network(tmp_path, root, place):
    (tmp_path / "shelf" / place).parent.mkdir(parents=True)
    (tmp_path / "shelf" / place).write_bytes(CONTENT)
    assert fetch(FILE, access(folder=str(tmp_path / "shelf")), quiet) == tmp_path / "shelf" / place
    assert left(root) == ["digests.json"]
    with pytest.raises(ConfigError, match=r"data.folder=.*: has neither files.example/b.gz nor b.gz"):
        fetch(Remote("https://files.example/b.gz"), access(folder=str(tmp_path / "shelf")), quiet)


def test_a_full_disk_is_one_clear_error(server, root):
    part = root / "files.example" / "a" / ".text.gz.part"
    part.parent.mkdir(parents=True)
    part.symlink_to("/dev/full")  # the kernel's own full disk
    with pytest.raises(CorpusError, match=r"No space left on device; what has come is kept"):
        fetch(FILE, access(mirror=server.url), quiet)


def test_too_little_room_is_said_before_anything_comes(server, root, monkeypatch):
    monkeypatch.setattr(fetching.shutil, "disk_usage", lambda folder: type("Usage", (), {"free": 1000}))
    with pytest.raises(CorpusError, match=rf"{len(CONTENT):,} bytes are to come, 1,000 are free; set ABLATE_DATA"):
        fetch(FILE, access(mirror=server.url), quiet)
    assert left(root) == []


def test_of_two_at_once_one_downloads_and_the_other_waits(server):
    server.stall = threading.Event()
    said, paths = [], []
    threads = [
        threading.Thread(target=lambda: paths.append(fetch(FILE, access(mirror=server.url), said.append)))
        for _ in range(2)
    ]
    threads[0].start()
    while not server.asked:
        time.sleep(0.01)
    threads[1].start()
    while not any(line.startswith("waiting for text.gz: process") for line in said):
        time.sleep(0.01)
    server.stall.set()
    for thread in threads:
        thread.join()
    assert [path.read_bytes() == CONTENT for path in paths] == [True, True]
    assert [asked for _, asked in server.asked] == [None, f"bytes={len(CONTENT) // 2}-"]


def test_progress_tells_bytes_speed_and_time_left(server, monkeypatch):
    monkeypatch.setattr(source, "TELL_S", 0)
    said = []
    fetch(FILE, access(mirror=server.url), said.append)
    assert any(re.fullmatch(r"text.gz: [\d.]+ of 3.00 MB, [\d.]+/s, \d+ s left", line) for line in said)


def test_a_server_without_lengths_is_believed_when_the_file_is_whole(server, root):
    server.lengths = False
    assert fetch(FILE, access(mirror=server.url), quiet).read_bytes() == CONTENT
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("x"))
    server.files["files.example/b.tgz"] = packed.getvalue()[:-20]
    with pytest.raises(CorpusError, match=r"b.tgz is damaged \("):
        fetch(Remote("https://files.example/b.tgz"), access(mirror=server.url), quiet)
