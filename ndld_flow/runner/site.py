"""Write a site of all runs: static pages that any web server can host. Only those that changed are rewritten.

`site.json` in the site's folder lists every file that was written, with the digest of its contents. A file that is not
listed, or that somebody has changed since, belongs to somebody else: it is neither replaced nor removed. Each file is
noted in a journal and written atomically, reports and the pages of groups before the first page, and files that are no
longer needed are removed last: a site is complete whenever the program is stopped.
"""

from __future__ import annotations

import contextlib
import json
import os
import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from blake3 import blake3

from ndld_flow import __version__
from ndld_flow.base.errors import RequestError
from ndld_flow.base.garbage_collection import paused_garbage_collection
from ndld_flow.records.document import Record, read_bounded
from ndld_flow.report.history_page import HistoryPage
from ndld_flow.report.site_pages import (
    INDEX,
    RecipeState,
    SitePaths,
    SiteRun,
    describe_recipe,
    draw_group,
    draw_index,
    draw_recipe,
)
from ndld_flow.runner.disk import explaining_disk, explaining_file
from ndld_flow.runner.list_runs import RunSummary, list_runs, read_briefs, runs_openmetrics
from ndld_flow.runner.metric_history import read_history
from ndld_flow.runner.outputs import ACCEPTED, ID, Outputs
from ndld_flow.store.files import write_bytes_atomically, write_text_atomically

MANIFEST = "site.json"
JOURNAL = "site.journal"
"""The files that were written since the list was saved: a line for each, with the digest before the path."""
REPORT = "report.html"
METRICS = "metrics.txt"
"""The newest metrics in OpenMetrics' format, which Prometheus can scrape from any web server."""
_FORMAT = 1
_SIMPLE = re.compile(r"[a-z0-9][a-z0-9_-]{0,59}")
_LINK = re.compile(rb'<a href="\./([^"#?]*)(#[^"]*)?"')
"""A link of a report to a file in the folder of its run."""
_NO_LINK = b'<a title="The site does not have this file"'


class SiteWritten(Record):
    """The pages that `site` wrote."""

    folder: str
    index: str
    """Path of the first page."""
    run_count: int
    report_count: int
    """Number of runs whose report the site has."""
    written: int
    """Number of files that were written."""
    unchanged: int
    removed: int
    """Number of files that were removed, because their run no longer exists."""
    kept: tuple[str, ...] = ()
    """Files that are no longer needed, and that somebody has changed: they were not removed."""


@dataclass(frozen=True)
class SiteOptions:
    """The contents of a site."""

    title: str = "Runs"
    reports: int = 100
    """Number of reports of each recipe: those of the newest runs, and of tagged ones."""
    report_bytes: int = 20_000_000
    """Largest report; those of larger runs are left out."""


@dataclass
class _Entry:
    """A file of the site, as it was written."""

    digest: str
    size: int
    mtime_ns: int
    inputs: str
    """Digest of everything that it was made from."""
    earlier: str = ""
    """Digest of its contents before, if the program may have been killed while it wrote the file."""


