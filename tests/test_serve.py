"""The server: when it builds, what it answers, and whom."""

import http.client
import re
import threading
from collections.abc import Callable, Iterator
from http import HTTPStatus
from pathlib import Path

import pytest

from ablate.serve import LOOPBACK, Site, server

FILES = re.compile(r"[\w.-]+/(log\.txt|record\.json)")


class Work:
    """Something that changes, and a builder that counts."""

    def __init__(self) -> None:
        self.state, self.built, self.error = 1, 0, ""

    def build(self, version: str) -> str:
        self.built += 1
        if self.error:
            raise ValueError(self.error)
        return f"<p>{self.state} {version}</p>"


@pytest.fixture
def work() -> Work:
    return Work()


@pytest.fixture
def site(work: Work, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    monkeypatch.setattr("ablate.serve.SHORTEST_S", 0.0)
    monkeypatch.setattr("ablate.serve.SHARE", 0)
    for name in ("run/log.txt", "run/lock", "log.txt", "run/deep/log.txt"):
        (tmp_path / "runs" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "runs" / name).write_text("<b>ä</b>", "utf-8")
    (tmp_path / "log.txt").write_text("outside")
    (tmp_path / "runs" / "run" / "record.json").symlink_to(tmp_path / "log.txt")
    return Site(work.build, lambda: work.state, tmp_path / "runs", FILES)


Ask = Callable[..., http.client.HTTPResponse]


@pytest.fixture
def ask(site: Site) -> Iterator[Ask]:
    """Serve the site; gives what asks it."""
    with server(site, 0) as httpd:
        thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()

        def ask(path: str, method: str = "GET", **headers: str) -> http.client.HTTPResponse:
            connection = http.client.HTTPConnection(LOOPBACK, httpd.server_port)
            connection.request(method, path, headers=headers)
            answer = connection.getresponse()
            answer.body = answer.read().decode()
            connection.close()
            return answer

        yield ask
        httpd.shutdown()
        thread.join()


def test_a_page_is_built_only_when_asked_for_and_only_when_something_changed(site, work):
    assert work.built == 0
    first = site.current()
    assert site.current() == first
    assert work.built == 1
    work.state = 2
    second = site.current()
    assert work.built == 2
    assert second[1] != first[1]
    assert second[2] == f"<p>2 {second[1]}</p>"


def test_builds_take_only_a_share_of_the_time(site, work, monkeypatch):
    now, used = [103.0], [1.0]
    monkeypatch.setattr("ablate.serve.time.monotonic", lambda: now[0])
    monkeypatch.setattr("ablate.serve.time.process_time", lambda: used[0])
    monkeypatch.setattr("ablate.serve.SHARE", 10)

    def slow(version: str) -> str:
        used[0] += 3.0
        return work.build(version)

    site.build = slow
    site.current()  # takes 3 s of a core, so that the next begins 30 s later
    work.state = 2
    now[0] = 132.9
    site.current()
    assert work.built == 1
    now[0] = 133.0
    site.current()
    assert work.built == 2


def test_a_page_that_cannot_be_built_says_why_until_it_can(ask, work):
    work.error = "records of two presets <b>"
    answer = ask("/")
    assert (answer.status, answer.body) == (HTTPStatus.INTERNAL_SERVER_ERROR, "error: records of two presets <b>\n")
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    work.error, work.state = "", 2
    assert ask("/").status == HTTPStatus.OK


def test_the_page_and_its_version_agree(ask):
    page = ask("/")
    assert page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert page.body == f"<p>1 {ask('/version').body}</p>"


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:1", "LOCALHOST:9"])
def test_this_machine_is_answered_through_whatever_port_it_was_forwarded(ask, host):
    assert ask("/", Host=host).status == HTTPStatus.OK


@pytest.mark.parametrize(
    "host", ["", "example.org", "localhost.example.org", "127.0.0.1.example.org:80", "0.0.0.0", "[:"]
)
@pytest.mark.parametrize("path", ["/", "/version", "/runs/run/log.txt"])
def test_other_hosts_are_refused(ask, work, host, path):
    assert ask(path, Host=host).status == HTTPStatus.FORBIDDEN
    assert work.built == 0


def test_a_runs_file_is_only_ever_text(ask):
    answer = ask("/runs/run/log.txt")
    assert answer.body == "<b>ä</b>"
    assert answer.headers["Content-Type"] == "text/plain; charset=utf-8"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize(
    "path",
    [
        "/runs/run/lock",
        "/runs/log.txt",
        "/runs/run/deep/log.txt",
        "/runs/../log.txt",
        "/runs/%2e%2e/log.txt",
        "/runs/run/record.json",  # a link that leads out of the folder
        "/runs/gone/log.txt",
        "/runs/run%00/log.txt",
        "/log.txt",
        "/runs/",
    ],
)
def test_nothing_else_is_served(ask, path):
    assert ask(path).status == HTTPStatus.NOT_FOUND


def test_nothing_can_be_sent(ask, work):
    assert ask("/", "POST").status == HTTPStatus.NOT_IMPLEMENTED
    assert work.built == 0


def test_only_this_machine_can_connect(site):
    with server(site, 0) as httpd:
        assert httpd.server_address[0] == "127.0.0.1"
