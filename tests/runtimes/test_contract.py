"""The contract of every runtime. Runtimes are discovered, so that a new one is tested without a change here."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

import ndld_flow
from ndld_flow.base.settings import describe_settings
from ndld_flow.machine import versions
from ndld_flow.quantize.settings import Target
from ndld_flow.runtimes.registry import Runtime, find_runtimes, settings_of
from ndld_flow.runtimes.settings import RuntimeSettings
from ndld_flow.steps.profile import ProfileModel
from ndld_flow.store.kinds import Onnx
from tests.support import runtime_contract as contract

PACKAGE = Path(ndld_flow.__file__).parent
BACKENDS = {backend: runtime for runtime in find_runtimes() for backend in runtime.settings().backends()}
REQUIRED = {"onnxruntime"}
"""Modules of the base installation."""

every_backend = pytest.mark.parametrize("backend", BACKENDS)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return contract.write_model(tmp_path_factory.mktemp("contract"))


def given(settings: type[RuntimeSettings], backend: str) -> RuntimeSettings:
    """Return its defaults, with a file that was built where it runs one."""
    built = {} if settings.builder is None else {settings.builder.file_setting: "built"}
    return settings.model_validate({"backend": backend, **built}, strict=False)


@every_backend
def test_a_runtime_opens_runs_measures_and_closes(backend: str, model: Path, tmp_path: Path) -> None:
    runtime = BACKENDS[backend]
    settings = given(runtime.settings(), backend)
    if settings.builder is not None:
        pytest.skip("runs a file that is built from the model: tests/engines and tests/measure run it on a stand-in")
    if lacks := settings.foresee().lacks:
        pytest.skip(lacks[0])
    artifact = Onnx(model, "source", "digest")
    request = settings.request(artifact, lambda _: artifact)
    assert settings.device == "cpu"
    contract.check_description(request, model)
    contract.check_outputs(request, model)
    contract.check_refusals(request, model, tmp_path)
    contract.check_request(runtime, request)
    contract.check_layers(request, model, tmp_path)
    contract.check_inside(request, model, tmp_path)
    recorded = request.library_versions(request.open(model).describe().versions)
    assert recorded
    assert all(re.match(r"\d", version) for version in recorded.values())


@every_backend
def test_settings_are_refused_by_name(backend: str) -> None:
    settings = settings_of(backend)
    assert settings is BACKENDS[backend].settings()
    for name in settings.model_fields:
        if name != "backend":
            with pytest.raises(ValidationError) as refused:
                settings.model_validate({"backend": backend, name: [[None]]})
            assert (name,) in {error["loc"][:1] for error in refused.value.errors()}, name
    with pytest.raises(ValidationError, match="no_such_setting"):
        ProfileModel.model_validate({"backend": backend, "no_such_setting": 1})


@every_backend
def test_settings_are_documented_and_versions_known(backend: str) -> None:
    settings = given(BACKENDS[backend].settings(), backend)
    assert settings.title
    assert settings.library_versions()
    # The reference lists the settings of all runtimes in one table.
    documented = describe_settings(type(settings))
    assert documented.keys() >= type(settings).model_fields.keys() - {"backend"}
    documented.pop("backend", None)
    assert {name for name, text in documented.items() if not text.startswith(f"{settings.title}: ")} == set()


@every_backend
@pytest.mark.usefixtures("without_libraries")
def test_a_missing_library_is_named_with_its_command(backend: str) -> None:
    settings = given(BACKENDS[backend].settings(), backend)
    if settings.library_versions().keys() & REQUIRED:
        pytest.skip("a part of the base installation")
    lacks = " ".join(settings.foresee().lacks)
    assert settings.title.split("-")[0] in lacks
    assert "pip install" in lacks


@pytest.fixture
def without_libraries(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No runtime's library is installed, as far as a look at the installation shows."""
    names = {name for backend in BACKENDS for name in given(BACKENDS[backend].settings(), backend).library_versions()}
    absent = {re.sub(r"\W", "_", name) for name in names - REQUIRED}
    find, read = PathFinder.find_spec, versions.find_version

    def find_spec(name: str, *where: Any) -> object:
        return None if name in absent else find(name, *where)

    def find_version(name: str) -> str | None:
        return None if re.sub(r"\W", "_", name) in absent else read(name)

    for name in absent & sys.modules.keys():
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(PathFinder, "find_spec", find_spec)
    monkeypatch.setattr(versions, "find_version", find_version)
    versions.read_version.cache_clear()
    yield
    versions.read_version.cache_clear()


@every_backend
def test_the_settings_that_traits_name_are_those_of_the_runtime(backend: str) -> None:
    settings = BACKENDS[backend].settings()
    assert settings.quantize_target in ("", *get_args(Target))
    for trait in filter(None, (settings.own_precision, settings.concurrency)):
        name, value = trait.split(": ")
        assert getattr(settings.model_validate({"backend": backend, name: value}), name) == value


NAMES_OF_OTHER_THINGS = {
    "execution/keys.py": "a distribution",
    "execution/ssh/deploy.py": "a distribution",
    "machine/versions.py": "a distribution",
    "profiles/read/read_profile.py": "a format of files",
    "profiles/read/sources.py": "a format of files",
    "quantize/quantize_file.py": "a target of quantization",
    "quantize/settings.py": "a target of quantization",
    "steps/quantize.py": "a target of quantization",
}


def test_nothing_outside_of_the_folder_asks_for_the_name_of_a_runtime() -> None:
    asking = set()
    for file in PACKAGE.rglob("*.py"):
        compared = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Compare)]
        named = {part.value for node in compared for part in ast.walk(node) if isinstance(part, ast.Constant)}
        if named & BACKENDS.keys():
            asking.add(file.relative_to(PACKAGE).as_posix())
    assert {place for place in asking if not place.startswith("runtimes/")} == NAMES_OF_OTHER_THINGS.keys()


def test_runtimes_are_found() -> None:
    assert all(isinstance(runtime, Runtime) for runtime in BACKENDS.values())
    assert next(iter(BACKENDS)) == "onnxruntime"
    assert settings_of("no such runtime") is None
