"""Speech and phonemes by eSpeak NG, from the library in its wheel."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

_SYNCHRONOUS, _UTF8, _IPA, _RATE = 2, 1, 2, 16_000


def speak(package: Path, text: str) -> np.ndarray[Any, Any]:
    """Return spoken text at 16 kHz, within -1 and 1; `package` has the library and its data."""
    library, rate = _start(package)
    pieces: list[np.ndarray[Any, Any]] = []

    def collect(samples: Any, count: int, _: int | None) -> int:
        if count > 0 and samples:
            pieces.append(np.ctypeslib.as_array(samples, (count,)).copy())
        return 0

    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)
    callback = kind(collect)  # kept: the library calls it until the end
    library.espeak_SetSynthCallback(callback)
    encoded = text.encode() + b"\0"
    library.espeak_Synth(encoded, ctypes.c_size_t(len(encoded)), 0, 0, 0, _UTF8, None, None)
    library.espeak_Terminate()
    spoken = np.concatenate(pieces).astype(np.float32) / 32768
    times = np.arange(int(len(spoken) * _RATE / rate)) * rate / _RATE
    resampled: np.ndarray[Any, Any] = np.interp(times, np.arange(len(spoken)), spoken).astype(np.float32)
    return resampled


def phonemize(package: Path, texts: Sequence[str]) -> Iterator[str]:
    """Yield the phonemes of texts, in the alphabet of the International Phonetic Association."""
    library, _ = _start(package)
    library.espeak_TextToPhonemes.restype = ctypes.c_char_p
    for text in texts:
        rest, clauses = ctypes.c_char_p(text.encode()), []
        while rest.value:
            clauses.append(library.espeak_TextToPhonemes(ctypes.byref(rest), _UTF8, _IPA).decode())
        yield ", ".join(clauses)
    library.espeak_Terminate()


def _start(package: Path) -> tuple[ctypes.CDLL, int]:
    """Return the library with an English voice, and its rate."""
    library = ctypes.CDLL(str(package / "libespeak-ng.so"))
    rate: int = library.espeak_Initialize(_SYNCHRONOUS, 0, str(package).encode(), 0)
    if rate <= 0:
        raise RuntimeError("eSpeak NG does not start")
    library.espeak_SetVoiceByName(b"en")
    return library, rate
