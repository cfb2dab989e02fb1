"""Which names each release of TensorRT has."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest

from ndld_flow.base.errors import RequestError
from ndld_flow.base.extras import EngineBackend
from ndld_flow.runtimes.tensorrt.release_names import known_releases, names_of_bindings, names_of_release, releases_with
from tests.support.message_files import CheckMessage
from tests.support.tensorrt_standin.write_release_names import SHIPPED, read_names, shipped_form

CLASSES_WE_USE = (
    "Builder", "BuilderFlag", "ComputeCapability", "DataType", "EngineInspector", "HardwareCompatibilityLevel",
    "IBuilderConfig", "ICudaEngine", "IExecutionContext", "ILayer", "INetworkDefinition", "IOptimizationProfile",
    "IProfiler", "IProgressMonitor", "IRuntimeConfig", "ITensor", "ITimingCache", "LayerInformationFormat", "Logger",
    "MemoryPoolType", "NetworkDefinitionCreationFlag", "OnnxParser", "OnnxParserFlag", "OnnxParserRefitter",
    "ParserError", "PreviewFeature", "ProfilingVerbosity", "Refitter", "Runtime", "TacticSource", "TensorIOMode",
    "TilingOptimizationLevel",
)  # fmt: skip


@pytest.fixture(scope="module")
def source() -> dict[str, Any]:
    return read_names()


def test_the_shipped_names_agree_with_the_source(source: dict[str, Any]) -> None:
    releases = source["releases"]
    assert len(releases) == 17
    for release in releases:
        backend: EngineBackend = "tensorrt_rtx" if release.startswith("rtx-") else "tensorrt"
        names = names_of_release(backend, release.removeprefix("rtx-"))
        assert names.release == release.removeprefix("rtx-")
        assert names.exact
        assert dict(names.classes) == {
            owner: {name for name, having in entry["attributes"].items() if having == "all" or release in having}
            for owner, entry in source["classes"].items()
            if release in entry["versions"]
        }


def test_the_shipped_file_is_what_its_script_writes(source: dict[str, Any]) -> None:
    assert json.loads(SHIPPED.read_text()) == shipped_form(source)
    assert SHIPPED.stat().st_size < 60_000


def test_releases_are_known_in_order() -> None:
    known = known_releases("tensorrt")
    assert (known[0], known[-1], len(known)) == ("10.8.0.43", "11.4.0.106", 14)
    assert known_releases("tensorrt_rtx") == ("1.5.0.114", "1.6.1.120", "1.7.1.116")


@pytest.mark.parametrize(
    ("asked", "found", "exact"),
    [
        ("10.8", "10.8.0.43", True),
        ("10.8.0", "10.8.0.43", True),
        ("10.8.0.43", "10.8.0.43", True),
        ("10.14.1.48", "10.14.1.48.post1", True),
        ("10.14.1.48.post1", "10.14.1.48.post1", True),
        ("11", "11.4.0.106", True),
        ("10.13.0.35", "10.13.3.9", False),
        ("10.8.0.1", "10.8.0.43", False),
        ("10.17", "10.16.1.11", False),
        ("11.5", "11.4.0.106", False),
        ("12.0.1", "11.4.0.106", False),
    ],
)
def test_a_release_has_its_names_or_those_of_the_nearest(asked: str, found: str, exact: bool) -> None:
    names = names_of_release("tensorrt", asked)
    assert (names.release, names.exact) == (found, exact)


@pytest.mark.parametrize("asked", ["10.7", "8.6.1", "9", "", "newest", "٣.1"])
def test_old_releases_and_invalid_versions_are_refused(asked: str, check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        names_of_release("tensorrt", asked)
    check_message(caught.value)


def test_old_releases_of_rtx_are_refused_by_its_name(check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        names_of_release("tensorrt_rtx", "1.4")
    check_message(caught.value)


@pytest.mark.parametrize(
    ("release", "owner", "name", "there"),
    [
        ("10.16", "BuilderFlag", "FP16", True),
        ("11.0", "BuilderFlag", "FP16", False),
        ("10.8", "IRuntimeConfig", "", False),
        ("10.11", "IRuntimeConfig", "", True),
        ("10.16", "ILayer", "precision", True),
        ("11.4", "ILayer", "precision", False),
        ("11.4", "INoSuchThing", "", False),
        ("11.4", "INoSuchThing", "name", False),
    ],
)
def test_names_are_added_and_removed_between_releases(release: str, owner: str, name: str, there: bool) -> None:
    assert names_of_release("tensorrt", release).has(owner, name) is there


def test_the_releases_with_a_name_are_described() -> None:
    assert releases_with("tensorrt", "IBuilderConfig", "build_route")[0] == "11.1.0.106"
    assert releases_with("tensorrt", "BuilderFlag", "FP16")[-1] == "10.16.1.11"
    assert releases_with("tensorrt_rtx", "BuilderFlag", "FP16") == ()
    assert releases_with("tensorrt", "IRuntimeConfig") == known_releases("tensorrt")[3:]


def test_names_of_imported_bindings_are_their_own() -> None:
    bindings = SimpleNamespace(__version__="10.9.1", BuilderFlag=SimpleNamespace(TF32=1))
    names = names_of_bindings("tensorrt", bindings)
    assert (names.release, names.exact) == ("10.9.1", True)
    assert names.has("BuilderFlag", "TF32")
    assert names.has("BuilderFlag")
    assert not names.has("BuilderFlag", "FP16")
    assert not names.has("IRuntimeConfig", "anything")


def test_the_table_is_right_about_the_installed_rtx() -> None:
    installed = pytest.importorskip("tensorrt_rtx", reason="TensorRT-RTX is not installed")
    table = names_of_release("tensorrt_rtx", installed.__version__)
    if not table.exact:
        pytest.skip(f"the names of TensorRT-RTX {installed.__version__} are not known")
    bindings = names_of_bindings("tensorrt_rtx", installed)
    lacking = [
        (owner, name) for owner in table.classes for name in table.classes[owner] if not bindings.has(owner, name)
    ]
    assert lacking == []
    assert set(CLASSES_WE_USE) <= set(table.classes)
    for owner in CLASSES_WE_USE:
        own = {name for name in vars(getattr(installed, owner)) if not name.startswith("_")}
        assert own - {"name", "value", "itemsize"} <= table.classes[owner], owner
