"""Labels of samples, no longer than tells them apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ndld_flow.records.activations import SampleShown

_JOINT = ", "
"""Between the labels of inputs that have one each."""


def with_short_labels(samples: Sequence[SampleShown]) -> Iterator[SampleShown]:
    """The same samples, each part of their labels that is a path cut to as few of its last parts as tell it apart.

    Files of folders that are far from each other are labelled by nearly their whole paths.
    """
    rows = [sample.label.split(_JOINT) for sample in samples]
    columns = [_endings(column) for column in zip(*rows, strict=True)] if len(set(map(len, rows))) == 1 else []
    labels = map(_JOINT.join, zip(*columns, strict=True)) if columns else (sample.label for sample in samples)
    for sample, label in zip(samples, labels, strict=True):
        yield sample.model_copy(update={"label": label})


def _endings(paths: Sequence[str]) -> list[str]:
    """Of all paths equally many parts; equal ones stay equal."""
    wanted = len(set(paths))
    most = max(path.count("/") for path in paths) + 1
    cut = ([_last(path, parts) for path in paths] for parts in range(1, most + 1))
    return next(endings for endings in cut if len(set(endings)) == wanted)


def _last(path: str, parts: int) -> str:
    return "/".join(path.split("/")[-parts:])
