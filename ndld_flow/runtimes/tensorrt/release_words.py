"""Releases of TensorRT in words, for people who are told what theirs lacks."""

from __future__ import annotations

from ndld_flow.records.build import EngineBackend
from ndld_flow.runtimes.tensorrt.library import SPOKEN
from ndld_flow.runtimes.tensorrt.release_names import Names, known_releases, names_of_release, releases_with


def release_title(names: Names) -> str:
    """`TensorRT 11.4`."""
    return f"{SPOKEN[names.backend]} {short_release(names.release)}"


def short_release(release: str) -> str:
    """`10.8.0.43` -> `10.8`."""
    return ".".join(release.split(".")[:2])


def when_there(backend: EngineBackend, owner: str, name: str = "") -> str:
    """Which releases have a name: `until 10.16`, `since 10.9`, `TensorRT has it until 10.16`; empty for none or all."""
    known, having = known_releases(backend), releases_with(backend, owner, name)
    if having == known:
        return ""
    if not having:
        return _when_elsewhere("tensorrt" if backend == "tensorrt_rtx" else "tensorrt_rtx", owner, name)
    first, last = short_release(having[0]), short_release(having[-1])
    if having[0] == known[0]:
        return f"until {last}"
    if having[-1] == known[-1]:
        return f"since {first}"
    return f"only in {first}" if first == last else f"only from {first} to {last}"


def members(names: Names, owner: str) -> tuple[str, ...]:
    """Names of a class that the release has, for suggesting one; those that are not known are left out."""
    listed = names_of_release(names.backend, names.release).classes.get(owner, frozenset())
    return tuple(name for name in sorted(listed) if name.isupper() and names.has(owner, name))


def _when_elsewhere(other: EngineBackend, owner: str, name: str) -> str:
    having = releases_with(other, owner, name)
    when = when_there(other, owner, name) if having else ""
    return f"{SPOKEN[other]} has it {when}".strip() if having else ""
