"""An index of the records of runs: an SQLite database in the outputs folder, rebuilt from the records at any time.

The records are the truth. Each use compares the index with the status of every record (its time, size and inode) and
reads those that differ again, so that an index that is missing, outdated, damaged, half written or of another version
of ndld-flow costs time and changes no result. Where it cannot be written, it is built in memory. Several processes may
use it at once: SQLite locks it, and a process that would have to wait for long works in memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import TypeVar

from ndld_flow.history.series import Measured, read_measurements
from ndld_flow.history.steps import Step
from ndld_flow.records.document import Tree, read_tree
from ndld_flow.records.run_folder import RUN_RECORD
from ndld_flow.runner.outputs import ID, Outputs
from ndld_flow.store.files import share

Answer = TypeVar("Answer")
INDEX = "index.sqlite"
_VERSION = 3
"""Rises whenever a table or the meaning of a value changes."""
_PATIENCE_S = 2.0
"""Seconds to wait for another process that writes the index."""
_TABLES = """
CREATE TABLE run (
    recipe TEXT NOT NULL, id TEXT NOT NULL, stamp TEXT NOT NULL, started_at TEXT NOT NULL, outcome TEXT NOT NULL,
    git_commit TEXT NOT NULL, gates TEXT NOT NULL, PRIMARY KEY (recipe, id)
) WITHOUT ROWID;
CREATE TABLE text (number INTEGER PRIMARY KEY, value TEXT NOT NULL UNIQUE);
CREATE TABLE measured (
    recipe TEXT NOT NULL, step TEXT NOT NULL, id TEXT NOT NULL, measurement TEXT NOT NULL, subject INTEGER NOT NULL,
    facts INTEGER NOT NULL, metrics TEXT NOT NULL, doubt TEXT NOT NULL, disturbed INTEGER NOT NULL,
    exact INTEGER NOT NULL, PRIMARY KEY (recipe, step, id, subject)
) WITHOUT ROWID;
CREATE TABLE found (series TEXT PRIMARY KEY, count INTEGER NOT NULL, digest TEXT NOT NULL, steps TEXT NOT NULL);
"""
_DAMAGED = "damaged"
"""Outcome of a run whose record cannot be read."""


@dataclass(frozen=True)
class IndexedRun:
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


@dataclass(frozen=True)
class IndexedValue:
    """The value of a metric in one run."""

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

    def __init__(self, outputs: Outputs, database: sqlite3.Connection) -> None:
        self._outputs = outputs
        self._database = database

    def update(self, recipe: str) -> None:
        """Read the records of a recipe's runs that are new or have changed, and forget those that are gone."""
        known = dict(self._database.execute("SELECT id, stamp FROM run WHERE recipe = ?", (recipe,)))
        present = dict(_stamps(self._outputs.runs / recipe))
        changed = [identifier for identifier, stamp in present.items() if known.get(identifier) != stamp]
        gone = [identifier for identifier in known if identifier not in present]
        if not changed and not gone:
            return
        with self._database:
            self._database.execute("BEGIN IMMEDIATE")
            for identifier in (*gone, *changed):
                self._database.execute("DELETE FROM run WHERE recipe = ? AND id = ?", (recipe, identifier))
                self._database.execute("DELETE FROM measured WHERE recipe = ? AND id = ?", (recipe, identifier))
            for identifier in changed:
                self._add(recipe, identifier, present[identifier])

    def _add(self, recipe: str, identifier: str, stamp: str) -> None:
        try:
            tree = read_tree(self._outputs.runs / recipe / identifier / RUN_RECORD)
            row = _run_row(tree)
            measured = read_measurements(tree)
        except FileNotFoundError:
            return
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            row, measured = ("", _DAMAGED, "", "[]"), []
        self._database.execute(
            "INSERT OR REPLACE INTO run VALUES (?, ?, ?, ?, ?, ?, ?)", (recipe, identifier, stamp, *row)
        )
        self._database.executemany(
            "INSERT OR REPLACE INTO measured VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [self._measured_row(recipe, identifier, each) for each in measured],
        )

    def _measured_row(self, recipe: str, identifier: str, measured: Measured) -> tuple[object, ...]:
        return (
            recipe,
            measured.step,
            identifier,
            measured.measurement,
            self._number(measured.subject),
            self._number(measured.facts),
            json.dumps(measured.metrics),
            measured.doubt,
            measured.disturbed,
            measured.exact,
        )

    def _number(self, text: str) -> int:
        self._database.execute("INSERT OR IGNORE INTO text (value) VALUES (?)", (text,))
        number: int = self._database.execute("SELECT number FROM text WHERE value = ?", (text,)).fetchone()[0]
        return number

    def runs(self, recipe: str) -> list[IndexedRun]:
        """Return the runs of a recipe, oldest first."""
        rows = self._database.execute(
            "SELECT id, started_at, outcome, git_commit, gates FROM run WHERE recipe = ? ORDER BY started_at, id",
            (recipe,),
        )
        return [
            IndexedRun(identifier, started_at, outcome, commit, _gates_in(gates))
            for identifier, started_at, outcome, commit, gates in rows
        ]

    def metrics(self, recipe: str) -> list[str]:
        """Return `STEP.METRIC` of all metrics of a recipe."""
        rows = self._database.execute(
            "SELECT DISTINCT step, json_each.key FROM measured, json_each(metrics) WHERE recipe = ?", (recipe,)
        )
        return sorted(f"{step}.{name}" for step, name in rows)

    def values(self, recipe: str, metric: str) -> list[IndexedValue]:
        """Return all values of a metric, in the order of the runs."""
        step, _, name = metric.partition(".")
        path = f'$."{name}"'
        rows = self._database.execute(
            "SELECT measured.id, json_extract(metrics, ? || '[0]'), json_extract(metrics, ? || '[1]'), measurement,"
            " subject, facts, doubt, disturbed, exact FROM measured JOIN run USING (recipe, id)"
            " WHERE measured.recipe = ? AND step = ? AND json_type(metrics, ?) IS NOT NULL ORDER BY started_at, id",
            (path, path, recipe, step, path),
        )
        return [
            IndexedValue(
                run, step, name, _number_of(value), unit, key, subject, facts, doubt, bool(disturbed), bool(exact)
            )
            for run, value, unit, key, subject, facts, doubt, disturbed, exact in rows
        ]

    def text(self, number: int) -> str:
        """Return a text by its number."""
        text: str = self._database.execute("SELECT value FROM text WHERE number = ?", (number,)).fetchone()[0]
        return text

    def found_steps(self, series: str) -> tuple[int, str, list[Step]] | None:
        """Return the number of points of a series that were tested, their digest, and the steps found among them."""
        row = self._database.execute("SELECT count, digest, steps FROM found WHERE series = ?", (series,)).fetchone()
        return None if row is None else (row[0], row[1], [Step(**step) for step in json.loads(row[2])])

    def note_steps(self, series: str, count: int, digest: str, steps: Sequence[Step]) -> None:
        """Note the steps found in a series. Another process that writes is not waited for."""
        with contextlib.suppress(sqlite3.OperationalError), self._database:
            self._database.execute(
                "INSERT OR REPLACE INTO found VALUES (?, ?, ?, ?)",
                (series, count, digest, json.dumps([asdict(step) for step in steps])),
            )


