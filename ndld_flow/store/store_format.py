"""How a store is laid out, as a number in a file of its own; beside the version that each document in it has.

A store of before this file existed is of format 1. The form of the file itself never changes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from ndld_flow.base.errors import NewerFormatError
from ndld_flow.store.files import write_text_atomically
from ndld_flow.store.locks import Locks

FORMAT = 1
FORMAT_FILE = "FORMAT"

_UPGRADES: Mapping[int, Callable[[Path], None]] = {}
"""Earlier format -> what makes the next one of a store, in its place; told twice to do it, it goes on where it was."""
# The number stands there twice: with damage to one of them, the file says nothing.
_WRITTEN = re.compile(r"(\d{1,4})\n[^\n]* format \1 [^\n]*\n", re.ASCII)
_LONGEST = 1_000


def mark_store(root: Path) -> None:
    """Say in a store that is new, or says nothing, which format it has. Raises OSError."""
    if _read_format(root) is None:
        _write_format(root, 1 if (root / "objects").exists() else FORMAT)


def open_store(root: Path) -> None:
    """Bring a store of an earlier format up to this one. Raises NewerFormatError for one of a later format."""
    found = _read_format(root) or 1
    if found > FORMAT:
        raise NewerFormatError(f"the store {root}", found, FORMAT)
    if found == FORMAT or not root.exists():
        return
    with Locks(root / "locks").hold("format"):
        for number in range(_read_format(root) or 1, FORMAT):  # another process may have done it meanwhile
            _UPGRADES[number](root)
            _write_format(root, number + 1)


def _read_format(root: Path) -> int | None:
    """None where no store is, or one that says nothing that can be read."""
    try:
        with (root / FORMAT_FILE).open("rb") as file:
            text = file.read(_LONGEST).decode("utf-8", "replace")
    except OSError:
        return None
    written = _WRITTEN.fullmatch(text)
    return int(written[1]) if written else None


def _write_format(root: Path, number: int) -> None:
    sentence = f"A store of ndld-flow, format {number} (results by digest). Leave it to ndld-flow: verify, gc, runs."
    write_text_atomically(root / FORMAT_FILE, f"{number}\n{sentence}\n")
