"""Probes of TensorRT, TensorRT-RTX and the GPU on this machine, in child processes, which may crash or hang.

A child runs `python -m ndld_flow.runtimes.tensorrt.probe FOLDER tensorrt|tensorrt_rtx|gpu`.
"""

from __future__ import annotations

import ctypes
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, cast

from ndld_flow.base.errors import NdldFlowError
from ndld_flow.base.extras import TITLES, EngineBackend
from ndld_flow.machine.host import Check, describe_machine
from ndld_flow.processes.launch import name_signal
from ndld_flow.runtimes.tensorrt.engine.cuda_runtime import TO_DEVICE, TO_HOST, CudaRuntime, open_cuda_runtime
from ndld_flow.runtimes.tensorrt.library import Library, find_libraries, import_bindings, make_logger
from ndld_flow.runtimes.tensorrt.release_names import names_of_release

ANSWERS = "answers.jsonl"
GPU = "gpu"
"""The subject that probes the GPU instead of a TensorRT."""

_LIMIT_S = 60.0
"""Time limit of a probe: a large TensorRT takes seconds to load from a slow disk, and a GPU's first start longer."""


@dataclass(frozen=True)
class Probe:
    """The result of one probe."""

    name: str
    works: bool
    found: str
    advice: str = ""


def probe_library(library: Library, limit_s: float = _LIMIT_S) -> list[Probe]:
    """Import a TensorRT, build an engine of one layer ahead of time and for this GPU, and run it.

    Probes that a failure makes pointless are skipped. `library` must be found.
    """
    with tempfile.TemporaryDirectory(prefix="ndld_flow-", ignore_cleanup_errors=True) as folder:
        return _probe(library.backend, Path(folder), library.environment(Path(folder)), limit_s)


def probe_gpu(limit_s: float = _LIMIT_S) -> list[Probe]:
    """Probe GPUs, CUDA's runtime library, the sampling of a GPU and the locking of its clocks."""
    with tempfile.TemporaryDirectory(prefix="ndld_flow-", ignore_cleanup_errors=True) as folder:
        return _probe(GPU, Path(folder), {}, limit_s)


def _probe(subject: str, folder: Path, environment: Mapping[str, str], limit_s: float) -> list[Probe]:
    command = [sys.executable, "-P", "-m", __name__, str(folder), subject]
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **environment},
    )
    try:
        code = process.wait(limit_s)
        crashed = name_signal(-code) if code < 0 else ""
        ended = f"crashed with {crashed}" if crashed else f"ended with code {code}"
    except subprocess.TimeoutExpired:
        ended = f"did not answer within {limit_s:g} s"
    finally:
        process.kill()
        process.wait()
    return list(_read(folder / ANSWERS, ended))


def _read(answers: Path, ended: str) -> Iterator[Probe]:
    """Yield the answers, and the probe that was running when the process ended."""
    lines = answers.read_text(encoding="utf-8", errors="replace").splitlines() if answers.exists() else []
    answers_given = [json.loads(line) for line in lines] or [{"begins": ""}]
    yield from (Probe(**answer) for answer in answers_given if "begins" not in answer)
    if "begins" in answers_given[-1]:
        yield Probe(answers_given[-1]["begins"], works=False, found=f"the process that probed it {ended}")


def examine(place: Path | None) -> Iterator[Check]:
    """Try the GPU, and each TensorRT as installed; one of them is replaced by the one in `place`.

    Raises BackendError when there is none.
    """
    driver = describe_machine().driver
    with ThreadPoolExecutor() as pool:  # each waits for a process of its own
        gpu = pool.submit(probe_gpu)
        engines = pool.map(_check_engines, find_libraries(place))
        for trial in gpu.result():
            yield _show_gpu(trial, driver)
        for checks in engines:
            yield from checks


