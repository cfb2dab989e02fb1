"""URLs that hold passwords, keys and tokens, told without them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from urllib.parse import parse_qsl, unquote

_SHORTEST = 4
"""What is shorter than four letters stands in any text."""


@dataclass(frozen=True)
class Credentials:
    """What must not be told of a URL: all before the last `@`, and the values after `?`."""

    url: str

    def hide(self, text: str) -> str:
        """A text, such as the URL itself or an error, with `***` in the place of each secret."""
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return text

    @cached_property
    def _secrets(self) -> list[str]:
        """Longest first: one may be part of another."""
        before, _, query = self.url.partition("?")
        login = re.match(r"[\w+.:-]*//(.+)@", before)
        told = [login[1], *login[1].split(":")] if login else []
        told += [query, *(value for _, value in parse_qsl(query))]
        return sorted({each for one in told for each in (one, unquote(one)) if len(each) >= _SHORTEST}, key=len)[::-1]
