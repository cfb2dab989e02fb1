"""Digests of files are cached as long as the files do not change."""

from __future__ import annotations

import mmap
import os
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import pytest
from pydantic import JsonValue

from ndld_flow.store import digest as digests
from ndld_flow.store.digest import DigestMemory, digest_file, digest_json, follows_writes

LARGE = pytest.mark.parametrize("always_below", [0, 2**20], ids=["large", "small"])
"""Large files are remembered in notes, small ones in this process."""


@pytest.fixture
def memory(tmp_path: Path) -> DigestMemory:
    return DigestMemory(tmp_path / "notes")


def write(path: Path, text: bytes, modified_ns: int = 10**18) -> None:
    path.write_bytes(text)
    os.utime(path, ns=(modified_ns, modified_ns))


@pytest.fixture
def count_reads(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Files that were hashed, in order; every file counts as settled."""
    reads: list[Path] = []

    def counted(path: Path) -> str:
        reads.append(path)
        return digest_file(path)

    monkeypatch.setattr(digests, "digest_file", counted)
    monkeypatch.setattr(digests, "SETTLED_AFTER_S", -1.0)
    monkeypatch.setattr(digests, "follows_writes", lambda device: True)
    return reads


@LARGE
def test_a_file_is_hashed_once(
    memory: DigestMemory,
    tmp_path: Path,
    count_reads: list[Path],
    always_below: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(digests, "ALWAYS_HASH_BELOW_BYTES", always_below)
    write(tmp_path / "w", b"one")
    assert memory.digest(tmp_path / "w") == memory.digest(tmp_path / "w") == digest_file(tmp_path / "w")
    assert count_reads == [tmp_path / "w"]


@LARGE
def test_a_write_that_restores_the_modification_time_is_detected(
    memory: DigestMemory,
    tmp_path: Path,
    count_reads: list[Path],
    always_below: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(digests, "ALWAYS_HASH_BELOW_BYTES", always_below)
    write(tmp_path / "w", b"one")
    before = memory.digest(tmp_path / "w")
    changed_ns = (tmp_path / "w").stat().st_ctime_ns
    while (tmp_path / "w").stat().st_ctime_ns == changed_ns:  # a tick of the file system's clock
        time.sleep(0.002)
        write(tmp_path / "w", b"two")
    assert memory.digest(tmp_path / "w") == digest_file(tmp_path / "w") != before
    assert len(count_reads) == 2


@pytest.mark.parametrize("changed", ["st_size", "st_mtime_ns", "st_ctime_ns", "st_ino", "st_dev"])
def test_each_property_of_a_file_invalidates_its_digest(changed: str) -> None:
    """Some file systems keep whole seconds, and inodes are used again."""
    fields = {"st_size": 3, "st_mtime_ns": 10**18, "st_ctime_ns": 10**18, "st_ino": 5, "st_dev": 7}

    def stamp(values: Mapping[str, int]) -> list[int]:
        return digests.make_stamp(SimpleNamespace(**values))  # type: ignore[arg-type]

    assert stamp(fields) == stamp({**fields})
    assert stamp(fields) != stamp({**fields, changed: fields[changed] + 1})


@LARGE
def test_a_file_written_just_now_is_not_cached(
    memory: DigestMemory, tmp_path: Path, always_below: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "ALWAYS_HASH_BELOW_BYTES", always_below)
    began_ns = time.time_ns()
    # a clock that does not tick
    monkeypatch.setattr(digests, "make_stamp", lambda stat: [stat.st_size, began_ns, began_ns, 1, 1])
    write(tmp_path / "w", b"one")
    before = memory.digest(tmp_path / "w")
    write(tmp_path / "w", b"two")
    assert memory.digest(tmp_path / "w") != before


@LARGE
@pytest.mark.parametrize("folder", ["/dev/shm", "."])
def test_a_write_through_a_memory_map_is_noticed(
    memory: DigestMemory, tmp_path: Path, folder: str, always_below: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On tmpfs, which does not change a file's times then, and on the file system of the tests."""
    if not Path(folder).is_dir() or (folder != "." and follows_writes(Path(folder).stat().st_dev)):
        pytest.skip(f"{folder} is no tmpfs")
    monkeypatch.setattr(digests, "ALWAYS_HASH_BELOW_BYTES", always_below)
    monkeypatch.setattr(digests, "SETTLED_AFTER_S", -1.0)
    with tempfile.TemporaryDirectory(dir=tmp_path if folder == "." else folder) as name:
        path = Path(name, "weights")
        path.write_bytes(bytes(4096))
        with path.open("r+b") as file, mmap.mmap(file.fileno(), 4096) as mapped:
            for value in range(1, 4):
                mapped[0] = value
                assert memory.digest(path) == digest_file(path), value
                time.sleep(0.01)  # a tick of the file system's clock


def test_only_file_systems_known_to_follow_writes_are_trusted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        digests, "_file_systems", lambda: {1: "ext4", 2: "tmpfs", 3: "nfs4", 4: "fuse.sshfs", 5: "overlay"}
    )
    assert [device for device in range(6) if follows_writes(device)] == [1]


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 32, 33, 40])
def test_files_are_hashed_completely_in_chunks(size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    window = mmap.ALLOCATIONGRANULARITY
    data = os.urandom(size * window // 16)
    (tmp_path / "w").write_bytes(data)
    monkeypatch.setattr(digests, "_WINDOW_BYTES", window)
    monkeypatch.setattr(digests, "ALWAYS_HASH_BELOW_BYTES", 1)
    mapped = digest_file(tmp_path / "w")
    monkeypatch.setattr(digests, "ALWAYS_HASH_BELOW_BYTES", 2**30)
    assert mapped == digest_file(tmp_path / "w")


def test_only_equal_json_has_equal_digests() -> None:
    assert digest_json({"a": 1, "b": [1, 2]}) == digest_json({"b": [1, 2], "a": 1})
    values: tuple[JsonValue, ...] = ([1, 2], [2, 1], [[1], 2], {"a": 1}, {"a": 2}, {"a": 1.5}, "a", None, True, 1, "1")
    assert len({digest_json(value) for value in values}) == len(values)
