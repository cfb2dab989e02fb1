"""The runtime that opens engines, and the engines that it refuses. With STANDIN_NO_GPU=1 none can be opened; with
STANDIN_OLD_DRIVER=1 nothing that opens them can be made."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from .bindings import RELEASE, Bound, Setting, expect, member
from .config import dla_cores
from .engine import ICudaEngine
from .logs import open_log
from .plan import MAGIC, read_plan
from .plugins import IPluginRegistry

_HEADER = 64
_LEAN = re.compile(rb"STANDIN_LEAN_RUNTIME:([\d.]+);")
_NO_GPU = "cudaError 35: CUDA driver version is insufficient for CUDA runtime version"


class Runtime(Bound):
    """Opens engines."""

    defer_weights_loading = Setting(bool, False)
    dla_workspace_allocation_strategy = Setting("DLAWorkspaceAllocationStrategy", "DEFAULT")
    engine_host_code_allowed = Setting(bool, False)
    error_recorder = Setting(object)
    gpu_allocator = Setting(object)
    max_threads = Setting(int, 1)
    tempfile_control_flags = Setting(int, 3)
    temporary_directory = Setting(str, "/tmp")

    def __init__(self, logger: Any) -> None:
        self._log = open_log(logger)
        if os.environ.get("STANDIN_OLD_DRIVER") == "1":
            self._log.error("IRuntime: CUDA initialization failure with error: 35", 6)
            raise TypeError("pybind11::init(): factory function returned nullptr")
        self._logger = logger
        self._registry = IPluginRegistry._make()

    @property
    def logger(self) -> Any:
        return self._logger

    @property
    def num_DLA_cores(self) -> int:
        return dla_cores()

    @property
    def DLA_core(self) -> int:
        return int(getattr(self, "_core", -1))

    @DLA_core.setter
    def DLA_core(self, value: int) -> None:
        """A core that does not exist is ignored."""
        if 0 <= expect(int, value, "DLA_core") < dla_cores():
            self._core = value

    @property
    def engine_header_size(self) -> int:
        return _HEADER

    def get_plugin_registry(self) -> Any:
        return self._registry

    def load_runtime(self, path: str) -> Any:
        """The runtime of another release; None for a file that is no lean runtime."""
        file = Path(expect(str, path, "path"))
        found = _LEAN.search(file.read_bytes()) if file.is_file() else None
        if found is None:
            self._log.error(f"IRuntime::loadRuntime: Unable to load library: {path}", 6)
            return None
        made = type(self)(self._logger)
        made._release = found[1].decode()
        return made

    def deserialize_cuda_engine(self, serialized_engine: Any) -> Any:
        """The engine; None, and an error in the log, for what cannot be opened here."""
        try:
            engine = read_plan(_all_of(serialized_engine))
        except ValueError as error:
            self._log.error(f"IRuntime::deserializeCudaEngine: {error}", 1, "Serialization")
            return None
        refusal = self._refusal(engine)
        if refusal:
            self._log.error(f"IRuntime::deserializeCudaEngine: {refusal}", 6)
            return None
        self._log.say("INFO", f"Loaded engine size: {engine['memory']['weights'] >> 20} MiB")
        return ICudaEngine._make(engine, self._log, _all_of(serialized_engine))

    def get_engine_validity(self, buffer: Any) -> tuple[Any, int]:
        is_ours = bytes(buffer).startswith(MAGIC)
        if is_ours and os.environ.get("STANDIN_NO_GPU") != "1":
            return member("EngineValidity", "VALID"), 0
        reason = member("EngineInvalidityDiagnostics", "CUDA_ERROR" if is_ours else "MALFORMED_ENGINE")
        return member("EngineValidity", "INVALID"), 1 << int(reason)

    def _refusal(self, engine: dict[str, Any]) -> str:
        if os.environ.get("STANDIN_NO_GPU") == "1":
            return _NO_GPU
        targets = [] if "CURRENT" in engine["targets"] else engine["targets"]
        if targets and _gpu() not in targets:
            return f"The engine is for {', '.join(targets)}, and this GPU is {_gpu()}."
        if engine["backend"] != RELEASE["backend"]:
            return f"The engine was built by {engine['backend']}."
        has_code = "VERSION_COMPATIBLE" in engine["flags"] and "EXCLUDE_LEAN_RUNTIME" not in engine["flags"]
        if (has_code or engine["plugins"]) and not self.engine_host_code_allowed:
            return "The engine holds host code, and engine_host_code_allowed is not set."
        own = getattr(self, "_release", RELEASE["release"])
        if engine["release"] != own and not _is_compatible(engine, own):
            return (
                "The engine plan file is not compatible with this version of TensorRT, expecting library version "
                f"{own} got {engine['release']}, please rebuild."
            )
        if engine["on_dla"] and self.DLA_core < 0:
            return "The engine is for a DLA, and no DLA core is set."
        lacking = [name for name in engine["operators"] if not self._registry._has(name)]
        if lacking:
            return f"getPluginCreator could not find plugin: {lacking[0]} version: 1"
        return ""


def _is_compatible(engine: dict[str, Any], release: str) -> bool:
    """An engine that holds its lean runtime runs on later releases."""
    has_runtime = "VERSION_COMPATIBLE" in engine["flags"] and "EXCLUDE_LEAN_RUNTIME" not in engine["flags"]
    return has_runtime and _minor(engine["release"]) <= _minor(release)


def _gpu() -> str:
    """The GPU that is here, by STANDIN_GPU, such as 8.9."""
    return "SM" + os.environ.get("STANDIN_GPU", "8.9").replace(".", "")


def _minor(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")[:2]))


def _all_of(source: Any) -> bytes:
    """Bytes, or what a stream reader gives."""
    if not hasattr(source, "read"):
        return bytes(memoryview(source))
    stream = (0,) if hasattr(source, "seek") else ()
    found = b""
    while piece := source.read(1 << 20, *stream):
        found += bytes(piece)
    return found
