"""A real Chromium that holds reports to what they promise: no request, no complaint, no dialog."""

from __future__ import annotations

import csv
import io
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Dialog, Page, expect, sync_playwright

# The headless shell has no windows to draw and needs half the CPU seconds of the whole browser.
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome", "chromium-browser")


def find_browser() -> str | None:
    """Return the path of the cheapest installed Chromium, or None where there is none."""
    return next((path for name in BROWSERS if (path := shutil.which(name))), None)


@contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser; skip the test with the reason where there is none."""
    path = find_browser()
    if path is None:
        pytest.skip(f"no browser: none of {', '.join(BROWSERS)} is on PATH")
    expect.set_options(timeout=60_000)  # a loaded machine takes its time
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield running
        running.close()


def wait_until_ready(page: Page) -> None:
    page.wait_for_selector("html[data-ready]", state="attached")


class Watch:
    """Requests and errors of pages."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.complaints: list[str] = []

    def open(self, browser: Browser, report: Path, **options: Any) -> Page:
        """Open a report in a context of its own and wait until it is ready."""
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        page = context.new_page()
        page.set_default_timeout(60_000)
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", self._refuse)
        page.goto(report.as_uri())
        if options.get("java_script_enabled", True):
            wait_until_ready(page)
        return page

    def _refuse(self, dialog: Dialog) -> None:
        # No part of a report ever opens a dialog: one that does was made by a name.
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def check(self) -> None:
        """A report may ask for itself; a blob is made and read inside the page: that is how a table is saved."""
        assert [url for url in self.asked if not re.match(r"file:.*/report\.html(#.*)?$|blob:|data:,$", url)] == []
        assert self.complaints == []


_TOUCHED = """(() => {
    const touch = event => { if (event.type !== "pointermove" || event.clientX > 2) window.touched = true; };
    for (const what of ["pointermove", "click", "keydown", "input", "toggle", "hashchange", "beforeprint"])
        addEventListener(what, touch, true);
})()"""
"""Notes that somebody did something to a page; its pointer rests at the left edge."""


def click_rows(page: Page, label: str, most: int = 100) -> None:
    """Click the rows of a visible table, from the top, without the time that real clicks take."""
    page.evaluate(
        """([label, most]) => {
            const rows = () => [...document.querySelectorAll(`[role="grid"][aria-label="${label}"]`)]
                .filter(grid => grid.checkVisibility()).flatMap(grid => [...grid.querySelectorAll(".grid-row")]);
            for (let place = 0; place < Math.min(most, rows().length); place += 1) rows()[place].click();
        }""",
        [label, most],
    )


class SharedPages:
    """Pages that are opened once for many tests, and reloaded only after a test changed them."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._opened: dict[Path, Page] = {}
        self.watch = Watch()

    def show(self, report: Path, fragment: str = "", **options: Any) -> Page:
        """A page as it is when it was just opened; with options, in a context of its own."""
        if options:
            return self.watch.open(self._browser, report, **options)
        page = self._opened.get(report)
        if page is None:
            page = self.watch.open(self._browser, report, viewport={"width": 1360, "height": 900})
            self._opened[report] = page
            page.add_init_script(_TOUCHED)
            page.evaluate(_TOUCHED)
        page.emulate_media(media="null")
        page.mouse.move(2, 2)
        if "#" in page.url or page.evaluate("window.touched"):
            page.goto(report.as_uri())
            wait_until_ready(page)
        if fragment:
            page.goto(report.as_uri() + fragment)
            page.reload()
            wait_until_ready(page)
        else:
            page.evaluate("scrollTo(0, 0)")
        return page

    def close_others(self) -> None:
        """Close contexts that one test had for itself, and hold all pages to what they promise."""
        kept = [page.context for page in self._opened.values()]
        for context in self._browser.contexts:
            if context not in kept:
                context.close()
        self.watch.check()


def rows_of(data: bytes) -> list[list[str]]:
    """The rows of a CSV file."""
    return list(csv.reader(io.StringIO(data.decode("utf-8"), newline="")))
