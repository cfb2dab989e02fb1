"""A required release is found, or created once in the user's cache folder; the key names it before it is there."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from ndld_flow import api
from ndld_flow.base import users
from ndld_flow.base.errors import BackendError
from ndld_flow.base.extras import EngineBackend
from ndld_flow.engines.build_settings import BuildSettings
from ndld_flow.engines.building import build_engine
from ndld_flow.engines.foresight import foresee_build
from ndld_flow.machine.hardware import read_hardware
from ndld_flow.records.build import Build
from ndld_flow.runs.collect_garbage import find_kept_libraries
from ndld_flow.runtimes import environments
from ndld_flow.runtimes.tensorrt import library as libraries
from ndld_flow.runtimes.tensorrt import required_library
from ndld_flow.runtimes.tensorrt.library import Library, find_library
from ndld_flow.runtimes.tensorrt.required_library import choose_library, exact_release, provide_library
from ndld_flow.steps.build_engine import BuildEngine
from tests.support.engine_builds import Asked
from tests.support.message_files import CheckMessage
from tests.support.models import make_cnn
from tests.support.tensorrt_standin import write_standin

OURS = f"3.{sys.version_info.minor}"

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the folders that are made here are Linux's")


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's cache folder, empty, and a system without TensorRT."""
    monkeypatch.setattr(users, "cache_folder", lambda: tmp_path / "cache")
    monkeypatch.setattr(libraries, "_SYSTEM", tmp_path / "system")
    return tmp_path / "cache"


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The only place where pip finds packages: a folder of wheels."""
    folder = tmp_path / "index"
    folder.mkdir()
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def write_wheel(index: Path, backend: EngineBackend, version: str, release: str = "") -> Path:
    """Write a wheel of the stand-in; `release`: the one that it really is, if another than its version."""
    site = write_standin(index / f"of-{version}", release or version, backend)
    info = f"{backend}-{version}.dist-info"
    path = index / f"{backend}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for file in sorted((site / backend).rglob("*")):
            if file.is_file():
                wheel.write(file, file.relative_to(site))
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {backend}\nVersion: {version}\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def lines_of(library: Library) -> tuple[Library, list[str]]:
    lines: list[str] = []
    return provide_library(library, lines.append), lines


def version_in_child(library: Library, scratch: Path, module: str = "tensorrt") -> str:
    code = f"import {module}; print({module}.__version__, {module}.__file__)"
    environment = {**os.environ, **library.environment(scratch)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split()[0]


# --- what is there ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("backend", "release", "exact"),
    [
        ("tensorrt", "10.16", "10.16.1.11"),
        ("tensorrt", "10.16.0.72", "10.16.0.72"),
        ("tensorrt", "10", "10.16.1.11"),
        ("tensorrt", "10.14.1.48", "10.14.1.48.post1"),
        ("tensorrt", "12.1", ""),
        ("tensorrt", "12.1.0.9", "12.1.0.9"),
        ("tensorrt_rtx", "1.6", "1.6.1.120"),
    ],
)
def test_a_release_means_the_newest_known_one_of_its_number(backend: EngineBackend, release: str, exact: str) -> None:
    assert exact_release(backend, release) == exact


def write_jetson(root: Path, version: str, python: str = OURS) -> Path:
    """Write what `python3-libnvinfer` installs: bindings and metadata without a wheel's tags."""
    site = root / f"usr/lib/python{python}/dist-packages"
    (site / "tensorrt").mkdir(parents=True)
    (site / "tensorrt/__init__.py").write_text(f"__version__ = {version!r}\nclass Builder: ...\n")
    metadata = site / f"tensorrt-{version}.dist-info/METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: tensorrt\nVersion: {version}\n")
    (site / "apt_pkg.py").write_text("raise SystemExit('only TensorRT may be imported from there')\n")
    return site


def test_packages_of_the_system_are_found_from_a_virtual_environment(tmp_path: Path) -> None:
    site = write_jetson(tmp_path / "system", "10.13.3")
    for library in (choose_library(None, "", None), choose_library("tensorrt", "10.13", None)):
        assert (library.backend, library.version, library.origin) == ("tensorrt", "10.13.3", f"system {site}")
        assert version_in_child(library, tmp_path) == "10.13.3"
    code = "import apt_pkg"
    environment = {**os.environ, **library.environment(tmp_path)}
    hidden = subprocess.run([sys.executable, "-P", "-c", code], env=environment, capture_output=True, check=False)
    assert b"ModuleNotFoundError" in hidden.stderr
    assert choose_library("tensorrt", "10.8", None).version == "10.8.0.43", "that one would have to be installed"


def test_system_packages_for_another_python_are_named(tmp_path: Path) -> None:
    write_jetson(tmp_path / "system", "10.13.3", python="3.8")
    library = find_library("tensorrt")
    assert not library.found
    assert "TensorRT 10.13.3 in" in library.missing
    assert f"3.8, and this is Python {OURS}" in library.missing


