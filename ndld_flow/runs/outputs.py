"""The folders of finished runs and sweeps: find them by id, tag, recipe or path; name them; list them."""

from __future__ import annotations

import contextlib
import os
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ndld_flow.base.errors import FormatError, OutputsError, RequestError, require_utf8
from ndld_flow.base.text import lazy_pattern
from ndld_flow.records.document import DAMAGE, read_bounded, read_tree
from ndld_flow.records.outcomes import ENDINGS, RunOutcome, is_complete, judge
from ndld_flow.records.run_folder import RUN_RECORD, SWEEP_RECORD
from ndld_flow.runs.cache_settings import shares_new_outputs
from ndld_flow.runs.disk import explain_disk
from ndld_flow.store.files import follow, make_folder, place_folder, point_to, share, write_text_atomically
from ndld_flow.store.store import Store, mark_store, refuse_other_store

if TYPE_CHECKING:
    from ndld_flow.records.run_record import RunRecord


@dataclass(frozen=True)
class Order:
    """The position of each finished folder, from 1 on, the newest last.

    A folder without an entry, from another machine or a truncated file, comes after all listed folders that started no
    later, by the time in their names.
    """

    noted: Mapping[str, int]
    """Position by name; folders may have been removed since."""

    def place(self, name: str) -> int:
        if noted := self.noted.get(name):
            return noted
        seconds, places = self._by_time
        return places[bisect_right(seconds, _second(name))]

    @cached_property
    def _by_time(self) -> tuple[list[str], list[int]]:
        """Return the sorted start times of listed folders, and the running maximum of their positions."""
        timed = sorted((_second(name), place) for name, place in self.noted.items())
        return [second for second, _ in timed], list(accumulate((place for _, place in timed), max, initial=0))


@dataclass(frozen=True)
class History:
    """A file with a line for each finished folder, the newest last: `ppocr-det/20261121T093000Z-abcdef`."""

    path: Path

    def add(self, folder: Path) -> None:
        """List a folder as the newest. Raises OSError."""
        make_folder(self.path.parent)
        with self.path.open("ab") as file:
            file.write(f"\n{name_in_history(folder)}".encode())  # an earlier line that was cut off stays separate
            file.flush()
            os.fsync(file.fileno())
        share(self.path)

    def read(self) -> Order:
        """Return the order; empty without a history."""
        return Order({name: index for index, name in enumerate(self._names(), 1)})

    def forget(self, folders: Collection[Path]) -> None:
        """Remove folders from the list. Raises OSError."""
        gone = {name_in_history(folder) for folder in folders}
        names = [name for name in self._names() if name not in gone]
        if gone and self.path.exists():
            write_text_atomically(self.path, "\n".join(names))

    def _names(self) -> list[str]:
        try:
            return read_bounded(self.path).decode("utf-8", "replace").split()
        except OSError:
            return []


def name_in_history(folder: Path) -> str:
    """Return `<recipe>/<id>`."""
    return f"{folder.parent.name}/{folder.name}"


def _second(name: str) -> str:
    """Return the start time in a run's name: `20261121T093000Z`."""
    return name.rpartition("/")[2].partition("-")[0]


