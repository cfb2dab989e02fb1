"""Tables that a payload's columns point into: layers of many profiles share their names, types and shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ndld_flow.plain_text import visible_name
from ndld_flow.records.profile import TensorInfo
from ndld_flow.report.collect_accuracy import shape_text
from ndld_flow.report.json_values import Json


class Texts:
    """A table of texts, each once."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def places(self, texts: Iterable[str], shown: Callable[[str], str] = str) -> list[int]:
        """Positions of texts in the table as they are `shown`, new ones added."""
        # Columns repeat themselves: each text is looked at once, and what repeats runs in C.
        given = list(texts)
        known = self._places
        found = {text: known.setdefault(shown(text), len(known)) for text in dict.fromkeys(given)}
        return list(map(found.__getitem__, given))

    def as_list(self) -> list[str]:
        return list(self._places)


class Tensors:
    """A table of tensors, each once: name, dtype and dims."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str, tuple[int, ...]], int] = {}

    def places(self, tensors: Iterable[TensorInfo]) -> list[int]:
        """Positions of tensors in the table, new ones added."""
        known = self._places
        return [known.setdefault((one.name, one.dtype, one.shape), len(known)) for one in tensors]

    def as_columns(self, texts: Texts) -> dict[str, Json]:
        """Their parts, as positions in a table of texts; names as steps from one to the next."""
        return {
            "name": steps(texts.places((name for name, _, _ in self._places), visible_name)),
            "dtype": texts.places((dtype for _, dtype, _ in self._places), visible_name),
            "dims": texts.places(shape_text(shape) for _, _, shape in self._places),
        }


def steps(values: Sequence[int]) -> list[int]:
    """Each value as the way from the one before, the first from 0: positions mostly go up by one, and pack well."""
    return [value - before for value, before in zip(values, [0, *values], strict=False)]
