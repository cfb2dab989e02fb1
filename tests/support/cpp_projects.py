"""C++ projects that `export_cpp` wrote: the headers and libraries to build them, and their programs."""

from __future__ import annotations

import filecmp
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
import pytest

from tests.support.samples import kept_samples

_SUITE = "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] http://deb.debian.org/debian trixie main\n"


def onnxruntime_root(folder: Path) -> Path:
    """Return a folder with the headers of ONNX Runtime's C++ API and the library of the installed wheel.

    The wheel has no headers; those of an older version work, because its library supports all older versions of the
    API. Skips where there are none.
    """
    (library,) = Path(onnxruntime.__file__).parent.glob("capi/libonnxruntime.so.*")
    root = folder / "onnxruntime"
    (root / "lib").mkdir(parents=True)
    for name in ("libonnxruntime.so", "libonnxruntime.so.1"):
        (root / "lib" / name).symlink_to(library)
    (root / "include").symlink_to(_headers())
    return root


def _headers() -> Path:
    """Return the folder of `onnxruntime_cxx_api.h`: the system's, or that of Debian's package, fetched once."""
    kept = kept_samples().root / "onnxruntime-dev/usr/include/onnxruntime"
    for folder in (Path("/usr/include/onnxruntime"), Path("/usr/local/include/onnxruntime"), kept):
        if (folder / "onnxruntime_cxx_api.h").is_file():
            return folder
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        pytest.skip("the headers of ONNX Runtime are not installed, and there is no apt-get to fetch them")
    aside = kept_samples().root / f"onnxruntime-dev.{os.getpid()}"
    for name in ("lists/partial", "cache/archives/partial"):
        (aside / name).mkdir(parents=True)
    (aside / "sources.list").write_text(_SUITE)
    options = {
        "Dir::Etc::SourceList": aside / "sources.list",
        "Dir::Etc::SourceParts": "/dev/null",
        "Dir::State::Lists": aside / "lists",
        "Dir::Cache": aside / "cache",
    }
    apt = ["apt-get", *(f"-o{name}={value}" for name, value in options.items())]
    for command in ([*apt, "update"], [*apt, "download", "libonnxruntime-dev"]):
        done = subprocess.run(command, cwd=aside, capture_output=True, text=True, check=False)
        if done.returncode:
            shutil.rmtree(aside)
            pytest.skip(f"the headers of ONNX Runtime cannot be fetched: {done.stderr.strip()}")
    (package,) = aside.glob("*.deb")
    subprocess.run(["dpkg", "-x", package, aside], check=True)
    if not kept.parents[2].exists():
        aside.rename(kept.parents[2])
    return kept


@dataclass(frozen=True)
class CppBuild:
    """A build folder for several projects: only sources that differ are compiled again."""

    folder: Path
    root: Path
    """ONNX Runtime."""
    compiler: str = "g++"
    build_type: str = "Debug"

    def build(self, project: Path) -> Path:
        """Return the program of a project. Skips without the compiler or CMake."""
        for program in ("cmake", self.compiler):
            if shutil.which(program) is None:
                pytest.skip(f"there is no {program}")
        copy, build = self.folder / "project", self.folder / "build"
        _update(project, copy)
        if not (build / "CMakeCache.txt").exists():
            settings = {
                "CMAKE_CXX_COMPILER": self.compiler,
                "CMAKE_BUILD_TYPE": self.build_type,
                "CMAKE_CXX_FLAGS_DEBUG": "-O0",  # symbols take a third of the time
                "ONNXRUNTIME_ROOT": self.root,
            }
            run("cmake", "-S", copy, "-B", build, *(f"-D{name}={value}" for name, value in settings.items()))
        run("cmake", "--build", build, "--parallel", "2")
        return build / "run_model"


def _update(project: Path, copy: Path) -> None:
    """Make `copy` equal to a project; files that are equal keep their time of change."""
    for path in sorted(copy.rglob("*"), reverse=True):
        if path.is_file() and not (project / path.relative_to(copy)).exists():
            path.unlink()
    for path in project.rglob("*"):
        target = copy / path.relative_to(project)
        if path.is_file() and not (target.exists() and filecmp.cmp(path, target, shallow=False)):
            target.parent.mkdir(parents=True, exist_ok=True)
            target.unlink(missing_ok=True)
            shutil.copyfile(path, target)


def run(*command: str | Path) -> str:
    """Run a program that must succeed, and return its output."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def fails(*command: str | Path) -> str:
    """Run a program that must fail, and return its message."""
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    return done.stderr


def read_arrays(folder: Path, start: str) -> list[npt.NDArray[Any]]:
    """Return the arrays `output_0.npy`, `output_1.npy`, ... that a program wrote."""
    count = len(list(folder.glob(f"{start}_*.npy")))
    return [np.load(folder / f"{start}_{index}.npy") for index in range(count)]
