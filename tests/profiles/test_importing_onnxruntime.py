"""Profiles that ONNX Runtime wrote, read without it."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ndld_flow.base.errors import RequestError
from ndld_flow.profiles.read import onnxruntime_profile
from ndld_flow.profiles.read.read_profile import read_profile, recognize
from ndld_flow.records.profile import Profile
from tests.support.message_files import CheckMessage
from tests.support.models import make_cnn, make_ctrl


def record(model: Path, feeds: dict[str, Any], passes: int = 6) -> Path:
    """Run a model with ONNX Runtime's own profiler on, as anyone would."""
    options = ort.SessionOptions()
    options.enable_profiling = True
    options.profile_file_prefix = str(model.with_suffix(""))
    options.intra_op_num_threads = 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    for _ in range(passes):
        session.run(None, feeds)
    return Path(session.end_profiling())


def feeds_of(model: Path) -> dict[str, Any]:
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    return {item.name: filled(item.type, item.shape) for item in session.get_inputs()}


def filled(kind: str, shape: list[Any]) -> Any:
    dtype = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(bool)": np.bool_}[kind]
    return np.ones([dim if isinstance(dim, int) else 1 for dim in shape], dtype)


def top_level_ms(file: Path) -> list[float]:
    """For each pass what its outermost nodes took, added up from the events themselves."""
    sums: list[float] = []
    nodes: list[dict[str, Any]] = []
    for event in json.loads(file.read_text()):
        if event["name"].endswith("_kernel_time"):
            nodes.append(event)
        elif event["name"] == "model_run":
            ends = [(node["ts"], node["ts"] + node["dur"]) for node in nodes]
            outer = [
                node
                for node in nodes
                if not any(a <= node["ts"] and node["ts"] + node["dur"] <= b and b - a > node["dur"] for a, b in ends)
            ]
            sums.append(sum(item["dur"] for item in outer) / 1e3)
            nodes = []
    return sums


def test_a_model_without_control_flow_is_imported(tmp_path: Path) -> None:
    model = make_cnn(tmp_path / "cnn.onnx")
    file = record(model, feeds_of(model))
    profile = read_profile(file)
    runs = [event["dur"] / 1e3 for event in json.loads(file.read_text()) if event["name"] == "model_run"]
    assert recognize(file) == recognize(tmp_path) == "onnxruntime"
    assert profile.latency_ms == tuple(runs[1:])
    assert (profile.warmup_passes, profile.layer_runs, profile.backend) == (1, (5,), "onnxruntime")
    assert profile.providers == ("CPUExecutionProvider",)
    assert profile.label == "cnn"  # without ONNX Runtime's time of day
    assert profile.runs[0].load_ms > 0
    assert profile.runs[0].starts_ms[0] == 0
    assert len(profile.runs[0].starts_ms) == 5
    convolutions = [layer for layer in profile.layers if "Conv" in layer.type]
    assert convolutions
    assert all(layer.macs and layer.read_bytes and layer.precision == "float32" for layer in convolutions)
    assert any("profiler on" in note for note in profile.notes)
    assert Profile.model_validate_json(profile.to_json()) == profile


def test_self_times_of_bodies_add_up_to_the_whole(tmp_path: Path) -> None:
    model = make_ctrl(tmp_path / "ctrl.onnx")
    file = record(model, feeds_of(model))
    profile = read_profile(file)
    assert {"control"} < {layer.role for layer in profile.layers}
    assert max(layer.depth for layer in profile.layers) >= 1
    sums = [sum(samples) for samples in zip(*(layer.samples_ms for layer in profile.layers), strict=True)]
    # Whole microseconds: a body may take one more than the node around it says.
    assert sums == pytest.approx(top_level_ms(file)[1:], abs=0.02)
    spans = [span for span in profile.timeline if span.layer is not None]
    assert {span.name for span in spans} <= {layer.name for layer in profile.layers}
    assert {span.depth for span in spans} == {layer.depth for layer in profile.layers}


def test_times_of_silero_add_up(sample_model: Callable[[str], Path], tmp_path: Path) -> None:
    model = Path(shutil.copy(sample_model("silero"), tmp_path / "silero.onnx"))
    feeds = {
        "input": np.zeros((1, 576), np.float32),
        "state": np.zeros((2, 1, 128), np.float32),
        "sr": np.array(16_000, np.int64),
    }
    file = record(model, feeds, 10)
    profile = read_profile(file)
    sums = [sum(samples) for samples in zip(*(layer.samples_ms for layer in profile.layers), strict=True)]
    assert sums == pytest.approx(top_level_ms(file)[1:], abs=0.02)
    assert all(whole <= latency for whole, latency in zip(sums, profile.latency_ms, strict=True))


