"""A wait for another process names that process in every mode, and a fetch shows its size."""

from __future__ import annotations

import functools
import hashlib
import http.server
import io
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from ndld_flow import api
from ndld_flow.base.quantities import size
from ndld_flow.cli.live import LiveDisplay
from ndld_flow.execution.devices import FOLDER_VARIABLE
from ndld_flow.execution.events import Fetching
from ndld_flow.runner.plan import Decision
from ndld_flow.store.digest import digest_json
from tests.support.models import make_cnn
from tests.support.process_runs import ProcessRun
from tests.support.terminal import plain, run_in_terminal
from tests.support.toys import RECIPE, STAMP, make_toy
from tests.support.worker_toys import wait_until

HOLD = """
import sys
from pathlib import Path
from ndld_flow.execution.devices import Claim, holding
from ndld_flow.store.store import Store

lock, store = sys.argv[1], Store(Path("outputs/store"))
device = holding("scales", store, Claim("step speed of other", print))
with device if lock == "device" else store.locks.hold(lock, what="step speed of other"):
    print("holds", flush=True)
    sys.stdin.read()
"""
MODES = {"log": [], "quiet": ["--quiet"], "json": ["--json"], "terminal": []}
DEVICE = """
    @property
    def device(self):
        return "scales"

"""
SCALES = STAMP.replace("    word: str", f"{DEVICE}    word: str")


class Holder:
    """A second process that holds a lock until it is let go."""

    def __init__(self, lock: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLD, lock], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "holds\n"

    def release(self) -> None:
        """Let go, once."""
        if self.process.poll() is None:
            self.process.communicate("", timeout=60)


def run_until_wait(folder: Path, mode: str, holder: Holder, verb: str, *arguments: str) -> str:
    """Run a verb until it waits, release the lock, and return all that the verb printed."""
    pid = f"pid {holder.process.pid})"
    if mode == "terminal":
        shown = lambda text: holder.release() if pid in text else None  # noqa: E731
        code, sent = run_in_terminal(folder, verb, *arguments, columns=80, shown=shown)
        assert code == 0
        return plain(sent)
    started = ProcessRun(verb, *arguments, *MODES[mode], cwd=folder, env={**os.environ})
    wait_until(lambda: pid in started.told)
    holder.release()
    code, out, _ = started.finish(60)
    assert code == 0
    return out


@pytest.fixture(autouse=True)
def own_locks(in_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a folder of its own for the locks that all users of a machine share."""
    (in_folder / "locks").mkdir()
    monkeypatch.setenv(FOLDER_VARIABLE, str(in_folder / "locks"))


@pytest.mark.parametrize("mode", MODES)
def test_a_wait_for_a_device_names_its_holder(in_folder: Path, mode: str) -> None:
    make_toy(in_folder, RECIPE).write(RECIPE, SCALES)
    holder = Holder("device")
    printed = run_until_wait(in_folder, mode, holder, "run", "toy.yaml", "--trust")
    assert re.search(rf"scales\b.* speed of other .*\(user \S+, pid {holder.process.pid}\)", printed)


@pytest.mark.parametrize("mode", MODES)
def test_a_wait_for_another_run_of_a_step_names_it(in_folder: Path, mode: str) -> None:
    make_toy(in_folder)
    [first, *_] = api.plan("toy.yaml", trust=True)
    assert isinstance(first, Decision)
    holder = Holder(first.key)
    printed = run_until_wait(in_folder, mode, holder, "run", "toy.yaml", "--trust")
    assert re.search(rf"other \(user \S+, pid {holder.process.pid}\) since [\d:]{{8}}", printed)


@pytest.fixture
def remote(in_folder: Path) -> Iterator[str]:
    """A recipe whose model is fetched from a server on loopback; the source."""
    path = make_cnn(in_folder / "there.onnx")
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(in_folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        source = f"http://127.0.0.1:{server.server_address[1]}/there.onnx"
        digest = hashlib.sha256(path.read_bytes()).hexdigest()
        recipe = f"model: {{source: '{source}', sha256: {digest}}}\nsteps: {{sanitize: {{}}}}\n"
        (in_folder / "fetched.yaml").write_text(recipe)
        yield source
        server.shutdown()


@pytest.mark.parametrize("mode", MODES)
def test_a_wait_for_the_fetch_of_a_model_names_the_process(in_folder: Path, mode: str, remote: str) -> None:
    digest = hashlib.sha256((in_folder / "there.onnx").read_bytes()).hexdigest()
    holder = Holder(f"source-{digest_json([remote, digest])[:32]}")
    run_until_wait(in_folder, mode, holder, "run", "fetched.yaml")


@pytest.mark.parametrize("verb", ["gc", "verify"])
def test_a_wait_for_garbage_collection_names_the_process(in_folder: Path, verb: str) -> None:
    holder = Holder("gc")
    started = ProcessRun(verb, cwd=in_folder, env={**os.environ})
    wait_until(lambda: f"pid {holder.process.pid})" in started.warned)
    holder.release()
    assert started.finish(60)[0] == 0


def test_a_log_has_one_line_of_a_fetch_with_its_size(in_folder: Path, remote: str) -> None:
    size_bytes = (in_folder / "there.onnx").stat().st_size
    code, out, _ = ProcessRun("run", "fetched.yaml", cwd=in_folder, env={**os.environ}).finish(60)
    assert code == 0
    assert [line for line in out.splitlines() if remote in line] == [f"fetching {remote}, {size(size_bytes)}"]


def test_json_has_the_progress_of_a_fetch(in_folder: Path, remote: str) -> None:
    size_bytes = (in_folder / "there.onnx").stat().st_size
    _, out, _ = ProcessRun("run", "fetched.yaml", "--json", cwd=in_folder, env={**os.environ}).finish(60)
    events = [event for event in map(json.loads, out.splitlines()) if event["event"] == "fetching"]
    assert [(e["done_bytes"], e["size_bytes"], e["finished"]) for e in (events[0], events[-1])] == [
        (0, size_bytes, False),
        (size_bytes, size_bytes, True),
    ]


def test_a_terminal_has_a_bar_during_a_fetch() -> None:
    printed = io.StringIO()
    console = Console(file=printed, width=100, force_terminal=True)
    display = LiveDisplay(console)

    def draw() -> str:
        with console.capture() as drawn:
            console.print(display._render())
        return plain(drawn.get())

    for done in (0, 1 << 20):
        display(Fetching(source="hf://a/b.onnx", done_bytes=done, size_bytes=3 << 20))
    assert "1.00 MiB fetched" in draw()
    display(Fetching(source="hf://a/b.onnx", done_bytes=3 << 20, size_bytes=3 << 20, finished=True))
    assert "fetched" not in draw()
    assert plain(printed.getvalue()) == "fetching hf://a/b.onnx, 3.00 MiB\n"
