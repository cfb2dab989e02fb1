"""Optional parts of the installation: the packages of each extra, its size, and the tasks that need it.

Without the extras, every step runs on ONNX Runtime's CPU provider, and every report and table is written.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from ndld_flow.base.errors import BackendError

DISTRIBUTION = "ndld-flow"


def install_arguments(extra: str) -> str:
    """Return pip's arguments for an extra of this package from where it was installed; empty if that is not known, or
    gone: the package is on no index.
    """
    import shlex
    from urllib.parse import unquote, urlsplit

    recorded = read_origin()
    url = recorded.get("url", "")
    path = Path(unquote(urlsplit(url).path)) if url.startswith("file:") else None
    if path is not None and not path.exists():
        return ""
    if path is not None and "dir_info" in recorded:
        editable = "-e " if recorded["dir_info"].get("editable") else ""
        return f"{editable}{shlex.quote(f'{path}[{extra}]')}"
    if vcs := recorded.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    return shlex.quote(f"{DISTRIBUTION}[{extra}] @ {url}") if url else ""


def read_origin() -> dict[str, Any]:
    """Return what pip recorded of the folder, file or address that this package was installed from (PEP 610)."""
    import json
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        recorded: dict[str, Any] = json.loads(distribution(DISTRIBUTION).read_text("direct_url.json") or "{}")
    except (PackageNotFoundError, ValueError):
        return {}
    return recorded


@dataclass(frozen=True)
class Extra:
    """One extra of the distribution."""

    name: str
    """Its name in `ndld-flow[NAME]`."""
    title: str
    """The library's usual name."""
    distributions: tuple[str, ...]
    """The distributions that it requires, as in `pyproject.toml`."""
    tasks: str
    """The tasks that need it."""
    megabytes: int | None
    """Disk space that it adds to the base installation, on x86-64 Linux; None if it was not measured."""
    modules: tuple[str, ...] = ()
    """Modules that can be imported if it is installed, where they have other names than the distributions."""

    @property
    def size(self) -> str:
        return "size not measured" if self.megabytes is None else f"{self.megabytes:,} MB"

    @property
    def command(self) -> str:
        """Return a command that installs it, in whichever way this package was installed."""
        return f"pip install {install_arguments(self.name) or ' '.join(self.distributions)}"

    @property
    def is_installed(self) -> bool:
        return all(find_spec(module) is not None for module in self.modules or self.distributions)

    def lack(self, task: str) -> str:
        """Return why a task cannot run, with the command that installs the extra; empty if it is installed."""
        return "" if self.is_installed else f"{task} needs {self.title}: {self.command}"


EXTRAS = {
    extra.name: extra
    for extra in (
        Extra(
            "gpu",
            "ONNX Runtime for CUDA",
            ("onnxruntime-gpu", "nvidia-ml-py"),
            "`provider: cuda`, with CUDA and cuDNN; clocks, power and utilization of GPUs",
            2480,
            ("pynvml",),
        ),
        Extra(
            "tensorrt",
            "TensorRT",
            ("tensorrt",),
            "`build_engine` for the GPU of this machine, from NVIDIA's own package index (pypi.nvidia.com)",
            None,
        ),
        Extra(
            "rtx",
            "TensorRT-RTX",
            ("tensorrt-rtx",),
            "`build_engine` with `backend: tensorrt_rtx`, for three generations of GPUs and without one",
            244,
            ("tensorrt_rtx",),
        ),
        Extra("openvino", "OpenVINO", ("openvino",), "`backend: openvino`, on x86-64 and ARM CPUs", 180),
        Extra("plots", "Matplotlib", ("matplotlib",), "`comparison.png` and `sweep.png`", 76),
        Extra(
            "frames", "pandas", ("pandas",), "`api.layers` and `api.frame`: layers and other results as data frames", 82
        ),
        Extra("video", "PyAV", ("av",), "frames of videos, and audio other than .wav, as `data:` of inputs", 107),
        Extra("text", "Tokenizers", ("tokenizers",), "text as `data:` of inputs, by a `tokenizer:`", 36),
        Extra("rules", "onnxscript", ("onnxscript",), "the operation `apply_rules` of `edit`", 7),
        Extra("tpe", "Optuna", ("optuna",), "sweeps with `method: tpe`", 36),
        Extra(
            "torch", "PyTorch", ("torch",), "`check` of `export_pytorch`, and programs that train what it wrote", 775
        ),
        Extra(
            "mlflow",
            "MLflow's client",
            ("mlflow-skinny",),
            "`ndld-flow mlflow`: runs in MLflow tracking",
            110,
            ("mlflow",),
        ),
        Extra("ray", "Ray", ("ray",), "runs and sweeps on several machines", 248),
    )
}
"""Extras by name. `[all]` is all of them; `[dev]` and `[docs]` are for contributors."""

EngineBackend = Literal["tensorrt", "tensorrt_rtx"]
"""A library of engines: `tensorrt` for data centres, workstations and Jetson; `tensorrt_rtx` for RTX GPUs."""


@dataclass(frozen=True)
class EngineLibrary:
    """A library of engines, and the traits in which these differ: no other code asks which one it is."""

    backend: EngineBackend
    extra: Extra
    origin: str
    """Where it comes from, or the systems that it runs on."""
    shared_library: str
    """Name of its shared library, without `lib` and the release."""
    compiles_on_load: bool = False
    """Kernels are compiled for a GPU when an engine is loaded there: a build needs no GPU, and times no kernels."""
    has_triton_backend: bool = False
    """Triton Inference Server runs its engines."""

    @property
    def title(self) -> str:
        return self.extra.title


ENGINE_LIBRARIES: dict[EngineBackend, EngineLibrary] = {
    library.backend: library
    for library in (
        EngineLibrary(
            "tensorrt",
            EXTRAS["tensorrt"],
            "fetched from NVIDIA's own index, pypi.nvidia.com",
            "nvinfer",
            has_triton_backend=True,
        ),
        EngineLibrary("tensorrt_rtx", EXTRAS["rtx"], "Linux x86-64, Windows", "tensorrt_rtx", compiles_on_load=True),
    )
}
"""Libraries of engines by name, in order of preference."""
TITLES = {backend: library.title for backend, library in ENGINE_LIBRARIES.items()}


def require(name: str, task: str) -> None:
    """Raise BackendError if an extra that a task needs is not installed."""
    lack = EXTRAS[name].lack(task)
    if lack:
        raise BackendError(f"{lack}.")
