"""The store that a machine keeps as a node of a Ray cluster: `gc` counts it, and `gc --ray-node` empties it."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import pytest

from ndld_flow import api
from ndld_flow.base.errors import RequestError
from ndld_flow.store.store import Store, node_store_folder
from tests.support.command_line import ndld_flow
from tests.support.toys import make_toy


@pytest.fixture
def store(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """Return the store of a node with the results of a run; the first result is ten days old."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(in_folder / "caches"))
    api.run(make_toy(in_folder).recipe, outputs="elsewhere", trust=True)
    shutil.copytree("elsewhere/store", node_store_folder())
    store = Store(node_store_folder())
    old = time.time() - 10 * 24 * 3600
    os.utime(records(store)[0], (old, old))
    return store


def records(store: Store) -> list[Path]:
    return sorted((store.root / "records").glob("*/*.json"))


def digests(store: Store) -> set[str]:
    return {path.name for path in (store.root / "objects").glob("*/*")}


def test_gc_counts_the_store_of_a_node_and_leaves_it(store: Store, in_folder: Path) -> None:
    before = digests(store)
    assert api.gc(outputs="elsewhere").node_store_bytes > 1000
    assert "this machine's store as a node of Ray: " in ndld_flow("gc", cwd=in_folder).stdout
    assert digests(store) == before
    shutil.rmtree(node_store_folder())
    assert api.gc(outputs="elsewhere").node_store_bytes == 0
    assert api.gc_node().freed_bytes == 0
    assert "node of Ray" not in ndld_flow("gc", cwd=in_folder).stdout
    assert not node_store_folder().exists()


def test_old_results_are_deleted(store: Store, in_folder: Path) -> None:
    first, *others = records(store)
    kept = {record.artifact.digest for path in others if (record := store.read_record(path.stem))}
    planned = api.gc_node(max_age="9 days", dry_run=True)
    assert (planned.record_count, first.exists()) == (1, True)
    done = ndld_flow("gc", "--ray-node", "--max-age", "9 days", cwd=in_folder)
    assert done.returncode == 0, done.stderr
    assert records(store) == others
    assert digests(store) == kept
    assert api.gc_node(max_age="9 days").record_count == 0


def test_what_a_running_task_uses_is_kept(store: Store) -> None:
    record = store.read_record(records(store)[-1].stem)
    assert record is not None
    with store.locks.working():
        store.locks.use([record.artifact.digest])
        freed = api.gc_node()
    assert digests(store) == {record.artifact.digest} == set(freed.in_use)
    assert not records(store)
    assert api.gc_node().objects == (record.artifact.digest,)


@pytest.mark.parametrize(
    "arguments",
    [["--ray-node", "--keep", "1"], ["--ray-node", "--cache"], ["--max-age", "1 day"], ["--max-size", "1 B"]],
)
def test_options_for_other_stores_are_refused(in_folder: Path, arguments: list[str]) -> None:
    assert ndld_flow("gc", *arguments, cwd=in_folder).returncode == 2


def test_a_wrong_age_is_refused() -> None:
    with pytest.raises(RequestError, match="gc --ray-node: "):
        api.gc_node(max_age="old")
