"""Profiles of a page: titles, circumstances of a latency (inputs, batch, precision, device), several side by side."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import median
from typing import TypeVar

from pydantic import JsonValue

from ndld_flow.base.quantities import TIMES, counted, milliseconds, share, size, three_digits
from ndld_flow.base.text import first_of, short_name, value_text
from ndld_flow.profiles.diagnose.subject import Subject
from ndld_flow.records.measurement import Machine, percentile
from ndld_flow.records.profile import Layer, Profile, TensorInfo


@dataclass(frozen=True)
class Fact:
    """A name with a value, such as a setting in force; `facts` in `macros.html.j2` draws a table of them."""

    name: str
    value: str
    given: bool = True
    """False for a setting that the recipe does not set, or whose value is null or empty."""


@dataclass(frozen=True)
class Figure:
    """One figure of a page's overview; `glance` in `macros.html.j2` draws them."""

    title: str
    figure: str
    note: str
    wordy: bool = False
    tensor: str = ""
    link: str = ""
    """Link to its tensor."""


def facts_of(values: Mapping[str, str]) -> tuple[Fact, ...]:
    """Return the names and texts of a mapping, shortened."""
    return tuple(Fact(short_name(name), short_name(value)) for name, value in values.items())


def machine_settings(machine: Machine) -> tuple[Fact, ...]:
    """Return a machine's description without empty fields."""
    named = {
        "system": machine.system,
        "architecture": machine.architecture,
        "cpu": machine.cpu,
        "cpu count": str(machine.cpu_count or ""),
        "memory": size(machine.memory_bytes) if machine.memory_bytes else "",
        "gpu": ", ".join(machine.gpus),
        "driver": machine.driver,
        "python": machine.python,
    }
    return tuple(Fact(name, short_name(value)) for name, value in named.items() if value)


def settings_of(values: JsonValue, given: JsonValue = None) -> tuple[Fact, ...]:
    """Return the settings of a mapping; empty for other values."""
    if not isinstance(values, Mapping):
        return ()
    named = given if isinstance(given, Mapping) else values
    return tuple(
        Fact(short_name(name), _setting_text(value, named.get(name)), name in named and value not in (None, [], {}))
        for name, value in values.items()
        if name != "step"
    )


def _setting_text(value: JsonValue, given: JsonValue) -> str:
    """Return the value of a setting. A list of mappings, such as operations, has one line per item, without
    defaults."""
    shown = given if isinstance(given, list) else value
    if isinstance(shown, list) and any(isinstance(item, dict) for item in shown):
        texts = [(item, value_text(item)) for item in shown]
        # An operation without settings is shown without braces.
        return "\n".join(
            f"- {text[1:-1] if isinstance(item, dict) and len(item) == 1 else text}" for item, text in texts
        )
    return value_text(value)


@lru_cache(maxsize=4096)
def shape_text(shape: tuple[int, ...]) -> str:
    """Return `1x3x320x?` with multiplication signs and `?` for dynamic dimensions; `scalar` without dimensions."""
    return TIMES.join("?" if dim < 0 else str(dim) for dim in shape) or "scalar"


def tensor_text(tensor: TensorInfo) -> str:
    """Return type and shape, `float32 1x3x320x320`."""
    return f"{short_name(tensor.dtype, 40)} {shape_text(tensor.shape)}".strip()


View = TypeVar("View")
UNKNOWN = "unknown"
"""Displayed for what is not recorded, or has no evidence, such as a multiply unit."""


def profile_titles(profiles: Mapping[str, Profile]) -> dict[str, str]:
    """Return step -> the label of what it profiled; with the step's name where several profiled the same."""
    times = Counter(profile.label for profile in profiles.values())
    return {
        step: short_name(profile.label if times[profile.label] == 1 else f"{profile.label} ({step})")
        for step, profile in profiles.items()
    }


def views_by_profile(profiles: Mapping[str, Profile], view: Callable[[str, Profile], View | None]) -> tuple[View, ...]:
    """Return the views of profiles with layers, by title and profile; those that are None are left out."""
    titles = profile_titles(profiles)
    views = (view(titles[step], profile) for step, profile in profiles.items() if profile.layers)
    return tuple(each for each in views if each is not None)


