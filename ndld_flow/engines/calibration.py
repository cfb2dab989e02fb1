"""Ranges of INT8 tensors on weakly typed releases: from an earlier calibration, or placeholders."""

from __future__ import annotations

import re
from pathlib import Path

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import short_name
from ndld_flow.engines.network import ParsedNetwork
from ndld_flow.engines.optimization_profiles import make_profile
from ndld_flow.records.build import BuiltProfile
from ndld_flow.runtimes.tensorrt.library import Bindings, Bound

_HEADER = re.compile(rb"TRT-\d+-(\w+)\r?\n")
_CALIBRATORS = {b"EntropyCalibration2": "IInt8EntropyCalibrator2", b"MinMaxCalibration": "IInt8MinMaxCalibrator"}
_INPUT_RANGE = 2.0
_LAYER_RANGE = 4.0
"""Placeholder range of trtexec."""


def calibrate_from_cache(
    trt: Bindings, parsed: ParsedNetwork, config: Bound, cache: Path, profile: BuiltProfile
) -> Bound:
    """Use an INT8 calibration cache. The calibrator that is returned must live as long as the configuration.

    Raises RequestError when the file cannot be read, or is not a calibration cache.
    """
    try:
        ranges = cache.read_bytes()
    except OSError as error:
        raise RequestError(f"calibration_cache: {short_name(str(cache))} cannot be read ({error.strerror})") from None
    base = getattr(trt, _calibrator_of(cache, ranges))

    class CachedCalibrator(base):  # type: ignore[misc,valid-type]
        """A calibrator that takes ranges from the cache only."""

        def __init__(self) -> None:
            base.__init__(self)

        def get_batch_size(self) -> int:
            return 1

        def get_batch(self, names: list[str]) -> None:
            return None

        def read_calibration_cache(self) -> bytes:
            return ranges

        def write_calibration_cache(self, cache: bytes) -> None:
            """Keep the file unchanged."""

    calibrator = CachedCalibrator()
    config.int8_calibrator = calibrator
    config.set_calibration_profile(make_profile(parsed.builder, profile))
    return calibrator


def _calibrator_of(cache: Path, ranges: bytes) -> str:
    """Return the calibrator class that wrote the cache: TensorRT does not read that of another."""
    header = _HEADER.match(ranges)
    if header is None or header[1] not in _CALIBRATORS:
        known = " or ".join(f"`TRT-...-{kind.decode()}`" for kind in _CALIBRATORS)
        raise RequestError(
            f"calibration_cache: {short_name(str(cache))} is not an INT8 calibration cache: its first line is not "
            f"{known}"
        )
    return _CALIBRATORS[header[1]]


def make_up_ranges(parsed: ParsedNetwork) -> None:
    """Give every tensor a placeholder range, only for measuring speed: the engine's outputs are wrong."""
    for tensor in parsed.inputs():
        tensor.set_dynamic_range(-_INPUT_RANGE, _INPUT_RANGE)
    for layer in parsed.layers():
        for index in range(layer.num_outputs):
            layer.get_output(index).set_dynamic_range(-_LAYER_RANGE, _LAYER_RANGE)