def _show_gpu(trial: Probe, driver: str) -> Check:
    if trial.name:
        return _show_trial(trial, trial.name)
    if trial.works:
        return Check(name="gpu", state="ok", found=trial.found + (f", driver {driver}" if driver else ""))
    return Check(name="gpu", state="absent", found=f"{trial.found}; CPU recipes need none", advice=trial.advice)


def _check_engines(library: Library) -> list[Check]:
    """Check one TensorRT on this machine. Its name has a hyphen, like its distribution."""
    name = library.backend.replace("_", "-")
    if not library.found:
        what, _, advice = library.missing.partition(": ")
        return [Check(name=name, state="absent", found=what, advice=advice)]
    return list(_show_engines(library, name, probe_library(library)))


def _show_engines(library: Library, name: str, trials: list[Probe]) -> Iterator[Check]:
    for trial in trials:
        shown = f"{name} {trial.name}".strip()
        if trial.name or not trial.works:
            yield _show_trial(trial, shown)
        else:
            yield Check(name=shown, state="ok", found=f"{trial.found}, {library.origin}; {_describe_names(library)}")


def _describe_names(library: Library) -> str:
    """Describe whether recipes are checked against the names of this release."""
    try:
        names = names_of_release(library.backend, library.version)
    except NdldFlowError as error:
        return str(error)
    if names.exact:
        return "a known release"
    return f"its settings are guessed from {names.release}, the nearest known release, until it is loaded"


def _show_trial(trial: Probe, name: str) -> Check:
    return Check(name=name, state="ok" if trial.works else "absent", found=trial.found, advice=trial.advice)


_DRIVER = "nvcuda.dll" if os.name == "nt" else "libcuda.so.1"
_DRIVER_SETTINGS = Path("/proc/driver/nvidia/params")
_FOUR_FLOATS = ctypes.c_float * 4
_SEVERE = ("ERROR", "INTERNAL_ERROR")
_CHECK_DRIVER = "where there is an NVIDIA GPU: check `nvidia-smi`, and start containers with `--gpus all`"
_NVML = "pip install nvidia-ml-py"
_MAJOR, _MINOR = 75, 76
"""CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, ..._MINOR."""

Attempt = Callable[[], str]
"""A function that returns a description of the working part, or raises `NotWorkingError`."""


class NotWorkingError(Exception):
    """A part does not work on this machine."""

    def __init__(self, found: str, advice: str = "") -> None:
        super().__init__(found)
        self.advice = advice


def main(folder: Path, subject: str) -> None:
    """Run the probes in order and record each before and after, because one may crash the process.

    A failed probe without a name ends the others.
    """
    attempts = iter(_GPU_ATTEMPTS) if subject == GPU else _engine_attempts(cast(EngineBackend, subject))
    with (folder / ANSWERS).open("w", encoding="utf-8") as answers:
        for name, attempt in attempts:
            print(json.dumps({"begins": name}), file=answers, flush=True)
            try:
                probe = Probe(name, works=True, found=attempt())
            except NotWorkingError as error:
                probe = Probe(name, works=False, found=str(error), advice=error.advice)
            except NdldFlowError as error:
                probe = Probe(name, works=False, found=str(error))
            except Exception as error:  # libraries may raise anything
                probe = Probe(name, works=False, found=f"{type(error).__name__}: {error}")
            print(json.dumps(asdict(probe)), file=answers, flush=True)
            if not (probe.name or probe.works):
                break
    os._exit(0)  # unloading drivers takes time, and a crash in it does not matter


def _engine_attempts(backend: EngineBackend) -> Iterator[tuple[str, Attempt]]:
    engines: list[_Engines] = []

    def load() -> str:
        engines.append(_Engines(backend, import_bindings(backend)))
        return str(engines[0].bindings.__version__)

    yield "", load
    if hasattr(engines[0].bindings, "ComputeCapability"):
        yield "ahead of time", engines[0].build_ahead
    yield "on this GPU", engines[0].build_and_run


