"""Regular expressions that are compiled when they are first used.

A module has patterns for texts that most commands never see. Compiling all of them took a tenth of the time of a plan.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:

    def lazy_pattern(pattern: str, flags: int = 0) -> re.Pattern[str]: ...

else:

    class lazy_pattern:
        """Like `re.compile(pattern, flags)`, but a mistake in the pattern shows at its first use."""

        def __init__(self, pattern: str, flags: int = 0) -> None:
            self.pattern, self.flags = pattern, flags

        def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - any attribute of the compiled pattern
            compiled = re.compile(self.pattern, self.flags)
            for method in ("finditer", "findall", "fullmatch", "match", "search", "split", "sub", "subn"):
                setattr(self, method, getattr(compiled, method))
            return getattr(compiled, name)
