"""Classes that users derive from and pass to the library."""

from __future__ import annotations

from typing import Any

from .bindings import Interface, member


class IProgressMonitor(Interface):
    def phase_start(self, phase_name: str, parent_phase: str | None, num_steps: int) -> None:
        """A part of building begins."""

    def step_complete(self, phase_name: str, step: int) -> bool:
        """Return whether to continue."""
        return True

    def phase_finish(self, phase_name: str) -> None:
        """A part of building is done."""


class IProfiler(Interface):
    def report_layer_time(self, layer_name: str, ms: float) -> None:
        """Called with each layer's time."""


class Profiler(IProfiler):
    """Prints."""

    def report_layer_time(self, layer_name: str, ms: float) -> None:
        print(f"{layer_name}: {ms}ms")


class IStreamWriter(Interface):
    def write(self, data: Any) -> int:
        """Return the number of bytes written."""
        return 0


class IStreamReader(Interface):
    def read(self, size: int) -> bytes:
        return b""


class IStreamReaderV2(Interface):
    def read(self, num_bytes: int, stream: int) -> bytes:
        return b""

    def seek(self, offset: int, where: Any) -> bool:
        return False


class IInt8Calibrator(Interface):
    """A calibrator, which finds INT8 ranges."""

    _algorithm = "LEGACY_CALIBRATION"

    def get_batch_size(self) -> int:
        return 1

    def get_batch(self, names: list[str]) -> Any:
        return None

    def get_algorithm(self) -> Any:
        return member("CalibrationAlgoType", self._algorithm)

    def read_calibration_cache(self) -> Any:
        return None

    def write_calibration_cache(self, cache: Any) -> None:
        """Called with what was found."""


class IInt8LegacyCalibrator(IInt8Calibrator):
    _algorithm = "LEGACY_CALIBRATION"


class IInt8EntropyCalibrator(IInt8Calibrator):
    _algorithm = "ENTROPY_CALIBRATION"


class IInt8EntropyCalibrator2(IInt8Calibrator):
    _algorithm = "ENTROPY_CALIBRATION_2"


class IInt8MinMaxCalibrator(IInt8Calibrator):
    _algorithm = "MINMAX_CALIBRATION"


class IGpuAllocator(Interface):
    def allocate(self, size: int, alignment: int, flags: int) -> int:
        return 0

    def reallocate(self, address: int, alignment: int, new_size: int) -> int:
        return 0

    def deallocate(self, memory: int) -> bool:
        return True

    def allocate_async(self, size: int, alignment: int, flags: int, stream: int) -> int:
        return 0

    def deallocate_async(self, memory: int, stream: int) -> bool:
        return True


class IOutputAllocator(Interface):
    """Memory for outputs whose sizes are not known before they are computed."""


class IDebugListener(Interface):
    def process_debug_tensor(self, addr: object, location: Any, type: Any, shape: Any, name: str, stream: int) -> bool:
        return True