class _Engines:
    """Builds and runs engines of one layer: y = relu(x), four numbers."""

    def __init__(self, backend: EngineBackend, bindings: Any) -> None:  # noqa: ANN401  # a module without stubs
        self.title, self.bindings, self.errors = TITLES[backend], bindings, list[str]()
        self.logger = make_logger(bindings, self._take)

    def _take(self, severity: str, message: str) -> None:
        if severity in _SEVERE:
            self.errors.append(message)

    def build_ahead(self) -> str:
        """Build for every compute capability that the release knows, all at once."""
        known = {
            name: value for name, value in self.bindings.ComputeCapability.__members__.items() if name.startswith("SM")
        }
        started = time.perf_counter()
        self._build(tuple(known.values()))
        took = time.perf_counter() - started
        shown = ", ".join(f"{name[2:-1]}.{name[-1]}" for name in known)
        return f"builds without a GPU for compute capability {shown} ({took:.1f} s)"

    def build_and_run(self) -> str:
        """Build for the first GPU, open the engine and run it."""
        _require_driver()
        current = getattr(getattr(self.bindings, "ComputeCapability", None), "CURRENT", None)
        started = time.perf_counter()
        plan = self._build(() if current is None else (current,))
        built = time.perf_counter() - started
        cuda = open_cuda_runtime()
        cuda.select(0, spin=False)
        runtime = self.bindings.Runtime(self.logger)
        engine = self._need(lambda: runtime.deserialize_cuda_engine(plan), "does not open the engine it built")
        context = self._need(engine.create_execution_context, "cannot create a context for the engine")
        values = _FOUR_FLOATS(-1, 2, -3, 4)
        self._execute(cuda, context, values)
        if [*values] != [0, 2, 0, 4]:
            raise NotWorkingError(
                f"{self.title} computes relu(-1, 2, -3, 4) as {[*values]}", "run NVIDIA's GPU diagnosis"
            )
        return f"builds ({built:.1f} s), opens and runs engines"

    def _build(self, capabilities: tuple[Any, ...]) -> Any:  # noqa: ANN401
        builder = self._need(lambda: self.bindings.Builder(self.logger), "does not create a builder")
        network = builder.create_network(0)
        given = network.add_input("x", self.bindings.float32, (1, 4))
        result = network.add_activation(given, self.bindings.ActivationType.RELU).get_output(0)
        result.name = "y"
        network.mark_output(result)
        config = builder.create_builder_config()
        if capabilities:
            config.num_compute_capabilities = len(capabilities)
            for index, capability in enumerate(capabilities):
                config.set_compute_capability(capability, index)
        return self._need(lambda: builder.build_serialized_network(network, config), "does not build an engine")

    def _execute(self, cuda: CudaRuntime, context: Any, values: ctypes.Array[ctypes.c_float]) -> None:  # noqa: ANN401
        size, stream = ctypes.sizeof(values), cuda.make_stream()
        source, target = cuda.allocate(size), cuda.allocate(size)
        cuda.copy(source, ctypes.addressof(values), size, TO_DEVICE, stream)
        context.set_tensor_address("x", source)
        context.set_tensor_address("y", target)
        if not context.execute_async_v3(stream):
            raise self._failure("does not run the engine it built")
        cuda.copy(ctypes.addressof(values), target, size, TO_HOST, stream)
        cuda.wait_for_stream(stream)

    def _need(self, make: Callable[[], Any], otherwise: str) -> Any:  # noqa: ANN401
        """Return the object that TensorRT creates. It returns None or raises on failure, with the reason only in its
        log.
        """
        del self.errors[:]
        try:
            created = make()
        except TypeError:  # pybind11: factory function returned nullptr
            created = None
        if created is None:
            raise self._failure(otherwise)
        return created

    def _failure(self, what: str) -> NotWorkingError:
        reason = " ".join(" ".join(self.errors[:1]).split())
        if re.search(r"(cudaError|failure with error:) 35\b", reason):
            other = ", or pip install tensorrt-cu12" if self.bindings.__name__ == "tensorrt" else ""
            finding = f"the driver supports CUDA up to {_driver_cuda()}, and this {self.title} needs a later version"
            return NotWorkingError(finding, f"update the NVIDIA driver{other}")
        return NotWorkingError(
            f"{self.title} {what}: {reason or 'it reports no reason'}",
            _CHECK_DRIVER if "cuda" in reason.lower() else "",
        )


