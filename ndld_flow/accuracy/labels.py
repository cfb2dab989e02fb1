"""What is right for each sample: a labelled set, read and matched to the samples by name."""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import numpy as np

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import short_name
from ndld_flow.records.read_document import stat_file
from ndld_flow.samples.value_files import NO_HEADER

Label = object
"""A text or number of a table, any value of a JSON object, a number or an array of a `.npy` file."""
_NAMED = 3
_WHOLE = re.compile(r"-?(0|[1-9]\d{0,17})")
_DECIMAL = re.compile(r"-?\d+\.\d*(e[+-]?\d+)?")
_HEADER = ["file", "label"]


@dataclass(frozen=True)
class Labels:
    """Labels as a file has them."""

    path: Path
    named: Mapping[str, Label] | None
    """Sample's name -> label; None where the file names no samples."""
    ordered: Sequence[Label] = ()
    """One for each sample, in their order, where they are not named."""

    def match(self, samples: Sequence[str], *, spare: bool) -> list[Label]:
        """The label of each sample.

        A label's name means the sample of that name, or the one whose path ends with it, or that it ends with. With
        `spare` there may be labels without a sample. Raises `RequestError` that names what does not match, on both
        sides.
        """
        if self.named is None:
            return self._in_order(samples, spare)
        found, wrong = _match_names(self.named, list(dict.fromkeys(samples)))
        used = set(found.values())
        left = [name for name in self.named if name not in used]
        if left and not spare:
            wrong.append(_told(left, "label has no sample", "labels have no sample"))
        if wrong:
            raise RequestError(f"{self.path} does not match the samples: {'; '.join(wrong)}.")
        return [self.named[found[sample]] for sample in samples]

    def _in_order(self, samples: Sequence[str], spare: bool) -> list[Label]:
        count = len(self.ordered)
        if count < len(samples) or (count > len(samples) and not spare):
            raise RequestError(
                f"{self.path} does not match the samples: it has {count} labels, and there are {len(samples)} samples."
            )
        return list(self.ordered[: len(samples)])


def read_labels(path: Path) -> Labels:
    """Labels of a `.csv` (`file,label`), a `.json` object (name -> label) or a `.npy` (one label a row).

    Raises `RequestError` for a file that cannot be read, with everything that is wrong in it.
    """
    read = {".csv": _read_csv, ".json": _read_json, ".npy": _read_npy}.get(path.suffix.lower())
    if read is None:
        raise RequestError(f"{path}: labels are a .csv with the columns file and label, a .json object, or a .npy.")
    try:
        stat_file(path)
        return read(path)
    except OSError as error:
        raise RequestError(f"{path}: the labels cannot be read ({error.strerror or error}).") from None
    except (*NO_HEADER, csv.Error, MemoryError) as error:
        told = short_name(" ".join(str(error).split()), 300)
        raise RequestError(f"{path}: the labels cannot be read: {told}.") from None


def _read_csv(path: Path) -> Labels:
    rows = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline=""), strict=True))
    if not rows or [cell.strip() for cell in rows[0]] != _HEADER:
        raise ValueError("its first line is not `file,label`")
    pairs = []
    odd = []
    for line, row in enumerate(rows[1:], 2):
        if len(row) == len(_HEADER):
            pairs.append((row[0].strip(), _plain_value(row[1].strip())))
        elif row:
            odd.append(str(line))
    if odd:
        raise ValueError(_told(odd, "row has not two columns", "rows have not two columns", counted="row"))
    return _named(path, pairs)


def _read_json(path: Path) -> Labels:
    found = json.loads(path.read_bytes(), object_pairs_hook=_Pairs)
    if not isinstance(found, _Pairs):
        raise ValueError('it is no object of file names and labels, such as {"cat.png": 3}')
    return _named(path, [(name, _unpaired(value)) for name, value in found])


def _read_npy(path: Path) -> Labels:
    values = np.load(path, allow_pickle=False)
    if not isinstance(values, np.ndarray) or values.ndim == 0:
        raise ValueError("it is no array with one label a row")
    return Labels(path, None, list(values))


def _named(path: Path, pairs: Sequence[tuple[str, Label]]) -> Labels:
    twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    if twice:
        raise ValueError(_told(twice, "file is labelled twice", "files are labelled twice"))
    if not pairs:
        raise ValueError("there is none in it")
    return Labels(path, dict(pairs))


class _Pairs(list[tuple[str, object]]):
    """A JSON object, its keys as often as they stand there."""


def _unpaired(value: object) -> object:
    if isinstance(value, _Pairs):
        return {name: _unpaired(inner) for name, inner in value}
    return [_unpaired(inner) for inner in value] if isinstance(value, list) else value


def _plain_value(text: str) -> Label:
    """`3` -> 3, `0.5` -> 0.5; `007` and everything else stay texts."""
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _DECIMAL.fullmatch(text) else text


def _match_names(names: Collection[str], samples: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    """Sample -> the label's name, and sentences about samples without one or with several."""
    by_file: dict[str, list[str]] = {}
    for name in names:
        by_file.setdefault(_parts(name)[-1], []).append(name)
    found: dict[str, str] = {}
    without: list[str] = []
    several: list[str] = []
    for sample in samples:
        alike = by_file.get(_parts(sample)[-1], [])
        fitting = [sample] if sample in names else [name for name in alike if _ends_alike(name, sample)]
        if len(fitting) == 1:
            found[sample] = fitting[0]
        else:
            (several if fitting else without).append(sample)
    wrong = [_told(without, "sample has no label", "samples have no label")] if without else []
    if several:
        wrong.append(_told(several, "sample fits several labels", "samples fit several labels"))
    shared = [name for name, count in Counter(found.values()).items() if count > 1]
    if shared:
        wrong.append(_told(shared, "label fits several samples", "labels fit several samples"))
    return found, wrong


def _parts(name: str) -> tuple[str, ...]:
    return PurePosixPath(name.replace("\\", "/")).parts or (name,)


def _ends_alike(name: str, sample: str) -> bool:
    one, other = _parts(name), _parts(sample)
    shorter = min(len(one), len(other))
    return one[-shorter:] == other[-shorter:]


def _told(names: Iterable[str], one: str, several: str, counted: str = "") -> str:
    """`3 samples have no label (a.png, b.png, c.png)`."""
    listed = list(names)
    shown = ", ".join(f"{counted} {short_name(name)}".strip() for name in listed[:_NAMED])
    more = f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else ""
    return f"{len(listed)} {one if len(listed) == 1 else several} ({shown}{more})"
