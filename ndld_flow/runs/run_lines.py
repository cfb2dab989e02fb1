"""A line for each run in `outputs/runs.jsonl`: what lists, histories and `gc --dry-run` need of its record.

The folders decide, and lines are hints: a line counts if the status of its run's record is what the line says. Other
runs are read from their folders, and their lines appended. A line that is missing, cut off, damaged, outdated or of
another version therefore costs time and changes no result, and nobody needs a lock: whoever rewrites the file may lose
a line that another process appends meanwhile, and that run is read once more.

A line is a JSON array: format, run and status, then the four parts of `Line`, each after a tab, which JSON has nowhere
else: a reader finds the parts that it wants and parses no others.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
from array import array
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, TypeVar

from pydantic import TypeAdapter
from pydantic_core import from_json, to_json

from ndld_flow import __version__
from ndld_flow.base.errors import FormatError
from ndld_flow.history.series import Measured, MeasuredStep, Subject, read_measurements
from ndld_flow.records.document import DAMAGE, PLAIN_VERSIONS, Tree, read_tree
from ndld_flow.records.run_folder import RUN_RECORD
from ndld_flow.runs.outputs import ID, Outputs, name_in_history
from ndld_flow.store.files import share, write_bytes_atomically

LINES = "runs.jsonl"
_FORMAT = f"{__version__} {PLAIN_VERSIONS['run']} 3"
"""Its last number rises whenever the meaning of a line changes; other releases may read records otherwise."""
_HEAD = re.compile(rb'\["%b","([^"\\/]+)/([^"\\/]+)","([0-9 ]+)"' % re.escape(_FORMAT.encode()))
_LONGEST = 2**22
_MOST_BYTES = 2**30
Needs: TypeAlias = tuple[set[str], set[str]]
"""Keys and digests of what a run needs in the store."""
_NEEDS: TypeAdapter[Needs | None] = TypeAdapter(Needs | None)
_STEPS = TypeAdapter(tuple[MeasuredStep, ...])
_SUBJECT = TypeAdapter(Subject)
Found = TypeVar("Found")


@dataclass(frozen=True, slots=True)
class Line:
    """The parts of a line, as JSON that may be damaged: the methods raise the errors of `DAMAGE`."""

    _brief: bytes
    _needs: bytes
    _steps: bytes
    _measured: bytes

    @classmethod
    def of(cls, text: bytes) -> Line:
        return cls(*text.removesuffix(b"]\n").split(b",\t")[1:])

    def brief(self) -> Tree:
        """Return the parts of a run's record that `runs` and `history` read, with the same names."""
        brief: Tree = from_json(self._brief)
        return brief

    def needs(self) -> Needs | None:
        """Return what the run needs; None if its record is not valid."""
        return _NEEDS.validate_json(self._needs)

    def measured(self) -> list[Measured]:
        steps, measured = _read_steps(self._steps), from_json(self._measured)
        return [_measured(step, *each) for step, each in zip(steps, measured, strict=True)]


@lru_cache(maxsize=1024)
def _read_steps(text: bytes) -> tuple[MeasuredStep, ...]:
    """Return the same steps for the same text: 10,000 runs have a few."""
    steps = _STEPS.validate_json(text, strict=True)
    for step in steps:
        _SUBJECT.validate_json(step.subject, strict=True)
    return steps


def _measured(what: MeasuredStep, measurement: str, doubt: str, disturbed: bool, values: Sequence[float]) -> Measured:
    found = array("d", values)
    if not (isinstance(measurement, str) and isinstance(doubt, str) and len(found) == len(what.units)):
        raise TypeError("not a measurement")
    return Measured(what, measurement, doubt, disturbed, found)


