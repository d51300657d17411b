"""Chromium, driven by Playwright: Debian's package, or whatever ABLATE_CHROMIUM names."""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, sync_playwright

NAMES = ("chromium", "chromium-browser", "google-chrome")


def executable() -> str | None:
    """Find the browser; None if there is none."""
    return os.environ.get("ABLATE_CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a headless Chromium and end it."""
    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu"]  # in a container, as root
        browser = playwright.chromium.launch(executable_path=executable(), args=arguments)
        try:
            yield browser
        finally:
            browser.close()


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Give a browser for the tests; ABLATE_NEED_CHROMIUM=1 makes its absence an error."""
    if executable() is None:
        reason = f"no {' or '.join(NAMES)} on this machine's path"
        if os.environ.get("ABLATE_NEED_CHROMIUM"):
            pytest.fail(f"ABLATE_NEED_CHROMIUM is set: {reason}")
        pytest.skip(reason)
    with chromium() as started:
        yield started
