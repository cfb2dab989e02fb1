"""Which classes, methods and flags each release of TensorRT has. Imports nothing heavy.

`release_names.json` lists them for the releases that are supported, so that a recipe can be judged where that release
is not installed. `tests/support/tensorrt_standin/write_release_names.py` writes the file.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from itertools import takewhile
from typing import Protocol, TypedDict

from ndld_flow.base.errors import RequestError
from ndld_flow.records.build import EngineBackend
from ndld_flow.runtimes.tensorrt.library import SPOKEN

_RTX = "rtx-"


class _Document(TypedDict):
    releases: dict[EngineBackend, list[str]]
    classes: dict[str, dict[str, list[str]]]
    """Class -> span of releases -> the names that these releases have, and no others."""


class Names(Protocol):
    """What a TensorRT has."""

    @property
    def backend(self) -> EngineBackend: ...

    @property
    def release(self) -> str:
        """Such as `10.8.0.43`."""
        ...

    @property
    def exact(self) -> bool:
        """False where these are another release's names, the nearest that is known."""
        ...

    def has(self, owner: str, name: str = "") -> bool:
        """Whether there is the class `owner`, and in it `name`: a method, an attribute, or an enum's member.

        Ask the class that brings a name in: `ILayer.precision`, not `IConvolutionLayer.precision`.
        """
        ...


@dataclass(frozen=True)
class ListedNames:
    """Names of one release, from the list of those that are known."""

    backend: EngineBackend
    release: str
    exact: bool
    classes: Mapping[str, frozenset[str]]

    def has(self, owner: str, name: str = "") -> bool:
        return owner in self.classes and (not name or name in self.classes[owner])


@dataclass(frozen=True)
class BoundNames:
    """Names of the bindings that are imported."""

    backend: EngineBackend
    release: str
    module: object
    exact: bool = True

    def has(self, owner: str, name: str = "") -> bool:
        return hasattr(self.module, owner) and (not name or hasattr(getattr(self.module, owner), name))


def known_releases(backend: EngineBackend) -> tuple[str, ...]:
    """Releases whose names are known, oldest first."""
    return tuple(_document()["releases"][backend])


def names_of_release(backend: EngineBackend, release: str) -> ListedNames:
    """The names of a release, written as `10.8`, `10.8.0` or `10.8.0.43`.

    A patch that is not known has its minor release's names, any other unknown release those of the nearest older one;
    `exact` is False then. Raises RequestError for what is older than every known release, or no version.
    """
    known = _nearest_known(backend, release)
    asked = _numbers(release)
    return ListedNames(backend, known, _numbers(known)[: len(asked)] == asked, _classes(backend, known))


def names_of_bindings(backend: EngineBackend, module: object) -> BoundNames:
    """The names of imported bindings, the module `tensorrt` or `tensorrt_rtx`."""
    return BoundNames(backend, str(getattr(module, "__version__", "")), module)


def releases_with(backend: EngineBackend, owner: str, name: str = "") -> tuple[str, ...]:
    """Known releases that have a name, oldest first; empty where none does."""
    return tuple(each for each in known_releases(backend) if names_of_release(backend, each).has(owner, name))


def _nearest_known(backend: EngineBackend, release: str) -> str:
    asked = _numbers(release)
    known = known_releases(backend)
    if not asked or asked[:2] < _numbers(known[0])[: len(asked[:2])]:
        raise RequestError(
            f"{SPOKEN[backend]} {release or '(no version)'} is not supported: give {_minor(known[0])} or later, "
            f"such as {_minor(known[-1])}."
        )
    same_minor = [each for each in known if _numbers(each)[: len(asked[:2])] == asked[:2]]
    return same_minor[-1] if same_minor else [each for each in known if _numbers(each) < asked][-1]


def _numbers(release: str) -> tuple[int, ...]:
    """`10.14.1.48.post1` -> (10, 14, 1, 48)."""
    parts = takewhile(lambda part: re.fullmatch(r"[0-9]{1,9}", part), release.split("."))
    return tuple(map(int, parts))


def _minor(release: str) -> str:
    return ".".join(map(str, _numbers(release)[:2]))


@cache
def _document() -> _Document:
    document: _Document = json.loads(files(__package__).joinpath("release_names.json").read_text())
    return document


@cache
def _classes(backend: EngineBackend, release: str) -> Mapping[str, frozenset[str]]:
    found: dict[str, frozenset[str]] = {}
    for owner, groups in _document()["classes"].items():
        names = frozenset(name for span, group in groups.items() if _covers(span, backend, release) for name in group)
        if names:
            found[owner] = names
    return found


def _covers(span: str, backend: EngineBackend, release: str) -> bool:
    return any(first <= _numbers(release) <= last for first, last in _spans(span, backend))


def _spans(span: str, backend: EngineBackend) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """`10.8.0.43-10.16.1.11 rtx-1.7.1.116`: from a release to another, or one alone."""
    for part in span.split():
        if part.startswith(_RTX) == (backend == "tensorrt_rtx"):
            first, _, last = part.removeprefix(_RTX).partition("-")
            yield _numbers(first), _numbers(last or first)
