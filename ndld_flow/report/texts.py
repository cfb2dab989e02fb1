"""Tables shared by the columns of page data: layers of many profiles share names, types and shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from ndld_flow.base.text import visible_name
from ndld_flow.records.profile import TensorInfo
from ndld_flow.report.page_data import TensorColumns
from ndld_flow.report.shape_words import shape_text


class Texts:
    """A table of distinct texts."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def places(self, texts: Iterable[str], shown: Callable[[str], str] = str) -> list[int]:
        """Return the positions of texts in the table, as converted by `shown`; adds new ones."""
        # Columns have many repeats: each distinct text is converted once, and repeats run in C.
        given = list(texts)
        known = self._places
        found = {text: known.setdefault(shown(text), len(known)) for text in dict.fromkeys(given)}
        return list(map(found.__getitem__, given))

    def as_list(self) -> list[str]:
        return list(self._places)


class Tensors:
    """A table of distinct tensors: name, dtype, dims and format."""

    def __init__(self) -> None:
        self._places: dict[tuple[str, str, tuple[int, ...], str], int] = {}

    def places(self, tensors: Iterable[TensorInfo]) -> list[int]:
        """Return the positions of tensors in the table; adds new ones."""
        known = self._places
        return [known.setdefault((one.name, one.dtype, one.shape, one.format), len(known)) for one in tensors]

    def as_columns(self, texts: Texts) -> TensorColumns:
        """Return the tensors' fields as positions in a table of texts; names as differences."""
        names, dtypes, shapes, formats = zip(*self._places, strict=True) if self._places else ((), (), (), ())
        columns: TensorColumns = {
            "name": steps(texts.places(names, visible_name)),
            "dtype": texts.places(dtypes, visible_name),
            "dims": texts.places(map(shape_text, shapes)),
        }
        if any(formats):
            columns["format"] = texts.places(formats, visible_name)
        return columns


def steps(values: Sequence[int]) -> list[int]:
    """Return the difference of each value to the one before, the first to 0. Positions mostly increase by one, which
    compresses well.
    """
    return [value - before for value, before in zip(values, [0, *values], strict=False)]
