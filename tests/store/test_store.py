"""The store: artifacts are complete or missing, whatever process writes, dies or interferes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import stat
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ndld_flow.store import files
from ndld_flow.store.digest import digest_json
from ndld_flow.store.files import copy_file, follow, point_to, remove_folder, write_text_atomically
from ndld_flow.store.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(tmp_path / "store")


def built(store: Store, content: bytes, name: str = "model.onnx") -> Path:
    folder = store.root / f"built-{name}-{len(content)}"
    (folder / "sub").mkdir(parents=True)
    (folder / name).write_bytes(content)
    (folder / "sub" / "data.bin").write_bytes(content * 2)
    return folder


def test_an_object_is_stored_under_the_digest_of_names_and_contents(store: Store) -> None:
    first = store.keep("onnx", built(store, b"one"))
    assert {file.path for file in first.files} == {"model.onnx", "sub/data.bin"}
    assert store.is_intact(first)
    assert store.keep("onnx", built(store, b"one")).digest == first.digest
    assert store.keep("onnx", built(store, b"two")).digest != first.digest
    assert store.keep("onnx", built(store, b"one", "other.onnx")).digest != first.digest
    assert len(list((store.root / "objects").glob("*/*"))) == 3


def test_stored_files_are_read_only(store: Store) -> None:
    artifact = store.keep("onnx", built(store, b"one"))
    mode = (store.object_folder(artifact.digest) / "model.onnx").stat().st_mode
    assert not mode & (stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH)


def test_storing_over_a_damaged_object_sets_it_aside(store: Store) -> None:
    artifact = store.keep("onnx", built(store, b"one"))
    path = store.object_folder(artifact.digest) / "model.onnx"
    path.chmod(0o644)
    path.write_bytes(b"bad")
    assert not store.is_intact(artifact)
    store.keep("onnx", built(store, b"one"))
    assert store.is_intact(artifact)
    assert next((store.root / "damaged").glob("*/model.onnx")).read_bytes() == b"bad"


def test_only_an_object_and_its_name_are_synced(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    digest = store.keep("onnx", built(store, b"one")).digest
    kept = store.object_folder(digest)
    remove_folder(kept.parent)
    neighbour = kept.with_name("neighbour") / "model.onnx"
    neighbour.parent.mkdir(parents=True)
    neighbour.write_bytes(b"of another")
    synced: set[int] = set()
    monkeypatch.setattr(os, "fsync", lambda descriptor: synced.add(os.fstat(descriptor).st_ino))
    store.keep("onnx", built(store, b"one"))
    assert synced == {path.stat().st_ino for path in (kept.parent, kept, *kept.rglob("*"))}
    remove_folder(kept.parent)
    store.keep("onnx", built(store, b"one"))
    assert kept.parent.parent.stat().st_ino in synced


def test_a_broken_record_counts_as_none(store: Store) -> None:
    path = store.record_path("ab" * 32)
    path.parent.mkdir(parents=True)
    path.write_text('{"half": ')
    assert store.read_record("ab" * 32) is None


def _build_and_wait(root: Path) -> None:
    with Store(root).building() as folder:
        (folder / "half").write_bytes(b"written")
        time.sleep(60)


def test_leftovers_of_killed_processes_are_removed_and_those_of_living_ones_kept(store: Store) -> None:
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_build_and_wait, args=(store.root,)) for _ in range(2)]
    for process in processes:
        process.start()
    while len(list((store.root / "building").glob("*/half"))) < 2:
        time.sleep(0.02)
    victim, other = processes
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGKILL)
    victim.join()
    store.sweep_building()
    assert len(list((store.root / "building").iterdir())) == 1
    other.kill()
    other.join()
    store.sweep_building()
    assert list((store.root / "building").iterdir()) == []


def listed(store: Store) -> set[str]:
    with store.locks.used() as names:
        return names


def test_objects_used_by_a_lease_are_listed_until_it_ends(store: Store) -> None:
    store.locks.use(["nobody's"])
    with store.locks.working():
        store.locks.use(["a", "b"])
        with store.building():
            store.locks.use(["b", "c"])
            assert listed(store) == {"a", "b", "c"}
        assert listed(store) == {"a", "b", "c"}, "the run's lease lists what was built in it"
    assert listed(store) == set()


def test_lists_are_kept_while_gc_runs(store: Store) -> None:
    with store.locks.collecting("gc"):
        with store.locks.working():
            store.locks.use(["a"])
        assert listed(store) == {"a"}
    with store.locks.collecting("gc"):
        assert listed(store) == set()


def test_lists_of_killed_runs_are_removed_and_those_of_living_ones_kept(store: Store) -> None:
    code = (
        "import os, sys; from pathlib import Path; from ndld_flow.store.store import Store\n"
        "with (locks := Store(Path(sys.argv[1])).locks).working(): locks.use(['killed']); os._exit(9)"
    )
    subprocess.run([sys.executable, "-c", code, str(store.root)], check=False)
    with store.locks.working():
        store.locks.use(["living"])
        assert listed(store) == {"killed", "living"}
        with store.locks.collecting("gc"):
            assert listed(store) == {"living"}


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "note.json"
    write_text_atomically(path, "old")

    def fail(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(OSError, match="No space"):
        write_text_atomically(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["note.json"]


def test_a_copy_is_a_separate_file(tmp_path: Path) -> None:
    source = tmp_path / "a"
    source.write_bytes(b"x" * 10**6)
    copy_file(source, tmp_path / "sub" / "b")
    assert (tmp_path / "sub" / "b").read_bytes() == source.read_bytes()
    assert (tmp_path / "sub" / "b").stat().st_nlink == 1


def test_a_pointer_moves_atomically(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        point_to(tmp_path / "latest", tmp_path / name)
        file = follow(tmp_path / "latest")
        assert file is not None
        assert file.resolve() == tmp_path / name
    (tmp_path / "two").rmdir()
    assert follow(tmp_path / "latest") is None


def test_the_digest_of_a_file_that_may_still_change_is_not_cached(store: Store, tmp_path: Path) -> None:
    large = tmp_path / "large"
    large.write_bytes(bytes(17 * 2**20))
    store.digests.digest(large)
    assert not list((store.root / "digests").glob("*")), "within a tick of its timestamps it could change unseen"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=10,
)


@given(st.dictionaries(st.text(), json_values))
def test_a_digest_is_independent_of_the_order_of_keys(values: dict[str, object]) -> None:
    assert digest_json(dict(reversed(values.items()))) == digest_json(values)  # type: ignore[arg-type]


def test_files_are_synced_one_by_one_where_no_thread_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of memory or of processes must not stop a run at its end."""

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    synced: list[Path] = []
    monkeypatch.setattr(threading.Thread, "start", refuse)
    monkeypatch.setattr(files, "sync", synced.append)
    (tmp_path / "a").mkdir()
    (tmp_path / "a/b").touch()
    files.sync_folder(tmp_path)
    assert {path.relative_to(tmp_path).as_posix() for path in synced} == {".", "a", "a/b"}
