"""The classes, methods and flags of each release of TensorRT, and descriptions of releases for messages.

`release_names.json` lists them for the supported releases, so that a recipe can be checked even if that release is not
installed. `tests/support/tensorrt_standin/write_release_names.py` writes the file. Imports nothing heavy."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import takewhile
from typing import Annotated, TypedDict

from pydantic import BeforeValidator, Field

from ndld_flow.base.errors import RequestError
from ndld_flow.base.extras import TITLES, EngineBackend

_RTX = "rtx-"


def _not_a_number(given: object) -> object:
    if isinstance(given, int | float):
        raise ValueError(
            f'write it in quotes, as a number 10.10 would be 10.1: `release: "{given}"`, '
            f"on the command line 'steps.NAME.release=\"{given}\"'"
        )
    return given


Release = Annotated[str, BeforeValidator(_not_a_number), Field(pattern=r"^$|^\d+(\.\d+){0,3}$")]
"""A release of a library, as text: `10.8`."""


class _Document(TypedDict):
    releases: dict[EngineBackend, list[str]]
    classes: dict[str, dict[str, list[str]]]
    """Class -> span of releases -> names that exactly these releases have."""


@dataclass(frozen=True)
class Names:
    """The names that a TensorRT has."""

    backend: EngineBackend
    release: str
    """The release, such as `10.8.0.43`."""
    exact: bool
    """False if these are the names of another, the nearest known release."""
    classes: Mapping[str, frozenset[str]]
    """Class -> its members."""

    def has(self, owner: str, name: str = "") -> bool:
        """Return True for the class `owner`, or its member `name`: a method, an attribute, or an enum's member.

        Pass the class that defines a name: `ILayer.precision`, not `IConvolutionLayer.precision`.
        """
        return name in self.classes.get(owner, ()) if name else owner in self.classes


def known_releases(backend: EngineBackend) -> tuple[str, ...]:
    """Return the releases with known names, oldest first."""
    return tuple(_document()["releases"][backend])


def names_of_release(backend: EngineBackend, release: str) -> Names:
    """Return the names of a release, written as `10.8`, `10.8.0` or `10.8.0.43`.

    An unknown patch release has the names of its minor release, any other unknown release those of the nearest older
    one; `exact` is then False. Raises RequestError for a release older than every known one, or an invalid version.
    """
    requested = _numbers(release)
    releases = known_releases(backend)
    if not requested or requested[:2] < _numbers(releases[0])[: len(requested[:2])]:
        raise RequestError(
            f"{TITLES[backend]} {release or '(no version)'} is not supported: give {_minor(releases[0])} or later, "
            f"such as {_minor(releases[-1])}."
        )
    same_minor = [each for each in releases if _numbers(each)[: len(requested[:2])] == requested[:2]]
    known = same_minor[-1] if same_minor else [each for each in releases if _numbers(each) < requested][-1]
    return Names(backend, known, _numbers(known)[: len(requested)] == requested, _classes(backend, known))


def names_of_bindings(backend: EngineBackend, module: object) -> Names:
    """Return the names of imported bindings, the module `tensorrt` or `tensorrt_rtx`."""
    classes = {owner: frozenset(dir(getattr(module, owner))) for owner in dir(module)}
    return Names(backend, str(getattr(module, "__version__", "")), True, classes)


def releases_with(backend: EngineBackend, owner: str, name: str = "") -> tuple[str, ...]:
    """Return the known releases that have a name, oldest first; empty if none does."""
    return tuple(each for each in known_releases(backend) if names_of_release(backend, each).has(owner, name))


def _numbers(release: str) -> tuple[int, ...]:
    """Return (10, 14, 1, 48) for `10.14.1.48.post1`."""
    parts = takewhile(lambda part: re.fullmatch(r"[0-9]{1,9}", part), release.split("."))
    return tuple(map(int, parts))


def _minor(release: str) -> str:
    return ".".join(map(str, _numbers(release)[:2]))


@cache
def _document() -> _Document:
    from importlib.resources import files

    document: _Document = json.loads(files(__package__).joinpath("release_names.json").read_text())
    return document


@cache
def _classes(backend: EngineBackend, release: str) -> Mapping[str, frozenset[str]]:
    classes: dict[str, frozenset[str]] = {}
    version = _numbers(release)
    for owner, groups in _document()["classes"].items():
        covering = (
            group
            for span, group in groups.items()
            if any(first <= version <= last for first, last in _spans(span, backend))
        )
        names = frozenset(name for group in covering for name in group)
        if names:
            classes[owner] = names
    return classes


def _spans(span: str, backend: EngineBackend) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Yield the first and last release of each span, as in `10.8.0.43-10.16.1.11 rtx-1.7.1.116`."""
    for part in span.split():
        if part.startswith(_RTX) == (backend == "tensorrt_rtx"):
            first, _, last = part.removeprefix(_RTX).partition("-")
            yield _numbers(first), _numbers(last or first)


def release_title(names: Names) -> str:
    """Return a title such as `TensorRT 11.4`."""
    return f"{TITLES[names.backend]} {short_release(names.release)}"


def short_release(release: str) -> str:
    """Return `10.8` for `10.8.0.43`."""
    return ".".join(release.split(".")[:2])


def releases_text(backend: EngineBackend, owner: str, name: str = "") -> str:
    """Return the releases with a name: `until 10.16`, `since 10.9`, `TensorRT has it until 10.16`; empty for none or
    all.
    """
    known, having = known_releases(backend), releases_with(backend, owner, name)
    if having == known:
        return ""
    if not having:
        other: EngineBackend = "tensorrt" if backend == "tensorrt_rtx" else "tensorrt_rtx"
        has_it = f"{TITLES[other]} has it"
        return f"{has_it} {releases_text(other, owner, name)}".strip() if releases_with(other, owner, name) else ""
    first, last = short_release(having[0]), short_release(having[-1])
    if having[0] == known[0]:
        return f"until {last}"
    if having[-1] == known[-1]:
        return f"since {first}"
    return f"only in {first}" if first == last else f"only from {first} to {last}"


def members(names: Names, owner: str) -> tuple[str, ...]:
    """Return the known members of a class in the release, for suggestions."""
    listed = names_of_release(names.backend, names.release).classes.get(owner, frozenset())
    return tuple(name for name in sorted(listed) if name.isupper() and names.has(owner, name))
