"""Overrides of the command line: checks before Hydra's parser, and Hydra's grammar of an axis' values."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pydantic import JsonValue

from ndld_flow.base.errors import Problem, RecipeError
from ndld_flow.base.text import suggest

if TYPE_CHECKING:
    from hydra.core.override_parser.types import Override, RangeSweep

    from ndld_flow.sweep_search.space import Axis, Numbers

MAX_LENGTH = 4000
"""Characters of one override."""
MAX_COUNT = 1000

OF_HYDRA = "this is one of Hydra's own settings, which have no effect: Hydra only composes recipes here"
OF_HYDRA_HINT = "a sweep has `sweep.method`, `sweep.points`, `--jobs`; a run has `--outputs`"

_LONG = "put long values into a recipe"


def check_overrides(overrides: Sequence[str]) -> None:
    """Raise RecipeError for overrides that are too long or too many, and for Hydra's own settings."""
    if len(overrides) > MAX_COUNT:
        raise RecipeError(
            [Problem("overrides", "", f"there are at most {MAX_COUNT:,}, found {len(overrides):,}", _LONG)]
        )
    problems = [
        Problem(f'override "{override}"', "", *trouble) for override in overrides for trouble in _find(override)
    ]
    if problems:
        raise RecipeError(problems)


def _find(override: str) -> Iterator[tuple[str, str]]:
    if len(override) > MAX_LENGTH:
        yield f"an override has at most {MAX_LENGTH:,} characters, this one has {len(override):,}", _LONG
    elif any((char < " " and char not in "\t\n") or "\ud800" <= char <= "\udfff" for char in override):
        yield (
            "this contains bytes or characters that are not valid text",
            "write it in UTF-8, without control characters",
        )
    elif re.match(r"[+~]*\s*hydra\s*([./@=:]|$)", override):
        # Hydra composes the recipe and runs nothing, so its own settings have no effect
        yield OF_HYDRA, OF_HYDRA_HINT


EXAMPLES = "write `1,2,4`, `choice(a,b)`, `range(1,9,2)` or `interval(0.1,2)`"


class AxisError(ValueError):
    """The definition of an axis, in a recipe or on a command line, is invalid."""

    def __init__(self, what: str, hint: str = "") -> None:
        self.what, self.hint = what, hint
        super().__init__(what)


def find_axis(override: str) -> tuple[str, str] | None:
    """Return key and values of a command-line override with several values, such as `steps.speed.threads=1,2`.

    The key may be a config group, `profiling@steps.speed`. Returns None for any other override, and for one that Hydra
    cannot parse, which composition reports.
    """
    text = override.partition("=")[2]
    if not {",", "("} & set(text):
        return None  # the parser takes 0.3 s to import
    from hydra.errors import HydraException

    try:
        parsed = _parse(override)
    except (HydraException, RecursionError):
        return None
    if parsed.is_delete() or not parsed.is_sweep_override():
        return None
    return parsed.get_key_element().lstrip("+"), text


def read_one_value(override: str) -> JsonValue:
    """Return the value of an override that has one. Raises AxisError with the reason."""
    parsed = _parse_axis(override.partition("=")[2])
    if parsed.is_sweep_override():
        raise AxisError("this gives several values", EXAMPLES)
    return _plain(parsed.value())


def read_axis(name: str, text: str) -> Axis:
    """Return the axis that a text describes. Raises AxisError with the reason."""
    from hydra.core.override_parser.types import ChoiceSweep, IntervalSweep, RangeSweep

    from ndld_flow.recipe.sweep_section import MAX_NUMBER
    from ndld_flow.sweep_search.space import Choices, Numbers

    parsed = _parse_axis(text)
    swept = parsed._value
    if isinstance(swept, ChoiceSweep | RangeSweep) and swept.shuffle:
        raise AxisError("`shuffle` gives a different order each time", "use `method: random` with a `seed:`")
    if isinstance(swept, IntervalSweep):
        low, high = swept.start, swept.end
        if low is None or high is None or not -MAX_NUMBER <= low <= high <= MAX_NUMBER:
            raise AxisError(f"an interval goes from a smaller number to a larger one; found {low} and {high}")
        integer = isinstance(low, int) and isinstance(high, int)
        return Numbers(name, low, high, integer=integer, log=_is_log(swept.tags, low))
    if isinstance(swept, RangeSweep):
        return _range(name, swept)
    if isinstance(swept, ChoiceSweep):
        _refuse_tags(swept.tags)
        return Choices(name, tuple(_plain(value) for value in swept.list))
    if parsed.is_sweep_override():
        raise AxisError("`glob` selects files of a config group, and this is none", "list the values")
    raise AxisError(f"{_shorten(text)!r} is one value", f"{EXAMPLES}, or a list")


