"""The lines of runs never change an answer, whatever happens to them and to the records."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ndld_flow import api
from ndld_flow.base.errors import RequestError
from ndld_flow.records.document import read_tree
from ndld_flow.records.run_folder import read_run_record
from ndld_flow.runs import list_runs, run_lines
from ndld_flow.runs.outputs import Outputs
from ndld_flow.runs.run_lines import LINES, read_runs
from tests.support.message_files import CheckMessage
from tests.support.metric_runs import courses, run_id, write_runs

LATENCY = "speed.latency.median"
COUNT = 12
BRIEF, NEEDS, STEPS, MEASURED = range(4)
"""The parts of a line."""


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(list_runs, "_MANY", 1)
    write_runs(tmp_path, courses([10.0 + index for index in range(COUNT)]))
    answers(tmp_path)
    return tmp_path


def answers(root: Path) -> dict[str, object]:
    """Return what the verbs that use the lines answer."""
    (series,) = api.history("nightly", [LATENCY], outputs=root).series
    freed = api.gc(outputs=root, dry_run=True)
    return {
        "runs": [run.model_dump(exclude={"folder"}) for run in api.runs(outputs=root)],
        "few": [run.run for run in api.runs(where=[f"{LATENCY} < 15 ms"], outputs=root)],
        "history": series,
        "gc": (sorted(freed.objects), freed.record_count, freed.freed_bytes),
    }


def fresh(root: Path) -> dict[str, object]:
    """Return the answers of a folder without lines."""
    (root / LINES).unlink(missing_ok=True)
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
    """Swap two folders: both have records that have lines, in other places."""
    first, other = record(root, 3).parent, record(root, 4).parent
    first.rename(root / "aside")
    other.rename(first)
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


def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Return the records that are read for want of a line, from now on."""
    read = list[Path]()

    def note(path: Path) -> object:
        read.append(path)
        return read_tree(path)

    monkeypatch.setattr(run_lines, "read_tree", note)
    return read


def test_records_with_lines_are_not_read_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read = count_reads(monkeypatch)
    answers(root)
    assert not read
    by_adding_one(root)
    answers(root)
    assert read == [record(root, COUNT)]


def test_a_tag_is_shown_at_once(root: Path) -> None:
    api.tag(f"nightly/{run_id(3)}", "kept", outputs=root)
    assert [run.run for run in api.runs(outputs=root) if run.tags] == [f"nightly/{run_id(3)}"]


def changed(line: bytes, part: int, change: Callable[[Any], Any]) -> bytes:
    """Return a line with another part: brief, needs, steps or measured."""
    parts = line.removesuffix(b"]\n").split(b",\t")
    parts[part + 1] = json.dumps(change(json.loads(parts[part + 1])), separators=(",", ":")).encode()
    return b",\t".join(parts) + b"]\n"


