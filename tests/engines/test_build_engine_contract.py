"""Every setting of an engine in releases of TensorRT that are not installed: refused before building, or really set.

A stand-in with the names of each release takes the place of the library. It refuses what that release refuses, and its
engines say what was set.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ndld_flow.engines.build_settings import AdvancedSettings, BuildSettings
from ndld_flow.engines.foresight import refuse_settings
from ndld_flow.records.build import Build
from ndld_flow.runtimes.tensorrt.library import find_library
from ndld_flow.runtimes.tensorrt.release_names import names_of_release
from tests.support.engine_builds import Asked, Came, build_all
from tests.support.models_engine import constrain
from tests.support.models_run import write_model
from tests.support.tensorrt_standin import write_plugin, write_standin

RELEASES = (
    "10.8.0.43",
    pytest.param("10.13.3.9", marks=pytest.mark.slow),
    pytest.param("10.16.1.11", marks=pytest.mark.thorough),
    pytest.param("11.0.0.114", marks=pytest.mark.slow),
    pytest.param("11.4.0.106", marks=pytest.mark.thorough),
)
"""The oldest, the last that can be weakly typed, the first that cannot, the newest; 10.13 brought the most.

What 10.13 and 11.0 have, 10.16 and 11.4 have too.
"""

MODEL = (
    "g (float[n, 4] x) => (float[n, 4] y) <float[4, 4] w = {1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 0, 1}> "
    "{ [multiply] h = MatMul(x, w) [activate] y = Relu(h) }"
)

Check = Callable[[Build, Mapping[str, Any]], bool]
"""Whether a setting reached the builder: from the record, and from what the stand-in's engine says of itself."""


@dataclass(frozen=True)
class Setting:
    """One setting, as a recipe writes it, and how to see it."""

    written: Mapping[str, Any]
    check: Check


def flag(name: str) -> Check:
    return lambda build, engine: name in build.flags and name in engine["flags"]


def applied(name: str, value: object) -> Check:
    return lambda build, engine: build.applied[name] == value


def pool(name: str, size: int) -> Check:
    def check(build: Build, engine: Mapping[str, Any]) -> bool:
        limits = build.applied["memory_pool_limits"]
        return isinstance(limits, dict) and limits.get(name) == size

    return check


def advanced(check: Check, **written: Any) -> Setting:
    return Setting({"advanced": written}, check)


def plain(check: Check, **written: Any) -> Setting:
    return Setting(written, check)


