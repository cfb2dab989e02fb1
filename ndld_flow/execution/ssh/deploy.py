"""The start of a node on a target, with its environment if that is missing."""

from __future__ import annotations

import base64
import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

from blake3 import blake3

import ndld_flow
from ndld_flow.base.errors import BackendError
from ndld_flow.base.quantities import size
from ndld_flow.base.text import short_name, shortened, visible_name
from ndld_flow.execution.messages import Refused
from ndld_flow.execution.ssh.connection import Connection
from ndld_flow.execution.ssh.messages import CHUNK_BYTES, New, NotInstalled, Ready, Working
from ndld_flow.machine.versions import installed_versions
from ndld_flow.recipe.config_files import shipped_folder
from ndld_flow.recipe.targets import Target

_ENVIRONMENT_BYTES = 1_500_000_000
"""Space that an environment needs while it is created."""
_EXTRA_BYTES = 6_000_000_000
_MAX_REQUESTS = 2
"""Number of times that the files of an environment are sent: without the libraries, and with them."""
_ARCHITECTURES = ("x86_64", "aarch64")
_GLIBC = (2, 28)
"""The oldest for which ONNX Runtime's wheels are built."""


def start_node(connection: Connection, target: Target, label: str, report: Callable[[str], None]) -> str:
    """Return the path of the node's store when the first program has become the node; send what it lacks for that.

    Raises BackendError for a machine that cannot be a target, and ConnectionLostError.
    """
    installation = Installation(tuple(target.extras))
    python = target.python
    environment = "" if python else installation.digest
    connection.request({"folder": target.folder, "environment": environment, "python": python})
    failure, requests = "", 0
    while True:
        message = connection.receive()
        if isinstance(message, Ready):
            return message.store
        if isinstance(message, Working):
            report(f"{label}: {short_name(message.text)}")
        elif isinstance(message, New) and requests < _MAX_REQUESTS:
            requests += 1
            refuse_unfit(message, label, len(target.extras))
            connection.request(*_write_request(installation, message, offline=bool(failure)))
        elif isinstance(message, NotInstalled):
            before, failure = failure, summarize_pip(message.text)
            if before or "ensurepip" in message.text:
                raise BackendError(f"{label}: its environment cannot be created: {failure}")
            report(f"{label}: pip cannot install there ({failure}); downloading the libraries here")
        else:
            if isinstance(message, Refused):
                raise BackendError(f"{label}: {short_name(message.text, 500)}.")
            raise connection.refuse("its first program does not answer what it is asked")


def refuse_unfit(facts: New, label: str, extra_count: int) -> None:
    """Raise BackendError for a machine on which an environment cannot work."""
    libc, version = facts.libc[0], short_name(facts.libc[1], 40)
    needed = _ENVIRONMENT_BYTES + _EXTRA_BYTES * extra_count
    if facts.system != "Linux" or facts.architecture not in _ARCHITECTURES:
        raise BackendError(
            f"{label} is {short_name(facts.system, 40)} on {short_name(facts.architecture, 40)}: targets run Linux on "
            f"{' or '.join(_ARCHITECTURES)}."
        )
    number = tuple(int(part) for part in version.split(".")[:2] if part.isascii() and part.isdigit())
    if libc != "glibc" or number < _GLIBC:
        wanted = ".".join(map(str, _GLIBC))
        there = f"glibc {version}" if libc == "glibc" else "another C library than glibc"
        raise BackendError(
            f"{label} has {there}; ONNX Runtime's packages need glibc {wanted} or later (Ubuntu 20.04, "
            "JetPack 5). Build an environment for it by other means, and name its Python with `python:`."
        )
    if facts.free_bytes < needed:
        raise BackendError(
            f"{label}: {short_name(facts.folder)} has {size(facts.free_bytes)} of free disk "
            f"space, and the environment needs {size(needed)} while it is created. Free some, or set another "
            "`folder:` of the target."
        )


def _write_request(
    installation: Installation, facts: New, *, offline: bool
) -> tuple[Mapping[str, Any], Iterator[bytes]]:
    """Return the request to create the environment, and the files; with `offline`, all libraries are among them."""
    files = [installation.wheel, installation.constraints]
    if offline:
        files += installation.download(facts.python, facts.architecture)
    request = {
        "files": [{"name": file.name, "size_bytes": len(file.data)} for file in files],
        "install": installation.install,
        "label": installation.label,
        "index": not offline,
    }
    starts = ((file.data, start) for file in files for start in range(0, len(file.data), CHUNK_BYTES))
    return request, (data[start : start + CHUNK_BYTES] for data, start in starts)


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

        That of each file is in the wheel's last, RECORD; packing it takes half a second, and few connections send it.
        """
        *_, record = _wheel_files().values()
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
            for name, data in _wheel_files().items():
                archive.writestr(zipfile.ZipInfo(name, _DATE), data, zipfile.ZIP_DEFLATED)
        return File(f"ndld_flow-{distribution(NAME).version}-py3-none-any.whl", packed.getvalue())

    @cached_property
    def constraints(self) -> File:
        """The versions of all libraries that this package uses here."""
        versions = {name: version for name, version in installed_versions(NAME).items() if name != NAME}
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


@cache
def _wheel_files() -> Mapping[str, bytes]:
    """Return the files of the wheel by their names."""
    installed = distribution(NAME)
    info = f"ndld_flow-{installed.version}.dist-info"
    metadata = (installed.read_text("METADATA") or "").encode()
    wheel = b"Wheel-Version: 1.0\nGenerator: ndld-flow\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    entries = "".join(f"[{group}]\n{lines}\n" for group, lines in _entry_points(installed))
    files = {
        **dict(_package_files()),
        f"{info}/METADATA": metadata,
        f"{info}/WHEEL": wheel,
        f"{info}/entry_points.txt": entries.encode(),
    }
    listed = ""
    for name, data in files.items():
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()  # as in PEP 427
        listed += f"{name},sha256={digest},{len(data)}\n"
    return {**files, f"{info}/RECORD": f"{listed}{info}/RECORD,,\n".encode()}


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
