"""Fetch files of public servers: resumed, retried, checked against a lock file of digests; whole or not there."""

import errno
import http.client
import shutil
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from ablate import __version__
from ablate.config import DownloadedData
from ablate.data.archive import DamagedArchive, read_through
from ablate.data.source import Progress, Say, Unfinished, data_root, digest_of, making
from ablate.errors import ConfigError
from ablate.rundir import read_json, write_json

CHUNK, MB = 1 << 20, 1_000_000  # bytes read at once, and told as one
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 60.0  # before the first retry, doubled for each after it; and never more
FULL = (errno.ENOSPC, errno.EDQUOT)
OTHERWISE = "give data.mirror=URL, or data.folder=FOLDER with the file in it"
PASSING = (408, 425, 429, 500, 502, 503, 504)  # answers that another try may not get
# Reasons that another try will not change: an address that is none, and a server that is not who it should be.
HOPELESS = (str, http.client.InvalidURL, ssl.SSLCertVerificationError)


@dataclass(frozen=True)
class Remote:
    """A file on a server."""

    url: str  # on its original server
    md5: str | None = None  # where its publisher says so

    @property
    def place(self) -> str:
        """Name it in a mirror or a local folder: HOST/PATH, as `wget -x` lays it out."""
        parts = urlsplit(self.url)
        return f"{parts.netloc}{parts.path}"


class Interrupted(Exception):
    """The connection ended, or the server was not well; trying again may help."""

    def __init__(self, reason: object, pause_s: float = 0.0):
        super().__init__(reason)
        self.pause_s = pause_s  # what the server asks for


def fetch(remote: Remote, data: DownloadedData, say: Say) -> Path:
    """Give the path of a file, downloading it first if it is not there: once, whoever else asks at the same time.

    What has come of an interrupted download is kept, and continued from there if the server can. A file is used only
    if its digest is that of the lock file; the first one that is whole is written there.

    Args:
        remote: the file.
        data: mirror, folder, lock_file, timeout_s and retries.
        say: takes each line of progress.

    Raises:
        ConfigError: for a folder without the file.
        Unfinished: for a server that refuses or cannot be reached, a full disk, a damaged file, another digest.
    """
    if data.folder is not None:
        path = _in_folder(remote, Path(data.folder).expanduser())
        _check(remote, path, data)
        return path
    path = data_root() / "downloads" / remote.place
    with making(path, say):
        if path.is_file():
            _check(remote, path, data)
            return path
        part = path.with_name(f".{path.name}.part")
        _download(remote, part, data, say)
        try:
            _check(remote, part, data)
        except Unfinished:
            _forget(part)
            raise
        part.rename(path)
        _forget(part)
    return path


def _in_folder(remote: Remote, folder: Path) -> Path:
    places = (folder / remote.place, folder / Path(remote.place).name)
    for path in places:
        if path.is_file():
            return path
    raise ConfigError("data.folder", str(folder), f"has neither {remote.place} nor {places[1].name} ({remote.url})")


def _check(remote: Remote, path: Path, data: DownloadedData) -> None:
    """Make sure that a file is the one the lock file knows; write it there if it is whole and the first.

    Raises:
        Unfinished: naming the file, both digests, and what to do.
    """
    lock_file = Path(data.lock_file).expanduser() if data.lock_file else data_root() / "downloads" / "digests.json"
    digest, known = digest_of(path), _digests(lock_file).get(remote.place)
    if known is not None:
        if digest != known:
            raise Unfinished(
                f"{path} ({remote.url}) has SHA-256 {digest}, {lock_file} says {known}: it is damaged, or not the file "
                "that was used before. Delete it and fetch it again, or, if it is meant, delete its line there"
            )
        return
    if remote.md5 is not None and (md5 := digest_of(path, "md5")) != remote.md5:
        raise Unfinished(f"{path} ({remote.url}) has MD5 {md5}, its publisher says {remote.md5}; delete it")
    try:
        read_through(path, Path(remote.place).name)
    except DamagedArchive as err:
        again = f"delete it and fetch it again, or {OTHERWISE}"
        raise Unfinished(f"what came as {remote.url} is damaged ({err}): {again}") from err
    with making(lock_file, lambda line: None):
        write_json(lock_file, {**_digests(lock_file), remote.place: digest})


def _digests(lock_file: Path) -> dict[str, str]:
    found = read_json(lock_file)
    if not isinstance(found, dict | None):
        raise ConfigError("data.lock_file", str(lock_file), "must hold a JSON object: HOST/PATH of a file, its SHA-256")
    return found or {}


