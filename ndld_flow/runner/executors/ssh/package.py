"""The installation of ndld-flow for targets: the wheel of this package, and the versions of its libraries here."""

from __future__ import annotations

import base64
import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import Distribution, distribution
from pathlib import Path

from blake3 import blake3

import ndld_flow
from ndld_flow.base.errors import BackendError
from ndld_flow.base.text import shortened, visible_name
from ndld_flow.machine.versions import installed_versions
from ndld_flow.recipe.config_files import shipped_folder

NAME = "ndld-flow"
_DATE = (2020, 1, 1, 0, 0, 0)
"""The time of all files in the wheel, so that equal packages have equal wheels."""
_DOWNLOAD_TIMEOUT_S = 1800.0
_PLATFORMS = (*(f"manylinux_2_{minor}" for minor in range(5, 29)), "manylinux1", "manylinux2010", "manylinux2014")
"""Those of glibc 2.28 and earlier."""


@dataclass(frozen=True)
class File:
    """A file that a target needs."""

    name: str
    data: bytes


@dataclass(frozen=True)
class Installation:
    """The packages of a target's environment."""

    extras: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{NAME} {distribution(NAME).version}"

    @property
    def digest(self) -> str:
        """Return a digest of everything that determines the environment, but for the target's Python.

        That of each file is in the wheel's RECORD; packing the wheel takes half a second, and few connections send it.
        """
        record = self._files[f"{self._info}/RECORD"]
        return blake3(record + self.constraints.data + repr(self.extras).encode()).hexdigest()[:16]

    @property
    def install(self) -> list[list[str]]:
        """Return the arguments of each `pip install`; `FILES` is replaced by the folder of the files.

        ONNX Runtime for CUDA comes second: it replaces files of the build for CPUs.
        """
        wheel = f"FILES/{self.wheel.name}"
        return [[wheel], *([f"{wheel}[{extra}]"] for extra in self.extras)]

    @cached_property
    def wheel(self) -> File:
        """This package as a wheel, made of the installed files: a source tree may have no build tools."""
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, data in self._files.items():
                archive.writestr(zipfile.ZipInfo(name, _DATE), data, zipfile.ZIP_DEFLATED)
        return File(f"ndld_flow-{distribution(NAME).version}-py3-none-any.whl", packed.getvalue())

    @property
    def _info(self) -> str:
        return f"ndld_flow-{distribution(NAME).version}.dist-info"

    @cached_property
    def _files(self) -> dict[str, bytes]:
        """The files of the wheel by their names."""
        installed = distribution(NAME)
        metadata = (installed.read_text("METADATA") or "").encode()
        wheel = b"Wheel-Version: 1.0\nGenerator: ndld-flow\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        entries = "".join(f"[{group}]\n{lines}\n" for group, lines in _entry_points(installed))
        files = {
            **dict(_package_files()),
            f"{self._info}/METADATA": metadata,
            f"{self._info}/WHEEL": wheel,
            f"{self._info}/entry_points.txt": entries.encode(),
        }
        listed = "".join(f"{name},{_digest_of(data)},{len(data)}\n" for name, data in files.items())
        return {**files, f"{self._info}/RECORD": f"{listed}{self._info}/RECORD,,\n".encode()}

    @cached_property
    def constraints(self) -> File:
        """The versions of all libraries that this package uses here."""
        versions = dict(installed_versions(NAME))
        versions.pop(NAME)
        if "gpu" in self.extras and "onnxruntime" in versions:
            versions["onnxruntime-gpu"] = versions["onnxruntime"]
        # A local version, such as 2.9.0+cpu, is on no index.
        lines = [f"{name}=={version}\n" for name, version in sorted(versions.items()) if "+" not in version]
        return File("constraints.txt", "".join(lines).encode())

    def download(self, python: Sequence[int], architecture: str) -> list[File]:
        """Return the wheels of the libraries for a target without a package index. Raises BackendError."""
        tag = "".join(map(str, python))
        options = [f"--python-version={tag}", "--implementation=cp", f"--abi=cp{tag}", "--abi=abi3", "--abi=none"]
        options += [f"--platform={each}_{architecture}" for each in _PLATFORMS]
        with tempfile.TemporaryDirectory(prefix="ndld_flow_") as name:
            folder, wheels = Path(name), Path(name) / "wheels"
            for file in (self.wheel, self.constraints):
                (folder / file.name).write_bytes(file.data)
            versions = self.constraints.data.decode().split()
            _run_pip("download", "-d", str(wheels), "--no-deps", *options, *versions)
            for source in (path for path in wheels.iterdir() if path.suffix != ".whl"):  # of Python alone, or it fails
                _run_pip("wheel", "-w", str(wheels), "--no-deps", str(source))
                source.unlink()
            options += ["-c", str(folder / "constraints.txt"), "--only-binary=:all:", "--find-links", str(wheels)]
            for wanted in self.install:
                words = [word.replace("FILES", str(folder)) for word in wanted]
                _run_pip("download", "-d", str(wheels), *options, *words)
            paths = sorted(path for path in wheels.glob("*.whl") if path.name != self.wheel.name)
            return [File(path.name, path.read_bytes()) for path in paths]


def _run_pip(command: str, *arguments: str) -> None:
    """Run a command of this environment's pip. Raises BackendError."""
    done = subprocess.run(
        [sys.executable, "-P", "-m", "pip", command, "-q", "--no-input", "--disable-pip-version-check", *arguments],
        capture_output=True, text=True, check=False, timeout=_DOWNLOAD_TIMEOUT_S,
    )  # fmt: skip
    if done.returncode:
        raise BackendError(
            f"the libraries for the target cannot be downloaded here either: {summarize_pip(done.stderr)}"
        )


def summarize_pip(printed: str) -> str:
    """Return the error in what pip or venv printed, in one line."""
    if "ensurepip" in printed:
        return "venv is missing there. Install it (Debian, Ubuntu: `sudo apt install python3-venv`)."
    lines = [line.strip() for line in printed.split("\n") if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR: ")]
    return shortened(visible_name((errors or lines or ["pip failed"])[0]), 300)


def _entry_points(installed: Distribution) -> Iterable[tuple[str, str]]:
    groups: dict[str, list[str]] = {}
    for point in installed.entry_points:
        groups.setdefault(point.group, []).append(f"{point.name} = {point.value}\n")
    return [(group, "".join(sorted(lines))) for group, lines in sorted(groups.items())]


def _package_files() -> Iterable[tuple[str, bytes]]:
    """Yield the files of this package, with the presets and examples that a wheel has inside it."""
    package = Path(ndld_flow.__file__).parent
    inside = [(package, "ndld_flow")]
    for name in ("configs", "pipelines"):
        folder = shipped_folder(name)
        if not folder.is_relative_to(package):
            inside.append((folder, f"ndld_flow/{name}"))
    for folder, prefix in inside:
        for path in sorted(folder.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes()


def _digest_of(data: bytes) -> str:
    """Return a digest as wheels' RECORD has it (PEP 427)."""
    return "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
