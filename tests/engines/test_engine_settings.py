"""What a release can do with the settings of an engine: told before anything is built, with the replacement."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from ndld_flow import api
from ndld_flow.base.errors import BackendError
from ndld_flow.base.extras import EXTRAS, EngineBackend
from ndld_flow.engines import foresight
from ndld_flow.engines.build_settings import (
    AdvancedSettings,
    BuildSettings,
    TensorFormatSetting,
    TypingPlan,
    decide_typing,
)
from ndld_flow.engines.foresight import OWN_SETTINGS, foresee_build, refuse_settings
from ndld_flow.machine.host import describe_machine
from ndld_flow.runtimes.tensorrt import required_library
from ndld_flow.runtimes.tensorrt.library import Library
from ndld_flow.runtimes.tensorrt.release_names import Names, known_releases, names_of_release
from tests.support import models
from tests.support.message_files import CheckMessage
from tests.support.models import make_cnn, save
from tests.support.models_fp16 import quantized_model
from tests.support.tensorrt_standin import write_standin
from tests.support.typed_api import plan_once

BACKENDS: tuple[EngineBackend, ...] = ("tensorrt", "tensorrt_rtx")
EVERY = [(backend, release) for backend in BACKENDS for release in known_releases(backend)]
TABLE = Path(__file__).with_name("refused_settings.txt")
TABLE_RELEASES = ("10.8", "10.16", "11.4", "RTX")

NEEDS: dict[str, tuple[str, str]] = {
    "fp16: true": ("BuilderFlag", "FP16"),
    "bf16: true": ("BuilderFlag", "BF16"),
    "int8: true": ("BuilderFlag", "INT8"),
    "fp8: true": ("BuilderFlag", "FP8"),
    "{int8: true, placeholder_ranges: true}": ("ITensor", "dynamic_range"),
    "{int8: true, calibration_cache: some.cache}": ("IInt8EntropyCalibrator2", "read_calibration_cache"),
    "{int8: true, advanced: {quantization_flags: [CALIBRATE_BEFORE_FUSION]}}": (
        "QuantizationFlag",
        "CALIBRATE_BEFORE_FUSION",
    ),
    "tactic_sources: [cublas]": ("TacticSource", "CUBLAS"),
    "tactic_sources: [cublas_lt]": ("TacticSource", "CUBLAS_LT"),
    "tactic_sources: [cudnn, jit_convolutions]": ("TacticSource", "CUDNN"),
    "tactic_sources: [edge_mask_convolutions]": ("TacticSource", "EDGE_MASK_CONVOLUTIONS"),
    "compute_capabilities: ['8.6', '12.0']": ("IBuilderConfig", "set_compute_capability"),
    "hardware_compatibility: same_compute_capability": ("HardwareCompatibilityLevel", "SAME_COMPUTE_CAPABILITY"),
    "weights: strip": ("BuilderFlag", "STRIP_PLAN"),
    "{weights: refit_individual, refittable_weights: [w_0]}": ("BuilderFlag", "REFIT_INDIVIDUAL"),
    "weights: refit_identical": ("BuilderFlag", "REFIT_IDENTICAL"),
    "advanced: {build_route: -conv_use_long_w=off}": ("IBuilderConfig", "build_route"),
    "advanced: {remote_auto_tuning: some, engine_capability: safety}": ("IBuilderConfig", "remote_auto_tuning_config"),
    "advanced: {flags: [DISTRIBUTIVE_INDEPENDENCE]}": ("BuilderFlag", "DISTRIBUTIVE_INDEPENDENCE"),
    "advanced: {flags: [MONITOR_MEMORY, STRICT_NANS]}": ("BuilderFlag", "STRICT_NANS"),
    "advanced: {flags: [REJECT_EMPTY_ALGORITHMS]}": ("BuilderFlag", "REJECT_EMPTY_ALGORITHMS"),
    "advanced: {flags: [REQUIRE_USER_ALLOCATION]}": ("BuilderFlag", "REQUIRE_USER_ALLOCATION"),
    "advanced: {flags: [INT4]}": ("BuilderFlag", "INT4"),
    "advanced: {preview_features: {ALIASED_PLUGIN_IO_10_03: true}}": ("PreviewFeature", "ALIASED_PLUGIN_IO_10_03"),
    "advanced: {preview_features: {PROFILE_SHARING_0806: false}}": ("PreviewFeature", "PROFILE_SHARING_0806"),
    "advanced: {preview_features: {RUNTIME_ACTIVATION_RESIZE_10_10: true}}": (
        "PreviewFeature",
        "RUNTIME_ACTIVATION_RESIZE_10_10",
    ),
    "advanced: {preview_features: {MULTIDEVICE_RUNTIME_10_16: true}}": ("PreviewFeature", "MULTIDEVICE_RUNTIME_10_16"),
    "advanced: {parser_flags: [ENABLE_PLUGIN_OVERRIDE]}": ("OnnxParserFlag", "ENABLE_PLUGIN_OVERRIDE"),
    "advanced: {parser_flags: [ADJUST_FOR_DLA]}": ("OnnxParserFlag", "ADJUST_FOR_DLA"),
    "advanced: {io_formats: {x: {formats: [linear]}}}": ("TensorFormat", "LINEAR"),
    "advanced: {io_formats: {x: {dtype: fp32}}}": ("ILayer", "set_output_type"),
}
"""A setting, and the name that decides whether a release can carry it out."""

NAMED_ONLY = {
    "hardware_compatibility: ampere_plus": "setHardwareCompatibilityLevel() is unsupported",
    "hardware_compatibility: same_compute_capability": "setHardwareCompatibilityLevel() is unsupported",
    "version_compatible: true": "Unable to load library: libnvinfer_lean",
    "advanced: {runtime_platform: windows_amd64}": "does not support building engines on platforms other than Linux",
    "advanced: {dla_core: 0, memory_pools: {dla_managed_sram: 2 MiB}}": "TensorRT build with DLA disabled",
    "advanced: {dla_core: 0, memory_pools: {dla_local_dram: 2 MiB}}": "TensorRT build with DLA disabled",
    "advanced: {dla_core: 0, memory_pools: {dla_global_dram: 2 MiB}}": "TensorRT build with DLA disabled",
    "advanced: {dla_core: 0, engine_capability: dla_standalone}": "DLA",
    "advanced: {engine_capability: safety}": "Could not find any implementation",
    "compute_capabilities: ['9.0']": "has no attribute 'SM90'",
    "advanced: {dla_core: 0}": "",
    "advanced: {dla_core: 0, gpu_fallback: true}": "",
    "advanced: {build_route: -conv_use_long_w=off}": "",
    "advanced: {parser_flags: [ADJUST_FOR_DLA]}": "",
    "native_instance_norm: false": "",
    "error_on_timing_cache_miss: true": "",
    "timing_cache_file: shipped.cache": "",
}
"""What TensorRT-RTX has names for and does not do, and what it says: "" where it goes on all the same."""

ANYWHERE = (
    "tf32: false",
    "typing: strong",
    "typing: obey",
    "typing: prefer",
    "sparse_weights: true",
    "tactic_sources: []",
    "native_instance_norm: true",
    "optimization_level: 0",
    "optimization_level: 5",
    "max_aux_streams: 0",
    "workspace: 512 MiB",
    "{version_compatible: true, exclude_lean_runtime: true}",
    "timing_cache: false",
    "verbosity: none",
    "{typing: strong, advanced: {weight_streaming: true}}",
    "advanced: {direct_io: true}",
    "advanced: {tiling: full, l2_limit: 1 MiB}",
    "advanced: {timing_iterations: 2, max_tactics: 8}",
    "advanced: {memory_pools: {tactic_dram: 1 GiB, tactic_shared_memory: 64 KiB}}",
    "advanced: {compilation_cache: false, max_threads: 1}",
    "advanced: {extra_memory_target: 0.5}",
    "advanced: {engine_capability: standard, runtime_platform: same_as_build}",
    "advanced: {flags: [DEBUG, DISABLE_TIMING_CACHE]}",
    "batch: {min: 1, opt: 2, max: 4}",
)
"""What every release carries out."""


def settings(text: str) -> BuildSettings:
    """As a recipe writes them."""
    return BuildSettings.model_validate_json(json.dumps(yaml.safe_load(text)))


def names_of(release: str) -> Names:
    return names_of_release("tensorrt_rtx", "1.7") if release == "RTX" else names_of_release("tensorrt", release)


def refused(text: str, names: Names) -> tuple[str, ...]:
    return refuse_settings(settings(text), names)


# The table of sentences.


@cache
def golden() -> dict[str, dict[str, list[str]]]:
    """Settings, and by release the sentences that refuse them."""
    rows: dict[str, dict[str, list[str]]] = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if not line.startswith(" "):
            rows[line] = {release: [] for release in TABLE_RELEASES}
        else:
            release, sentence = line.split(maxsplit=1)
            rows[[*rows][-1]][release].append(sentence)
    return rows


@pytest.mark.representatives("bf16: true", "tactic_sources: [cudnn]", "timing_cache_file: shipped.cache")
@pytest.mark.parametrize("text", golden())
def test_sentences(text: str) -> None:
    assert {release: [*refused(text, names_of(release))] for release in TABLE_RELEASES} == golden()[text]


# The matrix of settings and releases.


@pytest.mark.representatives("tensorrt-11.2.1.2", "tensorrt-10.13.3.9")
@pytest.mark.parametrize(("backend", "release"), EVERY)
def test_a_setting_is_refused_where_the_release_lacks_its_name(backend: EngineBackend, release: str) -> None:
    names = names_of_release(backend, release)
    title = {"tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT-RTX"}[backend] + f" {'.'.join(release.split('.')[:2])} "
    for text, name in NEEDS.items():
        sentences = refused(text, names)
        if backend == "tensorrt" or text not in NAMED_ONLY:
            expected = [] if names.has(*name) else [True]
            assert [*map(bool, sentences)][:1] == expected, (text, sentences)
        assert all(title in sentence or "strongly typed" in sentence for sentence in sentences)
    for text in ANYWHERE:
        assert refused(text, names) == (), text
    for text in NAMED_ONLY:
        known = backend == "tensorrt" and (text not in NEEDS or names.has(*NEEDS[text])) and "capabilities" not in text
        assert bool(refused(text, names)) is not known, text


@pytest.mark.representatives("tensorrt-11.2.1.2", "tensorrt-11.3.0.99", "tensorrt-10.9.0.34")
@pytest.mark.parametrize(("backend", "release"), EVERY)
def test_a_flag_with_its_own_setting_is_refused_with_a_hint(backend: EngineBackend, release: str) -> None:
    names = names_of_release(backend, release)
    for flag, own in OWN_SETTINGS.items():
        (sentence,) = refused(f"advanced: {{flags: [{flag}]}}", names)
        if names.has("BuilderFlag", flag):
            assert sentence == f"`advanced.flags: [{flag}]`: write `{own}` instead"
        else:
            assert f"no builder flag {flag}" in sentence
    for text in {*OWN_SETTINGS.values()} - {"error_on_timing_cache_miss: true"}:
        path, _, value = text.partition(": ")
        nested = f"{{{path.replace('advanced.', 'advanced: {')}: {value}}}" + "}" * path.count(".")
        if path not in ("exclude_lean_runtime", "advanced.gpu_fallback", "weights"):
            assert settings(nested), "it is a setting"


@pytest.mark.parametrize("word", ["name", "__members__", "strict_nans", "value", ""])
def test_only_members_are_flags(word: str) -> None:
    class Everything(Names):
        def has(self, owner: str, name: str = "") -> bool:
            return True  # as `hasattr` says of much that is no member

    asked = BuildSettings(advanced=AdvancedSettings(flags=(word,), parser_flags=(word,)))
    assert len(refuse_settings(asked, Everything("tensorrt", "11.4.0.106", True, {}))) == 2


STRANGE = st.text(min_size=0, max_size=2000)


@given(
    flags=st.tuples(STRANGE),
    features=st.dictionaries(STRANGE, st.booleans(), max_size=2),
    tensor=STRANGE,
    route=STRANGE,
    release=st.sampled_from(EVERY),
)
def test_messages_stay_short_and_printable_for_any_recipe(
    flags: tuple[str, ...], features: dict[str, bool], tensor: str, route: str, release: tuple[EngineBackend, str]
) -> None:
    advanced = AdvancedSettings(
        flags=flags,
        parser_flags=flags,
        quantization_flags=flags,
        preview_features=features,
        io_formats={tensor: TensorFormatSetting(dtype="fp16", formats=flags)},
        build_route=route,
        remote_auto_tuning=route,
    )
    for sentence in refuse_settings(BuildSettings(int8=True, advanced=advanced), names_of_release(*release)):
        assert len(sentence) <= 600
        assert sentence.startswith("`")
        assert not any(ord(letter) < 0x20 for letter in sentence)


@pytest.mark.parametrize(
    "text",
    [
        "{fp8: true, int8: true}",
        "calibration_cache: some.cache",
        "placeholder_ranges: true",
        "{int8: true, calibration_cache: some.cache, placeholder_ranges: true}",
        "exclude_lean_runtime: true",
        "{timing_cache: false, error_on_timing_cache_miss: true}",
        "{attempt: 2, timing_cache_file: some.cache}",
        "{attempt: 3, error_on_timing_cache_miss: true}",
        "weights: refit_individual",
        "{weights: refit, refittable_weights: [w_0]}",
        "advanced: {gpu_fallback: true}",
        "advanced: {l2_limit: 1 MiB}",
        "{batch: {max: 2}, profiles: [{x: {min: [1], opt: [1], max: [2]}}]}",
    ],
)
def test_conflicting_settings_are_refused(text: str, check_message: CheckMessage) -> None:
    with pytest.raises(ValidationError) as caught:
        settings(text)
    check_message(caught.value)


# How types are decided.

WEAK, STRONG = ("10.8", "10.16"), ("11.4", "RTX")


def weak(words: str, *, constrained: bool = False) -> TypingPlan:
    return TypingPlan(False, (), False, constrained, f"weakly typed: {words}")


def strong(words: str = "") -> TypingPlan:
    return TypingPlan(True, ("STRONGLY_TYPED",), bool(words), False, f"strongly typed{words}")


TYPING: list[tuple[str, Sequence[str], TypingPlan]] = [
    ("{}", WEAK, weak("TF32")),
    ("tf32: false", WEAK, weak("FP32")),
    ("{fp16: true}", WEAK, weak("FP16, TF32")),
    ("{fp16: true, bf16: true, int8: true, tf32: false}", WEAK, weak("FP16, BF16, INT8")),
    ("{fp8: true, fp16: true}", WEAK, weak("FP16, FP8, TF32")),
    ("{typing: obey, fp16: true}", WEAK, weak("FP16, TF32; constraints obeyed", constrained=True)),
    ("typing: prefer", WEAK, weak("TF32; constraints preferred", constrained=True)),
    ("typing: strong", (*WEAK, *STRONG), strong()),
    ("{typing: strong, tf32: false}", (*WEAK, *STRONG), strong()),
    ("{}", STRONG, strong()),
    ("typing: obey", STRONG, strong(", constraints as Casts")),
    ("typing: prefer", STRONG, strong(", preferred constraints applied exactly, as Casts")),
]


@pytest.mark.parametrize(("text", "releases", "plan"), TYPING)
def test_typing(text: str, releases: Sequence[str], plan: TypingPlan) -> None:
    for release in releases:
        assert decide_typing(settings(text), names_of(release)) == plan


# What a plan says.


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> Any:
    """`here(backend, version, gpus)`: the TensorRT that is found and the GPUs of this machine."""

    def arrange(backend: EngineBackend = "tensorrt", version: str = "", gpus: Sequence[str] = (), **more: str) -> None:
        origin = more.get("origin", "installed" if version else "not installed")
        missing = "" if version else "it is not installed: pip install it"
        machine = describe_machine().model_copy(
            update={"gpus": tuple(gpus), "architecture": more.get("cpu", "x86_64"), "system": "Linux 6.12"}
        )

        def find(wanted: EngineBackend | None, place: Path | None = None) -> Library:
            if wanted in (None, backend):
                return Library(backend, version, None, origin, missing)
            return Library(wanted, "", None, "not installed", "it is not installed: pip install it")

        monkeypatch.setattr(required_library, "find_library", find)
        monkeypatch.setattr(foresight, "describe_machine", lambda: machine)
        monkeypatch.setattr(foresight, "has_nvidia_gpu", lambda: bool(gpus) or more.get("cpu") == "aarch64")

    return arrange


NO_GPU = "TensorRT needs an NVIDIA GPU to build, and this machine has none; `backend: tensorrt_rtx` builds without one"


@pytest.mark.parametrize(
    ("text", "version", "start", "facts"),
    [
        ("fp16: true", "10.8.0.43", "TensorRT 10.8: weakly typed: FP16, TF32; ", ["this machine"]),
        ("typing: strong", "10.16.1.11", "TensorRT 10.16: strongly typed; ", ["this machine"]),
        ("typing: obey", "11.4.0.106", "TensorRT 11.4: strongly typed, constraints as Casts; ", ["this machine"]),
        ("gpu: 1", "11.4.0.106", "TensorRT 11.4: strongly typed; ", ["this machine", "GPU 1"]),
        (
            "{batch: {max: 8, opt: 4}, hardware_compatibility: ampere_plus}",
            "11.4.0.106",
            "TensorRT 11.4: strongly typed; ",
            ["batch 1 to 8", " 4; ", "Ampere"],
        ),
        (
            "{hardware_compatibility: same_compute_capability, advanced: {runtime_platform: windows_amd64}}",
            "11.4.0.106",
            "TensorRT 11.4: strongly typed; ",
            ["this machine", "GPUs like", "Windows"],
        ),
        (
            "profiles: [{x: {min: [1], opt: [1], max: [1]}}, {x: {min: [2], opt: [2], max: [2]}}]",
            "11.4.0.106",
            "TensorRT 11.4: strongly typed; 2 optimization profiles; ",
            ["this machine"],
        ),
    ],
)
def test_notes(here: Any, text: str, version: str, start: str, facts: list[str]) -> None:
    here("tensorrt", version, ["NVIDIA L4", "NVIDIA L4"])
    seen = foresee_build(settings(text))
    assert (seen.problems, seen.lacks) == ((), ())
    (note,) = seen.notes
    assert note.startswith(start) and [fact for fact in facts if fact not in note] == []


def test_rtx_builds_without_a_gpu(here: Any) -> None:
    here("tensorrt_rtx", "1.7.1.116")
    seen = foresee_build(settings("{typing: obey, compute_capabilities: ['8.6', '12.0']}"))
    (note,) = seen.notes
    assert note.startswith("TensorRT-RTX 1.7: strongly typed, constraints as Casts; ") and "8.6, 12.0" in note
    assert seen.obstacles == ()
    seen = foresee_build(settings("{}"))
    (note,) = seen.notes
    assert note.startswith("TensorRT-RTX 1.7: strongly typed; ") and "Ampere" in note
    assert seen.obstacles == ()


@pytest.mark.parametrize("weights", ["refit", "refit_identical", "refit_individual", "strip", "strip_refit"])
def test_refittable_weights_need_a_gpu_on_rtx(here: Any, weights: str) -> None:
    marked = ", refittable_weights: [w_0]" if weights == "refit_individual" else ""
    asked = settings(f"{{backend: tensorrt_rtx, weights: {weights}{marked}}}")
    here("tensorrt_rtx", "1.7.1.116")
    (lack,) = foresee_build(asked).lacks
    assert lack.startswith(f"`weights: {weights}`: ") and "GPU" in lack
    here("tensorrt_rtx", "1.7.1.116", ["NVIDIA RTX 4090"])
    assert foresee_build(asked).obstacles == ()


def test_another_gpu_needs_gpus_on_rtx(here: Any) -> None:
    here("tensorrt_rtx", "1.7.1.116")
    (lack,) = foresee_build(settings("gpu: 3")).lacks
    assert lack.startswith("`gpu: 3`")
    assert "remove it" in lack
    here("tensorrt_rtx", "1.7.1.116", ["NVIDIA RTX 4090"] * 3)
    assert len(foresee_build(settings("gpu: 3")).lacks) == 1
    assert foresee_build(settings("gpu: 2")).obstacles == ()


def test_problems_are_those_of_the_requested_release(here: Any) -> None:
    here("tensorrt_rtx", "1.7.1.116")
    seen = foresee_build(settings("{release: '11.4', fp16: true}"))
    (note,) = seen.notes
    assert note.startswith("TensorRT 11.4 (private environment,") and "): strongly typed; " in note
    assert seen.problems == refused("fp16: true", names_of("11.4"))
    assert seen.lacks == (NO_GPU,)


def test_another_release_than_the_installed_one(here: Any) -> None:
    here("tensorrt", "10.16.1.11", ["NVIDIA L4"])
    assert foresee_build(settings("release: '10.16'")).lacks == ()
    (problem,) = foresee_build(settings("release: '10.1'")).problems
    assert re.findall(r"\d+\.\d+", problem) == ["10.1", "10.8", "11.4"]
    seen = foresee_build(settings("{release: 10.8.0.43, fp16: true}"))
    (note,) = seen.notes
    assert note.startswith("TensorRT 10.8 (private environment,") and "): weakly typed: FP16, TF32; " in note
    assert seen.lacks == ()
    (lack,) = foresee_build(settings("release: '12.1'")).lacks
    assert lack.startswith("TensorRT 12.1 ") and " 10.16.1.11 " in lack
    assert re.findall("`(.*?)`", lack) == ["pip install 'tensorrt==12.1.*'", "library", "release"]
    assert "four numbers" in lack
    here("tensorrt", "10.16.1.11", ["NVIDIA L4"], origin="archive /opt/trt")
    seen = foresee_build(settings("{release: '10.16', library: /opt/trt}"))
    (note,) = seen.notes
    assert note.startswith("TensorRT 10.16 (archive /opt/trt): weakly typed: TF32; ")
    (lack,) = foresee_build(settings("{release: '10.8', library: /opt/trt}")).lacks
    assert "TensorRT 10.8 is required, but 10.16.1.11" in lack


def test_an_unknown_release_is_judged_by_the_nearest(here: Any) -> None:
    here("tensorrt", "11.9.2.1", ["NVIDIA L4"])
    seen = foresee_build(settings("fp16: true"))
    first, second = seen.notes
    assert first.startswith("TensorRT 11.9: strongly typed; ")
    assert re.findall(r"TensorRT [\d.]+", second) == ["TensorRT 11.9", "TensorRT 11.4"]
    assert len(seen.problems) == 1


def test_nothing_is_installed(here: Any) -> None:
    here()
    seen = foresee_build(settings("{}"))
    assert (seen.notes, seen.problems) == ((), ())
    (lack,) = seen.lacks
    assert "not installed" in lack and f"{EXTRAS['rtx'].command} (" in lack
    library, gpu = foresee_build(settings("backend: tensorrt")).lacks
    assert "not installed" in library and "TensorRT-RTX" not in library and gpu == NO_GPU


def test_the_hardware_of_the_machine_is_checked(here: Any) -> None:
    here("tensorrt", "11.4.0.106", ["NVIDIA L4"])
    (lack,) = foresee_build(settings("gpu: 1")).lacks
    assert lack.startswith("`gpu: 1`: ") and lack.endswith(" 1")
    (lack,) = foresee_build(settings("advanced: {dla_core: 1}")).lacks
    assert lack.startswith("`advanced.dla_core: 1`: ") and "(x86_64)" in lack
    here("tensorrt", "11.4.0.106", cpu="aarch64")
    assert foresee_build(settings("advanced: {dla_core: 1}")).lacks == (), "a Jetson's GPU is in no list"
    (lack,) = foresee_build(settings("advanced: {runtime_platform: windows_amd64}")).lacks
    assert lack.startswith("`advanced.runtime_platform: windows_amd64`: ") and lack.endswith("Linux x86-64")


def test_missing_files_are_reported(here: Any, tmp_path: Path) -> None:
    here("tensorrt", "10.8.0.43", ["NVIDIA L4"])
    there = tmp_path / "there.so"
    there.write_bytes(b"")
    asked = BuildSettings(
        int8=True,
        calibration_cache=tmp_path / "calibration.cache",
        timing_cache_file=tmp_path / "timing\x1b[2J.cache",
        plugins=(there, tmp_path / "gone.so"),
    )
    end = "; paths are relative to the current directory"
    assert foresee_build(asked).problems == (
        f"`calibration_cache`: no file {tmp_path}/calibration.cache{end}",
        f"`timing_cache_file`: no file {tmp_path}/timing␛[2J.cache{end}",
        f"`plugins[1]`: no file {tmp_path}/gone.so{end}",
    )


def test_a_folder_without_tensorrt_is_a_lack(tmp_path: Path) -> None:
    seen = foresee_build(BuildSettings(library=tmp_path, backend="tensorrt"))
    assert (seen.notes, seen.problems) == ((), ())
    (lack,) = seen.lacks
    assert f"library {tmp_path} has no TensorRT" in lack


def test_foresight_imports_no_heavy_library() -> None:
    code = (
        "import sys; from ndld_flow.engines.foresight import foresee_build as look;"
        "from ndld_flow.engines.build_settings import BuildSettings; look(BuildSettings());"
        "print({'tensorrt', 'tensorrt_rtx', 'polygraphy', 'onnx', 'numpy'} & {*sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# The same, asked of TensorRT itself.


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    b = models.GraphBuilder(0)
    h = b.op("Conv", "x", b.weight(8, 3, 3, 3), pads=[1, 1, 1, 1])
    h = b.op("InstanceNormalization", h, b.weight(8), b.weight(8))
    models.rename_output(b, b.op("Relu", h), "y")
    result = b.model([models.tensor("x", ["n", 3, 16, 16])], [models.tensor("y", ["n", 8, 16, 16])])
    return models.save(result, tmp_path_factory.mktemp("trials") / "model.onnx")


def try_settings(backend: str, model: Path, texts: Sequence[str], **variables: str) -> dict[str, dict[str, Any]]:
    """Settings -> what came of them, carried out without asking whether they can be."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.engine_trials", backend, str(model)],
        input="".join(settings(text).model_dump_json() + "\n" for text in texts),
        env=os.environ | variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    return dict(zip(texts, answers, strict=True))


