"""An index of the records of runs: an SQLite database in the outputs folder, rebuilt from the records at any time.

The records are the truth. Each use compares the index with the status of every record (its times, size and inode) and
reads those that differ again, so that an index that is missing, outdated, damaged, half written or of another version
of ndld-flow costs time and changes no result. Where it cannot be written, it is built in memory. Several processes may
use it at once: SQLite locks it, and a process that would have to wait for long works in memory.

A record that is changed within the resolution of the file system's clock after it was read keeps its status. A record
that was written shortly before it was read, by the clock of the file system, is therefore read again at the next use.
Rows have checksums, because SQLite does not notice a changed byte within a value.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import sqlite3
import struct
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, TypeVar
from uuid import uuid4
from zlib import crc32

from pydantic_core import from_json, to_json

from ndld_flow import __version__
from ndld_flow.history.series import Measured, read_measurements
from ndld_flow.history.steps import Step
from ndld_flow.records.document import Tree, read_tree
from ndld_flow.records.run_folder import RUN_RECORD
from ndld_flow.runner.outputs import ID, Outputs
from ndld_flow.store.files import share

Answer = TypeVar("Answer")
INDEX = "index.sqlite"
_VERSION = crc32(f"7 {__version__}".encode()) & 0x7FFFFFFF
"""Its first number rises whenever a table or the meaning of a value changes; other releases may read records otherwise.
"""
_PATIENCE_S = 2.0
"""Seconds to wait for another process that writes the index."""
_UNSETTLED_NS = 2_500_000_000
"""Age up to which a record may change again without another time: file systems count in up to 2 s."""
_UNSETTLED = "unsettled"
_TABLES = """
CREATE TABLE run (
    recipe TEXT NOT NULL, id TEXT NOT NULL, stamp TEXT NOT NULL, started_at TEXT NOT NULL, outcome TEXT NOT NULL,
    git_commit TEXT NOT NULL, gates TEXT NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY (recipe, id)
) WITHOUT ROWID;
CREATE TABLE brief (
    recipe TEXT NOT NULL, id TEXT NOT NULL, brief TEXT NOT NULL, checksum INTEGER NOT NULL, PRIMARY KEY (recipe, id)
) WITHOUT ROWID;
CREATE TABLE need (
    recipe TEXT NOT NULL, id TEXT NOT NULL, keys TEXT NOT NULL, digests TEXT NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (recipe, id)
) WITHOUT ROWID;
CREATE TABLE tidy (
    recipe TEXT NOT NULL, id TEXT NOT NULL, stamp TEXT NOT NULL, PRIMARY KEY (recipe, id)
) WITHOUT ROWID;
CREATE TABLE text (number INTEGER PRIMARY KEY, value TEXT NOT NULL UNIQUE, checksum INTEGER NOT NULL);
CREATE TABLE measured (
    recipe TEXT NOT NULL, step TEXT NOT NULL, id TEXT NOT NULL, measurement TEXT NOT NULL, subject INTEGER NOT NULL,
    facts INTEGER NOT NULL, metrics INTEGER NOT NULL, doubt TEXT NOT NULL, disturbed INTEGER NOT NULL,
    exact INTEGER NOT NULL, amounts BLOB NOT NULL, checksum INTEGER NOT NULL,
    PRIMARY KEY (recipe, step, id, subject)
) WITHOUT ROWID;
CREATE TABLE found (series TEXT PRIMARY KEY, count INTEGER NOT NULL, digest TEXT NOT NULL, steps TEXT NOT NULL,
    checksum INTEGER NOT NULL);
