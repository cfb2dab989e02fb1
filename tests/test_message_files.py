"""Stored messages: a reworded, unchecked or unknown one is reported, and one command stores them again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CONFTEST = """
from tests.support.message_files import UNUSED_MESSAGES, MessageFiles, pytest_addoption

def pytest_configure(config):
    config.pluginmanager.register(MessageFiles(config))

def pytest_collection_finish(session):
    print("unused:", session.config.stash[UNUSED_MESSAGES])
"""
TESTS = """
import pytest

@pytest.mark.parametrize("size", [1, 2])
def test_sizes(size, tmp_path, check_message):
    check_message(f"{tmp_path}/a has the size {size};\\nwrite 3")
    if size == 2:
        check_message(ValueError("again"))
"""
STORED = """test_sizes.py::test_sizes {"size": 1}
  - <folder>/a has the size 1;
    write 3
test_sizes.py::test_sizes {"size": 2}
  - <folder>/a has the size 2;
    write 3
  - again
"""


def run(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        "--rootdir",
        str(folder),
    ]
    return subprocess.run(
        [*command, *options, folder],
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


def test_messages_are_stored_compared_and_dropped_by_their_case(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    test, messages = tmp_path / "test_sizes.py", tmp_path / "messages.txt"
    test.write_text(TESTS)
    assert "2 failed" in run(tmp_path).stdout
    assert run(tmp_path, "--update-messages").returncode == 0
    assert messages.read_text() == STORED
    passed = run(tmp_path)
    assert passed.returncode == 0 and "unused: []" in passed.stdout
    test.write_text(
        TESTS.replace("[1, 2]", "[2]").replace('        check_message(ValueError("again"))', "        pass")
    )
    shorter = run(tmp_path)
    assert "1 failed" in shorter.stdout and 'test_sizes {"size": 1}\']' in shorter.stdout
    test.write_text(TESTS.replace("[1, 2]", "[2]").replace("write 3", "write 4"))
    assert "1 failed" in run(tmp_path).stdout
    assert run(tmp_path, "--update-messages").returncode == 0
    assert messages.read_text() == STORED[STORED.index('test_sizes.py::test_sizes {"size": 2}') :].replace("3", "4")
