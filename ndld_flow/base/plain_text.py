"""Text from models and logs, made visible before it reaches a page or a terminal."""

from __future__ import annotations

import re

# Terminal colours and cursor moves: a log may hold them, a page has no use for them.
_ANSI = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)")

# NUL and its like become their pictures; what UTF-8 cannot carry becomes the replacement character.
_VISIBLE: dict[int, int] = {code: 0x2400 + code for code in range(0x20) if code not in (0x09, 0x0A)}
_VISIBLE |= {0x7F: 0x2421}
_VISIBLE |= dict.fromkeys((*range(0x80, 0xA0), *range(0xD800, 0xE000)), 0xFFFD)
# Marks that turn the direction of writing would rearrange what stands beside a name; some end lines.
_VISIBLE |= dict.fromkeys((0x61C, 0x200E, 0x200F, *range(0x2028, 0x202F), *range(0x2066, 0x206A)), 0xFFFD)
_VISIBLE_IN_NAME = _VISIBLE | {0x09: 0x2409, 0x0A: 0x240A}


# All of these stand inside strings only, where JSON has an escape for each; `##[` begins a command of CI systems.
_NOT_IN_JSON = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]|(?<=#)#")


def visible_name(text: str) -> str:
    """A name on one line, control characters shown as their pictures."""
    # Nearly every name is printable; translating is thirty times slower than asking.
    return text if text.isprintable() else text.translate(_VISIBLE_IN_NAME)


def visible_text(text: str) -> str:
    """Text that may have several lines, terminal escapes removed."""
    return _ANSI.sub("", text.replace("\r\n", "\n")).translate(_VISIBLE)


def escaped_json(text: str) -> str:
    """JSON that means the same, and neither a terminal nor a CI system finds a command in it."""
    return _NOT_IN_JSON.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def shortened(text: str, limit: int) -> str:
    """At most `limit` characters, the middle left out: both ends of a name tell something."""
    if len(text) <= limit:
        return text
    tail = limit // 3
    return f"{text[: limit - tail - 1]}…{text[-tail:]}"


def short_name(text: str, limit: int = 160) -> str:
    """A visible name that cannot fill a page: for wherever the whole of it is not what people look for."""
    return shortened(visible_name(text), limit)