"""
_DOUBLE = struct.Struct("<d")
_DAMAGED = "damaged"
"""Outcome of a run whose record cannot be read."""


class IndexedRun(NamedTuple):
    """A run in the index."""

    id: str
    started_at: str
    """ISO 8601."""
    outcome: str
    commit: str
    gates: tuple[str, ...]

    @property
    def is_damaged(self) -> bool:
        return self.outcome == _DAMAGED


class IndexedValue(NamedTuple):
    """The value of a metric in one run. Tuples, because there may be 10,000."""

    run: str
    step: str
    metric: str
    value: float
    unit: str
    measurement: str
    subject: int
    """Number of a text."""
    facts: int
    doubt: str
    disturbed: bool
    exact: bool


class RunIndex:
    """The index of an outputs folder, open for one use."""

    def __init__(self, outputs: Outputs, database: sqlite3.Connection, path: Path | None) -> None:
        self._outputs = outputs
        self._database = database
        self._path = path

    def update(self, recipe: str) -> None:
        """Read the records of a recipe's runs that are new or have changed, and forget those that are gone."""
        known = dict(self._database.execute("SELECT id, stamp FROM run WHERE recipe = ?", (recipe,)))
        present = dict(_stamps(self._outputs.runs / recipe))
        changed = [identifier for identifier, stamp in present.items() if known.get(identifier) != stamp]
        gone = [identifier for identifier in known if identifier not in present]
        if not changed and not gone:
            return
        settled_ns = self._clock_ns() - _UNSETTLED_NS
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            for table in ("run", "brief", "measured", "need", "tidy"):
                self._database.executemany(
                    f"DELETE FROM {table} WHERE recipe = ? AND id = ?",  # noqa: S608 - a constant
                    [(recipe, identifier) for identifier in (*gone, *changed)],
                )
            for identifier in changed:
                stamp = present[identifier]
                self._add(recipe, identifier, stamp if _is_older(stamp, settled_ns) else _UNSETTLED)

    def _clock_ns(self) -> int:
        """Return the time of the file system's clock, which may be that of another computer."""
        if self._path is None:
            return time.time_ns()
        probe = self._path.with_name(f".{INDEX}.{uuid4().hex[:8]}")
        try:
            probe.touch()
            status = probe.stat()
        except OSError:
            return 0  # nothing is settled
        finally:
            with contextlib.suppress(OSError):
                probe.unlink(missing_ok=True)
        return min(status.st_mtime_ns, status.st_ctime_ns)

    def _add(self, recipe: str, identifier: str, stamp: str) -> None:
        try:
            tree = read_tree(self._outputs.runs / recipe / identifier / RUN_RECORD)
            row = _run_row(tree)
            measured = read_measurements(tree)
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            row, measured = ("", _DAMAGED, "", "[]", ""), []
        *short, brief = row
        self._database.execute(
            "INSERT OR REPLACE INTO run VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            (recipe, identifier, stamp, *short, _checksum(identifier, *short)),
        )
        self._database.execute(
            "INSERT OR REPLACE INTO brief VALUES (?, ?, ?, ?)",
            (recipe, identifier, brief, _checksum(identifier, brief)),
        )
        self._database.executemany(
            "INSERT OR REPLACE INTO measured VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [self._measured_row(recipe, identifier, each) for each in measured],
        )

    def _measured_row(self, recipe: str, identifier: str, measured: Measured) -> tuple[object, ...]:
        values = (
            identifier,
            measured.measurement,
            self._number(measured.subject),
            self._number(measured.facts),
            self._number(to_json({name: unit for name, (_, unit) in measured.metrics.items()}).decode()),
            measured.doubt,
            int(measured.disturbed),
            int(measured.exact),
        )
        amounts = struct.pack(f"<{len(measured.metrics)}d", *(value for value, _ in measured.metrics.values()))
        return (recipe, measured.step, *values, amounts, _checksum(measured.step, *values, data=amounts))

    def _number(self, text: str) -> int:
        self._database.execute("INSERT OR IGNORE INTO text (value, checksum) VALUES (?, ?)", (text, _checksum(text)))
        number: int = self._database.execute("SELECT number FROM text WHERE value = ?", (text,)).fetchone()[0]
        return number

    def runs(self, recipe: str) -> list[IndexedRun]:
        """Return the runs of a recipe, oldest first."""
        rows = self._database.execute(
            "SELECT id, started_at, outcome, git_commit, gates, checksum FROM run WHERE recipe = ?"
            " ORDER BY started_at, id",
            (recipe,),
        )
        return [
            IndexedRun(identifier, started_at, outcome, commit, _gates_in(gates))
            for identifier, started_at, outcome, commit, gates, checksum in rows
            if _is_sound(checksum, identifier, started_at, outcome, commit, gates)
        ]

    def outcomes(self, recipe: str) -> dict[str, str]:
        """Return id -> recorded outcome of the runs of a recipe that have a record, also if it cannot be read."""
        return dict(self._database.execute("SELECT id, outcome FROM run WHERE recipe = ?", (recipe,)))

    def briefs(self, recipe: str) -> dict[str, Tree]:
        """Return id -> the parts of its record that a list of runs needs, for runs whose records can be read."""
        rows = self._database.execute("SELECT id, brief, checksum FROM brief WHERE recipe = ?", (recipe,))
        return {
            identifier: from_json(brief)
            for identifier, brief, checksum in rows
            if _is_sound(checksum, identifier, brief) and brief
        }

    def needs(
        self, recipe: str, identifiers: Collection[str], read: Callable[[Path], tuple[set[str], set[str]]]
    ) -> tuple[set[str], set[str]]:
        """Return the keys and the digests that runs of a recipe need. `read` returns those of a run's folder."""
        keys, digests, known = set[str](), set[str](), set[str]()
        for identifier, own_keys, own_digests, checksum in self._database.execute(
            "SELECT id, keys, digests, checksum FROM need WHERE recipe = ?", (recipe,)
        ):
            if identifier in identifiers and _is_sound(checksum, identifier, own_keys, own_digests):
                known.add(identifier)
                keys.update(own_keys.split())
                digests.update(own_digests.split())
        added = []
        for identifier in identifiers:
            if identifier not in known:
                own = read(self._outputs.runs / recipe / identifier)
                keys |= own[0]
                digests |= own[1]
                texts = [" ".join(sorted(each)) for each in own]
                added.append((recipe, identifier, *texts, _checksum(identifier, *texts)))
        self._note("INSERT OR REPLACE INTO need VALUES (?, ?, ?, ?, ?)", added)
        return keys, digests

    def untidy(self, recipe: str, identifiers: Collection[str], is_tidy: Callable[[Path], bool]) -> list[Path]:
        """Return the folders of runs that may have leftovers: those that have changed since `is_tidy` was true."""
        known = dict(self._database.execute("SELECT id, stamp FROM tidy WHERE recipe = ?", (recipe,)))
        folder, added, untidy = self._outputs.runs / recipe, [], []
        settled_ns = -1
        for identifier in identifiers:
            stamp = _stamp(f"{folder}/{identifier}")
            if known.get(identifier) == stamp:
                continue
            if not is_tidy(folder / identifier):
                untidy.append(folder / identifier)
                continue
            settled_ns = self._clock_ns() - _UNSETTLED_NS if settled_ns == -1 else settled_ns
            if _is_older(stamp, settled_ns):
                added.append((recipe, identifier, stamp))
        self._note("INSERT OR REPLACE INTO tidy VALUES (?, ?, ?)", added)
        return untidy

    def _note(self, statement: str, rows: Sequence[tuple[object, ...]]) -> None:
        """Add rows. Another process that writes is not waited for."""
        if not rows:
            return
        with contextlib.suppress(sqlite3.OperationalError), self._database:
            self._database.execute("BEGIN IMMEDIATE")
            self._database.executemany(statement, rows)

    def metrics(self, recipe: str) -> list[str]:
        """Return `STEP.METRIC` of all metrics of a recipe."""
        rows = self._database.execute("SELECT DISTINCT step, metrics FROM measured WHERE recipe = ?", (recipe,))
        return sorted({f"{step}.{name}" for step, number in rows for name in from_json(self.text(number))})

    def values(self, recipe: str, metric: str) -> list[IndexedValue]:
        """Return all values of a metric that are finite, in the order of the runs."""
        step, _, name = metric.partition(".")
        rows = self._database.execute(
            "SELECT started_at, measured.id, measurement, subject, facts, metrics, doubt, disturbed, exact, amounts,"
            " measured.checksum FROM measured JOIN run USING (recipe, id) WHERE measured.recipe = ? AND step = ?",
            (recipe, step),
        )
        values = []
        for _, *row, amounts, checksum in sorted(rows):
            if _is_sound(checksum, step, *row, data=amounts):
                run, key, subject, facts, metrics, doubt, disturbed, exact = row
                place, unit = self._place(metrics, name)
                if place >= 0 and math.isfinite(value := _DOUBLE.unpack_from(amounts, place)[0]):
                    shown = (value, unit, key, subject, facts, doubt, bool(disturbed), bool(exact))
                    values.append(IndexedValue(run, step, name, *shown))
        return values

    @lru_cache(maxsize=64)  # noqa: B019 - an index is used once
    def _place(self, metrics: int, name: str) -> tuple[int, str]:
        """Return where the bytes of a metric are, and its unit; -1 if it is not one of these metrics."""
        units: dict[str, str] = from_json(self.text(metrics))
        return (list(units).index(name) * _DOUBLE.size, units[name]) if name in units else (-1, "")

    def text(self, number: int) -> str:
        """Return a text by its number."""
        row = self._database.execute("SELECT value, checksum FROM text WHERE number = ?", (number,)).fetchone()
        if row is None or not _is_sound(row[1], row[0]):
            raise sqlite3.DatabaseError("a text is missing")
        text: str = row[0]
        return text

    def found_steps(self, series: str) -> tuple[int, str, list[Step]] | None:
        """Return the number of points of a series that were tested, their digest, and the steps found among them."""
        row = self._database.execute(
            "SELECT checksum, count, digest, steps FROM found WHERE series = ?", (series,)
        ).fetchone()
        if row is None or not _is_sound(row[0], series, *row[1:]):
            return None
        return row[1], row[2], [Step(**step) for step in json.loads(row[3])]

    def note_steps(self, series: str, count: int, digest: str, steps: Sequence[Step]) -> None:
        """Note the steps found in a series. Another process that writes is not waited for."""
        values = (count, digest, json.dumps([asdict(step) for step in steps]))
        self._note(
            "INSERT OR REPLACE INTO found VALUES (?, ?, ?, ?, ?)", [(series, *values, _checksum(series, *values))]
        )


