"""Several profiles side by side: the time of their layers by type and by precision as stacked bars, and throughput."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from ndld_flow.base.quantities import milliseconds, share
from ndld_flow.base.text import short_name
from ndld_flow.profiles.diagnose.subject import Subject
from ndld_flow.records.profile import Layer, Profile
from ndld_flow.report.measured import MeasuredView, batch_of, describe_measured, device_of

_SERIES = 9
"""Number of colours; further parts share the colour of the rest."""
_REST = "others"


@dataclass(frozen=True)
class StackPart:
    """One part of a bar."""

    name: str
    time: str
    share: str
    """Share of its bar."""
    width: float
    """Percent of the longest bar."""
    series: int
    """Number of its colour; -1 for the rest."""


@dataclass(frozen=True)
class StackRow:
    """One profile."""

    label: str
    measured: MeasuredView
    total: str
    """Sum of the layers; empty without times."""
    by_type: tuple[StackPart, ...]
    by_precision: tuple[StackPart, ...]


@dataclass(frozen=True)
class StacksView:
    """Profiles side by side."""

    rows: tuple[StackRow, ...]
    types: tuple[tuple[str, int], ...]
    """(name, number of its colour), the key of the bars."""
    precisions: tuple[tuple[str, int], ...]
    basis: str
    """The unit of all times: `of one item` or `of one pass`."""
    notes: tuple[str, ...]
    """Reasons why the bars are not comparable as they are."""


def collect_stacks(profiles: Sequence[tuple[str, Profile]]) -> StacksView | None:
    """Return labelled profiles side by side; None for fewer than two with times.

    Times are divided by the batch if batches differ and all are known: bars of one item next to bars of one pass would
    mislead.
    """
    timed = [
        (label, profile, Subject(profile))
        for label, profile in profiles
        if profile.runs or any(layer.samples_ms for layer in profile.layers)
    ]
    if len(timed) < 2:
        return None
    batches = [batch_of(profile) for _, profile, _ in timed]
    known = [batch for batch in batches if batch is not None]
    by_item = len(known) == len(batches) and len(set(known)) > 1
    divisors = known if by_item else [1] * len(batches)
    subjects = [subject for _, _, subject in timed]
    types = _Parts(subjects, lambda layer: short_name(layer.type, 40) or "(no type)")
    precisions = _Parts(subjects, lambda layer: short_name(layer.precision, 40) or "unknown")
    longest = max((subject.layers_ms / by for subject, by in zip(subjects, divisors, strict=True)), default=0.0)
    return StacksView(
        rows=tuple(
            StackRow(
                label=short_name(label, 80),
                measured=describe_measured(profile),
                total=milliseconds(subject.layers_ms / by) if subject.layers_ms else "",
                by_type=types.of(subject, by, longest),
                by_precision=precisions.of(subject, by, longest),
            )
            for (label, profile, subject), by in zip(timed, divisors, strict=True)
        ),
        types=types.keys,
        precisions=precisions.keys,
        basis="of one item" if by_item else "of one pass",
        notes=tuple(_notes([profile for _, profile, _ in timed], batches, subjects)),
    )


class _Parts:
    """The parts into which layers are divided, with one colour for each over all profiles."""

    def __init__(self, subjects: Sequence[Subject], name_of: Callable[[Layer], str]) -> None:
        self._name_of = name_of
        totals: Counter[str] = Counter()
        for subject in subjects:
            # Shares, so that a slow profile does not decide the colours of all.
            for name, sum_ms in self._sums(subject).items():
                totals[name] += sum_ms / (subject.layers_ms or 1.0)  # type: ignore[assignment]
        ordered = [name for name, part in totals.most_common() if part > 0]
        self._series = {name: index if index < _SERIES else -1 for index, name in enumerate(ordered)}

    @property
    def keys(self) -> tuple[tuple[str, int], ...]:
        """The parts with colours of their own, then the rest."""
        own = tuple((name, series) for name, series in self._series.items() if series >= 0)
        return (*own, (_REST, -1)) if len(own) < len(self._series) else own

    def of(self, subject: Subject, divisor: float, longest: float) -> tuple[StackPart, ...]:
        """Return the parts of one bar, in the order of the key."""
        sums: Counter[tuple[str, int]] = Counter()
        for name, sum_ms in self._sums(subject).items():
            series = self._series.get(name, -1)
            sums[name if series >= 0 else _REST, series] += sum_ms
        return tuple(
            StackPart(
                name=name,
                time=milliseconds(sum_ms / divisor),
                share=share(sum_ms / subject.layers_ms),
                width=100 * sum_ms / divisor / longest,
                series=series,
            )
            for (name, series) in self.keys
            if (sum_ms := sums[name, series]) > 0
        )

    def _sums(self, subject: Subject) -> Counter[str]:
        sums: Counter[str] = Counter()
        for layer, median_ms in zip(subject.layers, subject.medians_ms, strict=True):
            sums[self._name_of(layer)] += median_ms  # type: ignore[assignment]
        return sums


def _notes(profiles: Sequence[Profile], batches: Sequence[int | None], subjects: Sequence[Subject]) -> Iterator[str]:
    devices = dict.fromkeys(map(device_of, profiles))
    if "" in devices:
        yield "The device of some profiles is not recorded, so it may differ."
    if len(names := [name for name in devices if name]) > 1:
        yield f"The profiles ran on different devices ({'; '.join(names)}): bars show both the device and the model."
    if None in batches:
        yield "The batch size of some profiles is unknown, so times are those of a pass, and not comparable per item."
    if len({profile.backend for profile in profiles}) > 1:
        yield "Different runtimes time layers in different ways; compare latencies and throughput first."
    if any(subject.times_are_of_the_host for subject in subjects):
        yield "Some layer times are those of the host, which does not wait for the device."
