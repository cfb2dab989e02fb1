"""Speech by eSpeak NG, from the library in its wheel."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

_SYNCHRONOUS, _UTF8, _RATE = 2, 1, 16_000


def speak(package: Path, text: str) -> np.ndarray[Any, Any]:
    """Return spoken text at 16 kHz, within -1 and 1; `package` has the library and its data."""
    library = ctypes.CDLL(str(package / "libespeak-ng.so"))
    pieces: list[np.ndarray[Any, Any]] = []

    def collect(samples: Any, count: int, _: int | None) -> int:
        if count > 0 and samples:
            pieces.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    rate = library.espeak_Initialize(_SYNCHRONOUS, 0, str(package).encode(), 0)
    if rate <= 0:
        raise RuntimeError("eSpeak NG does not start")
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
    callback = kind(collect)  # kept: the library calls it until the end
    library.espeak_SetSynthCallback(callback)
    library.espeak_SetVoiceByName(b"en")
    encoded = text.encode() + b"\0"
    library.espeak_Synth(encoded, ctypes.c_size_t(len(encoded)), 0, 0, 0, _UTF8, None, None)
    library.espeak_Terminate()
    spoken = np.concatenate(pieces).astype(np.float32) / 32768
    times = np.arange(int(len(spoken) * _RATE / rate)) * rate / _RATE
    resampled: np.ndarray[Any, Any] = np.interp(times, np.arange(len(spoken)), spoken).astype(np.float32)
    return resampled
