"""The index of runs never changes an answer, whatever happens to it and to the records."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ndld_flow import api
from ndld_flow.base.errors import RequestError
from ndld_flow.runner import list_runs, run_index
from ndld_flow.runner.run_index import INDEX
from tests.support.metric_runs import courses, run_id, write_runs

LATENCY = "speed.latency.median"
COUNT = 12


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(list_runs, "_MANY", 1)
    write_runs(tmp_path, courses([10.0 + place for place in range(COUNT)]))
    answers(tmp_path)
    return tmp_path


def answers(root: Path) -> dict[str, object]:
    """Return what the verbs that use the index answer."""
    (series,) = api.history("nightly", [LATENCY], outputs=root).series
    freed = api.gc(outputs=root, dry_run=True)
    return {
        "runs": [run.model_dump(exclude={"folder"}) for run in api.runs(outputs=root)],
        "few": [run.run for run in api.runs(where=[f"{LATENCY} < 15 ms"], outputs=root)],
        "history": series,
        "gc": (sorted(freed.objects), freed.record_count, freed.freed_bytes),
    }


def fresh(root: Path) -> dict[str, object]:
    """Return the answers of a copy without an index."""
    (root / INDEX).unlink(missing_ok=True)
    return answers(root)


def record(root: Path, place: int) -> Path:
    return root / "runs" / "nightly" / run_id(place) / "run.json"


def same_size(path: Path) -> None:
    """Change a record in place, by as many bytes."""
    text = path.read_text()
    changed = text.replace('"value": 13.0', '"value": 93.0')
    assert changed != text and len(changed) == len(text)
    with path.open("r+") as file:
        file.write(changed)


def in_place_with_its_old_time(root: Path) -> None:
    path = record(root, 3)
    status = path.stat()
    same_size(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def atomically_with_its_old_time(root: Path) -> None:
    path = record(root, 3)
    status, aside = path.stat(), path.with_name("aside")
    shutil.copy(path, aside)
    same_size(aside)
    os.utime(aside, ns=(status.st_atime_ns, status.st_mtime_ns))
    aside.replace(path)


def in_the_past(root: Path) -> None:
    same_size(record(root, 3))
    os.utime(record(root, 3), (0, 0))


def in_the_future(root: Path) -> None:
    ahead = time.time() + 1e6
    os.utime(record(root, 3), (ahead, ahead))
    answers(root)
    in_place_with_its_old_time(root)


def by_removing_one(root: Path) -> None:
    shutil.rmtree(record(root, 3).parent)


def by_adding_one(root: Path) -> None:
    write_runs(root, courses([33.0]), first=COUNT)


def by_swapping_two(root: Path) -> None:
    """Swap two folders: both have records that the index knows, in other places."""
    one, other = record(root, 3).parent, record(root, 4).parent
    one.rename(root / "aside")
    other.rename(one)
    (root / "aside").rename(other)


def by_damaging_one(root: Path) -> None:
    path = record(root, 3)
    path.write_text("{" + path.read_text()[1:].replace('"steps"', '"stepz"'))


CHANGES = (
    in_place_with_its_old_time,
    atomically_with_its_old_time,
    in_the_past,
    in_the_future,
    by_removing_one,
    by_adding_one,
    by_swapping_two,
)


@pytest.mark.representatives("in_the_future", "by_removing_one")
@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_changed_record_is_read_again(root: Path, change: Callable[[Path], None]) -> None:
    before = answers(root)
    change(root)
    after = answers(root)
    assert after == fresh(root)
    assert after != before


def test_a_record_that_was_written_just_before_it_was_read_is_read_again(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The clock of the file system did not move: a change in place leaves every part of the status as it was.
    shown = {path: run_index._stamp(str(path)) for path in (record(root, place) for place in range(COUNT))}
    monkeypatch.setattr(run_index, "_stamp", lambda path: shown.get(Path(path), "1 1 1 1"))
    answers(root)
    same_size(record(root, 3))
    after = answers(root)
    assert after["history"].points[3].value == 93.0  # type: ignore[attr-defined]


def test_records_that_have_settled_are_not_read_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_index, "_UNSETTLED_NS", -(10**18))
    answers(root)
    read = list[Path]()
    monkeypatch.setattr(run_index, "read_tree", read.append)
    answers(root)
    assert not read


@pytest.mark.representatives("0", "18")
@pytest.mark.parametrize("place", range(0, 100, 18))
def test_a_damaged_index_is_rebuilt(root: Path, place: int) -> None:
    expected = answers(root)
    data = bytearray((root / INDEX).read_bytes())
    spots = [spot for spot, byte in enumerate(data) if byte]
    spot = spots[len(spots) * place // 100]
    data[spot] ^= 0x11
    (root / INDEX).write_bytes(data)
    assert answers(root) == expected


@pytest.mark.parametrize("written", ["NaN", "Infinity"])
def test_values_that_are_not_finite_are_no_points_of_a_history(root: Path, written: str) -> None:
    path = record(root, 3)
    path.write_text(path.read_text().replace('"value": 13.0', f'"value": "{written}"'))
    (series,) = api.history("nightly", [LATENCY], outputs=root).series
    assert [point.run for point in series.points] == [run_id(place) for place in range(COUNT) if place != 3]


def test_a_value_that_was_changed_in_the_index_is_noticed(root: Path) -> None:
    expected = answers(root)
    with sqlite3.connect(root / INDEX) as database:
        database.execute("UPDATE brief SET brief = replace(brief, 'passed', 'failed')")
        database.execute("UPDATE need SET digests = '', keys = ''")
        database.execute("UPDATE measured SET amounts = zeroblob(length(amounts))")
    database.close()
    assert answers(root) == expected


def test_an_index_of_another_release_is_rebuilt(root: Path) -> None:
    expected = answers(root)
    with sqlite3.connect(root / INDEX) as database:
        database.execute("PRAGMA user_version = 2")
        database.execute("ALTER TABLE brief RENAME COLUMN brief TO summary")
    database.close()
    assert answers(root) == expected


def test_a_copied_folder_has_its_own_answers(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    copy = tmp_path_factory.mktemp("copy") / "outputs"
    shutil.copytree(root, copy, symlinks=True)
    assert answers(copy) == answers(root)
    in_place_with_its_old_time(copy)
    assert answers(copy) == fresh(copy) != answers(root)


def test_gc_shows_what_it_would_remove_and_refuses_unreadable_records(root: Path) -> None:
    store = root / "store"
    for number in range(2):
        (store / "records" / "aa").mkdir(parents=True, exist_ok=True)
        (store / "records" / "aa" / f"{'a' * 63}{number}.json").write_text("{}")
    shown = api.gc(outputs=root, dry_run=True)
    assert shown.record_count == 2
    by_damaging_one(root)
    for dry_run in (True, False):
        with pytest.raises(RequestError, match="is not a run's record"):
            api.gc(outputs=root, dry_run=dry_run)
    record(root, 3).unlink()
    for dry_run in (True, False):
        with pytest.raises(RequestError, match=r"its run\.json is missing"):
            api.gc(outputs=root, dry_run=dry_run)
    shutil.rmtree(record(root, 3).parent)
    assert api.gc(outputs=root).model_copy(update={"dry_run": True}) == shown


def test_gc_finds_leftovers_in_folders_that_were_tidy(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_index, "_UNSETTLED_NS", 0)
    assert answers(root)["gc"] == ([], 0, 0)
    left = record(root, 5).parent / ".report.html.0123abcd"
    left.write_text("half a page")
    os.utime(left, (0, 0))
    for dry_run in (True, True, False):
        assert api.gc(outputs=root, dry_run=dry_run).freed_bytes == len("half a page")
    assert not left.exists()
    assert answers(root)["gc"] == ([], 0, 0)


def test_a_large_number_of_runs_is_described_by_the_index_as_by_its_records(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_index = api.runs(outputs=root)
    monkeypatch.setattr(list_runs, "_MANY", 1000)
    assert api.runs(outputs=root) == by_index
    assert json.loads(by_index[0].model_dump_json())["metrics"] == {LATENCY: {"value": 21.0, "unit": "ms"}}