def _download(remote: Remote, part: Path, data: DownloadedData, say: Say) -> None:
    """Download a file into `part`, trying again after failures that may pass, as long as something comes."""
    if data.mirror is not None and not data.mirror.startswith(("http://", "https://")):
        raise ConfigError("data.mirror", data.mirror, "must begin with http:// or https://")
    url = f"{data.mirror.rstrip('/')}/{remote.place}" if data.mirror else remote.url
    part.parent.mkdir(parents=True, exist_ok=True)
    failures, most = 0, part.stat().st_size if part.exists() else 0
    while True:
        try:
            return _receive(url, part, data.timeout_s, say)
        except Interrupted as err:
            size = part.stat().st_size if part.exists() else 0
            failures, most = (1, size) if size > most else (failures + 1, most)
            if failures > data.retries:
                raise Unfinished(
                    f"{url}: {err}; tried {failures} times. What has come is kept: the same command continues. "
                    f"Or {OTHERWISE}"
                ) from err
            pause_s = min(LONGEST_PAUSE_S, max(err.pause_s, FIRST_PAUSE_S * 2 ** (failures - 1)))
            say(f"{part.name[1:-5]}: {err}; again in {pause_s:.0f} s")
            time.sleep(pause_s)


def _receive(url: str, part: Path, timeout_s: float, say: Say) -> None:
    """Ask a server once for what is missing of a file, and append what comes.

    Raises:
        Interrupted: if less came than there is.
        Unfinished: if asking again would not help.
    """
    state = _state_of(part)
    begun = read_json(state) or {"total": None, "validator": None}
    have = part.stat().st_size if part.exists() and state.exists() else 0
    if have and have == begun["total"]:
        return
    headers = {"User-Agent": f"ablate/{__version__}", "Accept-Encoding": "identity"}
    if have and begun["validator"]:
        headers |= {"Range": f"bytes={have}-", "If-Range": begun["validator"]}
    with _explained(url, part), urlopen(Request(url, headers=headers), timeout=timeout_s) as answer:
        if answer.headers.get_content_type() == "text/html":
            raise Unfinished(f"{url}: the server sends a page (text/html), not the file; {OTHERWISE}")
        continued = answer.status == 206
        if continued and not (answer.headers["Content-Range"] or "").startswith(f"bytes {have}-"):
            _forget(part)
            raise Interrupted("the server continues elsewhere than asked; starting over")
        have = have if continued else 0
        total = None if answer.length is None else have + answer.length
        free = shutil.disk_usage(part.parent).free
        if total is not None and total - have > free:
            raise Unfinished(f"{part.parent}: {total - have:,} bytes are to come, {free:,} are free; set ABLATE_DATA")
        if not continued:
            part.write_bytes(b"")  # first, so that no old bytes are taken for the new file's
            write_json(state, {"validator": _validator(answer), "total": total})
        name = part.name[1:-5]
        size = "" if total is None else f", {total / MB:,.1f} MB"
        say(f"downloading {name}{size}" + (f", from {have / MB:,.1f} MB on" if have else ""))
        progress = Progress(name, total, say, have, "MB", MB)
        with open(part, "ab") as file:
            while chunk := answer.read1(CHUNK):
                file.write(chunk)
                progress.add(len(chunk))
        if total is not None and progress.done < total:
            raise Interrupted(f"the connection ended after {progress.done:,} of {total:,} bytes")


@contextmanager
def _explained(url: str, part: Path) -> Iterator[None]:
    """Tell failures that may pass (Interrupted) from those that the user must mend (Unfinished)."""
    try:
        yield
    except HTTPError as err:
        if err.code == 416:  # nothing follows what we have: it was of another file
            _forget(part)
            raise Interrupted("the server has less than what came before; starting over") from err
        if err.code in PASSING:
            asked_s = err.headers["Retry-After"] or ""
            raise Interrupted(f"{err.code} {err.reason}", float(asked_s) if asked_s.isdecimal() else 0.0) from err
        raise Unfinished(f"{url}: the server says {err.code} {err.reason}; {OTHERWISE}") from err
    except (OSError, http.client.HTTPException) as err:  # URLError and time-outs are OSErrors
        if isinstance(err, OSError) and err.errno in FULL:
            raise Unfinished(f"{part}: {err.strerror}; what has come is kept, the same command continues") from err
        reason = err.reason if isinstance(err, URLError) else err
        if isinstance(reason, HOPELESS):
            raise Unfinished(f"{url}: {reason}; {OTHERWISE}") from err
        raise Interrupted(f"{type(reason).__name__}: {reason}" if str(reason) else type(reason).__name__) from err


def _validator(answer: http.client.HTTPResponse) -> str | None:
    """Give what If-Range takes: a strong entity tag or a date; None if the server has neither."""
    tag: str | None = answer.headers["ETag"]
    return tag if tag and not tag.startswith("W/") else answer.headers["Last-Modified"]


def _state_of(part: Path) -> Path:
    """Name the file that says of what `part` is a part: only the same file is continued."""
    return part.with_name(f"{part.name}.json")


def _forget(part: Path) -> None:
    part.unlink(missing_ok=True)
    _state_of(part).unlink(missing_ok=True)