def _describe_gpus() -> str:
    driver = _require_driver()
    count = ctypes.c_int()
    code = driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count))
    if code:
        text = ctypes.c_char_p()
        driver.cuGetErrorString(code, ctypes.byref(text))
        reason = f"error {code}, {(text.value or b'unknown').decode(errors='replace')}"
        raise NotWorkingError(f"the NVIDIA driver finds no GPU ({reason})", _CHECK_DRIVER)
    return f"{', '.join(_describe_gpu(driver, gpu) for gpu in range(count.value))}, CUDA up to {_driver_cuda()}"


def _describe_gpu(driver: ctypes.CDLL, gpu: int) -> str:
    name, major, minor = ctypes.create_string_buffer(100), ctypes.c_int(), ctypes.c_int()
    driver.cuDeviceGetName(name, len(name), gpu)
    driver.cuDeviceGetAttribute(ctypes.byref(major), _MAJOR, gpu)
    driver.cuDeviceGetAttribute(ctypes.byref(minor), _MINOR, gpu)
    return f"{name.value.decode(errors='replace')} (compute capability {major.value}.{minor.value})"


def _open_runtime() -> str:
    open_cuda_runtime()
    return "libcudart loads and finds the GPU"


def _sample() -> str:
    """Read the first GPU's load through NVML, and report whether this user may read its performance counters."""
    try:
        nvml = import_module("pynvml")
    except ImportError:
        raise NotWorkingError("NVML's Python package is not installed", _NVML) from None
    nvml.nvmlInit()
    load = nvml.nvmlDeviceGetUtilizationRates(nvml.nvmlDeviceGetHandleByIndex(0))
    try:
        restricted = "RmProfilingAdminOnly: 1" in _DRIVER_SETTINGS.read_text(encoding="utf-8")
    except OSError:
        restricted = False
    counters = "for administrators only" if restricted and not _is_administrator() else "open to this user"
    return f"NVML answers (the GPU is {load.gpu} % busy); its performance counters are {counters}"


def _check_clocks() -> str:
    """Check for the package and permissions to lock clocks; nothing is changed."""
    if find_spec("pynvml") is None:
        raise NotWorkingError("NVML's Python package is not installed to lock them", _NVML)
    if not _is_administrator():
        advice = "run as root, or let an administrator lock them before: nvidia-smi --lock-gpu-clocks=MHZ"
        raise NotWorkingError("only administrators may lock them", advice)
    return "may be locked by this user (not tried: it would change them)"


def _is_administrator() -> bool:
    if os.name == "nt":
        return bool(ctypes.windll.shell32.IsUserAnAdmin())  # type: ignore[attr-defined,unused-ignore]
    return os.geteuid() == 0


def _require_driver() -> ctypes.CDLL:
    try:
        return ctypes.CDLL(_DRIVER)
    except OSError:
        raise NotWorkingError(f"no NVIDIA driver ({_DRIVER} does not load)", _CHECK_DRIVER) from None


def _driver_cuda() -> str:
    """Return the newest CUDA that the driver supports, such as `12.4`."""
    version = ctypes.c_int()
    _require_driver().cuDriverGetVersion(ctypes.byref(version))
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


_GPU_ATTEMPTS: tuple[tuple[str, Attempt], ...] = (
    ("", _describe_gpus),
    ("cuda runtime", _open_runtime),
    ("gpu sampling", _sample),
    ("gpu clocks", _check_clocks),
)

if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