def read_choices(form: object, known: Sequence[str]) -> tuple[str, ...]:
    """Return the files of a config group that an axis lists, or that `a,b` or `glob(*)` select among those that are
    known. Raises AxisError for others.
    """
    from hydra.core.override_parser.types import ChoiceSweep, Glob

    if isinstance(form, str):
        parsed = _parse_axis(form)
        value = parsed.value() if not parsed.is_sweep_override() else parsed._value
        if isinstance(value, Glob):
            if found := tuple(value.filter([*known])):
                return found
            raise AxisError(f"`{_shorten(form)}` selects no file of this config group", suggest("", known))
        form = value.list if isinstance(value, ChoiceSweep) else [value]
    if isinstance(form, list) and any(isinstance(value, bool) for value in form):
        raise AxisError("YAML reads `on`, `yes`, `off` and `no` as true and false", "write the file's name in quotes")
    choices = tuple(str(_plain(value)) for value in form) if isinstance(form, list) else ()
    wrong = next((name for name in choices if name not in known), None)
    if wrong is not None or not choices:
        raise AxisError(f"this config group has no file `{wrong or form}`", suggest(str(wrong or ""), known))
    return choices


def _parse_axis(text: str) -> Override:
    """Return the values of an axis in Hydra's grammar, parsed. Raises AxisError."""
    from hydra.errors import HydraException

    try:
        return _parse(f"key={text}")
    except (HydraException, RecursionError) as error:
        what = "it is nested too deeply" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise AxisError(
            f"{_shorten(text)!r} does not follow Hydra's grammar: {_shorten(what, 160)}", EXAMPLES
        ) from None


def _parse(override: str) -> Override:
    from hydra.core.override_parser.overrides_parser import OverridesParser

    return OverridesParser.create().parse_override(override)


def _range(name: str, swept: RangeSweep) -> Numbers:
    """Return an ascending range with its last number, which Hydra's ranges exclude."""
    from ndld_flow.recipe.sweep_section import MAX_NUMBER, MAX_STEPS
    from ndld_flow.sweep_search.space import Numbers

    start, stop, step = swept.start, swept.stop, swept.step
    if start is None or stop is None or not max(abs(start), abs(stop), abs(step)) <= MAX_NUMBER or step == 0:
        raise AxisError(f"a range needs numbers and a step other than 0; found {start}, {stop}, {step}")
    if (stop - start) / step > MAX_STEPS:
        raise AxisError(f"a range has at most {MAX_STEPS:,} steps", "make its step larger")
    steps = math.ceil(round((stop - start) / step, 9)) - 1
    if steps < 0:
        raise AxisError(f"there is no number in range({start},{stop},{step}): a range excludes its end")
    last = start + steps * step if isinstance(start, int) else round(start + steps * step, 12)
    integer = all(isinstance(part, int) for part in (start, stop, step))
    low = min(start, last)
    return Numbers(name, low, max(start, last), abs(step), integer=integer, log=_is_log(swept.tags, low))


def _is_log(tags: set[str], low: float) -> bool:
    _refuse_tags(tags - {"log"})
    if "log" in tags and low <= 0:
        raise AxisError("the tag `log` needs numbers above 0")
    return "log" in tags


def _refuse_tags(tags: set[str]) -> None:
    if tags:
        raise AxisError(f"the tag `{_shorten(min(tags))}` has no meaning here", "`log` does, for ranges and intervals")


def _plain(value: object) -> JsonValue:
    """Return a value without Hydra's quoted strings."""
    if isinstance(value, list):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(_plain(key)): _plain(item) for key, item in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else str(getattr(value, "text", value))


def _shorten(text: str, length: int = 60) -> str:
    return text if len(text) <= length else f"{text[: length - 3]}..."