def test_the_installed_release_is_preferred(tmp_path: Path) -> None:
    installed = find_library("tensorrt_rtx")
    if not installed.found:
        pytest.skip(installed.missing)
    assert choose_library("tensorrt_rtx", ".".join(installed.version.split(".")[:2]), None) == installed
    assert choose_library("tensorrt_rtx", "1.6", None).supply is not None


# --- private environments --------------------------------------------------------------------------------------------


@pytest.mark.thorough
def test_an_environment_is_created_once_and_kept(index: Path, cache: Path, tmp_path: Path) -> None:
    write_wheel(index, "tensorrt", "10.16.0.72")
    wheel = write_wheel(index, "tensorrt", "10.16.1.11")
    wanted = choose_library("tensorrt", "10.16", None)
    assert wanted.version == "10.16.1.11" and wanted.origin.startswith("private environment, ")
    assert not cache.exists(), "looking creates nothing"
    library, lines = lines_of(wanted)
    assert "installing tensorrt==10.16.1.11 into a private" in str(lines)
    assert (library.version, library.origin, library.supply) == ("10.16.1.11", "private environment", None)
    assert version_in_child(library, tmp_path) == "10.16.1.11"
    wheel.unlink()
    assert choose_library("tensorrt", "10.16", None) == library
    assert lines_of(wanted) == (library, []), "another run, which looked before it was there"
    assert not list((cache / "tensorrt/building").iterdir())


@pytest.mark.thorough
def test_unused_environments_are_counted_and_deleted(index: Path, cache: Path, tmp_path: Path) -> None:
    assert not api.gc(outputs=tmp_path / "outputs").keeps_libraries
    write_wheel(index, "tensorrt", "10.16.1.11")
    wanted = choose_library("tensorrt", "10.16", None)
    lines_of(wanted)
    (kept,) = find_kept_libraries()
    assert api.gc(outputs=tmp_path / "outputs").keeps_libraries and kept.size_bytes > 1000
    (check,) = (check for check in api.doctor() if check.name == "private environments")
    assert check.found.startswith(f"1 in {cache}, ")
    assert api.gc_libraries().libraries == (), "it was used just now"
    os.utime(kept.folder, (0, 0))
    assert api.gc_libraries().libraries == (), "this process uses it"
    environments._LEASES.close()  # as when it ends
    environments._LEASED.clear()
    assert api.gc_libraries(dry_run=True).libraries == (str(kept.folder),)
    choose_library("tensorrt", "10.16", None)
    assert api.gc_libraries().libraries == (), "a plan uses it too"
    os.utime(kept.folder, (0, 0))
    unfinished = cache / "tensorrt/building/tensorrt-10.15.0.1-0123456789abcdef"
    unfinished.mkdir()
    os.utime(unfinished, (0, 0))
    assert api.gc_libraries(max_age="9 days").libraries == (str(unfinished), str(kept.folder))
    assert find_kept_libraries() == []
    assert choose_library("tensorrt", "10.16", None).origin.endswith("which the run creates")


@pytest.mark.thorough
def test_an_interrupted_creation_is_repeated(index: Path, cache: Path) -> None:
    write_wheel(index, "tensorrt", "10.16.1.11")
    wanted = choose_library("tensorrt", "10.16", None)
    assert wanted.supply is not None
    for place in (wanted.supply.folder, cache / "tensorrt/building" / wanted.supply.folder.name):
        (place / "contents/lib").mkdir(parents=True)
        (place / "contents/pyvenv.cfg").write_text("half of an environment")
    assert choose_library("tensorrt", "10.16", None).supply is not None
    library, lines = lines_of(wanted)
    assert lines
    assert library.found
    (wanted.supply.folder / f"contents/lib/python{OURS}/site-packages/tensorrt/__init__.py").unlink()
    assert choose_library("tensorrt", "10.16", None).supply is not None, "damaged"
    assert lines_of(wanted)[0] == library


