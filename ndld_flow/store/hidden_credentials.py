"""Redaction of passwords, keys and tokens from everything that is written or printed.

Only displayed text is redacted: keys are computed from true values, so that no redaction makes two settings equal.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote, unquote_plus

from ndld_flow.base.text import lazy_pattern, visible_text

if TYPE_CHECKING:
    from pydantic import JsonValue

HIDDEN = "***"

_SHORTEST = 4
"""Shorter texts occur by chance in others."""
_SHORTEST_VARIABLE = 8
"""Shorter values of variables are words such as `none`, whose replacement would garble texts."""
_URL = lazy_pattern(r"[A-Za-z][\w+.-]{1,30}:/{1,2}[^\s\"<>]+")
"""Also with one slash, as in a URL that was treated as a path. An unbounded scheme would take quadratic time."""
_LOGIN = lazy_pattern(r"(?<=:/)/?(?:[^/?#@]*@|[^/?#@:]*:(?!\d+(?:/|$))[^?#]*@)")
"""Everything before an `@` that is not in the path. A password may contain an unescaped slash."""
_VALUE = lazy_pattern(r"(?<=[?&;#])(?P<key>[^=&;#\s']*=|(?<!#))(?P<value>[^=&;#\s']*)")
_SECRET_KEY = lazy_pattern(
    r"tok|key|sig|sec|pass|pw|auth|cred|sas|session|hmac|jwt|(?:^|[_-])(?:code|otp|pin|sid)=?$", re.IGNORECASE
)
_DESCRIPTIVE_KEY = lazy_pattern(
    r"rev|ref|ver|branch|tag|commit|sha|hash|digest|path|file|name|date|time", re.IGNORECASE
)
"""Parameters whose long values of letters and digits identify the file, not the user."""
_WORD = lazy_pattern(r"[\w.-]{0,7}")
_RANDOM = lazy_pattern(r"(?<![A-Za-z0-9])(?=[A-Za-z]*[0-9])(?=[0-9]*[A-Za-z])[A-Za-z0-9]{12,}")
_SECRET_VARIABLE = lazy_pattern(
    r"TOKEN|SECRET|PASSWORD|PASSWD|PASSPHRASE|API_?KEY|ACCESS_?KEY|PRIVATE_?KEY|CREDENTIAL", re.IGNORECASE
)
_FROM_ENVIRONMENT = lazy_pattern(r"\$\{oc\.env:\w+\}")
"""References to environment variables, which reveal nothing."""
_LOGIN_FROM_ENVIRONMENT = lazy_pattern(rf"/?(?:[^:@/]*:)?{_FROM_ENVIRONMENT.pattern}@")
_MARKED_VARIABLE = lazy_pattern(r"\*\*\*(\w+)\*\*\*")


@dataclass(frozen=True)
class Credentials:
    """The secrets of one URL: everything before the last `@`, and the values after `?`."""

    url: str

    def hide(self, text: str) -> str:
        """Return a text, such as the URL itself or an error, with `***` in place of each secret."""
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return hide_credentials(text)

    @cached_property
    def _secrets(self) -> list[str]:
        """Longest first: one may be part of another."""
        before, _, query = self.url.partition("?")
        login = re.match(r"[\w+.:-]*//(.+)@", before)
        secrets = [login[1], *login[1].split(":")] if login else []
        secrets += [
            match["value"] for match in _VALUE.finditer(f"?{query}") if _is_secret(match["key"], match["value"])
        ]
        forms = {form for secret in secrets for form in (secret, unquote(secret), unquote_plus(secret))}
        return sorted((form for form in forms if len(form) >= _SHORTEST), key=len, reverse=True)


def hide_credentials(text: str) -> str:
    """Return a text with a mark in place of each secret in it.

    Secrets are, in URLs, everything before `@` and the values of parameters with a secret name or a random value; and
    the values of environment variables with a secret name, wherever they occur; those that a recipe reads also if they
    are short, or paths. Parameters that only select a file (`?revision=main`) are kept.
    """
    return _hider()(text)


_READ: dict[str, str] = {}
"""Text -> the variable from which a recipe of this process made it."""


def remember_secrets(texts: Mapping[str, str]) -> None:
    """Hide these texts from now on in this process; text -> the environment variable that it comes from."""
    for text, name in texts.items():
        _READ.update(dict.fromkeys(filter(None, _forms(text)), name))


def remembered_secrets() -> Mapping[str, str]:
    """Return the texts that are hidden because a recipe read them, for a process that works for this one."""
    return dict(_READ)


def _forms(text: str) -> Iterator[str]:
    """Yield the spellings in which messages and logs contain a text: escaped, quoted, as a path, line by line."""
    yield text
    yield from (
        text.strip(),
        visible_text(text),
        repr(text)[1:-1],
        json.dumps(text)[1:-1],
        quote(text, ""),
        quote(text),
    )
    yield from (line for line in text.splitlines() if len(line) >= _SHORTEST_VARIABLE)
    if text.startswith(("/", "~", "./", "../")) and "\0" not in text:
        path = Path(text)
        with contextlib.suppress(RuntimeError, OSError):  # no home, or a loop of links
            path = path.expanduser()
            yield from (str(path), str(path.absolute()), str(path.resolve()))


def hide_all_credentials(value: JsonValue) -> JsonValue:
    """Return plain data with `hide_credentials` applied to all texts, including keys, and to numbers that a recipe read
    from a variable.
    """
    return _hide_all(value, _hider())


def hide_in_values(values: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return a mapping with `hide_all_credentials` applied to its values, and its keys as they are."""
    hide = _hider()
    return {name: _hide_all(value, hide) for name, value in values.items()}


