"""Timing caches in real files: shared by builds at once, damaged, of another release, cut off by a kill."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ndld_flow.base.errors import BackendError
from ndld_flow.engines.building import build_engine
from ndld_flow.profiles.compare.tactic_churn import Rebuild, find_churn
from ndld_flow.records.build import Build, TimingCacheUse
from tests.support.engine_builds import Asked
from tests.support.message_files import CheckMessage
from tests.support.models_run import write_model
from tests.support.tensorrt_standin import write_standin

RELEASE = "10.8.0.43"
CACHE = f"no-gpu-tensorrt-{RELEASE}.cache"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    write_standin(folder, RELEASE)
    return folder


def asked(folder: Path, library: Path, width: int = 4, **settings: object) -> Asked:
    """Models of different widths have different tactics to time."""
    graph = f"g (float[2, {width}] x) => (float[2, {width}] y) {{ y = Relu(x) }}"
    model = write_model(folder / f"model-{width}.onnx", graph)
    return Asked(model, {"backend": "tensorrt", "library": str(library), **settings})


def build(result: Asked, folder: Path) -> Build:
    return build_engine(result.request(folder / f"build-{time.monotonic_ns()}", folder / "caches"), lambda *_: None)


def use_of(built: Build) -> TimingCacheUse:
    assert built.timing_cache is not None
    return built.timing_cache


def entries(folder: Path) -> set[str]:
    """Keys in the file, which is the stand-in's."""
    data = (folder / "caches/timing" / CACHE).read_bytes()
    return set(json.loads(data[data.index(b"{") :])["entries"])


def test_timings_are_kept_for_the_next_build(tmp_path: Path, library: Path) -> None:
    result = asked(tmp_path, library)
    first, again = (use_of(build(result, tmp_path)) for _ in range(2))
    assert first.file == again.file == CACHE
    assert (first.loaded_bytes, first.loaded_entries) == (0, 0)
    assert first.saved_entries == again.loaded_entries == again.saved_entries == len(entries(tmp_path)) > 0
    assert again.loaded_bytes == first.saved_bytes == (tmp_path / "caches/timing" / CACHE).stat().st_size
    assert (first.note, again.note) == ("", "")


@pytest.mark.thorough
def test_concurrent_builds_keep_all_their_timings(tmp_path: Path, library: Path) -> None:
    several = [asked(tmp_path, library, width) for width in (4, 8, 16)]
    threads = [threading.Thread(target=build, args=(item, tmp_path)) for item in several]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    together = entries(tmp_path)
    alone = [use_of(build(item, tmp_path / str(index))).saved_entries for index, item in enumerate(several)]
    assert len(together) == sum(count or 0 for count in alone)


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"no cache", marks=pytest.mark.thorough),
        pytest.param(b"", marks=pytest.mark.thorough),
        b'STANDIN-TIMING{"release": "10.9.0.34", "entries": {}}',
    ],
)
def test_a_cache_that_does_not_fit_is_set_aside(tmp_path: Path, library: Path, content: bytes) -> None:
    file = tmp_path / "caches/timing" / CACHE
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    use = use_of(build(asked(tmp_path, library), tmp_path))
    assert use.saved_entries == len(entries(tmp_path)) > 0
    assert use.loaded_bytes == 0
    if content:
        assert "another GPU" in use.note
        assert file.with_suffix(".unusable").read_bytes() == content


@pytest.mark.thorough
def test_a_build_starts_from_the_users_cache(tmp_path: Path, library: Path, check_message: CheckMessage) -> None:
    result = asked(tmp_path, library)
    built = build(result, tmp_path)
    users = (tmp_path / "caches/timing" / CACHE).rename(tmp_path / "users.cache")
    strict = asked(tmp_path, library, timing_cache_file=str(users), error_on_timing_cache_miss=True)
    use = use_of(build(strict, tmp_path))
    assert use.loaded_entries == use_of(built).saved_entries
    assert use.note == ""
    strange = asked(tmp_path, library, 8, timing_cache_file=str(users), error_on_timing_cache_miss=True)
    with pytest.raises(BackendError) as caught:
        build(strange, tmp_path / "strange")
    check_message(caught.value)
    without = asked(tmp_path, library, timing_cache=False, timing_cache_file=str(users))
    assert use_of(build(without, tmp_path)).saved_entries is None, "only the user's file is used, and nothing is kept"


@pytest.mark.thorough
def test_a_folder_that_cannot_be_written_costs_time_only(tmp_path: Path, library: Path) -> None:
    (tmp_path / "caches").write_text("a file where the folder would be")
    use = use_of(build(asked(tmp_path, library), tmp_path))
    assert "timings could not" in use.note


@pytest.mark.thorough
def test_a_repeated_attempt_times_again_and_leaves_the_cache_unchanged(
    tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cache would give every attempt the tactics of the first."""
    monkeypatch.setenv("STANDIN_CHURN", str(tmp_path / "builds"))
    graph = " ".join(f"t{i} = Relu(x{i})" for i in range(12))
    inputs = ", ".join(f"float[2, {i + 1}] x{i}" for i in range(12))
    outputs = ", ".join(f"float[2, {i + 1}] t{i}" for i in range(12))
    model = write_model(tmp_path / "several.onnx", f"g ({inputs}) => ({outputs}) {{ {graph} }}")

    def attempt(number: int) -> Build:
        return build(Asked(model, {"backend": "tensorrt", "library": str(library), "attempt": number}), tmp_path)

    def tactics(built: Build) -> list[str]:
        return [layer.tactic for layer in built.layers]

    first, again, second, third = attempt(1), attempt(1), attempt(2), attempt(3)
    assert use_of(again).loaded_entries == 12
    assert tactics(first) == tactics(again), "the cache gives what it was given"
    assert use_of(second).loaded_entries == 0
    assert use_of(second).saved_entries is None
    assert "attempt 2 timed every tactic" in use_of(second).note
    assert len({tuple(tactics(item)) for item in (first, second, third)}) == 3
    assert tactics(attempt(1)) == tactics(first), "what attempts timed is nobody else's"
    churn = find_churn([Rebuild(f"attempt {number}", item) for number, item in enumerate((first, second, third), 1)])
    differing = [len(set(several)) > 1 for several in zip(*map(tactics, (first, second, third)), strict=True)]
    assert {item.name for item in churn.changed} == {
        layer.name for layer, differs in zip(first.layers, differing, strict=True) if differs
    }
    assert {item.change for item in churn.changed} == {"tactic"}
    assert [build.read_timings for build in churn.builds] == [False, False, False]


@pytest.mark.thorough
def test_the_cache_file_is_complete_after_a_kill_at_any_moment(tmp_path: Path, library: Path) -> None:
    result = asked(tmp_path, library)
    build(result, tmp_path)
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from ndld_flow.store.files import write_bytes_atomically\n"
        "from filelock import FileLock\n"
        "file = Path(sys.argv[1])\n"
        "data = file.read_bytes()\n"
        "print('go', flush=True)\n"
        "while True:\n"
        "    with FileLock(file.with_suffix('.lock')):\n"
        "        write_bytes_atomically(file, data)\n"
    )
    before = entries(tmp_path)
    for wait_s in (0.0, 0.01, 0.03):
        command = [sys.executable, "-c", code, str(tmp_path / "caches/timing" / CACHE)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE)
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(wait_s)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert entries(tmp_path) == before
    assert use_of(build(result, tmp_path)).loaded_entries == len(before), "the lock was freed too"
