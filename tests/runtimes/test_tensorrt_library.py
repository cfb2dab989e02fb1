"""Which TensorRT is found where, and that a child process imports that one and nothing else from there."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

from ndld_flow.base.errors import BackendError
from ndld_flow.base.extras import EXTRAS, EngineBackend
from ndld_flow.runtimes.tensorrt.library import Library, find_library
from tests.support.message_files import CheckMessage

OURS = f"3.{sys.version_info.minor}"
TAG = f"cp3{sys.version_info.minor}"
LIBS = {"tensorrt": "libnvinfer.so.10", "tensorrt_rtx": "libtensorrt_rtx.so.1"}
ASKS_FOR_LIBS = "try:\n    import tensorrt_libs\nexcept ImportError:\n    tensorrt_libs = None\n"

pytestmark = pytest.mark.skipif(os.name == "nt", reason="the folders that are made here are Linux's")


def make_site(site: Path, backend: str = "tensorrt", version: str = "10.8.0.43", tag: str = "py3") -> Path:
    """A site-packages with a TensorRT of no substance."""
    write(site / backend / "__init__.py", f"class Builder: ...\n__version__ = {version!r}\n")
    metadata = site / f"{backend}-{version}.dist-info"
    write(metadata / "METADATA", f"Metadata-Version: 2.1\nName: {backend}\nVersion: {version}\n")
    write(metadata / "WHEEL", f"Wheel-Version: 1.0\nTag: {tag}-none-any\n")
    return site


def make_environment(folder: Path, backend: str = "tensorrt", version: str = "10.8.0.43", python: str = OURS) -> Path:
    make_site(folder / f"lib/python{python}/site-packages", backend, version)
    return folder


def make_archive(folder: Path, wheels: dict[str, dict[str, str]], backend: str = "tensorrt") -> Path:
    """An unpacked archive: `wheels` maps names to members."""
    write(folder / "targets/x86_64-linux-gnu/lib" / LIBS[backend], "")
    (folder / "python").mkdir()
    for name, members in wheels.items():
        with zipfile.ZipFile(folder / "python" / name, "w") as wheel:
            for member, text in members.items():
                wheel.writestr(member, text)
    return folder


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def hide_installed(monkeypatch: pytest.MonkeyPatch, *sites: Path) -> None:
    """Let only `sites` be where packages are installed."""
    ours = SimpleNamespace(path=[str(site) for site in sites], version_info=sys.version_info)
    monkeypatch.setattr("ndld_flow.runtimes.tensorrt.library.sys", ours)


def in_child(library: Library, scratch: Path, code: str) -> str:
    """What the code prints, or the last line of its traceback."""
    environment = {**os.environ, **library.environment(scratch)}
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else done.stderr.strip().splitlines()[-1]


def installed_rtx() -> Library:
    library = find_library("tensorrt_rtx")
    if not library.found or library.folder is None:
        pytest.skip(f"TensorRT-RTX is not here: {library.missing}")
    return library


def test_a_child_imports_the_installed_library(tmp_path: Path) -> None:
    before = "tensorrt_rtx" in sys.modules
    library = installed_rtx()
    assert library.origin == "installed"
    assert library.environment(tmp_path) == {}
    code = "from ndld_flow.runtimes.tensorrt.library import import_bindings as i; print(i('tensorrt_rtx').__version__)"
    assert in_child(library, tmp_path, code) == library.version
    assert ("tensorrt_rtx" in sys.modules) is before, "finding it must not import it"


def test_without_any_library_the_result_names_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hide_installed(monkeypatch, tmp_path)
    for library, command in (
        (find_library("tensorrt"), EXTRAS["tensorrt"].command),
        (find_library("tensorrt_rtx"), EXTRAS["rtx"].command),
    ):
        assert not library.found
        assert command in library.missing


def test_tensorrt_is_preferred_to_rtx(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rtx, both = make_site(tmp_path / "rtx", "tensorrt_rtx", "1.7.1"), make_site(tmp_path / "trt")
    hide_installed(monkeypatch, rtx, both)
    assert find_library(None).backend == "tensorrt"
    assert find_library("tensorrt_rtx").version == "1.7.1"
    hide_installed(monkeypatch, rtx)
    assert find_library(None).backend == "tensorrt_rtx"


def test_a_distribution_of_one_cuda_is_tensorrt_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_site(tmp_path, "tensorrt_cu12", "10.9.0")
    make_site(tmp_path, "tensorrt_cu12_bindings", "10.9.0")
    hide_installed(monkeypatch, tmp_path)
    lacking = find_library("tensorrt")
    assert not lacking.found
    assert "tensorrt, tensorrt_bindings" in lacking.missing
    for name in ("tensorrt", "tensorrt_bindings"):
        write(tmp_path / name / "__init__.py", "")
    assert find_library("tensorrt").version == "10.9.0"


def test_the_stub_of_pypi_without_its_libraries_is_not_tensorrt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = make_site(tmp_path)
    (site / "tensorrt/__init__.py").unlink()
    write(site / "tensorrt/plugin/__init__.py", "")  # what `pip install --no-deps tensorrt` leaves
    hide_installed(monkeypatch, site)
    library = find_library("tensorrt")
    assert not library.found
    assert "10.8.0.43 is installed without" in library.missing
    assert "pypi.nvidia.com" in library.missing


def test_only_tensorrt_of_another_environment_is_visible(tmp_path: Path) -> None:
    environment = make_environment(tmp_path / "venv")
    site = environment / f"lib/python{OURS}/site-packages"
    write(site / "onlythere/__init__.py", "")
    write(site / "nvidia/cuda_runtime/lib/libcudart.so.12", "")
    write(site / "hook.pth", "import sys; sys.exit(5)")
    library = find_library(None, environment)
    assert (library.backend, library.version, library.origin) == ("tensorrt", "10.8.0.43", f"environment {environment}")
    code = (
        "import importlib.metadata as m, importlib.util as u, os, nvidia, tensorrt as t;"
        "print(m.version('tensorrt'), t.__version__, u.find_spec('onlythere'),"
        " 'nvidia/cuda_runtime/lib' in os.environ['LD_LIBRARY_PATH'])"
    )
    assert in_child(library, tmp_path, code) == "10.8.0.43 10.8.0.43 None True"


def test_the_users_loader_variables_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", "/mine")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/mine/lib")
    variables = find_library("tensorrt", make_environment(tmp_path / "venv")).environment(tmp_path)
    assert variables["PYTHONPATH"].endswith(":/mine")
    assert variables["LD_LIBRARY_PATH"] == "/mine/lib"


def test_packages_are_copied_where_links_are_not_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError("a required privilege is not held by the client")

    monkeypatch.setattr(Path, "symlink_to", refuse)
    library = find_library("tensorrt", make_environment(tmp_path / "venv"))
    printed = in_child(library, tmp_path, "import tensorrt as t; print(t.__version__, t.__file__)")
    assert printed.startswith(f"10.8.0.43 {tmp_path}/library-")


def test_libraries_in_two_folders_or_a_changed_one_are_distinguished(tmp_path: Path) -> None:
    old, new = (make_environment(tmp_path / version, version=version) for version in ("10.8.0", "10.13.2"))
    for _ in range(2):
        assert find_library("tensorrt", old).version == "10.8.0"
        assert find_library("tensorrt", new).version == "10.13.2"
    site = old / f"lib/python{OURS}/site-packages"
    (site / "tensorrt-10.8.0.dist-info").rename(site / "tensorrt-11.0.0.dist-info")
    write(site / "tensorrt-11.0.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tensorrt\nVersion: 11.0.0\n")
    assert find_library("tensorrt", old).version == "11.0.0"


def test_a_relative_folder_is_accepted(in_folder: Path) -> None:
    make_environment(in_folder / "venv")
    library = find_library("tensorrt", Path("venv"))
    assert library.origin == f"environment {in_folder}/venv"


def test_bindings_of_another_python_are_refused(tmp_path: Path, check_message: CheckMessage) -> None:
    by_folder = make_environment(tmp_path / "venv", python="3.8")
    by_tag = make_site(tmp_path / "Lib/site-packages", tag="cp38")
    by_wheel = make_archive(tmp_path / "archive", {"tensorrt-10.8.0.43-cp38-none-linux_x86_64.whl": {}})
    for place in (by_folder, by_tag, by_wheel):
        with pytest.raises(BackendError) as caught:
            find_library("tensorrt", place)
        check_message(caught.value)


def test_our_python_is_chosen_in_an_environment_with_two(tmp_path: Path) -> None:
    make_environment(tmp_path, python="3.1", version="10.9.0")  # sorted before ours
    make_environment(tmp_path, python=OURS, version="10.8.0")
    assert find_library("tensorrt", tmp_path).version == "10.8.0"


@pytest.mark.parametrize("backend", ["tensorrt", "tensorrt_rtx"])
def test_a_place_with_the_other_backend_or_nothing_is_refused(
    tmp_path: Path, backend: EngineBackend, check_message: CheckMessage
) -> None:
    other = "tensorrt_rtx" if backend == "tensorrt" else "tensorrt"
    environment = make_environment(tmp_path / "venv", other, "1.7.1")
    with pytest.raises(BackendError) as caught:
        find_library(backend, environment)
    check_message(caught.value)
    (tmp_path / "empty").mkdir()
    with pytest.raises(BackendError) as caught:
        find_library(backend, tmp_path / "empty")
    check_message(caught.value)
    with pytest.raises(BackendError) as caught:
        find_library(None, tmp_path / "nowhere")
    check_message(caught.value)


def test_an_archive_is_unpacked_for_the_child_and_installed_libraries_stay_out(tmp_path: Path) -> None:
    tensorrt = {"tensorrt/__init__.py": f"{ASKS_FOR_LIBS}class Builder: ...\n"}
    wheels = {
        f"tensorrt-10.8.0.43-{TAG}-none-linux_x86_64.whl": tensorrt,
        "tensorrt-10.8.0.43-cp38-none-linux_x86_64.whl": {"tensorrt/__init__.py": "raise ValueError('wrong wheel')"},
        f"tensorrt_lean-10.8.0.43-{TAG}-none-linux_x86_64.whl": {"tensorrt_lean/__init__.py": ""},
    }
    archive = make_archive(tmp_path / "TensorRT-10.8.0.43", wheels)
    library = find_library(None, archive)
    assert (library.version, library.origin) == ("10.8.0.43", f"archive {archive}")
    write(tmp_path / "installed/tensorrt_libs/__init__.py", "")
    code = "import os, tensorrt as t; print(t.__file__, t.tensorrt_libs, os.environ['LD_LIBRARY_PATH'])"
    printed = in_child(library, tmp_path, f"import sys; sys.path.append('{tmp_path}/installed'); {code}")
    assert printed.startswith(f"{tmp_path}/library-")
    assert f" None {archive}/targets/x86_64-linux-gnu/lib" in printed
    assert not list(archive.glob("**/__pycache__")), "the archive itself stays as it is"


def test_an_archive_without_its_libraries_is_refused(tmp_path: Path, check_message: CheckMessage) -> None:
    archive = make_archive(tmp_path / "archive", {f"tensorrt-10.8.0.43-{TAG}-none-linux_x86_64.whl": {}})
    (archive / "targets/x86_64-linux-gnu/lib/libnvinfer.so.10").unlink()
    with pytest.raises(BackendError) as caught:
        find_library("tensorrt", archive)
    check_message(caught.value)


@pytest.mark.parametrize("member", ["../escaped.py", "/tmp/escaped.py", "a/../../escaped.py", "..\\escaped.py"])
def test_a_wheel_that_writes_elsewhere_is_refused(tmp_path: Path, member: str, check_message: CheckMessage) -> None:
    members = {"tensorrt/__init__.py": "", member: ""}
    archive = make_archive(tmp_path / "archive", {f"tensorrt-10.8.0.43-{TAG}-none-linux_x86_64.whl": members})
    library = find_library("tensorrt", archive)
    with pytest.raises(BackendError) as caught:
        library.environment(tmp_path)
    check_message(caught.value)
    assert not list(tmp_path.glob("library-*/*")), "nothing of it is unpacked"


def test_a_damaged_wheel_is_an_error(tmp_path: Path, check_message: CheckMessage) -> None:
    name = f"tensorrt-10.8.0.43-{TAG}-none-linux_x86_64.whl"
    archive = make_archive(tmp_path / "archive", {name: {"tensorrt/__init__.py": "x" * 4000}})
    wheel = archive / "python" / name
    whole = wheel.read_bytes()
    for damaged in (b"no zip", whole[:-30], whole.replace(b"xxxx", b"xxyx", 1)):
        wheel.write_bytes(damaged)
        with pytest.raises(BackendError) as caught:
            find_library("tensorrt", archive).environment(tmp_path)
        check_message(caught.value)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        ("raise ImportError('libnvinfer.so.10: cannot open shared object file')", "libnvinfer.so.10: cannot open"),
        ("raise FileNotFoundError('Could not find: nvinfer_10.dll.\\n Is it on your PATH?')", "nvinfer_10.dll"),
        ("assert False, 'no CUDA'", "no CUDA"),
        ("", "tensorrt has no Builder"),
    ],
)
def test_a_library_that_does_not_load_gives_reason_and_remedy(tmp_path: Path, module: str, reason: str) -> None:
    environment = make_environment(tmp_path / "venv")
    write(environment / f"lib/python{OURS}/site-packages/tensorrt/__init__.py", module)
    code = "from ndld_flow.runtimes.tensorrt.library import import_bindings; import_bindings('tensorrt')"
    error = in_child(find_library("tensorrt", environment), tmp_path, code)
    assert "ndld_flow.base.errors.BackendError: TensorRT does not" in error
    assert reason in error
    assert EXTRAS["tensorrt"].command in error


def make_archive_of_rtx(folder: Path) -> Path:
    """An archive as NVIDIA lays it out, of the installed TensorRT-RTX: bindings in a wheel, libraries beside it."""
    site = installed_rtx().folder
    assert site is not None
    bindings = site / "tensorrt_rtx_bindings"
    if not bindings.is_dir():
        pytest.skip("TensorRT-RTX is not installed from its PyPI packages")
    (folder / "python").mkdir(parents=True)
    (folder / "lib").symlink_to(site / "tensorrt_rtx_libs", target_is_directory=True)
    with zipfile.ZipFile(folder / f"python/tensorrt_rtx-1.7.1.116-{TAG}-none-linux_x86_64.whl", "w") as wheel:
        for file in (bindings / "__init__.py", *bindings.glob("tensorrt_rtx*.so")):
            wheel.write(file, f"tensorrt_rtx/{file.name}")
    return folder


def test_a_real_archive_is_loaded_with_its_own_libraries(tmp_path: Path) -> None:
    library = find_library(None, make_archive_of_rtx(tmp_path / "TensorRT-RTX-1.7.1.116"))
    code = (
        "from ndld_flow.runtimes.tensorrt.library import import_bindings; t = import_bindings('tensorrt_rtx');"
        "print(t.__file__, bool(t.Builder(t.Logger(t.Logger.ERROR))))"
    )
    printed = in_child(library, tmp_path, code)
    assert printed.startswith(f"{tmp_path}/library-")
    assert printed.endswith(" True")
    without = Library("tensorrt_rtx", library.version, library.folder, library.origin, wheel=library.wheel)
    assert "libtensorrt_rtx" in in_child(without, tmp_path, code), "the loader's reason"


def test_a_real_environment_is_imported_from_there(tmp_path: Path) -> None:
    site = installed_rtx().folder
    assert site is not None
    there = tmp_path / f"venv/lib/python{OURS}/site-packages"
    there.mkdir(parents=True)
    for package in site.glob("tensorrt_rtx*"):
        (there / package.name).symlink_to(package, target_is_directory=True)
    library = find_library("tensorrt_rtx", tmp_path / "venv")
    code = "import tensorrt_rtx as t; print(t.__file__, bool(t.Builder(t.Logger(t.Logger.ERROR))))"
    printed = in_child(library, tmp_path, code)
    assert printed.startswith(f"{tmp_path}/library-")
    assert printed.endswith(" True")
