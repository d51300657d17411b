"""Serve one page to this machine alone, built again when what it shows has changed and somebody looks."""

import re
import threading
import time
from collections.abc import Callable, Hashable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

LOOPBACK = "127.0.0.1"
# What a browser here asks for; under another name a page elsewhere does, whose name was made to point here.
HOST = re.compile(r"(127\.0\.0\.1|localhost)(:\d+)?", re.IGNORECASE)
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",  # a log stays text, whatever is in it
    "X-Frame-Options": "DENY",
    "Cross-Origin-Resource-Policy": "same-origin",
}
SHARE = 10  # building may take one part in so many of a core's time, so that watching does not slow training down
SHORTEST_S = 2.0  # between two builds


class Site:
    """A page and the text files it links to."""

    def __init__(self, build: Callable[[str], str], look: Callable[[], Hashable], folder: Path, files: re.Pattern[str]):
        """Say what is served; nothing is built before it is asked for.

        Args:
            build: makes the page, given its version; a ValueError or OSError of it is shown instead of a page.
            look: gives something that differs if the page would.
            folder: of the files.
            files: matches the paths, from the folder, of those that are served; no other is.
        """
        self.build, self.look, self.folder, self.files = build, look, folder, files
        self.lock = threading.Lock()
        self.seen: Hashable = None
        self.status, self.version, self.page = HTTPStatus.OK, "", ""
        self.next_s = 0.0

    def current(self) -> tuple[HTTPStatus, str, str]:
        """Give status, version and text of the page as things are now, or were at most a few builds' time ago."""
        with self.lock:
            if (not self.page or time.monotonic() >= self.next_s) and (seen := self.look()) != self.seen:
                start = time.process_time()
                self.seen, self.version = seen, str(time.time_ns())
                try:
                    self.status, self.page = HTTPStatus.OK, self.build(self.version)
                except (ValueError, OSError) as err:  # a retry may move a file away while it is read
                    self.status, self.page = HTTPStatus.INTERNAL_SERVER_ERROR, f"error: {err}\n"
                self.next_s = time.monotonic() + max(SHORTEST_S, SHARE * (time.process_time() - start))
            return self.status, self.version, self.page

    def file(self, name: str) -> bytes | None:
        """Read a file that is linked to; None if it is not there or none of those."""
        if not self.files.fullmatch(name):
            return None
        path = (self.folder / name).resolve()
        return path.read_bytes() if path.is_relative_to(self.folder.resolve()) and path.is_file() else None


def server(site: Site, port: int) -> ThreadingHTTPServer:
    """Open a server on the loopback address; `serve_forever` runs it.

    Args:
        site: what it serves: the page at /, its version at /version, files under /runs/.
        port: 0 to have a free one chosen.

    Raises:
        OSError: if the port is taken.
    """

    class Handler(BaseHTTPRequestHandler):
        """Answer GET from this machine's own browsers."""

        def do_GET(self) -> None:
            if not HOST.fullmatch(self.headers.get("Host", "")):
                self.answer(HTTPStatus.FORBIDDEN, b"asked for under another name than localhost\n")
                return
            path = unquote(urlsplit(self.path).path)
            if path == "/":
                status, _, page = site.current()
                self.answer(status, page.encode(), "html" if status is HTTPStatus.OK else "plain")
            elif path == "/version":
                self.answer(HTTPStatus.OK, site.current()[1].encode())
            elif path.startswith("/runs/") and (data := site.file(path.removeprefix("/runs/"))) is not None:
                self.answer(HTTPStatus.OK, data)
            else:
                self.answer(HTTPStatus.NOT_FOUND, b"not here\n")

        def answer(self, status: HTTPStatus, body: bytes, kind: str = "plain") -> None:
            self.send_response(status)
            self.send_header("Content-Type", f"text/{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            for name, value in HEADERS.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            pass  # a line every two seconds tells nobody anything

    return ThreadingHTTPServer((LOOPBACK, port), Handler)