def list_settings(folder: Path) -> dict[str, Setting]:
    """Every setting there is, by its name and what distinguishes it from others of that name."""
    cache, plugin = folder / "calibration.cache", write_plugin(folder / "plugin.so", ["Magic"])
    cache.write_bytes(b"TRT-1-EntropyCalibration2\nx: 3c010a14\n")
    timing = folder / "users.cache"
    timing.write_bytes(b"no timing cache")
    two = {axis: [2, 4] for axis in ("min", "opt", "max")}
    sources = applied("tactic_sources", ["JIT_CONVOLUTIONS"])
    return {
        "profiles": plain(lambda b, e: e["profiles"][1]["shapes"]["x"][1] == [2, 4], profiles=[{"x": two}, {"x": two}]),
        "batch": plain(
            lambda b, e: e["profiles"][0]["shapes"]["x"] == [[1, 4], [2, 4], [3, 4]], batch={"opt": 2, "max": 3}
        ),
        "mark_outputs": plain(lambda b, e: bool(b.marked_outputs), mark_outputs=["*"]),
        "debug_tensors unfused": plain(lambda b, e: e["debug"]["unfused"], debug_tensors="unfused"),
        "debug_tensors named": plain(lambda b, e: e["debug"]["marked"] != [], debug_tensors=["*"]),
        "compute_capabilities": plain(lambda b, e: e["targets"] == ["SM86"], compute_capabilities=["8.6"]),
        "typing strong": plain(lambda b, e: b.network_flags == ("STRONGLY_TYPED",), typing="strong"),
        "typing obey": plain(lambda b, e: "constraints" in b.typing, typing="obey"),
        "typing prefer": plain(lambda b, e: "constraints" in b.typing, typing="prefer"),
        "tf32": plain(lambda b, e: "TF32" not in b.flags, tf32=False),
        "fp16": plain(flag("FP16"), fp16=True),
        "bf16": plain(flag("BF16"), bf16=True),
        "int8": plain(flag("INT8"), int8=True, placeholder_ranges=True),
        "fp8": plain(flag("FP8"), fp8=True),
        "calibration_cache": plain(flag("INT8"), int8=True, calibration_cache=str(cache)),
        "placeholder_ranges": plain(
            lambda b, e: any("placeholders" in note for note in b.notes), int8=True, placeholder_ranges=True
        ),
        "sparse_weights": plain(flag("SPARSE_WEIGHTS"), sparse_weights=True),
        "tactic_sources": plain(sources, tactic_sources=["jit_convolutions"]),
        "tactic_sources cudnn": plain(applied("tactic_sources", ["CUDNN"]), tactic_sources=["cudnn"]),
        "tactic_sources none": plain(applied("tactic_sources", []), tactic_sources=[]),
        "native_instance_norm": plain(applied("parser_flags", ["NATIVE_INSTANCENORM"]), native_instance_norm=True),
        "native_instance_norm off": plain(applied("parser_flags", []), native_instance_norm=False),
        "optimization_level": plain(applied("builder_optimization_level", 4), optimization_level=4),
        "max_aux_streams": plain(applied("max_aux_streams", 2), max_aux_streams=2),
        "hardware_compatibility": plain(
            lambda b, e: e["hardware_compatibility"] == "AMPERE_PLUS", hardware_compatibility="ampere_plus"
        ),
        "hardware_compatibility same": plain(
            lambda b, e: e["hardware_compatibility"] == "SAME_COMPUTE_CAPABILITY",
            hardware_compatibility="same_compute_capability",
        ),
        "workspace": plain(pool("WORKSPACE", 2**26), workspace="64 MiB"),
        "weights refit": plain(flag("REFIT"), weights="refit"),
        "refittable_weights": plain(
            lambda b, e: e["marked"] == ["w"] and "REFIT_INDIVIDUAL" in b.flags,
            weights="refit_individual",
            refittable_weights=["w"],
        ),
        "weights refit_identical": plain(flag("REFIT_IDENTICAL"), weights="refit_identical"),
        "weights strip": plain(flag("STRIP_PLAN"), weights="strip"),
        "weights strip_refit": plain(lambda b, e: {"STRIP_PLAN", "REFIT"} <= set(b.flags), weights="strip_refit"),
        "version_compatible": plain(flag("VERSION_COMPATIBLE"), version_compatible=True),
        "exclude_lean_runtime": plain(flag("EXCLUDE_LEAN_RUNTIME"), version_compatible=True, exclude_lean_runtime=True),
        "plugins": plain(lambda b, e: e["plugins"] == [str(plugin)], version_compatible=True, plugins=[str(plugin)]),
        "gpu": plain(lambda b, e: b.device == 1, gpu=1),
        "timing_cache": plain(
            lambda b, e: b.timing_cache is None and "DISABLE_TIMING_CACHE" in b.flags, timing_cache=False
        ),
        "timing_cache_file": plain(
            lambda b, e: b.timing_cache is not None and "users.cache" in b.timing_cache.note,
            timing_cache_file=str(timing),
        ),
        "error_on_timing_cache_miss": plain(flag("ERROR_ON_TIMING_CACHE_MISS"), error_on_timing_cache_miss=True),
        "attempt": plain(
            lambda b, e: b.timing_cache is not None and "attempt 2 timed every" in b.timing_cache.note, attempt=2
        ),
        "verbosity": plain(lambda b, e: e["verbosity"] == "NONE", verbosity="none"),
        "verbosity names": plain(lambda b, e: e["verbosity"] == "LAYER_NAMES_ONLY", verbosity="layer_names"),
        "advanced.io_formats": advanced(
            lambda b, e: e["tensors"][0]["formats"] not in (0, e["tensors"][1]["formats"]),
            io_formats={"x": {"formats": ["linear", "chw32"]}},
        ),
        "advanced.io_formats dtype": advanced(
            lambda b, e: e["tensors"][0]["type"] == "HALF", io_formats={"x": {"dtype": "fp16"}}
        ),
        "advanced.direct_io": advanced(flag("DIRECT_IO"), direct_io=True),
        "advanced.tiling": advanced(applied("tiling_optimization_level", "FULL"), tiling="full"),
        "advanced.l2_limit": advanced(applied("l2_limit_for_tiling", 2**20), tiling="fast", l2_limit="1 MiB"),
        "advanced.timing_iterations": advanced(applied("avg_timing_iterations", 5), timing_iterations=5),
        "advanced.max_tactics": advanced(applied("max_num_tactics", 7), max_tactics=7),
        "advanced.memory_pools": advanced(pool("TACTIC_DRAM", 2**20), memory_pools={"tactic_dram": "1 MiB"}),
        "advanced.weight_streaming": Setting(
            {"typing": "strong", "advanced": {"weight_streaming": True}}, flag("WEIGHT_STREAMING")
        ),
        "advanced.preview_features": advanced(
            lambda b, e: b.applied["preview_features"]["PROFILE_SHARING_0806"] is True,  # type: ignore[index,call-overload]
            preview_features={"PROFILE_SHARING_0806": True},
        ),
        "advanced.quantization_flags": Setting(
            {"int8": True, "placeholder_ranges": True, "advanced": {"quantization_flags": ["CALIBRATE_BEFORE_FUSION"]}},
            applied("quantization_flags", ["CALIBRATE_BEFORE_FUSION"]),
        ),
        "advanced.parser_flags": advanced(
            lambda b, e: "ENABLE_PLUGIN_OVERRIDE" in b.applied["parser_flags"],  # type: ignore[operator]
            parser_flags=["ENABLE_PLUGIN_OVERRIDE"],
        ),
        "advanced.flags": advanced(flag("DISTRIBUTIVE_INDEPENDENCE"), flags=["DISTRIBUTIVE_INDEPENDENCE"]),
        "advanced.flags misspelt": advanced(flag("STRICT_NAN"), flags=["STRICT_NAN"]),
        "advanced.dla_core": advanced(applied("default_device_type", "DLA"), dla_core=0, gpu_fallback=True),
        "advanced.gpu_fallback": advanced(flag("GPU_FALLBACK"), dla_core=0, gpu_fallback=True),
        "advanced.engine_capability": advanced(lambda b, e: e["capability"] == "SAFETY", engine_capability="safety"),
        "advanced.runtime_platform": advanced(
            applied("runtime_platform", "WINDOWS_AMD64"), runtime_platform="windows_amd64"
        ),
        "advanced.compilation_cache": advanced(flag("DISABLE_COMPILATION_CACHE"), compilation_cache=False),
        "advanced.max_threads": advanced(applied("max_threads", 3), max_threads=3),
        "advanced.build_route": advanced(applied("build_route", "fast"), build_route="fast"),
        "advanced.remote_auto_tuning": advanced(
            applied("remote_auto_tuning_config", "host:1"), remote_auto_tuning="host:1", engine_capability="safety"
        ),
        "advanced.extra_memory_target": advanced(lambda b, e: "extra_memory_target" in SEEN, extra_memory_target=0.25),
    }


