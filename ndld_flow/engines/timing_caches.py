"""Timing caches that outlast a build: one file for each GPU and release, shared by all runs on this machine.

A cache only saves time, so a defective one never fails a build. A file is never read half-written, since it is written
to a temporary name and renamed; a lock ensures that builds that end at the same time keep all their timings.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path

from ndld_flow.base.errors import BackendError
from ndld_flow.base.text import short_name
from ndld_flow.engines.build_settings import BuildSettings
from ndld_flow.records.build import TimingCacheUse
from ndld_flow.records.measurement import Machine
from ndld_flow.runtimes.tensorrt.library import Bound
from ndld_flow.store.files import make_folder, write_bytes_atomically
from ndld_flow.store.locks import Locks

_NO_NAME = re.compile(r"[^A-Za-z0-9.]+")


@dataclass
class TimingCache:
    """The timing cache of one build."""

    file: Path
    use: TimingCacheUse
    notes: list[str] = field(default_factory=list)

    @property
    def record(self) -> TimingCacheUse:
        """Return the use of the cache with all notes."""
        return self.use.model_copy(update={"note": "; ".join(self.notes)})


def timing_cache_path(caches: Path, machine: Machine, settings: BuildSettings, version: str) -> Path:
    """Return the file for this machine's GPU and the library's release."""
    gpu = machine.gpus[settings.gpu] if settings.gpu < len(machine.gpus) else "no gpu"
    name = _NO_NAME.sub("-", f"{gpu} {settings.backend} {version}".lower())
    return caches / "timing" / f"{name}.cache"


def load_timing_cache(config: Bound, file: Path, settings: BuildSettings) -> TimingCache:
    """Load earlier timings, and the user's file, into a builder's configuration."""
    loaded = TimingCache(file, TimingCacheUse(file=file.name))
    own = _read(file) if settings.shares_timings else b""
    cache = _set(config, own)
    if cache is None:
        loaded.notes.append(_set_aside(file, own))
        own, cache = b"", _set(config, b"")
    if settings.attempt > 1:
        loaded.notes.append(
            f"attempt {settings.attempt} timed every tactic again: the timing cache was neither read nor written"
        )
    if settings.timing_cache_file is not None:
        users, name = _create(config, _read(settings.timing_cache_file)), short_name(str(settings.timing_cache_file))
        if users is None or not cache.combine(users, False):
            loaded.notes.append(
                f"timing_cache_file: {name} is not a timing cache of this GPU and release, and was not used"
            )
    loaded.use = loaded.use.model_copy(update={"loaded_bytes": len(own), "loaded_entries": _count(cache)})
    return loaded


def use_timings(config: Bound, data: bytes, name: str) -> TimingCache:
    """Let a build use these timings only. Raises BackendError if they are of another GPU or release."""
    cache = _set(config, data)
    if cache is None:
        raise BackendError(f"{name}: its timing cache is of another GPU or release, or damaged; build without `lock`")
    return TimingCache(Path(name), TimingCacheUse(file=name, loaded_bytes=len(data), loaded_entries=_count(cache)))


def save_timing_cache(config: Bound, timing: TimingCache) -> None:
    """Save the timings of this build together with those that other builds have added meanwhile."""
    try:
        make_folder(timing.file.parent)
        with Locks(timing.file.parent).hold(timing.file.stem):
            cache = config.get_timing_cache()
            newest = _create(config, _read(timing.file))
            if newest is not None:
                cache.combine(newest, False)
            data = bytes(cache.serialize())
            write_bytes_atomically(timing.file, data)
    except OSError as error:
        timing.notes.append(f"timings could not be saved ({error.strerror or error})")
        return
    timing.use = timing.use.model_copy(update={"saved_bytes": len(data), "saved_entries": _count(cache)})


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def _set(config: Bound, data: bytes) -> Bound:
    """Return the cache that the configuration uses; None if these bytes are invalid or from another GPU."""
    cache = _create(config, data)
    return cache if cache is not None and config.set_timing_cache(cache, False) else None


def _create(config: Bound, data: bytes) -> Bound:
    try:
        return config.create_timing_cache(data)
    except (RuntimeError, ValueError, TypeError):  # of an invalid cache, depending on the release
        return None


def _set_aside(file: Path, data: bytes) -> str:
    aside = file.with_suffix(".unusable")
    try:
        with Locks(file.parent).hold(file.stem):
            if _read(file) == data:  # else another build has started a new one
                file.replace(aside)
    except OSError:
        return f"the timing cache {file.name} is damaged or from another GPU, and was not used"
    return (
        f"the timing cache was damaged or from another GPU: it was renamed to {aside.name}, and a new one was started"
    )


def _count(cache: Bound) -> int | None:
    try:
        return len(cache.queryKeys())
    except (AttributeError, RuntimeError):
        return None
