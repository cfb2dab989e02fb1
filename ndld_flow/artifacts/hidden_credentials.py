"""URLs that hold passwords, keys and tokens, told without them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import parse_qsl, unquote

from pydantic import JsonValue

HIDDEN = "***"

_SHORTEST = 4
"""What is shorter than four letters stands in any text."""
_URL = re.compile(r"[A-Za-z][\w+.-]{1,30}:/{1,2}[^\s\"<>]+")
"""With one slash too: that is what becomes of a URL where a path was expected. A scheme without a bound would cost the
square of a name's length."""
_LOGIN = re.compile(r"(?<=:/)/?(?:[^/?#@]*@|[^/?#@:]*:(?!\d+(?:/|$))[^?#]*@)")
"""All before an `@` that is not in the path. Who has a password with a slash in it writes it as it is."""
_VALUE = re.compile(r"(?<=[?&;#])(?P<key>[^=&;#\s']*=|(?<!#))(?P<value>[^=&;#\s']*)")
_PUBLIC = re.compile(r"[\w.-]{0,7}")
_SECRET_KEY = re.compile(r"tok|key|sig|sec|pass|pw|auth|cred|sas|session", re.IGNORECASE)


@dataclass(frozen=True)
class Credentials:
    """What must not be told of a URL: all before the last `@`, and the values after `?`."""

    url: str

    def hide(self, text: str) -> str:
        """A text, such as the URL itself or an error, with `***` in the place of each secret."""
        for secret in self._secrets:
            text = text.replace(secret, HIDDEN)
        return hide_credentials(text)

    @cached_property
    def _secrets(self) -> list[str]:
        """Longest first: one may be part of another."""
        before, _, query = self.url.partition("?")
        login = re.match(r"[\w+.:-]*//(.+)@", before)
        told = [login[1], *login[1].split(":")] if login else []
        told += [query, *(value for _, value in parse_qsl(query))]
        return sorted({each for one in told for each in (one, unquote(one)) if len(each) >= _SHORTEST}, key=len)[::-1]


def hide_credentials(text: str) -> str:
    """A text with `***` for what URLs in it have before `@`, and for values after `?` that may be secret.

    Not for words such as `ref=main`: a URL that says what is fetched and not by whom stays as it is.
    """
    return _URL.sub(lambda found: _hide_in_url(found[0]), text) if ":/" in text else text


def hide_all_credentials(value: JsonValue) -> JsonValue:
    """Plain data with all its texts as `hide_credentials` leaves them, names of keys too."""
    if isinstance(value, str):
        return hide_credentials(value)
    if isinstance(value, dict):
        return {hide_credentials(key): hide_all_credentials(inner) for key, inner in value.items()}
    return [hide_all_credentials(inner) for inner in value] if isinstance(value, list) else value


def _hide_in_url(url: str) -> str:
    return _VALUE.sub(_hide_value, _LOGIN.sub(_hide_login, url, count=1))


def _hide_login(found: re.Match[str]) -> str:
    return f"{'/' if found[0].startswith('/') else ''}{HIDDEN}@"


def _hide_value(found: re.Match[str]) -> str:
    public = _PUBLIC.fullmatch(found["value"]) and not _SECRET_KEY.search(found["key"])
    return found[0] if public else f"{found['key']}{HIDDEN}"
