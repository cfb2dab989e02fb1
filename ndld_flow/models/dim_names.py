"""Short names for symbolic dimensions, so that a shape fits beside an edge."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_NAME = re.compile(r"[A-Za-z_][\w.:]*")
_FUNCTIONS = frozenset(("floor", "ceil", "ceiling", "Max", "Min", "Mod", "max", "min"))
_LONG = 8
_LONGEST = 16
_MOST_EXPLAINED = 4


@dataclass
class DimNames:
    """Gives long names short ones, `d1` on, in the order in which they are asked for."""

    short: dict[str, str] = field(default_factory=dict)

    def __call__(self, dim: str) -> str:
        """`floor(p2o.DynamicDimension.1/2)` -> `floor(d1/2)`; what is still long loses its middle."""
        text = _NAME.sub(lambda match: self._of(match[0]), dim[:1000])
        if len(text) <= _LONGEST:
            return text
        half = (_LONGEST - 1) // 2
        return f"{text[:half]}…{text[-half:]}"

    def _of(self, name: str) -> str:
        if len(name) <= _LONG or name in _FUNCTIONS:
            return name
        return self.short.setdefault(name, f"d{len(self.short) + 1}")

    @property
    def explained(self) -> str:
        """`d1 = p2o.DynamicDimension.0, ...`; empty where all names are short."""
        pairs = [f"{short} = {name[:30]}" for name, short in list(self.short.items())[:_MOST_EXPLAINED]]
        return ", ".join(pairs) + (", …" if len(self.short) > _MOST_EXPLAINED else "")
