"""A line for each run in `outputs/runs.jsonl`: what lists and histories need of its record.

The folders decide, and lines are hints: a line counts if the status of its run's record is what the line says. Other
runs are read from their folders, and their lines appended. A line that is missing, cut off, damaged, outdated or of
another version therefore costs time and changes no result, and nobody needs a lock: whoever rewrites the file may lose
a line that another process appends meanwhile, and that run is read once more.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from ndld_flow import __version__
from ndld_flow.base.errors import FormatError
from ndld_flow.history.series import Measured, Subject, read_measurements
from ndld_flow.records.document import DAMAGE, VERSIONS, Tree, read_tree
from ndld_flow.records.run_folder import RUN_RECORD
from ndld_flow.runner.outputs import ID, Outputs, name_in_history
from ndld_flow.store.files import share, write_bytes_atomically

LINES = "runs.jsonl"
_FORMAT = f"{__version__} {VERSIONS['run']} 1"
"""Its last number rises whenever the meaning of a line changes; other releases may read records otherwise."""
_HEAD = re.compile(rb'{"format":"%b","run":"([^"\\/]+)/([^"\\/]+)","stamp":"([0-9 ]+)"' % re.escape(_FORMAT.encode()))
_LONGEST = 2**22
_MOST_BYTES = 2**30
_DAMAGED = "damaged"
"""Outcome of a run whose record cannot be read."""
_MEASURED = TypeAdapter(list[Measured])
_SUBJECT = TypeAdapter(Subject)
_FACTS = TypeAdapter(dict[str, str])


@dataclass(frozen=True, slots=True)
class KnownRun:
    """A run as its line or its record describes it."""

    id: str
    started_at: str
    """ISO 8601."""
    outcome: str
    commit: str
    gates: tuple[str, ...]
    brief: Tree
    """The parts of its record that a list of runs needs; empty if the record cannot be read."""
    measured: Sequence[Measured]

    @property
    def is_damaged(self) -> bool:
        return self.outcome == _DAMAGED


def read_runs(outputs: Outputs, recipes: Collection[str], *, measured: bool = False) -> dict[str, KnownRun]:
    """Return `<recipe>/<id>` -> a run, for all runs of recipes; what they measured only if that is wanted."""
    stamps = {name: stamp for recipe in recipes for name, stamp in _stamps(outputs.runs, recipe)}
    known, kept, count = dict[str, KnownRun](), dict[bytes, bytes](), 0
    for line in _lines(outputs.root / LINES):
        count += 1
        head = _HEAD.match(line)
        if head is None:
            continue
        recipe, identifier, stamp = (part.decode("utf-8", "replace") for part in head.groups())
        if recipe in recipes:
            name = f"{recipe}/{identifier}"
            run = _parse(identifier, line, measured=measured) if stamps.get(name) == stamp else None
            if run is None:
                continue
            known[name] = run
        kept[head[0]] = line
    added = []
    for name in stamps.keys() - known.keys():
        run, line = _read(outputs.runs / name, stamps[name])
        known[name] = run
        added += [line] if line else []
    _note(outputs.root / LINES, added, kept.values() if 2 * len(kept) < count else None)
    return known


def note_run(outputs: Outputs, folder: Path) -> None:
    """Append the line of a run that has ended; errors of the disk are ignored."""
    stamp = _stamp(f"{folder}/{RUN_RECORD}")
    line = _read(folder, stamp)[1] if stamp else b""
    _note(outputs.root / LINES, [line] if line else [], None)


def _note(path: Path, added: Sequence[bytes], kept: Iterable[bytes] | None) -> None:
    """Append lines; if those to keep are given, replace the file by them and the new ones."""
    with contextlib.suppress(OSError):
        if kept is not None:
            write_bytes_atomically(path, b"".join((*kept, *added)))
        elif added:
            with _open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as file:
                is_new = not os.fstat(file.fileno()).st_size
                for line in added:
                    file.write(b"\n" + line)  # one write each, apart from a line that was cut off
            if is_new:
                share(path)


def _open(path: Path, flags: int) -> BinaryIO:
    """Open a regular file without a buffer. Raises OSError, also for a link: outputs may be those of strangers."""
    extra = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    file = open(os.open(path, flags | extra, 0o666), "wb" if flags & os.O_WRONLY else "rb", buffering=0)  # noqa: PTH123, SIM115 - of a descriptor
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(f"{path} is not a file")
    return file


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines that are not empty. A file that is too large has one, which means nothing."""
    with contextlib.suppress(OSError), _open(path, os.O_RDONLY) as raw, open(raw.fileno(), "rb", closefd=False) as file:
        if os.fstat(file.fileno()).st_size > _MOST_BYTES:
            yield b"\n"
            return
        while line := file.readline(_LONGEST):
            if line != b"\n":
                yield line