def quartiles_ms(profile: Profile) -> tuple[float, float]:
    """Return the first and the third quartile of a typical process run, as the profile's latency has its percentiles.

    Those of all passes could be beyond p90, which is a median over runs.
    """
    runs = [run.latency_ms for run in profile.runs if run.latency_ms]
    first, third = (median(percentile(run, percent) for run in runs) if runs else 0.0 for percent in (25, 75))
    return first, third


@lru_cache(maxsize=256)
def short_provider(provider: str) -> str:
    """Shorten `CPUExecutionProvider` to `CPU`."""
    return short_name(provider.removesuffix("ExecutionProvider") or provider, 40)


@dataclass(frozen=True)
class MeasuredView:
    """The circumstances of a profile; those that it does not record are `unknown`."""

    model: str
    inputs: str
    """`x 1x3x320x320 float32`"""
    batch: str
    """Items of one inference."""
    precision: str
    """`float16 92 %, float32 8 %`, of the layers' time."""
    device: str
    latency: str
    """Median of a pass; empty without samples, as are the next two."""
    passes_per_s: str
    items_per_s: str
    """Empty if the batch is unknown."""


def profiler_words(profiles: Sequence[Profile]) -> str:
    """Return a note on whether latencies were measured with a profiler attached."""
    states = {profile.profiler for profile in profiles if profile.latency_ms}
    if len(states) > 1:
        return "some with a profiler attached or not recorded; see how each was measured"
    return {
        "off": "timing pass, no profiler attached",
        "on": "measured with the profiler attached, which slows passes down",
    }.get("".join(states), "not recorded whether a profiler was attached")


def batch_of(profile: Profile) -> int | None:
    """Return the first dimension that all inputs share; None if they differ, or one is dynamic or not recorded."""
    firsts = {tensor.shape[0] for tensor in profile.inputs if tensor.shape}
    return firsts.pop() if len(firsts) == 1 and min(firsts) > 0 else None


def device_of(profile: Profile) -> str:
    """Return the name of the device that ran a profile; empty if it is not recorded."""
    names = profile.machine.gpus if profile.runtime.on_gpu else (profile.machine.cpu,)
    return short_name(", ".join(dict.fromkeys(filter(None, names))), 80)


def measured_inputs(profile: Profile) -> str:
    """Return `x 1x3x320x320 float32`, and the number of inputs beyond two and of other sizes; empty if none is
    recorded.
    """
    inputs = first_of(
        [short_name(f"{each.name} {shape_text(each.shape)} {each.dtype}", 80) for each in profile.inputs], 2
    )
    sizes = max((len(run.new_size_ms) for run in profile.runs), default=0)
    return f"{inputs}, in turn with {counted(sizes, 'other size')}" if sizes else inputs


def describe_measured(profile: Profile) -> MeasuredView:
    """Return what a profile measured."""
    batch, is_timed = batch_of(profile), bool(profile.latency_ms) and profile.latency.median_ms > 0
    # Precisions of the layers by time; by their number without times, such as those of an engine.
    subject, sums = Subject(profile), Counter[str]()
    for layer, median_ms in zip(subject.layers, subject.medians_ms, strict=True):
        sums[short_name(layer.precision, 40) or UNKNOWN] += median_ms if subject.layers_ms else 1  # type: ignore[assignment]
    total = sums.total()
    parts = [f"{name} {share(part / total)}" for name, part in sums.most_common() if part > 0]
    return MeasuredView(
        model=short_name(profile.label, 80),
        inputs=measured_inputs(profile) or UNKNOWN,
        batch=UNKNOWN if batch is None else str(batch),
        precision=sums.most_common(1)[0][0] if len(parts) == 1 else first_of(parts, 2) or UNKNOWN,
        device=device_of(profile) or UNKNOWN,
        latency=milliseconds(profile.latency.median_ms) if is_timed else "",
        passes_per_s=three_digits(profile.throughput_per_s) if is_timed else "",
        items_per_s=three_digits(profile.throughput_per_s * batch) if is_timed and batch is not None else "",
    )


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