FOR_GROUP = 0o2775
"""Permissions of an outputs folder that a group shares; new files and folders get its group."""
ACCEPTED = "accepted.json"
"""The accepted changes of metrics, which may be committed."""
IGNORED = f"# written by ndld-flow\n*\n!.gitignore\n!{ACCEPTED}\n"
BEST = "best"
LATEST = "latest"
FOLDER_LEASE = "folder"
"""Kind of the leases, by the folders' names, of runs and sweeps that are active."""
POINTS = "points"
"""The folder, in a sweep's, of its points' folders: `0001`, `0002`, ..."""
RECORDS = (RUN_RECORD, SWEEP_RECORD)
ID = lazy_pattern(r"\d{8}T\d{6}Z-[0-9a-f]{6}")
TAG = lazy_pattern(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class NoPointError(RequestError):
    """A reference names a sweep without a point, or with a point that does not exist."""


@dataclass(frozen=True)
class Outputs:
    """The folder that holds the store, the runs, the sweeps and their tags."""

    root: Path

    @property
    def store(self) -> Store:
        """Return the store. Raises FormatError if it is of another version of ndld-flow."""
        refuse_other_store(self.root / "store")
        return Store(self.root / "store")

    @property
    def runs(self) -> Path:
        return self.root / "runs"

    @property
    def sweeps(self) -> Path:
        return self.root / "sweeps"

    @property
    def tags(self) -> Path:
        return self.root / "tags"

    @property
    def noise(self) -> Path:
        return self.root / "noise"

    @property
    def history(self) -> History:
        return _history(self.runs)

    def run_folder(self, run: RunRecord) -> Path:
        """Return the folder of a run, which may not exist yet."""
        return self.runs / run.recipe_name / run.id

    def publish(self, built: Path, folder: Path) -> None:
        """Make a folder of a run or a sweep the newest, and `latest`; a folder that was built elsewhere is moved.

        Raises OSError.
        """
        with self.store.locks.hold("publish"):
            self.history.add(folder)  # first: a folder that is not listed would count as old
            if built != folder:
                place_folder(built, folder)
            point_to(folder.parent / LATEST, folder)

    def mend_latest(self, folder: Path) -> None:
        """Point `latest` to a newest run or sweep if it is dangling because a process was killed."""
        with self.store.locks.hold("publish"):
            pointed = _target(folder.parent / LATEST)
            if pointed is None or not has_record(pointed):
                point_to(folder.parent / LATEST, folder)

    def prepare(self) -> None:
        """Create the folder if it is missing, for its group too if the user's settings say so.

        Raises OutputsError if nothing can be written there, RequestError if the project decides who may.
        """
        require_utf8(self.root)
        is_new = not self.root.exists()
        for_group = is_new and shares_new_outputs()
        try:
            if for_group:
                make_folder(self.root)
                self.root.chmod(FOR_GROUP)  # everything that is created in it inherits that: `store/files.py`
            make_folder(self.runs)
            if is_new:  # a folder that exists, and what git should see of it, are the user's
                write_text_atomically(self.root / ".gitignore", IGNORED)
            probe = self.root / ".writable"
            probe.touch()
            probe.unlink(missing_ok=True)
            mark_store(self.root / "store")
        except OSError as error:
            message = (
                explain_disk(error, self.root) or f"it cannot be written ({error}). Choose another with --outputs."
            )
            raise OutputsError(f"outputs folder {self.root}: {message}") from None

    def folders(self, recipe: str = "*") -> Iterator[Path]:
        """Return the folders of runs, oldest first, including active runs but not the points of sweeps."""
        return iter(_finished(self.runs, recipe, RUN_RECORD))

    def sweep_folders(self) -> Iterator[Path]:
        """Return the folders of sweeps, oldest first."""
        return iter(_finished(self.sweeps, "*", SWEEP_RECORD))

    def damaged_folders(self) -> Iterator[tuple[Path, str]]:
        """Yield the folders of runs and sweeps that have lost their record, and its name."""
        for parent, record in ((self.runs, RUN_RECORD), (self.sweeps, SWEEP_RECORD)):
            for name in sorted(folder_names(parent, links=True)):
                start = f"{parent}/{name}"
                for identifier in sorted(filter(ID.fullmatch, folder_names(Path(start), links=True))):
                    path = f"{start}/{identifier}/{record}"
                    if not os.path.isfile(path):  # noqa: PTH113 - a Path for each of 10,000 runs takes longer
                        yield Path(path).parent, record

    def latest(self, recipe: str) -> Path | None:
        """Return the folder of a recipe's newest finished run, with any verdict."""
        return _find_complete(self.runs, recipe, RUN_RECORD)

    def latest_sweep(self, recipe: str) -> Path | None:
        """Return the folder of a recipe's newest finished sweep."""
        return _find_complete(self.sweeps, recipe, SWEEP_RECORD)

    def outcome(self, folder: Path) -> RunOutcome | None:
        """Return the outcome of a run or a sweep, or `running`; None if its record cannot be read."""
        recorded = next((read_outcome(folder / name) for name in RECORDS if (folder / name).is_file()), None)
        return self.outcome_now(recorded, folder) if recorded is not None else None

    def outcome_now(self, recorded: RunOutcome, folder: Path) -> RunOutcome:
        """Return a recorded outcome, or `interrupted` if it is `running` and its process was killed."""
        return "interrupted" if recorded == "running" and not self.is_alive(folder) else recorded

    def is_complete(self, folder: Path) -> bool:
        """Return whether a run or a sweep has finished; one whose record cannot be read counts as finished."""
        outcome = self.outcome(folder)
        return outcome is None or is_complete(outcome)

    def is_alive(self, folder: Path) -> bool:
        """Return whether a process is computing a run or a sweep; True if that is unknown."""
        try:
            return self.store.locks.is_leased(FOLDER_LEASE, folder.name)
        except OSError:
            return True

    def tagged(self) -> dict[str, Path]:
        """Return tag -> folder of a run, a sweep or a point, for tags whose folder exists."""
        names = sorted(path.name for path in self.tags.glob("[!.]*")) if self.tags.is_dir() else []
        targets = {name: _target(self.tags / name) for name in names}
        return {name: folder for name, folder in targets.items() if folder is not None}

    def find(self, reference: str) -> Path:
        """Return the folder of the run that a tag, recipe, (shortened) id, `latest` or path names, or of a sweep's
        point: `REFERENCE#NUMBER`, `REFERENCE#best`.

        Raises RequestError if there is none, or more than one, and if a recipe or `latest` would mean a run that
        did not finish; NoPointError if a sweep is named without a point.
        """
        folder = self._find_in(self.runs, reference, RUN_RECORD)
        if folder is not None:
            self._refuse_unfinished(reference, folder)
            return folder
        head, sharp, point = reference.rpartition("#")
        sweep = self._find_in(self.sweeps, head if sharp else reference, SWEEP_RECORD)
        if sweep is None:
            raise RequestError(
                f"run {reference}: there is no such run, tag or recipe in {self.root}. `ndld-flow runs` lists them; "
                "--outputs names another folder."
            )
        return _find_point(sweep, head if sharp else reference, point if sharp else "")

    def find_any(self, reference: str, *, unfinished: bool = False) -> Path:
        """Return the folder of the run, the sweep or the sweep's point that a reference names; of a recipe, or
        `latest`, the newest of runs and sweeps. `unfinished`: also one that did not finish.

        Raises RequestError as `find` does.
        """
        order = self.history.read()
        dated = [
            (age_of(name_in_history(folder), f"{folder}/{record}", order), folder)
            for parent, record in ((self.runs, RUN_RECORD), (self.sweeps, SWEEP_RECORD))
            if (folder := self._find_in(parent, reference, record)) is not None
        ]
        if not dated:
            return self.find(reference)
        newest = max(dated)[1]
        if not unfinished:
            self._refuse_unfinished(reference, newest)
        return newest

    def _refuse_unfinished(self, reference: str, folder: Path) -> None:
        """Raise RequestError if a name for the newest run means one without all results.

        An older run instead would be mistaken for the one that has just run.
        """
        if reference not in (LATEST, folder.parent.name):
            return
        if self.is_complete(folder):
            return
        is_run = (folder / RUN_RECORD).is_file()
        earlier = _find_complete(folder.parent.parent, folder.parent.name, RUN_RECORD if is_run else SWEEP_RECORD)
        named = f"; `{name_folder(earlier)}` is the newest that finished" if earlier is not None else ""
        raise RequestError(
            f"{reference}: its newest run, {name_folder(folder)}, did not finish ({self.outcome(folder)}). Name a run "
            f"by its id or a tag{named}."
        )

    def _find_in(self, parent: Path, reference: str, record: str) -> Path | None:
        """Find a run, or a sweep, by tag, path, recipe or id; None if there is none."""
        tagged = self.tagged().get(reference)
        if tagged is not None and (tagged / record).is_file():
            return tagged
        if (Path(reference) / record).is_file():
            return Path(reference).resolve()
        if reference == LATEST:
            return self._newest(_finished(parent, "*", record), record)
        pointed = _target(parent / reference / LATEST)
        if pointed is None or not (pointed / record).is_file() or read_outcome(pointed / record) == "running":
            pointed = self._newest(_sorted(_with_record(parent / reference, record), record), record)
        return pointed.resolve() if pointed is not None else _find_by_id(parent, reference, record)

    def _newest(self, folders: Sequence[Path], record: str) -> Path | None:
        """Return the last of these folders that is not active."""
        return next(
            (
                folder
                for folder in reversed(folders)
                if read_outcome(folder / record) != "running" or not self.is_alive(folder)
            ),
            None,
        )

    def set_tag(self, folder: Path, name: str) -> None:
        """Tag a folder, moving the tag from another folder. Raises RequestError for an invalid name."""
        if not TAG.fullmatch(name) or name == LATEST:
            raise RequestError(f"tag {name!r}: use letters, digits, `.`, `_` and `-`, and not `{LATEST}`.")
        make_folder(self.tags)
        with self.store.locks.hold("publish"):
            if not folder.exists():
                raise RequestError(f"{name_folder(folder)}: `gc` has just removed it.")
            point_to(self.tags / name, folder)

    def remove_tag(self, name: str) -> None:
        """Remove a tag. Raises RequestError if there is no such tag."""
        if not TAG.fullmatch(name) or name not in {path.name for path in self.tags.glob("[!.]*")}:
            raise RequestError(f"tag {name!r}: there is no such tag; known: {', '.join(self.tagged()) or 'none'}.")
        (self.tags / name).unlink()


def has_record(folder: Path) -> bool:
    """Return whether a path is the folder of a run or a sweep."""
    return any((folder / record).is_file() for record in RECORDS)


def is_point(folder: Path) -> bool:
    """Return whether a folder is that of a sweep's point, and not that of a run of a recipe named `points`."""
    return folder.parent.name == POINTS and folder.name.isdecimal()


def name_folder(folder: Path) -> str:
    """Return the name of a run or a sweep: `ppocr-det/20261121T093000Z-abcdef`, of a point with `#17` appended."""
    if is_point(folder):
        sweep = folder.parent.parent
        return f"{sweep.parent.name}/{sweep.name}#{int(folder.name)}"
    return f"{folder.parent.name}/{folder.name}"


def folder_names(folder: Path, *, links: bool = False, missing_ok: bool = True) -> list[str]:
    """Return the names of the folders in a folder, without temporary ones, and without links unless `links`.

    Raises OSError if it is not a folder that can be listed; with `missing_ok`, only if listing it is not permitted.
    """
    try:
        with os.scandir(folder) as entries:
            return [
                entry.name
                for entry in entries
                if not entry.name.startswith(".") and entry.is_dir(follow_symlinks=links)
            ]
    except (FileNotFoundError, NotADirectoryError):
        if missing_ok:
            return []
        raise


def _finished(parent: Path, recipe: str, record: str) -> list[Path]:
    """Return the folders of a recipe that have a record, oldest first."""
    names = [name for name in folder_names(parent, links=True) if fnmatchcase(name, recipe)]
    return _sorted([folder for name in names for folder in _with_record(parent / name, record)], record)


def _with_record(parent: Path, record: str) -> list[Path]:
    """Return the folders in a recipe's folder that have a record."""
    try:
        names = folder_names(parent)
    except (OSError, ValueError):
        return []
    return [parent / name for name in names if os.path.isfile(f"{parent}/{name}/{record}")]  # noqa: PTH113 - a Path for each of 10,000 runs takes longer


def _sorted(folders: Sequence[Path], record: str) -> list[Path]:
    order = _history(folders[0].parent.parent).read() if folders else Order({})
    return sorted(folders, key=lambda folder: age_of(name_in_history(folder), f"{folder}/{record}", order))


def age_of(name: str, record: str, order: Order) -> tuple[int, str, int, str]:
    """Return a sort key for `<recipe>/<id>`, oldest first: by the history, else by the time in the id and of the
    record."""
    written_ns = 0
    if name not in order.noted:
        with contextlib.suppress(OSError):
            written_ns = os.stat(record).st_mtime_ns  # noqa: PTH116 - a Path for each of 10,000 runs takes longer
    return order.place(name), _second(name), written_ns, name.rpartition("/")[2]


def _history(parent: Path) -> History:
    return History(parent.parent / "order.txt")


def read_outcome(record: Path) -> RunOutcome | None:
    """Return the outcome in a record of a run or a sweep; None if it cannot be read."""
    try:
        return outcome_in(read_tree(record))
    except (OSError, FormatError, *DAMAGE):
        return None


def outcome_in(tree: Mapping[str, Any]) -> RunOutcome:
    """Return the outcome in a record. Raises KeyError, and ValueError for an unknown one."""
    undecided = any(point.get("outcome") == "inconclusive" for point in tree.get("points", ()))
    judged = judge(failed=not tree["passed"] and not undecided, undecided=not tree["passed"])
    outcome: RunOutcome = tree.get("outcome") or judged  # a sweep has none
    if outcome not in ENDINGS:
        raise ValueError("no outcome")
    return outcome


def _find_complete(parent: Path, recipe: str, record: str) -> Path | None:
    """Return the target of `latest`, or, if that did not finish or is damaged, the newest folder that did.

    A folder whose record cannot be read counts as finished.
    """
    pointed = _target(parent / recipe / LATEST)
    if pointed is not None and (pointed / record).is_file() and _may_be_complete(pointed / record):
        return pointed
    folders = _sorted(_with_record(parent / recipe, record), record)
    return next((folder.resolve() for folder in reversed(folders) if _may_be_complete(folder / record)), None)


def _may_be_complete(record: Path) -> bool:
    outcome = read_outcome(record)
    return outcome is None or is_complete(outcome)


def _target(link: Path) -> Path | None:
    folder = follow(link)
    return folder.resolve() if folder is not None else None


def _find_by_id(parent: Path, reference: str, record: str) -> Path | None:
    """Find a folder by the first characters of its id. Raises RequestError if they are ambiguous."""
    recipe, _, start = reference.rpartition("/")
    named = (folder for folder in parent.glob("*/[!.]*") if start and recipe in ("", folder.parent.name))
    fitting = (each for each in named if each.name.startswith(start) or each.name.rpartition("-")[2].startswith(start))
    matches = _sorted([each for each in fitting if (each / record).is_file() and not each.is_symlink()], record)
    if len(matches) > 1:
        shown = ", ".join(f"{folder.parent.name}/{folder.name}" for folder in matches[:5])
        raise RequestError(f"run {reference}: {len(matches)} ids begin like this ({shown}, ...). Give more of the id.")
    return matches[0] if matches else None


def _find_point(sweep: Path, reference: str, point: str) -> Path:
    """Return the folder of a sweep's point; `reference` is the given name of the sweep."""
    numbers = sorted(int(path.name) for path in (sweep / POINTS).glob("*") if path.name.isdecimal())
    best = _best_point(sweep)
    wanted = best if point == BEST else int(point) if point.isdecimal() else None
    if wanted in numbers:
        return sweep / POINTS / f"{wanted:04}"
    example = f"{reference}#{best if best is not None else numbers[0] if numbers else 1}"
    if not point:
        message = "its best" if best is not None else "its first"
        raise NoPointError(f"{reference} is a sweep, not a run. Name a point of it: `{example}` is {message}.")
    message = f"there is no such point in the sweep {name_folder(sweep)}" if wanted else "that is not a point's number"
    raise NoPointError(f"{reference}#{point}: {message}. Name a point that has results, such as `{example}`.")


def _best_point(sweep: Path) -> int | None:
    """Return the number of the best point, without validation: the points of a damaged sweep can be read."""
    try:
        best = read_tree(sweep / SWEEP_RECORD)["best"]
    except (OSError, FormatError, *DAMAGE):
        return None
    return best if isinstance(best, int) else None