@dataclass
class _Folder:
    """The folder of a site."""

    root: Path
    entries: dict[str, _Entry]
    """Path -> the file that an earlier or this call wrote."""
    states: dict[str, dict[str, Any]]
    """Recipe -> its state, with the digest of what it was read from."""
    planned: dict[str, None] = field(default_factory=dict)
    written: int = 0

    @classmethod
    def open(cls, root: Path) -> _Folder:
        """Read the list of files; a damaged one counts as missing."""
        try:
            noted = json.loads(read_bounded(root / MANIFEST))
            if noted["site"] != _FORMAT or not all(map(_stays_inside, noted["files"])):
                raise ValueError
            site = cls(root, {path: _Entry(**entry) for path, entry in noted["files"].items()}, noted["states"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            site = cls(root, {}, {})
        site._read_journal()
        return site

    def _read_journal(self) -> None:
        """Add the files that a call wrote which was killed."""
        with contextlib.suppress(OSError):
            for line in read_bounded(self.root / JOURNAL).decode("utf-8", "replace").splitlines():
                digest, _, path = line.partition(" ")
                if _stays_inside(path):
                    before = self.entries.get(path)
                    self.entries[path] = _Entry(digest, -1, -1, "", before.digest if before else "")

    def save(self) -> None:
        """Write the list of files."""
        files = {path: asdict(entry) for path, entry in sorted(self.entries.items())}
        text = json.dumps({"site": _FORMAT, "files": files, "states": self.states}, indent=0)
        write_text_atomically(self.root / MANIFEST, text)
        (self.root / JOURNAL).unlink(missing_ok=True)

    def is_current(self, path: str, inputs: str) -> bool:
        """Return whether a file was made from these inputs and is as it was written; it then belongs to the site."""
        entry = self.entries.get(path)
        is_current = entry is not None and entry.inputs == inputs and self._is_own(path)
        if is_current:
            self.planned[path] = None
        return is_current

    def _is_own(self, path: str) -> bool:
        """Return whether a file is as this program has written it."""
        entry = self.entries.get(path)
        if entry is None:
            return False
        try:
            status = (self.root / path).lstat()
            if not (self.root / path).parent.resolve().is_relative_to(self.root.resolve()):
                return False
            if (status.st_size, status.st_mtime_ns) == (entry.size, entry.mtime_ns):
                return True
            return blake3(read_bounded(self.root / path)).hexdigest() in (entry.digest, entry.earlier)
        except OSError:
            return False

    def write(self, path: str, data: bytes, inputs: str) -> None:
        """Write a file. Raises RequestError if it would replace somebody else's, OSError."""
        target, digest = self.root / path, blake3(data).hexdigest()
        if not target.parent.resolve().is_relative_to(self.root.resolve()):
            raise RequestError(f"site: {target.parent} is a link that leads out of the site. Remove it.")
        if os.path.lexists(target) and not self._is_own(path):
            raise RequestError(
                f"site: {target} exists, and `ndld-flow site` has not written it, or somebody has changed it since. "
                "Move it away, or choose another folder."
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        with (self.root / JOURNAL).open("a", encoding="utf-8") as journal:
            journal.write(f"{digest} {path}\n")
        write_bytes_atomically(target, data)
        status = target.stat()
        self.entries[path] = _Entry(digest, status.st_size, status.st_mtime_ns, inputs)
        self.planned[path] = None
        self.written += 1

    def remove_others(self) -> tuple[int, list[str]]:
        """Remove the files of earlier calls that are no longer needed; return their number, and those left because they
        were changed."""
        removed, kept = 0, []
        for path in [path for path in self.entries if path not in self.planned]:
            target = self.root / path
            if self._is_own(path):
                with contextlib.suppress(FileNotFoundError):
                    target.unlink()
                removed += 1
            elif os.path.lexists(target):
                kept.append(path)
            del self.entries[path]
            for parent in target.relative_to(self.root).parents[:-1]:
                with contextlib.suppress(OSError):  # it has other files
                    (self.root / parent).rmdir()
        return removed, kept


def _stays_inside(path: str) -> bool:
    """Return whether a listed path, which may have been edited, is that of a file below the site's folder."""
    parts = path.split("/")
    return bool(path) and not any(
        part in ("", ".", "..") or "\\" in part or ":" in part or "\0" in part for part in parts
    )


def write_site(
    outputs: Outputs, folder: Path, options: SiteOptions, report: Callable[[str], None] = lambda _: None
) -> SiteWritten:
    """Write the pages of all runs of an outputs folder into `folder`, or bring them up to date.

    `report` is called with the progress. Raises RequestError where a file of somebody else is in the way, OutputsError
    if the folder cannot be written.
    """
    if not outputs.root.is_dir():
        raise RequestError(f"site: there is no outputs folder {outputs.root}. Run a recipe, or name it with --outputs.")
    with explaining_file(folder), explaining_disk("site", folder), paused_garbage_collection():
        folder.mkdir(parents=True, exist_ok=True)
        site = _Folder.open(folder)
        runs = _read_runs(outputs)
        paths = _name_pages(runs)
        try:
            runs, reports = _copy_reports(site, outputs, runs, options, report)
            states = _write_pages(site, outputs, runs, paths, report)
            inputs = _digest(options.title, _keys(runs), states)
            if not site.is_current(INDEX, inputs):
                site.write(INDEX, draw_index(options.title, runs, states, paths).encode(), inputs)
            text = runs_openmetrics(outputs).encode()
            if not site.is_current(METRICS, _digest(text)):
                site.write(METRICS, text, _digest(text))
            site.save()
            removed, kept = site.remove_others()
        finally:
            site.save()
    return SiteWritten(
        folder=str(folder),
        index=str(folder / INDEX),
        run_count=len(runs),
        report_count=reports,
        written=site.written,
        unchanged=len(site.planned) - site.written,
        removed=removed,
        kept=tuple(kept),
    )


def _read_runs(outputs: Outputs) -> list[SiteRun]:
    briefs = read_briefs(outputs)
    return [_site_run(summary, briefs.get(summary.run, {})) for summary in list_runs(outputs, briefs=briefs)]


def _site_run(summary: RunSummary, brief: Mapping[str, Any]) -> SiteRun:
    recipe, _, identifier = summary.run.rpartition("/")
    source = brief.get("source") or {}
    return SiteRun(
        recipe=recipe or identifier,
        id=identifier,
        outcome=summary.outcome,
        failed_in=summary.failed_in,
        started_at=summary.started_at,
        wall_s=summary.wall_s,
        points=summary.points,
        model=summary.model,
        digest=str(source.get("artifact", {}).get("digest", "")),
        machine=summary.machine,
        user=summary.user,
        host=summary.host,
        commit=str(brief.get("commit", "")),
        tags=summary.tags,
        metrics=summary.metrics,
        damage=summary.damage,
    )


def _digest(*values: object) -> str:
    return blake3(repr((__version__, *values)).encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _keys(runs: Sequence[SiteRun]) -> str:
    return "\n".join(run.key for run in runs)


# --- names -----------------------------------------------------------------------------------------------------------


def _name_pages(runs: Sequence[SiteRun]) -> SitePaths:
    """Return the paths of the pages. Two names never have one path, also where letters have no case."""
    return SitePaths(
        recipes={name: f"recipes/{_slug(name)}.html" for name in dict.fromkeys(run.recipe for run in runs)},
        models={name: f"models/{_slug(name)}.html" for name in dict.fromkeys(run.model for run in runs) if name},
        machines={name: f"machines/{_slug(name)}.html" for name in dict.fromkeys(run.machine for run in runs) if name},
    )


def _slug(name: str) -> str:
    """Return a name for a file: itself if that is simple, otherwise its letters and a digest."""
    if _SIMPLE.fullmatch(name):
        return name
    letters = re.sub(r"[^a-z0-9]+", "-", name.replace("\\", "/").rpartition("/")[2].lower()).strip("-")[:40]
    return f"{letters or 'x'}-{blake3(name.encode('utf-8', 'surrogatepass')).hexdigest()[:8]}"


# --- reports ---------------------------------------------------------------------------------------------------------


def _copy_reports(
    site: _Folder, outputs: Outputs, runs: Sequence[SiteRun], options: SiteOptions, report: Callable[[str], None]
) -> tuple[list[SiteRun], int]:
    """Copy the reports; return the runs with the paths of theirs, and the number of runs that have one."""
    placed, count = list[SiteRun](), dict[str, int]()
    total = 0
    for run in runs:
        copied = ""
        if not run.damage and (run.tags or count.get(run.recipe, 0) < options.reports):
            source = (outputs.sweeps if run.points else outputs.runs) / run.recipe / run.id
            copied = _copy_report(
                site, source, f"runs/{_slug(run.recipe)}/{run.id if ID.fullmatch(run.id) else _slug(run.id)}", options
            )
        count[run.recipe] = count.get(run.recipe, 0) + 1
        total += bool(copied)
        if copied and total % 100 == 0:
            report(f"{total} reports")
        placed.append(_with_report(run, copied))
    return placed, total


def _with_report(run: SiteRun, path: str) -> SiteRun:
    return SiteRun(**{**run.__dict__, "report": path}) if path else run


def _copy_report(site: _Folder, source: Path, target: str, options: SiteOptions) -> str:
    """Copy the report of a run, with the pages to which it links; return its path, empty if it is left out."""
    pages = dict(_pages_of(source))
    if REPORT not in pages or sum(status.st_size for status in pages.values()) > options.report_bytes:
        return ""
    inputs = _digest(sorted((name, status.st_size, status.st_mtime_ns) for name, status in pages.items()))
    if all(site.is_current(f"{target}/{name}", inputs) for name in pages):
        return f"{target}/{REPORT}"
    try:
        texts = {name: read_bounded(source / name) for name in pages}
    except OSError:  # gc has just removed it
        return ""
    for name in (*(name for name in texts if name != REPORT), REPORT):
        site.write(f"{target}/{name}", _without_dead_links(name, texts[name], pages), inputs)
    return f"{target}/{REPORT}"


def _pages_of(folder: Path, depth: int = 3) -> Iterator[tuple[str, os.stat_result]]:
    """Yield the name and the status of each page of a run: its report, and those of its steps and points."""
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.is_dir(follow_symlinks=False):
                if depth:
                    yield from (
                        (f"{entry.name}/{name}", status) for name, status in _pages_of(folder / entry.name, depth - 1)
                    )
            elif entry.name.endswith(".html") and entry.is_file(follow_symlinks=False):
                yield entry.name, entry.stat(follow_symlinks=False)


def _without_dead_links(page: str, text: bytes, pages: Mapping[str, object]) -> bytes:
    """Return a page without the links to files that the site does not have: models, records, logs."""
    from html import unescape
    from urllib.parse import unquote

    folder = page.rpartition("/")[0]

    def link(found: re.Match[bytes]) -> bytes:
        name = posixpath.normpath(posixpath.join(folder, unquote(unescape(found[1].decode("utf-8", "replace")))))
        return found[0] if name in pages else _NO_LINK

    return _LINK.sub(link, text)


# --- pages -----------------------------------------------------------------------------------------------------------


def _write_pages(
    site: _Folder, outputs: Outputs, runs: Sequence[SiteRun], paths: SitePaths, report: Callable[[str], None]
) -> list[RecipeState]:
    """Write the pages of recipes, models and machines; return the states of the recipes."""
    states = []
    groups = _grouped(runs, "recipe")
    for number, (recipe, own) in enumerate(groups.items(), 1):
        if number % 20 == 0:
            report(f"{number} of {len(groups)} recipes")
        states.append(_write_recipe(site, outputs, recipe, own, paths))
    for kind, known in (("model", paths.models), ("machine", paths.machines)):
        named = {state.name: state for state in states}
        for name, own in _grouped(runs, kind).items():
            if name not in known:
                continue
            own_states = [named[recipe] for recipe in dict.fromkeys(run.recipe for run in own)]
            inputs = _digest(kind, _keys(own), own_states)
            if not site.is_current(known[name], inputs):
                page = draw_group(kind.capitalize(), name, own, own_states, paths)
                site.write(known[name], page.encode("utf-8", "replace"), inputs)
    return states


def _grouped(runs: Sequence[SiteRun], name: str) -> dict[str, list[SiteRun]]:
    groups: dict[str, list[SiteRun]] = {}
    for run in runs:
        groups.setdefault(getattr(run, name), []).append(run)
    return groups


def _write_recipe(
    site: _Folder, outputs: Outputs, recipe: str, runs: Sequence[SiteRun], paths: SitePaths
) -> RecipeState:
    inputs = _digest(_keys(runs), _facts_of(outputs))
    path = paths.recipes[recipe]
    noted = site.states.get(recipe, {})
    if noted.get("inputs") == inputs and site.is_current(path, inputs):
        with contextlib.suppress(TypeError, KeyError):
            return RecipeState(**noted["state"])
    history: HistoryPage | None = None
    try:
        found = read_history(outputs, recipe, every=True)
        history, text = draw_recipe(found, runs, paths)
    except RequestError:  # it has only sweeps, or no run that can be read
        text = draw_group("Recipe", recipe, runs, (), paths)
    state = describe_recipe(runs, history)
    site.write(path, text.encode("utf-8", "replace"), inputs)
    site.states[recipe] = {"inputs": inputs, "state": asdict(state)}
    return state


def _facts_of(outputs: Outputs) -> list[tuple[str, int, int]]:
    """Return the status of what a history depends on besides the runs: accepted changes, and learned noise."""
    facts = []
    for path in (outputs.root / ACCEPTED, *sorted(outputs.noise.glob("*.json"))):
        with contextlib.suppress(OSError):
            status = path.stat()
            facts.append((path.name, status.st_mtime_ns, status.st_size))
    return facts
