"""Garbage collection of a shared cache: limits of age and size, beside others that push and pull."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ndld_flow import api
from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.records.key_parts import KeyParts
from ndld_flow.records.run_record import StepRecord
from ndld_flow.store.digest import digest_json
from ndld_flow.store.files import seal
from ndld_flow.store.remote_store import RemoteStore
from ndld_flow.store.store import Store
from tests.support.message_files import CheckMessage
from tests.support.remote_stores import pull
from tests.support.run_fixtures import STARTED

DAY_S = 24 * 3600


class Cache:
    """A cache in a folder, with results of 1,000 bytes."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.url = folder / "cache", (folder / "cache").as_uri()
        self.store = Store(folder / "store")

    def make(self, word: str, content: str = "") -> StepRecord:
        with self.store.building() as built:
            (built / "out").mkdir()
            (built / "out" / "model.onnx").write_text((content or word).ljust(1000))
            artifact = self.store.keep("onnx", built / "out")
        parts = KeyParts(step="dye", version="1", settings={"w": word}, inputs={}, reads={}, libraries={}, machine="")
        key = digest_json(parts.model_dump(mode="json"))
        facts: dict[str, Any] = {"parents": {}, "passed": True, "summary": "", "metrics": {}, "wall_s": 1.0}
        return StepRecord(key=key, parts=parts, artifact=artifact, started_at=STARTED, ended_at=STARTED, **facts)

    def push(self, word: str, age_days: float, content: str = "") -> StepRecord:
        """Push a result, as if that had been some days ago."""
        record = self.make(word, content)
        RemoteStore(self.url).push([record], self.store)
        then = time.time() - age_days * DAY_S
        for path in (self.record_path(record), *self.object_folder(record).iterdir()):
            os.utime(path, (then, then))
        return record

    def record_path(self, record: StepRecord) -> Path:
        return self.folder / "records" / record.key[:2] / f"{record.key}.json"

    def object_folder(self, record: StepRecord) -> Path:
        return self.folder / "objects" / record.artifact.digest[:2] / record.artifact.digest

    def has(self, record: StepRecord) -> tuple[bool, bool]:
        return self.record_path(record).exists(), any(self.object_folder(record).glob("*"))


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path)


def test_old_results_are_removed(cache: Cache) -> None:
    old, new = cache.push("old", 40), cache.push("new", 20)
    freed = api.gc_cache(cache.url, max_age="30 days", dry_run=True)
    assert (freed.record_count, freed.object_count, freed.kept_record_count) == (1, 1, 1)
    assert cache.has(old) == (True, True)
    assert api.gc_cache(cache.url, max_age="30 days").freed_bytes == freed.freed_bytes > 1000
    assert cache.has(old) == (False, False) and cache.has(new) == (True, True)
    assert pull(RemoteStore(cache.url), [new.key], Store(cache.folder.with_name("other"))) == [new]


def test_the_oldest_results_beyond_the_size_are_removed(cache: Cache) -> None:
    records = [cache.push(word, age) for word, age in (("a", 5), ("b", 30), ("c", 10))]
    result_bytes = sum(
        path.stat().st_size for path in (cache.record_path(records[0]), *cache.object_folder(records[0]).iterdir())
    )
    freed = api.gc_cache(cache.url, max_size=f"{2 * result_bytes + 10} B")
    assert (freed.record_count, freed.object_count) == (1, 1) and freed.kept_bytes <= 2 * result_bytes + 10
    assert [cache.has(record)[0] for record in records] == [True, False, True]


def test_an_artifact_stays_while_another_result_names_it(cache: Cache) -> None:
    old, new = cache.push("old", 40, "the same"), cache.push("new", 20, "the same")
    assert old.artifact == new.artifact
    freed = api.gc_cache(cache.url, max_age="30 days")
    assert (freed.record_count, freed.object_count) == (1, 0)
    assert cache.has(new) == (True, True)


def test_artifacts_of_a_push_in_progress_stay(cache: Cache) -> None:
    record = cache.make("coming")
    RemoteStore(cache.url).push_artifact(record.artifact, cache.store)
    orphan = cache.push("orphan", 3)
    cache.record_path(orphan).unlink()
    assert api.gc_cache(cache.url).object_count == 1
    assert cache.has(record) == (False, True) and cache.has(orphan) == (False, False)


