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
from playwright.sync_api import Browser, Dialog, Page, sync_playwright


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser; skips the test with the reason where there is none."""
    names = ("chromium", "google-chrome", "chromium-browser")
    found = next((path for name in names if (path := shutil.which(name))), None)
    if found is None:
        pytest.skip(f"no browser: none of {', '.join(names)} is on PATH")
    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=found, args=["--no-sandbox", "--disable-gpu"])
        yield running
        running.close()


class Watch:
    """What pages asked for and complained of."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.complaints: list[str] = []

    def open(self, browser: Browser, report: Path, **options: Any) -> Page:
        """Open a report in a context of its own and wait until it is ready."""
        context = browser.new_context(**({"viewport": {"width": 1280, "height": 900}} | options))
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("request", lambda request: self.asked.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("dialog", self._refuse)
        page.goto(report.as_uri())
        if options.get("java_script_enabled", True):
            page.wait_for_selector("html[data-ready]", state="attached")
        return page

    def _refuse(self, dialog: Dialog) -> None:
        # No part of a report ever opens a dialog: one that does was made by a name.
        self.complaints.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def check(self) -> None:
        """A report may ask for itself; a blob is made and read inside the page: that is how a table is saved."""
        assert [url for url in self.asked if not re.match(r"file:.*/report\.html(#.*)?$|blob:|data:,$", url)] == []
        assert self.complaints == []


def rows_of(data: bytes) -> list[list[str]]:
    """The rows of a CSV file."""
    return list(csv.reader(io.StringIO(data.decode("utf-8"), newline="")))
