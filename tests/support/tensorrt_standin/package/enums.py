"""Enums as pybind11 creates them. Their integers differ between releases and must not be stored."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .bindings import RELEASE


class ClosedType(type):
    """Type of enums: nothing can be added."""

    def __setattr__(cls, name: str, value: object) -> None:
        if "__members__" in cls.__dict__ and not name.startswith("_"):
            raise AttributeError(f"type object '{cls.__name__}' has no attribute '{name}'")
        super().__setattr__(name, value)


class Member(metaclass=ClosedType):
    """A member of an enum."""

    __members__: dict[str, Any]
    _enum_name = ""

    def __init__(self, value: int) -> None:
        if value not in {member.value for member in self.__members__.values()}:
            raise ValueError(f"{value} is no {type(self).__name__}")
        object.__setattr__(self, "_value", value)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"'{type(self).__name__}' object has no attribute '{name}'")

    @property
    def name(self) -> str:
        return next(name for name, member in self.__members__.items() if member.value == self.value)

    @property
    def value(self) -> int:
        return int(self.__dict__["_value"])

    def __int__(self) -> int:
        return self.value

    __index__ = __int__

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and self.value == getattr(other, "value", None)

    def __lt__(self, other: Any) -> bool:
        return type(other) is type(self) and self.value < other.value

    def __le__(self, other: Any) -> bool:
        return type(other) is type(self) and self.value <= other.value

    def __hash__(self) -> int:
        return self.value

    def __str__(self) -> str:
        return f"{type(self).__name__}.{self.name}"

    def __repr__(self) -> str:
        return f"<{self}: {self.value}>"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.value,)


def make_enum(name: str, members: Iterable[str], fixed: Sequence[str] = ()) -> Any:
    """An enum whose integers are turned by as much as the release is new; `fixed`: in this order in every release."""
    ordered = list(fixed) or sorted(members)
    kind = ClosedType(name, (Member,), {"__module__": __name__.rpartition(".")[0], "_enum_name": name})
    found: dict[str, Any] = {}
    for at, item in enumerate(ordered):
        made: Any = object.__new__(kind)  # type: ignore[arg-type]
        object.__setattr__(made, "_value", at if fixed else (at + _turn()) % len(ordered))
        type.__setattr__(kind, item, made)
        found[item] = made
    type.__setattr__(kind, "__members__", found)
    return kind


def _turn() -> int:
    major, minor = map(int, RELEASE["release"].split(".")[:2])
    return major * 9 + minor