def cut_off(line: bytes) -> bytes:
    return line[: len(line) // 2]


def with_other_types(line: bytes) -> bytes:
    line = changed(line, BRIEF, lambda brief: brief | {"wall_s": "long", "recipe": {"gates": 7}, "models": 3})
    return changed(changed(line, NEEDS, lambda _: [3, {}]), MEASURED, lambda _: [[]])


def with_other_values(line: bytes) -> bytes:
    return changed(line, MEASURED, lambda measured: [[*item[:-1], [[], "x"]] for item in measured])


def with_too_few_values(line: bytes) -> bytes:
    return changed(line, MEASURED, lambda measured: [[*item[:-1], item[-1][1:]] for item in measured])


def with_texts_that_are_not_json(line: bytes) -> bytes:
    return changed(line, STEPS, lambda steps: [step | {"subject": "["} for step in steps])


def with_huge_numbers(line: bytes) -> bytes:
    line = changed(line, BRIEF, lambda brief: brief | {"wall_s": 10**400})
    return changed(line, MEASURED, lambda measured: [[*item[:-1], [10**400] * len(item[-1])] for item in measured])


def too_deep(line: bytes) -> bytes:
    return line.partition(b",\t")[0] + b",\t" + b"[" * 100_000 + b"\n"


def with_paths_that_leave_the_folder(line: bytes) -> bytes:
    return line.replace(b'"nightly/', b'"nightly/../../nightly/')


def with_needs_that_are_paths(line: bytes) -> bytes:
    return changed(line, NEEDS, lambda _: ["../../victim"])


def of_another_release(line: bytes) -> bytes:
    return line.replace(b'["', b'["9.', 1).replace(b'"passed"', b'"failed"')


def empty(line: bytes) -> bytes:
    return b""


HOSTILE = (
    cut_off,
    with_other_types,
    with_other_values,
    with_too_few_values,
    with_texts_that_are_not_json,
    with_huge_numbers,
    too_deep,
    with_paths_that_leave_the_folder,
    with_needs_that_are_paths,
    of_another_release,
    empty,
)


@pytest.mark.representatives("cut_off", "with_other_types")
@pytest.mark.parametrize("damage", HOSTILE, ids=lambda damage: damage.__name__)
def test_a_damaged_or_hostile_line_is_skipped(root: Path, damage: Callable[[bytes], bytes]) -> None:
    expected = answers(root)
    lines = [line for line in (root / LINES).read_bytes().splitlines(keepends=True) if line.strip()]
    assert len(lines) == COUNT
    for places in ({COUNT - 1}, {0, 5}, range(COUNT)):
        (root / LINES).write_bytes(b"".join(damage(line) if at in places else line for at, line in enumerate(lines)))
        assert answers(root) == expected


def test_a_line_after_one_that_was_cut_off_counts(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = root / LINES
    path.write_bytes(path.read_bytes()[:-40])
    answers(root)
    read = count_reads(monkeypatch)
    answers(root)
    assert not read


def test_a_file_that_is_mostly_dead_is_rewritten(root: Path) -> None:
    path = root / LINES
    lines = [line for line in path.read_bytes().splitlines() if line]
    for index in range(7):
        shutil.rmtree(record(root, index).parent)
    assert len(api.history("nightly", outputs=root).series[0].points) == COUNT - 7
    assert sorted(path.read_bytes().splitlines()) == sorted(
        line for line in lines if any(run_id(index).encode() in line for index in range(7, COUNT))
    )


def test_two_that_append_at_once_lose_nothing(root: Path) -> None:
    outputs, path = Outputs(root), root / LINES
    path.unlink()
    start = threading.Barrier(2)

    def read() -> None:
        start.wait()
        read_runs(outputs, ["nightly"], lambda _, line: line.brief())

    pair = [threading.Thread(target=read) for _ in range(2)]
    for each in pair:
        each.start()
    for each in pair:
        each.join()
    lines = [line for line in path.read_bytes().splitlines() if line]
    assert {json.loads(line)[1] for line in lines} == {f"nightly/{run_id(index)}" for index in range(COUNT)}


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_what_is_no_file_is_left_alone(root: Path, kind: str) -> None:
    expected, path, victim = answers(root), root / LINES, root / "victim"
    path.unlink()
    victim.write_text("mine")
    if kind == "link":
        path.symlink_to(victim)
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.mkdir()
    assert answers(root) == expected
    assert victim.read_text() == "mine"


@pytest.mark.parametrize("written", ["NaN", "Infinity"])
def test_values_that_are_not_finite_are_no_points_of_a_history(root: Path, written: str) -> None:
    path = record(root, 3)
    path.write_text(path.read_text().replace('"value": 13.0', f'"value": "{written}"'))
    (series,) = api.history("nightly", [LATENCY], outputs=root).series
    assert [point.run for point in series.points] == [run_id(index) for index in range(COUNT) if index != 3]


def test_a_copied_folder_has_its_own_answers(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    copy = tmp_path_factory.mktemp("copy") / "outputs"
    shutil.copytree(root, copy, symlinks=True)
    assert answers(copy) == answers(root)
    in_place_with_its_old_time(copy)
    assert answers(copy) == fresh(copy) != answers(root)


def test_gc_shows_what_it_would_remove_and_refuses_unreadable_records(root: Path, check_message: CheckMessage) -> None:
    store = root / "store"
    for number in range(2):
        (store / "records" / "aa").mkdir(parents=True, exist_ok=True)
        (store / "records" / "aa" / f"{'a' * 63}{number}.json").write_text("{}")
    shown = api.gc(outputs=root, dry_run=True)
    assert shown.record_count == 2
    by_damaging_one(root)
    for dry_run in (True, False):
        with pytest.raises(RequestError, match=r"run\.json\b.*steps"):
            api.gc(outputs=root, dry_run=dry_run)
    record(root, 3).unlink()
    for dry_run in (True, False):
        with pytest.raises(RequestError) as caught:
            api.gc(outputs=root, dry_run=dry_run)
        check_message(caught.value)
    shutil.rmtree(record(root, 3).parent)
    assert api.gc(outputs=root).model_copy(update={"dry_run": True}) == shown


def test_gc_removes_nothing_that_a_run_needs_whatever_its_line_says(root: Path) -> None:
    """Whoever may write the lines could otherwise have results removed: a dry run only looks."""
    kept = [
        root / "store" / "records" / "aa" / f"{key}.json" for key in read_run_record(record(root, 3).parent).needs()[0]
    ]
    kept[0].parent.mkdir(parents=True)
    for path in kept:
        path.write_text("{}")
    lines = (root / LINES).read_bytes().splitlines(keepends=True)
    (root / LINES).write_bytes(
        b"".join(changed(line, NEEDS, lambda _: [[], []]) if line.strip() else line for line in lines)
    )
    assert api.gc(outputs=root, dry_run=True).record_count == len(kept)
    assert api.gc(outputs=root).record_count == 0
    assert all(path.is_file() for path in kept)


def test_an_invalid_record_is_refused_although_it_has_a_line(root: Path, check_message: CheckMessage) -> None:
    path = record(root, 3)
    path.write_text(path.read_text().replace('"identity"', '"identitz"'))
    assert len(api.history("nightly", [LATENCY], outputs=root).series[0].points) == COUNT
    for dry_run in (True, False):
        with pytest.raises(RequestError) as caught:
            api.gc(outputs=root, dry_run=dry_run)
        check_message(caught.value)


def test_the_text_of_a_metric_may_hold_any_letters(root: Path) -> None:
    path = record(root, 3)
    path.write_text(path.read_text().replace('"latency.median"', r'"late\",\tn\u0000cy]\n"'))
    assert answers(root) == fresh(root)


def test_a_large_number_of_runs_is_described_by_lines_as_by_its_records(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_lines = api.runs(outputs=root)
    monkeypatch.setattr(list_runs, "_MANY", 1000)
    assert api.runs(outputs=root) == by_lines
    assert json.loads(by_lines[0].model_dump_json())["metrics"] == {LATENCY: {"value": 21.0, "unit": "ms"}}