@cache
def _accepted(release: str) -> tuple[str, ...]:
    """Settings that a release of the table carries out here; left out are those that need calibration, a GPU or a
    file, or words that only TensorRT's own libraries know."""
    texts = ("{}", *ANYWHERE, *NEEDS, *golden())
    unfit = (
        "int8",
        "dla",
        "safety",
        "windows",
        "weights: ",
        "shipped.cache",
        "miss: true",
        "{x: {dtype: fp16",
        "build_route",
    )
    return tuple(
        text
        for text in dict.fromkeys(texts)
        if not any(word in text for word in unfit) and not refused(text, names_of(release))
    )


@pytest.fixture(scope="module")
def rtx(model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What the real TensorRT-RTX makes of settings."""
    if find_spec("tensorrt_rtx") is None:
        pytest.skip("the extra [rtx] is not installed")
    cache = tmp_path_factory.mktemp("caches") / "shipped.cache"
    cache.write_bytes(b"")
    asked = {text: text.replace("shipped.cache", str(cache)) for text in (*_accepted("RTX"), *NAMED_ONLY)}
    tried = try_settings("tensorrt_rtx", model, [*asked.values()])
    return {text: tried[written] for text, written in asked.items()}


@pytest.mark.thorough
def test_rtx_applies_accepted_settings(rtx: dict[str, dict[str, Any]]) -> None:
    for text in _accepted("RTX"):
        outcome = rtx[text]
        assert (outcome["raised"], outcome["said"]) == ("", []), text
        assert outcome["size"] > 10_000, text


@pytest.mark.thorough
def test_rtx_does_not_apply_refused_settings(rtx: dict[str, dict[str, Any]]) -> None:
    plain = rtx["{}"]
    for text, says in NAMED_ONLY.items():
        outcome = rtx[text]
        assert refused(text, names_of("RTX")), text
        assert says in " ".join([outcome["raised"], *outcome["said"]]), text
        if not says:  # it goes on as if nothing was asked
            assert outcome == plain, text
        elif outcome["size"]:
            assert outcome["applied"] == plain["applied"], text


@pytest.mark.parametrize(
    "release",
    ["10.8", pytest.param("10.16", marks=pytest.mark.thorough), pytest.param("11.4", marks=pytest.mark.thorough)],
)
def test_accepted_settings_have_their_names_in_the_release(release: str, model: Path, tmp_path: Path) -> None:
    site = write_standin(tmp_path, release)
    for text, outcome in try_settings("tensorrt", model, _accepted(release), PYTHONPATH=str(site)).items():
        assert (outcome["raised"], outcome["said"]) == ("", []), text
        assert outcome["size"] > 0, text


def test_releases_are_text_and_capabilities_may_be_numbers(check_message: CheckMessage) -> None:
    with pytest.raises(ValidationError) as caught:
        BuildSettings.model_validate_json('{"release": 10.10}')
    check_message(caught.value)
    read = BuildSettings.model_validate_json('{"release": "10.10", "compute_capabilities": [8.6, "8.9", 12.0]}')
    assert read.release == "10.10"
    assert read.compute_capabilities == ("8.6", "8.9", "12.0")


# Ranges for INT8

INT8: Mapping[str, Any] = {"step": "build_engine", "release": "10.8", "int8": True}


@pytest.mark.representatives("steps0-True", "steps6-False")
@pytest.mark.parametrize(
    ("steps", "is_refused"),
    [
        ({"engine": INT8}, True),
        ({"clean": {"step": "sanitize"}, "half": {"step": "convert_fp16"}, "engine": INT8}, True),
        ({"engine": {**INT8, "placeholder_ranges": True}}, False),
        ({"engine": {**INT8, "calibration_cache": "calibration.cache"}}, False),
        ({"engine": {**INT8, "int8": False, "fp16": True}}, False),
        ({"small": {"step": "quantize"}, "engine": INT8}, False),
        ({"tool": {"step": "edit", "operations": ["remove_noops"]}, "engine": INT8}, False),
    ],
)
def test_int8_without_ranges_is_a_problem_before_anything_runs(
    in_folder: Path, steps: Mapping[str, Any], is_refused: bool
) -> None:
    """TensorRT finds it while it builds: no scaling factors were detected."""
    make_cnn(in_folder / "model.onnx")
    (in_folder / "calibration.cache").write_bytes(b"TRT-1-EntropyCalibration2\nx: 3c010a14\n")
    recipe = {"name": "ranges", "model": "model.onnx", "inputs": {"x": {"shape": [1, 3, 16, 16]}}, "steps": steps}
    decisions = api.plan(recipe, outputs=in_folder / "outputs")
    assert isinstance(decisions, list)
    problems = decisions[-1].foresee().problems
    assert [("`int8: true`: TensorRT 10.8 needs" in problem) for problem in problems] == ([True] if is_refused else [])
    if is_refused:
        with pytest.raises(BackendError, match="`quantize` with `target: tensorrt`"):
            api.run(recipe, outputs=in_folder / "outputs")


OBEY: dict[str, Any] = {**INT8, "int8": False, "typing": "obey"}
CONV_INT8: dict[str, Any] = {"step": "constrain_precision", "op_types": {"Conv": "int8"}}


@pytest.mark.representatives("steps0-True", "steps7-False")
@pytest.mark.parametrize(
    ("steps", "is_refused"),
    [
        ({"mark": CONV_INT8, "engine": OBEY}, True),
        ({"mark": CONV_INT8, "clean": {"step": "sanitize"}, "engine": {**OBEY, "typing": "prefer"}}, True),
        ({"mark": {"step": "constrain_precision", "list_file": "list.txt"}, "engine": OBEY}, True),
        ({"mark": CONV_INT8, "engine": {**OBEY, "int8": True, "placeholder_ranges": True}}, False),
        ({"mark": CONV_INT8, "engine": {**OBEY, "typing": "default"}}, False),
        ({"mark": {**CONV_INT8, "op_types": {"Conv": "fp16"}}, "engine": OBEY}, False),
        ({"mark": CONV_INT8, "small": {"step": "quantize"}, "engine": OBEY}, False),
        ({"mark": CONV_INT8, "engine": {**OBEY, "from": "source"}}, False),
    ],
)
def test_int8_by_a_constraint_without_ranges_is_a_problem_too(
    in_folder: Path, steps: Mapping[str, Any], is_refused: bool
) -> None:
    """A constraint allows the builder to use INT8, as `int8: true` does."""
    make_cnn(in_folder / "model.onnx")
    (in_folder / "list.txt").write_text("Conv_0:INT8, Conv_2:fp16\n")
    recipe = {"name": "ranges", "model": "model.onnx", "inputs": {"x": {"shape": [1, 3, 16, 16]}}, "steps": steps}
    problems = api.plan(recipe, outputs=in_folder / "outputs")[-1].foresee().problems  # type: ignore[index]
    assert [problem.partition(": TensorRT 10.8 needs the ranges")[0] for problem in problems] == (
        [f"`typing: {steps['engine']['typing']}` with nodes constrained to int8"] if is_refused else []
    )


def test_int8_by_a_constraint_of_the_model_itself_is_a_problem(in_folder: Path) -> None:
    make_cnn(in_folder / "model.onnx")
    recipe: dict[str, Any] = {"name": "ranges", "model": "model.onnx", "steps": {"mark": CONV_INT8}}
    assert api.run(recipe, outputs=in_folder / "outputs").passed
    recipe["steps"]["engine"] = OBEY
    [_, engine] = plan_once(recipe, outputs=in_folder / "outputs")
    [problem] = engine.foresee().problems
    assert "`typing: obey` with node" in problem


def test_a_quantized_model_has_its_ranges(in_folder: Path) -> None:
    save(quantized_model(13), in_folder / "model.onnx")
    recipe = {"name": "ranges", "model": "model.onnx", "steps": {"clean": {"step": "sanitize"}, "engine": INT8}}
    [_, engine] = plan_once(recipe, outputs=in_folder / "outputs")
    assert engine.foresee().problems == ()


def test_a_finished_step_is_examined_itself(in_folder: Path) -> None:
    """`edit` may add Q/DQ nodes: its result is looked at once it exists."""
    make_cnn(in_folder / "model.onnx")
    change = {"step": "edit", "operations": ["remove_noops"]}
    recipe: dict[str, Any] = {"name": "ranges", "model": "model.onnx", "steps": {"change": change}}
    assert api.run(recipe, outputs=in_folder / "outputs").passed
    recipe["steps"]["engine"] = INT8
    [_, engine] = plan_once(recipe, outputs=in_folder / "outputs")
    [problem] = engine.foresee().problems
    assert "needs the ranges" in problem