@lru_cache(maxsize=4096)
def is_secret_variable(name: str) -> bool:
    """Return whether an environment variable is a credential by its name; cached, since every redaction asks."""
    return _SECRET_VARIABLE.search(name) is not None


def find_redacted(value: object, place: str = "") -> Iterator[str]:
    """Yield the dotted places of plain data where a text has a mark that `hide_credentials` left."""
    if isinstance(value, str):
        if HIDDEN in value and _is_redacted(value):
            yield place
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from find_redacted(inner, f"{place}.{key}".lstrip("."))
            yield from find_redacted(str(key), place)
    elif isinstance(value, list | tuple):
        for index, inner in enumerate(value):
            yield from find_redacted(inner, f"{place}.{index}".lstrip("."))


def _is_redacted(text: str) -> bool:
    """Return whether a text has a mark where `hide_credentials` puts one, and not three original asterisks."""
    if any(is_secret_variable(match[1]) for match in _MARKED_VARIABLE.finditer(text)):
        return True
    urls = [match[0] for match in _URL.finditer(text)]
    logins = (match[0] for url in urls if (match := _LOGIN.search(url)))
    values = (match["value"] for url in urls for match in _VALUE.finditer(url))
    return any(login.strip("/@") == HIDDEN for login in logins) or HIDDEN in values


def _hider() -> Callable[[str], str]:
    """Return `hide_credentials` for the environment as it is now."""
    by_value = {os.environ[name]: name for name in os.environ if is_secret_variable(name)}
    # A variable may hold the path of a credential instead of the credential.
    secrets = {
        value: name
        for value, name in by_value.items()
        if len(value) >= _SHORTEST_VARIABLE and not (value.startswith(("/", "~")) and Path(value).expanduser().exists())
    }
    secrets |= _READ
    if not secrets:
        return _hide_urls
    pattern = re.compile("|".join(map(_occurrence, sorted(secrets, key=len, reverse=True))))
    return lambda text: _hide_urls(pattern.sub(lambda value: f"***{secrets[value[0]]}***", text))


def _occurrence(value: str) -> str:
    """Return the pattern of a secret; a short one is hidden only as a word, or it would garble digests and times."""
    escaped = re.escape(value)
    return escaped if len(value) >= _SHORTEST_VARIABLE else rf"(?<![A-Za-z0-9]){escaped}(?![A-Za-z0-9])"


def _hide_all(value: JsonValue, hide: Callable[[str], str]) -> JsonValue:
    if isinstance(value, str):
        return hide(value)
    if isinstance(value, dict):
        # YAML reads the keys `off` and `1` as no text.
        return {hide(key) if isinstance(key, str) else key: _hide_all(inner, hide) for key, inner in value.items()}
    if isinstance(value, int | float) and not isinstance(value, bool):
        return f"***{_READ[str(value)]}***" if str(value) in _READ else value
    return [_hide_all(inner, hide) for inner in value] if isinstance(value, list) else value


def _hide_urls(text: str) -> str:
    return (
        _URL.sub(lambda match: _VALUE.sub(_hide_value, _LOGIN.sub(_hide_login, match[0], count=1)), text)
        if ":/" in text
        else text
    )


def _hide_login(match: re.Match[str]) -> str:
    if _LOGIN_FROM_ENVIRONMENT.fullmatch(match[0]):
        return match[0]
    return f"{'/' if match[0].startswith('/') else ''}{HIDDEN}@"


def _hide_value(match: re.Match[str]) -> str:
    return f"{match['key']}{HIDDEN}" if _is_secret(match["key"], match["value"]) else match[0]


def _is_secret(key: str, value: str) -> bool:
    """Return whether a parameter of a URL is secret: by its name, or by a value that no name explains."""
    if value == "" or _FROM_ENVIRONMENT.fullmatch(value):
        return False
    if value == HIDDEN or _SECRET_KEY.search(key):
        return True
    if not key:
        return not _WORD.fullmatch(value)
    return not _DESCRIPTIVE_KEY.search(key) and _RANDOM.search(value) is not None
