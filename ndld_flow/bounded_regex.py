"""Regular expressions that always come to an end: those of recipes are searched in names of models.

Python's engine tries one way after the other, and `(a|aa)+$` has more ways than there are atoms. It is used where few
are possible. Otherwise all ways are gone at once (Thompson 1968, "Regular expression search algorithm"): the places in
a name that are reached are the bits of one number, and each part of an expression maps places to places.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from re import _compiler, _constants, _parser  # type: ignore[attr-defined]
from typing import Any

MAX_PATTERN = 1000
"""Characters of a pattern."""
FEW_WAYS = 50_000
"""So many ways Python's engine tries in about a millisecond."""
MANY_WAYS = 10**9
"""More ways through any name of 100 characters: then there must be another engine."""
MAX_STEPS = 3_000_000
"""Parts of a pattern that are applied to names, all names together: some seconds."""

_ATOMS = (_constants.LITERAL, _constants.NOT_LITERAL, _constants.ANY, _constants.IN)
_REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT)
_LOOKS = (_constants.ASSERT, _constants.ASSERT_NOT)
_OTHER = {
    _constants.GROUPREF: "a back reference such as `\\1`",
    _constants.GROUPREF_EXISTS: "a condition such as `(?(1)a|b)`",
    _constants.ATOMIC_GROUP: "an atomic group such as `(?>a)`",
    _constants.POSSESSIVE_REPEAT: "a possessive repeat such as `a++`",
}


class CostlyPatternError(ValueError):
    """A search would take too long."""


class BoundedRegex:
    """A regular expression that is searched in names.

    Raises ValueError, with a phrase, for what is none, and CostlyPatternError for one that could take for ever.
    """

    def __init__(self, pattern: str) -> None:
        if len(pattern) > MAX_PATTERN:
            raise CostlyPatternError(f"it has {len(pattern):,} characters, and at most {MAX_PATTERN:,} are allowed")
        try:
            self._regex = re.compile(pattern)
            self._tree = _parser.parse(pattern)
            self._ways = _ways_through(self._tree)
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(str(error)) from None
        self._steps = _Steps()
        if self._ways.in_text(100) > MANY_WAYS:
            self._refuse_others()

    def fits(self, name: str) -> bool:
        """Whether it is found anywhere in a name. Raises CostlyPatternError when telling takes too long."""
        if self._ways.in_text(len(name)) <= FEW_WAYS:
            return self._regex.search(name) is not None
        self._refuse_others()
        places = (1 << (len(name) + 1)) - 1
        return _Text(name, self._steps).ends(self._tree, places, self._tree.state.flags) != 0

    def search(self, name: str) -> re.Match[str] | None:
        """What is found in a name. Raises CostlyPatternError when that may take too long: groups need one way."""
        if self._ways.in_text(len(name)) > FEW_WAYS:
            raise CostlyPatternError("it has repeats that could share a name in too many ways to tell its groups")
        return self._regex.search(name)

    def _refuse_others(self) -> None:
        for operator in _operators(self._tree):
            if operator in _OTHER:
                raise CostlyPatternError(f"{_OTHER[operator]} does not go with repeats that match in so many ways")


@dataclass(frozen=True)
class _Ways:
    """How many ways there are through a part of a pattern, at most: `factor * n ** degree` in a text of n."""

    factor: float = 1.0
    degree: int = 0

    def in_text(self, length: int) -> float:
        """Ways of a search, which may begin anywhere."""
        return self.factor * float(max(length, 1)) ** min(self.degree + 1, 60)

    def then(self, other: _Ways) -> _Ways:
        return _Ways(self.factor * other.factor, self.degree + other.degree)


def _ways_through(parts: Sequence[Any]) -> _Ways:
    ways = _Ways()
    for operator, arguments in parts:
        ways = ways.then(_ways_of(operator, arguments))
    return ways


def _ways_of(operator: object, arguments: Any) -> _Ways:  # noqa: ANN401 - of Python's parser
    inner = [_ways_through(part) for part in _parts_of(operator, arguments)]
    if operator is _constants.BRANCH:
        return _Ways(sum(each.factor for each in inner), max(each.degree for each in inner))
    if operator not in (*_REPEATS, _constants.POSSESSIVE_REPEAT):
        return inner[0].then(inner[1]) if len(inner) == 2 else inner[0] if inner else _Ways()
    low, high, _ = arguments
    if inner[0] != _Ways():  # each time another way
        return _Ways(inner[0].factor ** min(high, 64) if high < 2 else math.inf, inner[0].degree)
    return _Ways() if low == high else _Ways(high - low + 1) if high - low < 10 else _Ways(degree=1)


