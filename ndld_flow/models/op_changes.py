"""What one version of an operator has that the one before had not."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ndld_flow.models.op_reference import AttributeReference, Operator, OperatorVersion, Port

SAME_SIGNATURE = "same inputs, outputs, attributes and types; what changed is in the doc"


@dataclass(frozen=True)
class VersionChange:
    """One entry of an operator's history."""

    since_version: int
    changes: tuple[str, ...]
    """One line each; `introduced` for the first version; `SAME_SIGNATURE` where none of these changed."""


def history_of(operator: Operator) -> tuple[VersionChange, ...]:
    """All versions, newest first, each with what is different from the one before."""
    pairs = zip(operator.versions, operator.versions[1:], strict=False)
    entries = [VersionChange(operator.versions[0].since_version, ("introduced",))]
    entries += [VersionChange(new.since_version, changes_between(old, new)) for old, new in pairs]
    return tuple(reversed(entries))


def changes_between(old: OperatorVersion, new: OperatorVersion) -> tuple[str, ...]:
    """Inputs, outputs, attributes and types that came, went or changed."""
    found = [
        *_ports("input", old.inputs, new.inputs),
        *_ports("output", old.outputs, new.outputs),
        *_attributes(old.attributes, new.attributes),
        *_types(old, new),
        *_ties(old, new),
    ]
    if new.deprecated and not old.deprecated:
        found.append("deprecated")
    if new.is_function and not old.is_function:
        found.append("can be written in other operators")
    return tuple(found) or (SAME_SIGNATURE,)


def _ports(word: str, old: Sequence[Port], new: Sequence[Port]) -> Iterator[str]:
    before, after = {port.name: port for port in old}, {port.name: port for port in new}
    came, gone = [name for name in after if name not in before], [name for name in before if name not in after]
    # A port that has another name in the same place was renamed.
    for name in list(came):
        place = list(after).index(name)
        former = old[place].name if place < len(old) else ""
        if former in gone:
            came.remove(name)
            gone.remove(former)
            yield f"{word} {former} is called {name}"
    yield from (f"{word} {name} added, {after[name].kind}" for name in came)
    yield from (f"{word} {name} removed" for name in gone)
    for name in [name for name in after if name in before]:
        if before[name].kind != after[name].kind:
            yield f"{word} {name} is {after[name].kind}, was {before[name].kind}"


def _attributes(old: Sequence[AttributeReference], new: Sequence[AttributeReference]) -> Iterator[str]:
    before, after = {one.name: one for one in old}, {one.name: one for one in new}
    yield from (f"attribute {name} added" for name in after if name not in before)
    yield from (f"attribute {name} removed" for name in before if name not in after)
    for name, now in after.items():
        then = before.get(name, now)
        if then.type != now.type:
            yield f"attribute {name} is {now.type}, was {then.type}"
        if then.default != now.default:
            yield f"attribute {name} defaults to {_said(now.default)}, was {_said(then.default)}"
        if then.required != now.required:
            yield f"attribute {name} is {'required' if now.required else 'no longer required'}"


def _said(default: object) -> str:
    return "nothing" if default is None else repr(default)


def _types(old: OperatorVersion, new: OperatorVersion) -> Iterator[str]:
    before, after = _types_of_ports(old), _types_of_ports(new)
    told: set[str] = set()
    for name in [name for name in after if name in before]:
        came, gone = after[name] - before[name], before[name] - after[name]
        for words, types in (("may be", came), ("may no longer be", gone)):
            line = f"{words} {types_text(types)}"
            # Ports of one type variable change together: the first of them speaks for all.
            if types and line not in told:
                told.add(line)
                yield f"{name} {line}"


def _ties(old: OperatorVersion, new: OperatorVersion) -> Iterator[str]:
    """Ports that had to have one type and need not any more, or the other way round."""
    before, after = _leaders(old, new), _leaders(new, old)
    for name in [name for name in after if name in before]:
        if before[name] == name != after[name]:
            yield f"{name} has the type of {after[name]}"
        elif after[name] == name != before[name]:
            yield f"{name} need not have the type of {before[name]}"


def _leaders(version: OperatorVersion, other: OperatorVersion) -> dict[str, str]:
    """Port -> the first port of its type variable; only ports that both versions have."""
    names = {port.name for port in (*other.inputs, *other.outputs)}
    ports = [port for port in (*version.inputs, *version.outputs) if port.name in names]
    first: dict[str, str] = {}
    for port in ports:
        first.setdefault(port.variable, port.name)
    return {port.name: first[port.variable] for port in ports}


def _types_of_ports(version: OperatorVersion) -> Mapping[str, frozenset[str]]:
    return {port.name: frozenset(port.types) for port in (*version.inputs, *version.outputs)}


def types_text(types: Iterable[str]) -> str:
    """`float, int64; seq of float`: tensors by their elements, what holds tensors after them."""
    groups: dict[str, list[str]] = {}
    for type_ in sorted(types):
        wrapper, _, element = type_.rstrip(")").rpartition("(")
        groups.setdefault(wrapper, []).append(element)
    order = sorted(groups, key=lambda wrapper: (wrapper != "tensor", len(wrapper), wrapper))
    return "; ".join(f"{_wrapper_text(wrapper)}{', '.join(groups[wrapper])}" for wrapper in order)


def _wrapper_text(wrapper: str) -> str:
    """`optional(seq(tensor` -> `optional seq of `; nothing for a tensor."""
    outer = wrapper.removesuffix("tensor").rstrip("(")
    return f"{outer.replace('(', ' ')} of " if outer else ""