def read_runs(
    outputs: Outputs, recipes: Collection[str], read: Callable[[str, Line], Found | None]
) -> dict[str, Found | None]:
    """Return `<recipe>/<id>` -> what `read` takes from its line, for all runs of recipes.

    `read` gets that name and the line, and raises one of `DAMAGE` for a line that it cannot use. It is None for a run
    whose record cannot be read.
    """
    stamps = {name: stamp for recipe in recipes for name, stamp in _stamps(outputs.runs, recipe)}
    path, found, alive, count = outputs.root / LINES, dict[str, Found | None](), dict[bytes, int](), 0
    for count, line in enumerate(_lines(path), 1):
        head = _HEAD.match(line)
        if head is None:
            continue
        recipe, identifier, stamp = (part.decode("utf-8", "replace") for part in head.groups())
        if recipe in recipes:
            name = f"{recipe}/{identifier}"
            if stamps.get(name) != stamp:
                continue
            try:
                found[name] = read(name, Line.of(line))
            except DAMAGE:
                continue
        alive[head[0]] = count
    added = []
    for name in stamps.keys() - found.keys():
        found[name] = None
        with contextlib.suppress(OSError, FormatError, *DAMAGE):
            line, is_running = _describe(outputs.runs / name, stamps[name])
            found[name] = read(name, Line.of(line))
            added += [] if is_running else [line]
    if 2 * len(alive) < count:
        last = {*alive.values()}
        with contextlib.suppress(OSError):
            kept = (line for index, line in enumerate(_lines(path), 1) if index in last)
            write_bytes_atomically(path, b"".join([*kept, *added]))
    else:
        _append(path, added)
    return found


def note_run(outputs: Outputs, folder: Path) -> None:
    """Append the line of a run that has ended; errors of the disk are ignored."""
    with contextlib.suppress(OSError, FormatError, *DAMAGE):
        line, is_running = _describe(folder, _stamp(f"{folder}/{RUN_RECORD}"))
        _append(outputs.root / LINES, [] if is_running else [line])


def _append(path: Path, lines: Sequence[bytes]) -> None:
    with contextlib.suppress(OSError):
        if lines:
            with _open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT) as file:
                is_new = not os.fstat(file.fileno()).st_size
                for line in lines:
                    if len(line) <= _LONGEST and _HEAD.match(line):
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


def _describe(folder: Path, stamp: str) -> tuple[bytes, bool]:
    """Return the line of a run as its record describes it, and whether it may still be active: then it is not kept.

    Raises OSError, FormatError, and the errors of `DAMAGE`.
    """
    record, head = read_tree(folder / RUN_RECORD), [_FORMAT, name_in_history(folder), stamp]
    measured = read_measurements(record)
    parts = (
        _brief(record),
        _needs(record),
        [asdict(each.what) for each in measured],
        [(each.measurement, each.doubt, each.disturbed, each.values) for each in measured],
    )
    texts = [to_json(part, inf_nan_mode="constants") for part in parts]
    return b",\t".join((to_json(head)[:-1], *texts)) + b"]\n", record.get("outcome") == "running"


def _needs(record: Tree) -> Needs | None:
    """Return what a run needs, by its record; None if that is not valid, for which `gc` has an error."""
    from ndld_flow.records.run_record import RunRecord

    try:
        return RunRecord.model_validate_json(to_json(record, inf_nan_mode="constants")).needs()
    except (FormatError, ValueError):
        return None


_BRIEF = ("started_at", "passed", "outcome", "wall_s", "command", "user", "host", "commit")


def _brief(tree: Tree) -> Tree:
    brief = {name: tree[name] for name in _BRIEF if name in tree}
    failure, machine = tree.get("failure"), tree.get("machine")
    if isinstance(failure, dict):
        brief["failure"] = {"steps": failure.get("steps", ())}
    if isinstance(machine, dict):
        brief["machine"] = {name: machine[name] for name in ("cpu", "gpus") if name in machine}
    brief["verdict"] = tree.get("verdict", ())[:1]
    brief["recipe"] = {"gates": tree["recipe"].get("gates") or ()}
    brief["source"] = _brief_source(tree["source"])
    brief["models"] = {name: _brief_source(source) for name, source in tree.get("models", {}).items()}
    brief["gates"] = [{"gate": gate["gate"]} for gate in tree["gates"]]
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