@lru_cache(maxsize=64)
def _gates_in(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))


def _run_row(tree: Tree) -> tuple[str, str, str, str, str]:
    return (
        str(tree["started_at"]),
        str(tree.get("outcome") or ("passed" if tree["passed"] else "failed")),
        str(tree.get("commit", "")),
        json.dumps([str(gate) for gate in tree["recipe"].get("gates") or ()]),
        to_json(_brief(tree)).decode(),
    )


_BRIEF = ("started_at", "passed", "outcome", "wall_s", "command", "user", "host", "commit")


def _brief(tree: Tree) -> Tree:
    """Return the parts of a run's record that `list_runs` and the pages of all runs read, with the same names."""
    brief = {name: tree[name] for name in _BRIEF if name in tree}
    failure, machine = tree.get("failure"), tree.get("machine")
    if isinstance(failure, dict):
        brief["failure"] = {"steps": failure.get("steps", ())}
    if isinstance(machine, dict):
        brief["machine"] = {name: machine[name] for name in ("cpu", "cpu_count", "gpus") if name in machine}
    brief["source"] = _brief_source(tree["source"])
    brief["models"] = {name: _brief_source(source) for name, source in tree.get("models", {}).items()}
    brief["gates"] = [{name: gate[name] for name in ("gate", "passed") if name in gate} for gate in tree["gates"]]
    brief["steps"] = [
        {"name": step["name"], "record": {"metrics": step["record"]["metrics"]}}
        for step in tree["steps"]
        if step.get("record")
    ]
    return brief


