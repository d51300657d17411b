"""An HTTP server on loopback that serves archives and fails on request: for the tests of what downloads."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ablate.config import Multi30kData


@dataclass
class Server:
    """What it serves, how it is to fail, and what it was asked."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)  # path → content
    tags: bool = True  # says an ETag, so that a part can be continued
    ranges: bool = True  # answers Range
    lengths: bool = True  # says Content-Length
    kind: str | None = None  # what it says of the content, as text/html
    shift: int = 0  # continues so many bytes after what was asked for
    cut: list[int] = field(default_factory=list)  # break each answer after that many bytes, one after the other
    answers: list[int] = field(default_factory=list)  # refuse with these codes first
    stall: threading.Event | None = None  # send half and then nothing until it is set
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # path, Range


@contextmanager
def serving(**files: bytes) -> Iterator[Server]:
    """Serve files until the end of the block."""
    server = Server(files=files)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            answer(self, server)

        def log_message(self, format: str, *args: object) -> None:
            pass

    httpd = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.url = f"http://127.0.0.1:{httpd.server_port}"
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        if server.stall:
            server.stall.set()
        httpd.shutdown()
        thread.join()
        httpd.server_close()


def answer(request: BaseHTTPRequestHandler, server: Server) -> None:
    path, asked = request.path.lstrip("/"), request.headers["Range"]
    server.asked.append((path, asked))
    if server.answers:
        return request.send_error(server.answers.pop(0))
    if path not in server.files:
        return request.send_error(404)
    content, tag = server.files[path], f'"{hash(server.files[path])}"'
    begin = int(asked.removeprefix("bytes=").rstrip("-")) if asked and server.ranges else 0
    if begin and request.headers["If-Range"] not in (None, tag):
        begin = 0
    if begin >= len(content) > 0:
        return request.send_error(416)
    begin += server.shift if begin else 0
    request.send_response(206 if begin else 200)
    if server.kind:
        request.send_header("Content-Type", server.kind)
    if begin:
        request.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
    if server.lengths:
        request.send_header("Content-Length", str(len(content) - begin))
    if server.tags:
        request.send_header("ETag", tag)
    request.end_headers()
    body = content[begin:]
    if server.stall and not server.stall.is_set():
        request.wfile.write(body[: len(body) // 2])
        request.wfile.flush()
        server.stall.wait(60)
        return None
    request.wfile.write(body[: server.cut.pop(0)] if server.cut else body)
    return None


def access(**changes: object) -> Multi30kData:
    """Say how to fetch: a few quick retries."""
    fields = {"mirror": None, "folder": None, "lock_file": None, "timeout_s": 5.0, "retries": 2} | changes
    return Multi30kData("multi30k", "en", "de", 512, 256, **fields)