def _parts_of(operator: object, arguments: Any) -> list[Sequence[Any]]:  # noqa: ANN401
    """The parts that a part is made of."""
    if operator is _constants.BRANCH:
        return list(arguments[1])
    if operator is _constants.GROUPREF_EXISTS:
        return [part for part in arguments[1:] if part is not None]
    if operator is _constants.ATOMIC_GROUP:
        return [arguments]
    if operator in (*_REPEATS, *_LOOKS, _constants.SUBPATTERN, _constants.POSSESSIVE_REPEAT):
        return [arguments[-1]]
    return []


def _operators(parts: Sequence[Any]) -> Iterator[object]:
    for operator, arguments in parts:
        yield operator
        for part in _parts_of(operator, arguments):
            yield from _operators(part)


@dataclass
class _Steps:
    left: int = MAX_STEPS

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise CostlyPatternError("searching it in these names takes too long")


@dataclass
class _Text:
    """A name, and where the parts of a pattern lead in it. Places are bits: the first is before its first character."""

    name: str
    steps: _Steps
    _places: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    """Character -> the places before it."""
    _atoms: dict[tuple[int, int], int] = field(default_factory=dict)
    """Single character of the pattern, with flags -> the places before one that it fits."""

    def __post_init__(self) -> None:
        for place, character in enumerate(self.name):
            self._places[character] |= 1 << place

    def ends(self, parts: Sequence[Any], places: int, flags: int) -> int:
        """Where these parts, one after the other, lead from places."""
        for part in parts:
            self.steps.take(1 + len(self.name) // 1000)
            if not places:
                break
            places = self._ends_of(part, places, flags)
        return places

    def _ends_of(self, part: tuple[Any, Any], places: int, flags: int) -> int:
        operator, arguments = part
        if operator in _ATOMS:
            return (places & self._before(part, flags)) << 1
        if operator in _REPEATS:
            return self._repeated(arguments, places, flags)
        if operator in _LOOKS:
            return self._looked(part, places, flags)
        if operator is _constants.SUBPATTERN:
            _, added, taken, inner = arguments
            return self.ends(inner, places, _compiler._combine_flags(flags, added, taken))
        if operator is _constants.BRANCH:
            return self._union(self.ends(inner, places, flags) for inner in arguments[1])
        regex = _compile_alone(part, flags)  # an anchor
        return self._union(1 << place for place in _bits(places) if regex.match(self.name, place))

    def _union(self, several: Iterator[int]) -> int:
        found = 0
        for each in several:
            self.steps.take(1)
            found |= each
        return found

    def _before(self, atom: tuple[Any, Any], flags: int) -> int:
        key = (id(atom), flags)
        if key not in self._atoms:
            regex = _compile_alone(atom, flags)
            fitting = (places for character, places in self._places.items() if regex.match(character))
            self._atoms[key] = self._union(fitting)
        return self._atoms[key]

    def _repeated(self, repeat: tuple[int, int, Sequence[Any]], places: int, flags: int) -> int:
        low, high, inner = repeat
        for _ in range(low):
            before, places = places, self.ends(inner, places, flags)
            if places in (before, 0):  # and so it will be each time
                break
        found = new = places
        for _ in range(min(high - low, len(self.name))):
            new = self.ends(inner, new, flags) & ~found
            if not new:
                break
            found |= new
        return found

    def _looked(self, look: tuple[Any, Any], places: int, flags: int) -> int:
        wanted, (direction, inner) = look[0] is _constants.ASSERT, look[1]
        back = 0 if direction > 0 else inner.getwidth()[0]
        return self._union(1 << place for place in _bits(places) if self._sees(inner, place, back, flags) is wanted)

    def _sees(self, inner: Sequence[Any], place: int, back: int, flags: int) -> bool:
        if place < back:
            return False
        ends = self.ends(inner, 1 << (place - back), flags)
        return bool(ends & 1 << place) if back else ends != 0


def _bits(places: int) -> Iterator[int]:
    place = 0
    while places:
        step = (places & -places).bit_length() - 1
        place += step
        yield place
        places >>= step + 1
        place += 1


def _compile_alone(part: tuple[Any, Any], flags: int) -> re.Pattern[str]:
    """One character or anchor of a pattern as a pattern of its own."""
    state = _parser.State()
    state.flags = flags
    compiled: re.Pattern[str] = _compiler.compile(_parser.SubPattern(state, [part]))
    return compiled
