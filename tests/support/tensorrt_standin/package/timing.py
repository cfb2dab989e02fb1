"""Timing caches: real bytes, with an entry for each tactic that was timed."""

from __future__ import annotations

import hashlib
import json
import warnings
from typing import Any

from .bindings import IS_RTX, RELEASE, Bound, Setting, expect
from .logs import LAST
from .values import IHostMemory

_MAGIC = b"STANDIN-TIMING"


class TimingCacheKey(Bound):
    def _begin(self, *arguments: Any) -> None:
        (self._key,) = arguments

    @staticmethod
    def parse(text: str) -> Any:
        return TimingCacheKey._make(text)

    def __str__(self) -> str:
        return str(self._key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TimingCacheKey) and other._key == self._key

    def __hash__(self) -> int:
        return hash(self._key)


class TimingCacheValue(Bound):
    tacticHash = Setting(int, 0)
    timingMSec = Setting(float, 0.0)

    def __init__(self, tactic_hash: int, timing_ms: float) -> None:
        self._tacticHash, self._timingMSec = (
            expect(int, tactic_hash, "tacticHash"),
            expect(float, timing_ms, "timingMSec"),
        )


class ITimingCache(Bound):
    """Entries of one release. TensorRT-RTX has the class and keeps nothing in it."""

    def _begin(self, *arguments: Any) -> None:
        (self._entries,) = arguments or ({},)
        self._release: str = RELEASE["release"]

    def serialize(self) -> Any:
        _warn_of_rtx()
        entries = {} if IS_RTX else self._entries
        return IHostMemory(_MAGIC + json.dumps({"release": self._release, "entries": entries}).encode())

    def combine(self, input_cache: Any, ignore_mismatch: bool) -> bool:
        _warn_of_rtx()
        other = expect("ITimingCache", input_cache, "input_cache")
        if other._release != self._release and not expect(bool, ignore_mismatch, "ignore_mismatch"):
            LAST[0].error("ITimingCache::combine: caches of different releases", 3)
            return False
        self._entries.update(other._entries)
        return True

    def reset(self) -> bool:
        self._entries.clear()
        return True

    def queryKeys(self) -> list[Any]:
        return [TimingCacheKey._make(key) for key in self._entries]

    def query(self, key: Any) -> Any:
        ms = self._entries.get(expect("TimingCacheKey", key, "key")._key)
        return TimingCacheValue(0, float("nan")) if ms is None else TimingCacheValue(_tactic(key._key), ms)

    def update(self, key: Any, value: Any) -> bool:
        self._entries[expect("TimingCacheKey", key, "key")._key] = value.timingMSec
        return True


def read_cache(data: bytes) -> Any:
    """A cache of what `serialize` gave. Bytes that are none make an empty cache that no build takes."""
    _warn_of_rtx()
    cache = ITimingCache._make({})
    if not data or IS_RTX:
        return cache
    try:
        if not data.startswith(_MAGIC):
            raise ValueError("not a timing cache")
        document = json.loads(data.removeprefix(_MAGIC))
        cache._entries.update(document["entries"])
        cache._release = document["release"]
    except (ValueError, KeyError, TypeError):
        LAST[0].error("IBuilderConfig::createTimingCache: the serialized timing cache is broken", 3)
        cache._release = ""
    return cache


def key_of(*parts: object) -> str:
    """The key of a tactic that is timed."""
    return hashlib.sha256(repr(parts).encode()).hexdigest()[:32]


def time_of(key: str) -> float:
    """Milliseconds, the same for the same key: 2 to 6 microseconds."""
    return 0.002 + _tactic(key) % 4000 / 1e6


def measured(key: str, build: int) -> float:
    """Return the timing measured in the n-th build; after the first, a quarter of them differ."""
    return time_of(key) + (0.001 if build > 1 and _tactic(f"{key} {build}") % 4 == 0 else 0.0)


def _tactic(key: str) -> int:
    return int(hashlib.sha256(key.encode()).hexdigest()[:12], 16)


def _warn_of_rtx() -> None:
    if IS_RTX:
        warnings.warn(
            "Use Deprecated in TensorRT-RTX 1.2. Timing cache operations are no-ops in TensorRT-RTX. instead.",
            DeprecationWarning,
            stacklevel=3,
        )


def is_usable(cache: Any) -> bool:
    """Return whether this release wrote it."""
    return bool(cache._release == RELEASE["release"])
