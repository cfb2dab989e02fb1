"""Common behaviour of objects in TensorRT's bindings: they refuse unknown attributes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

Value = TypeVar("Value", bound="Bound")

RELEASE: dict[str, Any] = json.loads(Path(__file__).with_name("release.json").read_text())
"""`backend`, `release`, and `classes`: class -> names."""

MAJOR = int(RELEASE["release"].split(".")[0])
IS_RTX = RELEASE["backend"] == "tensorrt_rtx"
IS_STRONG_ONLY = IS_RTX or MAJOR >= 11

CLASSES: dict[str, Any] = {}
"""The classes of this release, by name."""


def member(enum: str, name: str) -> Any:
    """A member of an enum; None where this release lacks it."""
    return getattr(CLASSES.get(enum), name, None)


def has_bit(flags: int, flag: Any) -> bool:
    """Return whether a mask has the bit of a member; False if this release lacks the member."""
    return flag is not None and bool(flags & 1 << int(flag))


def record(owner: object, **what: object) -> None:
    """Add a line to the file that STANDIN_RECORD names."""
    file = os.environ.get("STANDIN_RECORD")
    if file:
        with Path(file).open("a") as lines:
            lines.write(json.dumps({"class": _bound_name(type(owner)), **what}) + "\n")


def recorded(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method that is recorded when it is called from outside."""

    @wraps(method)
    def call(self: object, *arguments: Any, **named: Any) -> Any:
        told = [shown(value) for value in arguments] + [f"{name}={shown(value)}" for name, value in named.items()]
        record(self, call=method.__name__, arguments=told)
        return method(self, *arguments, **named)

    return call


def shown(value: object) -> str:
    if isinstance(value, bytes | bytearray | memoryview):
        return f"<{len(bytes(value))} bytes>"
    name = getattr(value, "_name", None)
    return f"{type(value).__name__} {name}" if isinstance(name, str) else str(value)


def incompatible(what: str, value: object) -> TypeError:
    return TypeError(f"{what}: incompatible function arguments: {value!r} of {type(value).__name__}")


def expect(kind: str | type, value: Any, what: str) -> Any:
    """The value, as the bindings would take it. Raises TypeError for another kind."""
    if isinstance(kind, str):
        accepted = kind in CLASSES and isinstance(value, CLASSES[kind])
    elif kind is int:
        accepted = hasattr(value, "__index__") and not hasattr(value, "_enum_name")
    elif kind is float:
        accepted = hasattr(value, "__float__") or hasattr(value, "__index__")
    else:
        accepted = kind is object or isinstance(value, kind)
    if not accepted:
        raise incompatible(what, value)
    if kind is int:
        return int(value)
    return float(value) if kind is float else value


class Bound:
    """An object of the bindings. What it does not have can neither be read nor set."""

    def __init__(self) -> None:
        raise TypeError(f"{type(self).__name__}: No constructor defined!")

    def __setattr__(self, name: str, value: Any) -> None:
        if name.startswith("_") or _is_of_users(type(self)):
            object.__setattr__(self, name, value)
            return
        if not hasattr(getattr(type(self), name, None), "__set__"):
            raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")
        object.__setattr__(self, name, value)
        record(self, set=name, value=shown(value))

    @classmethod
    def _make(cls: type[Value], *arguments: Any) -> Value:
        """Create an object that only the library itself may create."""
        made = cls.__new__(cls)
        made._begin(*arguments)
        return made

    def _begin(self, *arguments: Any) -> None:
        """Set what a new object holds."""


class Interface(Bound):
    """A class that people derive from."""

    def __init__(self) -> None:
        self._is_initialized = True


def require_initialized(thing: Any, kind: str) -> Any:
    """A derived class that never called its base's `__init__` is refused, as by pybind11."""
    expect(kind, thing, kind)
    if not getattr(thing, "_is_initialized", False):
        raise TypeError(f"{kind}.__init__() must be called when overriding __init__")
    return thing


class Setting:
    """A property that holds what was set."""

    def __init__(self, kind: str | type, default: Any = None, *, optional: bool = False) -> None:
        self.kind, self.default, self.optional = kind, default, optional
        self.name = ""
        self.least: float | None = None
        self.most: float | None = None

    def within(self, least: float | None, most: float | None) -> Setting:
        """Set the range; values outside are clamped to it."""
        self.least, self.most = least, most
        return self

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        held = instance.__dict__
        return held["_" + self.name] if "_" + self.name in held else self._default()

    def __set__(self, instance: Any, value: Any) -> None:
        if value is None and self.optional:
            instance.__dict__["_" + self.name] = None
            return
        taken = expect(self.kind, value, self.name)
        if self.least is not None:
            taken = max(taken, self.least)
        if self.most is not None:
            taken = min(taken, self.most)
        instance.__dict__["_" + self.name] = taken

    def _default(self) -> Any:
        if isinstance(self.kind, str) and isinstance(self.default, str):
            return member(self.kind, self.default)
        return list(self.default) if isinstance(self.default, list) else self.default


class Unplayed:
    """A name of this release that is not implemented: using it raises an error."""

    def __init__(self, owner: str, name: str) -> None:
        self.owner, self.name = owner, name

    def __get__(self, instance: Any, owner: type) -> Any:
        return self if instance is None else instance.__dict__.get("_" + self.name, self)

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__["_" + self.name] = value

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        raise NotImplementedError(f"the stand-in does not play {self.owner}.{self.name}")


def _bound_name(kind: type) -> str:
    return next((base.__name__ for base in kind.__mro__ if not _is_of_users(base)), kind.__name__)


def _is_of_users(kind: type) -> bool:
    return kind.__module__.partition(".")[0] != __name__.partition(".")[0]