@lru_cache(maxsize=64)
def _gates_in(text: str) -> tuple[str, ...]:
    return tuple(json.loads(text))


def _number_of(value: object) -> float:
    return float(value) if isinstance(value, int | float | str) else float("nan")


def _run_row(tree: Tree) -> tuple[str, str, str, str]:
    return (
        str(tree["started_at"]),
        str(tree.get("outcome") or ("passed" if tree["passed"] else "failed")),
        str(tree.get("commit", "")),
        json.dumps([str(gate) for gate in tree["recipe"].get("gates") or ()]),
    )


def _stamps(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the id and the status of each record of a run."""
    try:
        with os.scandir(folder) as entries:
            names = [entry.name for entry in entries if ID.fullmatch(entry.name)]
    except (FileNotFoundError, NotADirectoryError):
        return
    for name in names:
        try:
            status = os.stat(f"{folder}/{name}/{RUN_RECORD}")  # noqa: PTH116 - a Path for each of 10,000 runs takes longer
        except OSError:
            yield name, "missing"
        else:
            yield name, f"{status.st_mtime_ns} {status.st_size} {status.st_ino}"


def read_index(outputs: Outputs, recipe: str, read: Callable[[RunIndex], Answer]) -> Answer:
    """Return what `read` finds in the index of an outputs folder, with all runs of a recipe as their records are now.

    `read` may be called again: a damaged index is rebuilt, and one that cannot be used is built in memory.
    """
    path = outputs.root / INDEX
    if _may_write(path):
        for _ in range(2):
            try:
                return _read(outputs, recipe, path, read)
            except sqlite3.DatabaseError as error:
                if "locked" in str(error):
                    break
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
    return _read(outputs, recipe, None, read)


def _read(outputs: Outputs, recipe: str, path: Path | None, read: Callable[[RunIndex], Answer]) -> Answer:
    """Read the database in a file, or in memory. Raises sqlite3.DatabaseError if that is damaged, locked or full."""
    database = sqlite3.connect(":memory:" if path is None else path, timeout=_PATIENCE_S, isolation_level=None)
    with contextlib.closing(database):
        _prepare(database, path)
        index = RunIndex(outputs, database)
        index.update(recipe)
        return read(index)


def _may_write(path: Path) -> bool:
    return os.access(path if path.exists() else path.parent, os.W_OK) and os.access(path.parent, os.W_OK)


def _prepare(database: sqlite3.Connection, path: Path | None) -> None:
    """Create the tables, unless they are those of this version."""
    database.execute("PRAGMA synchronous = OFF")  # a lost or torn index is rebuilt
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
