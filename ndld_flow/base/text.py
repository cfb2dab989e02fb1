"""Text from models, logs and recipes, made visible and short before it reaches a page, a terminal or a message."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    def lazy_pattern(pattern: str, flags: int = 0) -> re.Pattern[str]: ...

else:

    class lazy_pattern:
        """Like `re.compile(pattern, flags)`, but compiled at its first use, where a mistake in the pattern shows.

        A module has patterns for texts that most commands never see: compiling all took a tenth of the time of a plan.
        """

        def __init__(self, pattern: str, flags: int = 0) -> None:
            self.pattern, self.flags = pattern, flags

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of the compiled pattern
            compiled = re.compile(self.pattern, self.flags)
            for method in ("finditer", "findall", "fullmatch", "match", "search", "split", "sub", "subn"):
                setattr(self, method, getattr(compiled, method))
            return getattr(compiled, name)


# Terminal colours and cursor movements: logs may contain them, pages cannot use them.
_ANSI = lazy_pattern(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")

# Control characters become their pictures; what UTF-8 cannot encode becomes the replacement character.
_VISIBLE: dict[int, int] = {code: 0x2400 + code for code in range(0x20) if code not in (0x09, 0x0A)}
_VISIBLE |= {0x7F: 0x2421}
_VISIBLE |= dict.fromkeys((*range(0x80, 0xA0), *range(0xD800, 0xE000)), 0xFFFD)
# Bidirectional marks would reorder the text around a name; some of these characters end lines.
_VISIBLE |= dict.fromkeys((0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)), 0xFFFD)
_VISIBLE_IN_NAME = _VISIBLE | {0x09: 0x2409, 0x0A: 0x240A}


# These occur only inside strings, where JSON has an escape for each; `##[` begins a command of CI systems.
_NOT_IN_JSON = lazy_pattern("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]|(?<=#)#")

_LONGEST_NAME = 60


def visible_name(text: str) -> str:
    """Return a name on one line, with control characters replaced by their pictures."""
    # Nearly every name is printable, and translating is thirty times slower than the test.
    return text if text.isprintable() else text.translate(_VISIBLE_IN_NAME)


def visible_text(text: str) -> str:
    """Return text of any number of lines, without terminal escapes."""
    return _ANSI.sub("", text.replace("\r\n", "\n")).translate(_VISIBLE)


def escaped_json(text: str) -> str:
    """Return equivalent JSON without commands for terminals or CI systems."""
    return _NOT_IN_JSON.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def shortened(text: str, limit: int) -> str:
    """Return at most `limit` characters. The middle is omitted, since both ends of a name are informative."""
    if len(text) <= limit:
        return text
    tail = limit // 3
    return f"{text[: limit - tail - 1]}…{text[-tail:]}"


def short_name(text: str, limit: int = 160) -> str:
    """Return a visible name of at most `limit` characters, for places that do not need all of it."""
    return shortened(visible_name(text), limit)


def shell_word(text: str | Path) -> str:
    """Return a visible path or argument as a word of a command to copy."""
    return shlex.quote(short_name(str(text), 1000))


def first_of(texts: Sequence[str], most: int) -> str:
    """Return the first texts, at most `most`, separated by commas, and how many more there are."""
    more = f" and {len(texts) - most:,} more" if len(texts) > most else ""
    return f"{', '.join(texts[:most])}{more}"


def joined(names: Sequence[str]) -> str:
    """Return `a, b and c`."""
    return " and ".join(filter(None, (", ".join(names[:-1]), names[-1]))) if names else ""


def one_line(name: str) -> str:
    """Return the start of a name for a sentence: at most 60 characters on one line; names in models are untrusted."""
    name = " ".join(name[: 2 * _LONGEST_NAME].split())
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


def find_nearest(name: str, known: Iterable[str]) -> str:
    """Return the name that is spelt almost like this one; empty if there is none."""
    from difflib import get_close_matches

    lowered = {candidate.lower(): candidate for candidate in known}
    close = get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)
    return lowered[close[0]] if close else ""


def suggest(name: str, known: Iterable[str], limit: int = 12, facts: Mapping[str, str] | None = None) -> str:
    """Return `did you mean "passes"?`, or a list of known names if none is close; empty if there are none.

    `facts` has something to show with a name: `did you mean "x" ([1, 3])?`, `known: x: [1, 3], y`. Names are shortened
    to one line, since a model may contain any name.
    """
    names = list(dict.fromkeys(known))
    nearest = find_nearest(name, names)
    if nearest:
        fact = f" ({facts[nearest]})" if facts and nearest in facts else ""
        return f'did you mean "{short_name(nearest)}"{fact}?'
    if not names:
        return ""
    shown = ", ".join(
        f"{short_name(each)}: {facts[each]}" if facts and each in facts else short_name(each)
        for each in sorted(names)[:limit]
    )
    return f"known: {shown}" + (", ..." if len(names) > limit else "")


def one_paragraph(error: BaseException | str) -> str:
    """Return a library's message on one line, without its layout, at most 600 characters long.

    The message may quote whole nodes.
    """
    return shortened(" ".join(str(error).replace("==>", ";").split()).replace(" ;", ";"), 600)


def value_text(value: object) -> str:
    """Return a value in YAML-like flow style: `true`, `64`, `[Softmax]`, `{op_types: [Softmax]}`."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return short_name(" ".join(value.splitlines()), 400) or '""'
    if isinstance(value, float):
        return f"{value:.6g}"
    if isinstance(value, list):
        return f"[{', '.join(map(value_text, value))}]"
    if isinstance(value, dict):
        pairs = (f"{short_name(key)}: {value_text(inner)}" for key, inner in value.items() if inner is not None)
        return f"{{{', '.join(pairs)}}}"
    return str(value)