def _brief_source(source: Mapping[str, Any]) -> Tree:
    return {"location": source["location"], "artifact": {"digest": source["artifact"]["digest"]}}


def _checksum(*values: object, data: bytes = b"") -> int:
    return crc32(data, crc32("\0".join(map(str, values)).encode("utf-8", "surrogatepass")))


def _is_sound(checksum: int, *values: object, data: bytes = b"") -> bool:
    """Return True. Raises sqlite3.DatabaseError for a row that was changed by anything but this module."""
    if _checksum(*values, data=data) != checksum:
        raise sqlite3.DatabaseError("a row is damaged")
    return True


def _stamps(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the id and the status of each record of a run."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if ID.fullmatch(entry.name) and not entry.is_symlink()]
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        yield name, _stamp(f"{folder}/{name}/{RUN_RECORD}")


def _stamp(path: str) -> str:
    try:
        status = os.stat(path)  # noqa: PTH116 - a Path for each of 10,000 runs takes longer
    except OSError:
        return "missing"
    return f"{status.st_mtime_ns} {status.st_ctime_ns} {status.st_size} {status.st_ino}"


def _is_older(stamp: str, time_ns: int) -> bool:
    """Return whether a file was last changed before a time."""
    return stamp == "missing" or all(int(each) < time_ns for each in stamp.split()[:2])


def read_index(outputs: Outputs, recipes: str | Sequence[str], read: Callable[[RunIndex], Answer]) -> Answer:
    """Return what `read` finds in the index of an outputs folder, with all runs of recipes as their records are now.

    `read` may be called again: a damaged index is rebuilt, and one that cannot be used is built in memory.
    """
    path, names = outputs.root / INDEX, [recipes] if isinstance(recipes, str) else recipes
    if _may_write(path):
        for _ in range(2):
            try:
                return _read(outputs, names, path, read)
            except sqlite3.DatabaseError as error:
                if "locked" in str(error):
                    break
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
    return _read(outputs, names, None, read)


def _read(outputs: Outputs, recipes: Sequence[str], path: Path | None, read: Callable[[RunIndex], Answer]) -> Answer:
    """Read the database in a file, or in memory. Raises sqlite3.DatabaseError if that is damaged, locked or full."""
    database = sqlite3.connect(":memory:" if path is None else path, timeout=_PATIENCE_S, isolation_level=None)
    with contextlib.closing(database):
        _prepare(database, path)
        index = RunIndex(outputs, database, path)
        for recipe in recipes:
            index.update(recipe)
        return read(index)


def _may_write(path: Path) -> bool:
    return os.access(path if path.exists() else path.parent, os.W_OK) and os.access(path.parent, os.W_OK)


def _prepare(database: sqlite3.Connection, path: Path | None) -> None:
    """Create the tables, unless they are those of this version."""
    database.execute("PRAGMA synchronous = OFF")  # a lost or torn index is rebuilt
    database.execute("PRAGMA trusted_schema = OFF")  # outputs may be those of strangers
    if database.execute("PRAGMA user_version").fetchone()[0] == _VERSION:
        return
    with database:
        database.execute("BEGIN IMMEDIATE")
        if database.execute("PRAGMA user_version").fetchone()[0] == _VERSION:
            return
        for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
            database.execute(f'DROP TABLE "{table}"')
        for statement in filter(str.strip, _TABLES.split(";")):
            database.execute(statement)
        database.execute(f"PRAGMA user_version = {_VERSION}")
    if path is not None:
        share(path)