def test_several_profiles_in_one_folder_are_refused(tmp_path: Path, check_message: CheckMessage) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.json").write_text(TEXT)
    with pytest.raises(RequestError) as caught:
        read_profile(tmp_path)
    check_message(caught.value)
    assert read_profile(tmp_path / "b.json").label == "b"


def event(name: str, ts: object, dur: object, **args: object) -> str:
    return json.dumps({"cat": "Node", "pid": 1, "tid": 1, "dur": dur, "ts": ts, "ph": "X", "name": name, "args": args})


def node(name: str, ts: object, dur: object, op_name: object = "Conv", **args: object) -> str:
    shape = [{"float": [1, 3]}]
    arguments = {"op_name": op_name, "provider": "CPU", "input_type_shape": shape, "output_type_shape": shape, **args}
    return event(f"{name}_kernel_time", ts, dur, node_index="0", **arguments)


def document(*lines: str) -> str:
    return "[\n" + ",\n".join(lines) + "\n]\n"


def one_pass(at: int, name: str = "conv") -> list[str]:
    return [
        node(name, at + 2, 5),
        event("SequentialExecutor::Execute", at + 1, 8),
        event("model_run", at, 10),
    ]


TEXT = document(event("session_initialization", 0, 90), *one_pass(100), *one_pass(200), *one_pass(300))


def test_a_single_pass_is_not_dropped_as_warm_up(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text(document(*one_pass(5)))
    profile = read_profile(tmp_path / "x.json")
    assert (profile.latency_ms, profile.warmup_passes) == ((0.01,), 0)


def test_a_profile_without_a_complete_pass_is_refused(tmp_path: Path, check_message: CheckMessage) -> None:
    (tmp_path / "x.json").write_text(document(event("session_initialization", 0, 90), node("a", 1, 2)))
    with pytest.raises(RequestError) as caught:
        read_profile(tmp_path / "x.json")
    check_message(caught.value)


@pytest.mark.parametrize(
    "broken",
    [
        node("x", 10**400, 1),
        node("x", 1, 10**400),
        node("x", 1, -5),
        node("x", "a", 1),
        node("x", 1, 1, op_name=["a", {}]),
        node("x", 1, 1, input_type_shape=[{"float": 3}, {"float": [None]}, 4], output_type_shape={"a": 1}),
        node("\ud800", 1, 1, provider=7),
        '{"name": "model_run", "ts": 1, "dur": 1, "args": [1]}',
        "[" * 10_000,
        "[[1]]",
    ],
)
def test_malformed_events_are_skipped(tmp_path: Path, broken: str) -> None:
    lines = [*one_pass(100), *one_pass(200), broken, *one_pass(300)]
    (tmp_path / "x.json").write_bytes(document(*lines).encode("utf-8", "surrogatepass"))
    profile = read_profile(tmp_path / "x.json")
    assert profile.latency_ms == (0.01, 0.01)
    assert Profile.model_validate_json(profile.to_json())


def test_unbounded_passes_and_nodes_are_refused(tmp_path: Path, check_message: CheckMessage) -> None:
    """Every pass with nodes of its own: samples of all nodes in all passes would fill the memory."""
    lines = [line for at in range(6_000) for line in one_pass(at * 100, f"n{at}")]
    (tmp_path / "x.json").write_text(document(*lines))
    with pytest.raises(RequestError) as caught:
        read_profile(tmp_path / "x.json")
    check_message(caught.value)


def test_a_pass_of_too_many_nodes_is_refused_before_it_fills_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    """A million layers took 3.9 GB."""
    monkeypatch.setattr(onnxruntime_profile, "_MAX_NODES", 100)
    of_loop = [node("body", at, 1) for at in range(300)]
    (tmp_path / "x.json").write_text(document(*of_loop, *one_pass(500)))
    assert read_profile(tmp_path / "x.json").layers
    (tmp_path / "x.json").write_text(document(*(node(f"n{at}", at, 1) for at in range(300)), *one_pass(500)))
    with pytest.raises(RequestError) as caught:
        read_profile(tmp_path / "x.json")
    check_message(caught.value)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_truncated_and_noisy_files_are_read_or_refused(tmp_path: Path, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(TEXT)))
    at = data.draw(st.integers(0, len(TEXT)))
    noise = data.draw(st.text(max_size=6) | st.sampled_from(["\n", '"', "9" * 400, "]\n[", "\x1e"]))
    for text in (TEXT[:cut], TEXT[:at] + noise + TEXT[at:]):
        (tmp_path / "x.json").write_bytes(text.encode("utf-8", "surrogatepass"))
        try:
            profile = read_profile(tmp_path / "x.json")
        except RequestError:
            continue
        assert Profile.model_validate_json(profile.to_json()) == profile