@pytest.mark.parametrize(
    ("driver", "requirement"),
    [("", "tensorrt==10.16.1.11"), ("580.65.06", "tensorrt==10.16.1.11"), ("570.86", "tensorrt-cu12==10.16.1.11")],
)
def test_an_older_driver_needs_the_packages_for_cuda_12(
    driver: str, requirement: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    hardware = read_hardware()._replace(driver=driver)
    monkeypatch.setattr(required_library, "read_hardware", lambda: hardware)
    supply = choose_library("tensorrt", "10.16", None).supply
    assert supply is not None
    assert supply.requirement == requirement


@pytest.mark.thorough
def test_variables_and_modules_of_this_environment_do_not_reach_pip(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(index, "tensorrt", "10.16.1.11")
    monkeypatch.setenv("PIP_TARGET", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("PYTHONPATH", str(write_standin(tmp_path / "other", "10.8.0.43")))
    assert provide_library(choose_library("tensorrt", "10.16", None), lambda _: None).version == "10.16.1.11"
    assert not (tmp_path / "elsewhere").exists()


@pytest.mark.thorough
@pytest.mark.usefixtures("made_environments")
def test_no_module_of_the_current_directory_is_imported(
    index: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_wheel(index, "tensorrt", "10.16.1.11")
    here = tmp_path / "here"
    here.mkdir()
    for module in ("pip", "venv", "ensurepip", "subprocess", "json", "sitecustomize", "tensorrt"):
        (here / f"{module}.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\n")
    monkeypatch.chdir(here)
    monkeypatch.setenv("PIP_FIND_LINKS", "../index")
    library = provide_library(choose_library("tensorrt", "10.16", None), lambda _: None)
    assert version_in_child(library, tmp_path) == "10.16.1.11"
    assert not (tmp_path / "mark").exists()


@pytest.mark.thorough
def test_what_pip_cannot_install_is_described(index: Path, cache: Path, check_message: CheckMessage) -> None:
    with pytest.raises(BackendError) as raised:
        provide_library(choose_library("tensorrt", "10.16", None), lambda _: None)
    text = str(raised.value)
    check_message(text)
    assert "\n" not in text
    assert not list((cache / "tensorrt/building").iterdir())
    with pytest.raises(BackendError, match=r"https://developer\.nvidia\.com/tensorrt-rtx,"):
        provide_library(choose_library("tensorrt_rtx", "1.6", None), lambda _: None)


@pytest.mark.thorough
def test_a_package_without_its_libraries_is_not_kept(index: Path, check_message: CheckMessage) -> None:
    """NVIDIA's stub on PyPI is installed by pip although it could not fetch the libraries."""
    with zipfile.ZipFile(index / "tensorrt-10.16.1.11-py3-none-any.whl", "w") as wheel:
        info = "tensorrt-10.16.1.11.dist-info"
        wheel.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tensorrt\nVersion: 10.16.1.11\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    with pytest.raises(BackendError) as caught:
        provide_library(choose_library("tensorrt", "10.16", None), lambda _: None)
    check_message(caught.value)


def test_a_cache_that_cannot_be_written_is_named(cache: Path, index: Path, check_message: CheckMessage) -> None:
    cache.write_text("a file")
    with pytest.raises(BackendError) as caught:
        provide_library(choose_library("tensorrt", "10.16", None), lambda _: None)
    check_message(caught.value)


@pytest.mark.thorough
def test_processes_that_need_it_at_the_same_time_create_it_once(index: Path, cache: Path) -> None:
    write_wheel(index, "tensorrt", "10.16.1.11")
    code = (
        "from ndld_flow.runtimes.tensorrt.required_library import choose_library, provide_library\n"
        "print(provide_library(choose_library('tensorrt', '10.16', None), print).origin)\n"
    )
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    started = [
        subprocess.Popen([sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    printed = [process.communicate()[0] for process in started]
    assert [text.splitlines()[-1] for text in printed] == ["private environment"] * 3
    assert sum("installing tensorrt==10.16.1.11" in text for text in printed) == 1


# --- building --------------------------------------------------------------------------------------------------------


def build(tmp_path: Path, **settings: Any) -> Build:
    asked = Asked(make_cnn(tmp_path / "cnn.onnx"), settings, {"x": {"shape": [1, 3, 16, 16]}})
    return build_engine(asked.request(tmp_path / "build"), lambda *_: None)


@pytest.mark.parametrize(("backend", "release"), [("tensorrt", "10.16.1.11"), ("tensorrt_rtx", "1.6.1.120")])
@pytest.mark.thorough
def test_the_key_names_the_release_that_will_build(
    index: Path, tmp_path: Path, backend: EngineBackend, release: str
) -> None:
    write_wheel(index, backend, release)
    short = ".".join(release.split(".")[:2])
    step = BuildEngine(backend=backend, release=short)
    before = step.library_versions()
    assert before[backend] == release
    seen = foresee_build(BuildSettings(backend=backend, release=short))
    assert "environment, which the run" in seen.notes[0]
    assert not any("not installed" in lack for lack in seen.lacks)
    built = build(tmp_path, backend=backend, release=short)
    assert built.version == release
    assert step.library_versions() == before


@pytest.mark.thorough
def test_an_engine_of_another_release_than_the_key_is_refused(
    index: Path, tmp_path: Path, check_message: CheckMessage
) -> None:
    write_wheel(index, "tensorrt", "10.16.1.11", release="10.15.1.29")
    with pytest.raises(BackendError) as caught:
        build(tmp_path, backend="tensorrt", release="10.16")
    check_message(caught.value)


def test_a_library_that_does_not_exist_yet_is_never_replaced_by_the_installed_one(tmp_path: Path) -> None:
    with pytest.raises(AssertionError):
        choose_library("tensorrt", "10.16", None).environment(tmp_path)


@pytest.mark.thorough
def test_two_real_releases_build_in_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TensorRT-RTX 1.6 and 1.5 from the index that pip is configured for."""
    for release in ("1.6.1.120", "1.5.0.114"):
        try:
            library = provide_library(choose_library("tensorrt_rtx", release, None), lambda _: None)
        except BackendError as error:
            pytest.skip(f"pip cannot install TensorRT-RTX {release}: {error}")
        assert version_in_child(library, tmp_path, "tensorrt_rtx") == release
        folder = tmp_path / release
        folder.mkdir()
        built = build(folder, release=release, compute_capabilities=["8.6"])
        assert built.version == release