def test_a_result_that_arrives_meanwhile_keeps_its_artifact(cache: Cache, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its artifact is there from an old result, which is being removed."""
    old = cache.push("old", 40, "the same")
    remove: Callable[..., None] = RemoteStore.remove_files

    def push_first(self: RemoteStore, paths: Any) -> None:
        paths = list(paths)
        if paths == [str(cache.record_path(old))]:
            RemoteStore(cache.url).push([cache.make("new", "the same")], cache.store)
        remove(self, paths)

    monkeypatch.setattr(RemoteStore, "remove_files", push_first)
    assert api.gc_cache(cache.url, max_age="30 days").object_count == 0
    assert cache.has(old) == (False, True)


def test_damaged_records_are_removed_after_a_day(cache: Cache) -> None:
    young, old = cache.push("young", 0.5), cache.push("old", 2)
    for record in (young, old):
        stamp = cache.record_path(record).stat().st_mtime
        cache.record_path(record).write_text("{")
        os.utime(cache.record_path(record), (stamp, stamp))
    api.gc_cache(cache.url)
    assert cache.has(young)[0] and not cache.has(old)[0]


@pytest.mark.parametrize("version", [1, 99])
def test_results_of_another_version_are_left_alone(cache: Cache, version: int) -> None:
    record = cache.push("new", 40)
    tree = {**json.loads(record.to_json()), "format_version": version}
    cache.record_path(record).write_text(seal(json.dumps(tree)))
    old = cache.push("old", 40)
    freed = api.gc_cache(cache.url, max_age="1 day")
    assert (freed.record_count, freed.other_version_count) == (1, 1)
    assert cache.has(record) == (True, True) and cache.has(old) == (False, False)
    RemoteStore(cache.url).push([record], cache.store)
    assert json.loads(cache.record_path(record).read_text())["format_version"] == version


def test_files_of_unknown_age_are_not_removed(
    cache: Cache, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    cache.push("old", 40)
    monkeypatch.setattr("ndld_flow.store.remote_store._modified", lambda facts: None)
    with pytest.raises(RequestError) as caught:
        api.gc_cache(cache.url, max_age="1 day")
    check_message(caught.value)


def test_an_empty_cache_is_no_error(cache: Cache) -> None:
    assert api.gc_cache(cache.url, max_age="1 day").record_count == 0


@pytest.mark.parametrize("limits", [{"max_age": "30 moons"}, {"max_size": "big"}])
def test_limits_are_checked(cache: Cache, limits: dict[str, str], check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        api.gc_cache(cache.url, **limits)  # type: ignore[arg-type]
    check_message(caught.value)


# --- a cache that a stranger can write -------------------------------------------------------------------------------


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder of the user with an old file."""
    (tmp_path / "victim" / "ab" / ("ab" * 32)).mkdir(parents=True)
    file = tmp_path / "victim" / "ab" / ("ab" * 32) / "thesis.txt"
    file.write_text("years of work")
    os.utime(file, (0, 0))
    return tmp_path / "victim"


@pytest.mark.parametrize("place", ["objects", "records", "objects/ab", f"objects/ab/{'ab' * 32}"])
def test_gc_follows_no_link(cache: Cache, victim: Path, place: str) -> None:
    cache.push("old", 40)
    link = cache.folder / place
    if link.exists():
        link.rename(cache.folder / "away")
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(victim / "/".join(place.split("/")[1:]))
    freed = api.gc_cache(cache.url, max_age="1 day")
    assert freed.kept_bytes == 0
    assert (victim / "ab" / ("ab" * 32) / "thesis.txt").read_text() == "years of work"


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_a_push_writes_through_no_link(cache: Cache, victim: Path, depth: int, check_message: CheckMessage) -> None:
    record = cache.make("new")
    folder = cache.object_folder(record)
    parts = [folder.parents[1], folder.parent, folder, folder / "model.onnx"]
    parts[depth].parent.mkdir(parents=True)
    theirs = victim / "ab" / ("ab" * 32) / "thesis.txt"
    parts[depth].symlink_to(theirs if depth == 3 else victim)
    before = sorted(victim.rglob("*"))
    if depth == 3:  # the link itself is replaced
        RemoteStore(cache.url).push([record], cache.store)
        assert not parts[depth].is_symlink() and cache.has(record) == (True, True)
    else:
        with pytest.raises(BackendError) as caught:
            RemoteStore(cache.url).push([record], cache.store)
        check_message(caught.value)
        assert not cache.record_path(record).exists()
    assert sorted(victim.rglob("*")) == before and theirs.read_text() == "years of work"


def test_a_push_changes_no_file_that_has_another_name(cache: Cache, victim: Path) -> None:
    """A hard link in the place of an artifact's file."""
    record = cache.make("new")
    theirs = victim / "ab" / ("ab" * 32) / "thesis.txt"
    cache.object_folder(record).mkdir(parents=True)
    os.link(theirs, cache.object_folder(record) / "model.onnx")
    RemoteStore(cache.url).push([record], cache.store)
    assert theirs.read_text() == "years of work"


@pytest.mark.parametrize(
    "change",
    [
        {"started_at": "2026-01-01T00:00:00"},
        {"wall_s": 1e300},
        {"wall_s": "1"},
        {"artifact": {"kind": "onnx", "digest": "ab" * 32, "files": []}},
        {"artifact": {"kind": "lint"}},
        *({"size_bytes": number} for number in (10**400, -1, "1000", 1.5)),
        *({"path": path} for path in ("../x", "/etc/x", "other.onnx", "record.json", "a\\b")),
        {"digest": "../x"},
    ],
)
def test_a_record_that_is_not_one_is_skipped(cache: Cache, change: dict[str, Any]) -> None:
    old, record = cache.push("old", 40), cache.push("new", 0)
    tree = json.loads(record.to_json())
    artifact, (file,) = tree["artifact"], tree["artifact"]["files"]
    if next(iter(change)) in file:
        file |= change
        artifact["digest"] = digest_json([[file["path"], file["digest"], file["size_bytes"]]])
    elif isinstance(change.get("artifact"), dict):
        tree["artifact"] = artifact | change["artifact"]
    else:
        tree |= change
    cache.record_path(record).write_text(seal(json.dumps(tree)))
    remote, other = RemoteStore(cache.url), Store(cache.folder.with_name("other"))
    assert pull(remote, [record.key], other) is None
    assert not list(other.root.glob("records/*/*"))
    assert api.gc_cache(cache.url, max_age="1 day").record_count == 1
    assert cache.has(old) == (False, False)
