"""Untrusted profiles and exports: read, or refused in one paragraph, in bounded time."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from ndld_flow import api
from tests.reliability import hostile_trees
from tests.reliability.guarded import attempt
from tests.support import trtexec_exports as trtexec
from tests.support.compare_samples import layer, profile_of
from tests.support.tally import Tally

Counts = Callable[[str], Tally]
ATTACK = "profiles and trtexec exports"
OWN = profile_of([[1.0, 1.1], [1.2, 1.3]], [layer("a"), layer("b", "Gemm")]).to_json()
LAYERS = trtexec.small_engine()
METADATA = {
    "performance_summary": {"Throughput": "900 qps", "Latency": "min = 1 ms, max = 2 ms, mean = 1 ms, median = 1 ms"},
    "model_options": {"Format": "ONNX"}, "build_options": {"Precision": "FP16"},
    "inference_options": {"Duration": "3s (+ 200ms warm up)", "Input inference shape": "x=1x3x8x8"},
    "device_information": {"Selected Device": "NVIDIA A100", "Compute Capability": "8.0"},
}  # fmt: skip
EVENTS = [
    {"cat": "Session", "pid": 1, "tid": 1, "dur": 900, "ts": 2, "ph": "X", "name": "model_loading_uri", "args": {}},
    *(
        {"cat": kind, "pid": 1, "tid": 1, "dur": dur, "ts": 1000 * at + ts, "ph": "X", "name": name, "args": args}
        for at in (2, 4, 6)
        for kind, dur, ts, name, args in (
            ("Node", 90, 10, "conv_kernel_time", {
                "op_name": "Conv", "provider": "CPUExecutionProvider", "node_index": "0",
                "input_type_shape": [{"float": [1, 3, 8, 8]}], "output_type_shape": [{"float": [1, 4, 8, 8]}],
            }),
            ("Session", 150, 5, "SequentialExecutor::Execute", {}),
            ("Session", 160, 0, "model_run", {}),
        )
    ),
]  # fmt: skip
EXPORTS: dict[str, object] = {
    "times.json": json.loads(trtexec.times(trtexec.latencies(12))),
    "profile.json": json.loads(trtexec.layer_times(LAYERS), strict=False),
    "layers.json": json.loads(trtexec.layer_info(LAYERS), strict=False),
    "layers11.json": json.loads(trtexec.layer_info_11(LAYERS), strict=False),
    "metadata.json": METADATA,
    "onnxruntime.json": EVENTS,
    "own/profile.json": json.loads(OWN),
}


@pytest.fixture
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A profile to compare with. Nothing is written but below the test's folder; what matplotlib draws is left out."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("ndld_flow.runner.run_folder._write_picture", lambda *_: None)
    path = tmp_path / "base" / "profile.json"
    path.parent.mkdir()
    path.write_text(OWN, encoding="utf-8")
    return path


def test_unchanged_exports_are_read(tmp_path: Path, base: Path) -> None:
    """Else the attacks below would attack nothing."""
    for index, (name, tree) in enumerate(EXPORTS.items()):
        path = tmp_path / str(index) / name
        path.parent.mkdir(parents=True)
        path.write_bytes(hostile_trees.as_bytes(tree))
        assert api.report(str(path), to=tmp_path / "page.html").is_file()


def attack(path: Path, base: Path, count: Tally, text: str) -> None:
    """Hand a file to the verbs that read profiles."""
    folder = base.parent.parent
    for verb in (
        lambda: api.compare([str(base), str(path)], outputs=folder / "outputs", to=folder / "compared"),
        lambda: api.report(str(path), outputs=folder / "outputs", to=folder / "page.html"),
        lambda: api.draw(path, folder / "drawn.svg"),
    ):
        attempt(verb, folder, count, text)


def attack_at_random(folder: Path, base: Path, rounds: range, count: Tally) -> None:
    for seed in rounds:
        rng = random.Random(seed)
        name = rng.choice(list(EXPORTS))
        path = folder / str(seed) / name
        path.parent.mkdir(parents=True)
        path.write_bytes(hostile_trees.write(hostile_trees.change(EXPORTS[name], rng), rng))
        attack(path, base, count, f"seed {seed}: {path}")


def test_changed_exports_are_read_or_refused(tmp_path: Path, base: Path, tally: Counts) -> None:
    attack_at_random(tmp_path, base, range(40), tally(ATTACK))


@pytest.mark.slow
@pytest.mark.parametrize("start", range(0, 2000, 500))
def test_many_changed_exports_are_read_or_refused(start: int, tmp_path: Path, base: Path, tally: Counts) -> None:
    attack_at_random(tmp_path, base, range(1000 + start, 1500 + start), tally(ATTACK))


def test_changed_logs_are_read_or_refused(tmp_path: Path, base: Path, tally: Counts) -> None:
    text, count = trtexec.log(), tally(ATTACK)
    lines = text.splitlines()
    for seed in range(12):
        rng = random.Random(seed)
        changed = [line if rng.random() > 0.2 else rng.choice(lines) * rng.choice((0, 1, 2000)) for line in lines]
        (tmp_path / f"{seed}").mkdir()
        path = tmp_path / f"{seed}" / "trtexec.log"
        path.write_bytes("\n".join(changed).replace(" ms", rng.choice((" ms", " 1e400 ms", "\x00ms"))).encode())
        attack(path, base, count, f"seed {seed}: {path}")


def lengthen(path: Path, text: str, size_bytes: int) -> None:
    """A file that begins with a text, and goes on with zeros that take no room."""
    path.write_text(text)
    os.truncate(path, size_bytes)


FILES: dict[str, Callable[[Path], object]] = {
    "a pipe": os.mkfifo,
    "an endless device": lambda path: path.symlink_to("/dev/zero"),
    "a link to itself": lambda path: path.symlink_to(path),
    "a dangling link": lambda path: path.symlink_to("nowhere"),
    "a folder": Path.mkdir,
    "nothing in it": Path.touch,
    "much of nothing": lambda path: lengthen(path, "", 2**26),
    "a gigabyte that begins well": lambda path: lengthen(path, OWN[:-3], 2**30),
    "half a gigabyte of spaces that begins well": lambda path: lengthen(path, OWN[:-3] + " " * 2**20, 2**29),
    "a password file": lambda path: path.symlink_to("/etc/passwd"),
}  # fmt: skip


@pytest.mark.parametrize("what", FILES)
def test_files_that_are_no_profile_are_refused(what: str, tmp_path: Path, base: Path, tally: Counts) -> None:
    path = tmp_path / "odd" / "profile.json"
    path.parent.mkdir()
    FILES[what](path)
    attack(path, base, tally(ATTACK), what)
    page = tmp_path / "page.html"
    assert not page.exists() or "root:" not in page.read_text("utf-8")