def _parse(identifier: str, line: bytes, *, measured: bool) -> KnownRun | None:
    """Return the run of a line; None if the line is damaged."""
    try:
        tree = from_json(line)
        found = _MEASURED.validate_json(tree["measured"], strict=True) if measured else []
        for each in found:
            _check_texts(each.subject, each.facts)
        return _describe(identifier, tree["brief"], found)
    except DAMAGE:
        return None


@lru_cache(maxsize=1024)
def _check_texts(subject: str, facts: str) -> None:
    _SUBJECT.validate_json(subject, strict=True)
    _FACTS.validate_json(facts, strict=True)


def _read(folder: Path, stamp: str) -> tuple[KnownRun, bytes]:
    """Return a run as its record describes it, and its line; no line for one that is damaged or still active."""
    try:
        tree = read_tree(folder / RUN_RECORD)
        brief, measured = _brief(tree), read_measurements(tree)
        run = _describe(folder.name, brief, measured)
        head = {"format": _FORMAT, "run": name_in_history(folder), "stamp": stamp}
        line = to_json({**head, "brief": brief, "measured": _MEASURED.dump_json(measured).decode()}) + b"\n"
    except (OSError, FormatError, *DAMAGE):
        return KnownRun(folder.name, "", _DAMAGED, "", (), {}, ()), b""
    return run, b"" if run.outcome == "running" or len(line) > _LONGEST or not _HEAD.match(line) else line


def _describe(identifier: str, brief: Tree, measured: Sequence[Measured]) -> KnownRun:
    started_at = str(brief["started_at"])
    if datetime.fromisoformat(started_at).tzinfo is None:
        raise ValueError("a time without its zone")
    gates = tuple(str(gate) for gate in brief["recipe"].get("gates") or ())
    return KnownRun(identifier, started_at, str(brief["outcome"]), str(brief.get("commit", "")), gates, brief, measured)


_BRIEF = ("started_at", "passed", "outcome", "wall_s", "command", "user", "host", "commit")


def _brief(tree: Tree) -> Tree:
    """Return the parts of a run's record that `list_runs` and `history` read, with the same names."""
    brief = {name: tree[name] for name in _BRIEF if name in tree}
    failure, machine = tree.get("failure"), tree.get("machine")
    if isinstance(failure, dict):
        brief["failure"] = {"steps": failure.get("steps", ())}
    if isinstance(machine, dict):
        brief["machine"] = {name: machine[name] for name in ("cpu", "gpus") if name in machine}
    brief["recipe"] = {"gates": tree["recipe"].get("gates") or ()}
    brief["source"] = _brief_source(tree["source"])
    brief["models"] = {name: _brief_source(source) for name, source in tree.get("models", {}).items()}
    brief["gates"] = [{"gate": gate["gate"]} for gate in tree["gates"]]
    brief["steps"] = [
        {"name": step["name"], "record": {"metrics": step["record"]["metrics"]}}
        for step in tree["steps"]
        if step.get("record")
    ]
    return brief


def _brief_source(source: Mapping[str, Any]) -> Tree:
    return {"location": source["location"], "artifact": {"digest": source["artifact"]["digest"]}}


def _stamps(runs: Path, recipe: str) -> Iterator[tuple[str, str]]:
    """Yield the name of each run of a recipe, and the status of its record."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(runs / recipe) as entries:
        for entry in entries:
            if ID.fullmatch(entry.name) and not entry.is_symlink() and (stamp := _stamp(f"{entry.path}/{RUN_RECORD}")):
                yield f"{recipe}/{entry.name}", stamp


def _stamp(path: str) -> str:
    """Return the status of a file; empty if there is none."""
    try:
        status = os.stat(path)  # noqa: PTH116 - a Path for each of 10,000 runs takes longer
    except OSError:
        return ""
    return f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"