SEEN: set[str] = set()
"""What only the stand-in's own record tells: settings of objects that an engine knows nothing of."""


@dataclass(frozen=True)
class Release:
    """A release, and what came of every setting in it."""

    release: str
    settings: Mapping[str, Setting]
    came: Mapping[str, Came]
    record: str


@pytest.fixture(scope="module", params=RELEASES)
def built(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Release:
    folder = tmp_path_factory.mktemp("contract")
    write_standin(folder / "environment", request.param)
    model = constrain(write_model(folder / "model.onnx", MODEL), multiply="fp16", activate="fp32")
    settings = list_settings(folder)
    asked = {
        name: Asked(model, {"backend": "tensorrt", **setting.written}, {"x": {"shape": [2, 4]}})
        for name, setting in settings.items()
    }
    library = find_library("tensorrt", folder / "environment")
    came = build_all(asked, library, folder / "built", {"STANDIN_RECORD": str(folder / "record.jsonl")})
    SEEN.clear()
    record = (folder / "record.jsonl").read_text()
    SEEN.update(line["set"] for line in map(json.loads, record.splitlines()) if "set" in line)
    return Release(request.param, settings, came, record)


def told_engine(came: Came) -> Mapping[str, Any]:
    """What the stand-in's engine says of itself: JSON after its mark and length."""
    data = came.engine
    start = data.index(b'{"')
    engine: dict[str, Any] = json.JSONDecoder().raw_decode(data[start:].decode(errors="replace"))[0]
    return engine


def test_every_setting_is_tried(tmp_path: Path) -> None:
    tried = {name.split()[0] for name in list_settings(tmp_path)}
    own = {"backend", "release", "library", "lock", "weights", "typing", "advanced"}
    assert {name for name in tried if not name.startswith("advanced.")} | own == set(BuildSettings.model_fields) | own
    assert {name.removeprefix("advanced.") for name in tried if "." in name} == set(AdvancedSettings.model_fields)


def test_unsupported_settings_are_refused_and_all_others_set(built: Release) -> None:
    names = names_of_release("tensorrt", built.release)
    wrong = {}
    for name, setting in built.settings.items():
        came = built.came[name]
        refused = refuse_settings(BuildSettings.model_validate_json(json.dumps(setting.written)), names)
        if refused:
            if (came.answer.error, came.answer.message) != ("BackendError", "\n".join(refused)):
                wrong[name] = f"is refused by the table, but came to: {came.answer.message or 'an engine'}"
        elif came.answer.error:
            wrong[name] = came.answer.message
        elif not setting.check(came.build, told_engine(came)):
            wrong[name] = f"was not set: {came.build.flags} {came.build.applied}"
    assert wrong == {}


def test_the_expected_settings_are_refused(built: Release) -> None:
    refused = {name for name, came in built.came.items() if came.answer.error == "BackendError"}
    assert {"compute_capabilities", "advanced.flags misspelt"} <= refused
    weak_only = {
        "fp16",
        "bf16",
        "int8",
        "fp8",
        "calibration_cache",
        "advanced.io_formats dtype",
        "tactic_sources cudnn",
    }
    assert refused & weak_only == (weak_only if built.release.startswith("11") else set())
    assert ("advanced.build_route" in refused) == (built.release < "11.1")


def test_precisions_are_set_on_layers_or_become_casts(built: Release) -> None:
    if built.release.startswith("11"):
        build = built.came["typing prefer"].build
        assert build.network_flags == ("STRONGLY_TYPED",)
        assert (built.came["typing prefer"].out / "typed.onnx").exists()
    else:
        build = built.came["typing obey"].build
        assert {"OBEY_PRECISION_CONSTRAINTS", "FP16"} <= set(build.flags)
        assert any(note.startswith("FP16 allowed") for note in build.notes)
        assert [(constraint.node, constraint.outcome) for constraint in build.constraints] == [
            ("multiply", "set on 1 layer"),
            ("activate", "set on 1 layer"),
        ]
        precisions = {layer.name: layer.precision for layer in build.layers}
        assert precisions["multiply"] == "float16"
        assert precisions["activate"] == "float32"


def test_layers_come_from_the_inspector(built: Release) -> None:
    build = built.came["optimization_level"].build
    assert build.layers_basis == "engine inspector"
    assert {node for layer in build.layers for node in layer.onnx_nodes} >= {"multiply", "activate"}
    assert build.version == built.release


@pytest.fixture(scope="module")
def weak(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Came]:
    """The last release with weak typing."""
    folder = tmp_path_factory.mktemp("weak")
    write_standin(folder / "environment", "10.16.1.11")
    model = constrain(write_model(folder / "model.onnx", MODEL), multiply="int32")
    gone = constrain(write_model(folder / "gone.onnx", MODEL))
    for name, content in {"minmax": b"TRT-101-MinMaxCalibration\nx: 3c010a14\n", "garbage": b"\x00garbage"}.items():
        (folder / name).write_bytes(content)
    typed = {name: {"backend": "tensorrt", "typing": name} for name in ("obey", "prefer")}
    int8 = {"backend": "tensorrt", "int8": True}
    asked = {name: Asked(model, settings) for name, settings in typed.items()}
    for name in ("minmax", "garbage"):
        asked[name] = Asked(gone, {**int8, "calibration_cache": str(folder / name)})
    return build_all(asked, find_library("tensorrt", folder / "environment"), folder / "built")


@pytest.mark.thorough
def test_constraints_that_cannot_be_obeyed_fail_and_preferred_ones_are_noted(weak: Mapping[str, Came]) -> None:
    assert weak["obey"].answer.error == "RequestError"
    assert "(1 node, such as 'multiply')" in (weak["obey"].error)
    assert not (weak["obey"].out / "build.json").exists()
    build = weak["prefer"].build
    assert [constraint.is_ignored for constraint in build.constraints] == [True]
    assert any("could be int32" in note for note in build.notes)


def test_calibration_caches_are_read_by_their_first_line(weak: Mapping[str, Came]) -> None:
    assert "INT8" in weak["minmax"].build.flags
    assert weak["garbage"].answer.error == "RequestError"
    assert "not an INT8 calibration" in weak["garbage"].error
