"""Facts in sentences: tests compare these, so that a sentence can be worded anew."""

from __future__ import annotations

import re


def numbers_in(text: str) -> list[float]:
    """Return the numbers of a text in order, without those inside names, versions and shapes: of `fp16 2x3` only 2."""
    found = re.findall(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?:e[+-]?\d+)?", text)
    return [float(number.replace(",", "")) for number in found]
