"""The subjects of rules, a measured profile or an engine that was not run, and what rules return.

Medians are computed once, and shares refer to one common total."""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from inspect import isgeneratorfunction
from types import ModuleType
from typing import Literal, TypeAlias

from pydantic import JsonValue

from ndld_flow.base.quantities import count, counted, milliseconds, share
from ndld_flow.base.text import first_of, one_line
from ndld_flow.profiles.diagnose.published_peaks import LayerPeaks
from ndld_flow.records.build import Build, ShapeRange
from ndld_flow.records.layer_arithmetic import multiplies_matrices
from ndld_flow.records.profile import Layer, Profile, ProfileRun
from ndld_flow.records.run_record import RunRecord


@dataclass(frozen=True)
class AddedStep:
    """A step to insert before the one that profiled, between it and the model that it reads."""

    step: str
    """Type of the step."""
    settings: dict[str, JsonValue] = field(default_factory=dict)


@dataclass(frozen=True)
class RecipeChange:
    """Settings of the step that profiled, and steps to insert before it."""

    settings: dict[str, JsonValue] = field(default_factory=dict)
    steps: tuple[AddedStep, ...] = ()
    """In the order in which they run."""
    needs_check: bool = False
    """True if outputs may change noticeably: `check_accuracy` is inserted after the steps."""

    @property
    def text(self) -> str:
        """The change in words, with code in backticks: ```set `threads: 2` ```."""
        parts = [f"insert `{_yaml({each.step: each.settings})}`" for each in self.steps]
        if self.needs_check:
            parts.append("insert `check_accuracy`")
        parts += [f"set `{_yaml({name: value})}`" for name, value in self.settings.items()]
        return ", ".join(parts)


FUSE = RecipeChange(steps=(AddedStep("sanitize", {"fuse": True}),))
"""Simplify the model and fold what can be folded."""


def _yaml(value: Mapping[str, JsonValue]) -> str:
    """Return a mapping with one key as in a recipe: `sanitize: {fuse: true}`."""
    ((name, inner),) = value.items()
    if isinstance(inner, dict):
        return f"{name}: {{{', '.join(_yaml({key: each}) for key, each in inner.items())}}}"
    return f"{name}: {inner if isinstance(inner, str) else json.dumps(inner)}"


def model_chain(run: RunRecord, step: str) -> tuple[str, ...]:
    """Return the names of the steps from the first that changed the model of a step to that step, which is the last."""
    records = {each.name: each.record for each in run.steps}
    chain: list[str] = []
    while (record := records.get(step)) is not None and step not in chain:
        chain.append(step)
        step = record.parents.get("from", "")
    return tuple(reversed(chain))


def is_applied(change: RecipeChange, run: RunRecord, step: str) -> bool:
    """Return whether a run has a change already: following the advice would repeat its work."""
    recipe = run.recipe.get("steps")
    steps = recipe if isinstance(recipe, dict) else {}
    *before, last = (steps.get(name) for name in model_chain(run, step) or ("",))
    types = {each.name: each.step for each in run.steps}
    ran = list(zip(map(types.get, model_chain(run, step)), before, strict=False))
    return _has(last, change.settings) and all(
        any(kind == added.step and _has(settings, added.settings) for kind, settings in ran) for added in change.steps
    )


def _has(settings: JsonValue, wanted: Mapping[str, JsonValue]) -> bool:
    """Return whether settings contain all wanted values."""
    return isinstance(settings, dict) and all(name in settings and settings[name] == wanted[name] for name in wanted)


_SCATTERED = 0.1
"""Maximum part of the latency lost to interruptions; above it, shares are of the layers' time."""

_TOO_LONG = 2
"""Layers that add up to more than this many times a pass ran concurrently, or in another measurement."""
_MOSTLY_WORK = 4
"""A layer that waits for the device is placed under the roofs if it takes this many times the longest wait."""


class LayersSubject:
    """The layers of a profile, and the tensors between them."""

    def __init__(self, profile: Profile) -> None:
        self.profile = profile
        self.layers = profile.layers

    @cached_property
    def makers(self) -> dict[str, int]:
        """Tensor -> position of the layer that writes it."""
        return {
            tensor.name: index for index, layer in enumerate(self.layers) for tensor in layer.outputs if tensor.name
        }

    @cached_property
    def readers(self) -> dict[str, tuple[int, ...]]:
        """Tensor -> positions of the layers that read it."""
        readers: dict[str, list[int]] = {}
        for index, layer in enumerate(self.layers):
            for tensor in layer.inputs:
                if tensor.name:
                    readers.setdefault(tensor.name, []).append(index)
        return {name: tuple(places) for name, places in readers.items()}

    @cached_property
    def ends(self) -> frozenset[str]:
        """The names of the inputs and outputs of the whole model."""
        return frozenset(tensor.name for tensor in (*self.profile.inputs, *self.profile.outputs) if tensor.name)

    def is_at_end(self, position: int) -> bool:
        """Return whether a layer reads an input or writes an output of the whole model."""
        layer = self.layers[position]
        return any(tensor.name in self.ends for tensor in (*layer.inputs, *layer.outputs))

    def call(self, position: int) -> str:
        """Return a layer's name for a sentence, `Conv conv_1`, on one line and shortened."""
        layer = self.layers[position]
        return f"{one_line(layer.type)} {one_line(layer.name)}".strip()

    def call_nodes(self, positions: Sequence[int], most: int = 3) -> str:
        """Return `conv_1, conv_2, conv_3 and 5 more`: the main node of each layer, if nodes are known.

        A QuantizeLinear of its weights may come first in a fused layer's name.
        """
        nodes = [
            next((node for node in layer.onnx_nodes if "quantizelinear" not in node.lower()), layer.name)
            for layer in (self.layers[position] for position in positions)
        ]
        return first_of(list(map(one_line, nodes)), most)

    def call_types(self, positions: Sequence[int]) -> str:
        """Return `41 ReorderInput, 52 ReorderOutput`."""
        types = Counter(one_line(self.layers[index].type) or "untyped" for index in positions).most_common()
        texts = ", ".join(f"{number} {kind}" for kind, number in types[:3])
        return texts + (f" and {len(types) - 3} more types" if len(types) > 3 else "")


class Subject(LayersSubject):
    """Figures of a profile and its layers, computed once for all rules."""

    def __init__(self, profile: Profile) -> None:
        super().__init__(profile.possible())

    @cached_property
    def medians_ms(self) -> tuple[float, ...]:
        """Time of each layer, in the profile's order."""
        return self.profile.layer_times.ms

    @cached_property
    def layers_ms(self) -> float:
        """The time of all layers: the sum of their medians."""
        return math.fsum(self.medians_ms)

    @cached_property
    def latency_ms(self) -> float:
        """Median of the timing pass, otherwise of the layer pass; 0 without either."""
        if self.profile.latency_ms:
            return self.profile.latency.median_ms
        return statistics.median(self.profile.layer_pass_ms) if self.profile.layer_pass_ms else 0.0

    @cached_property
    def pass_layers_ms(self) -> float:
        """Median over passes of the time of the layers of one pass; `layers_ms` if layers have different numbers of
        passes.

        It is larger than `layers_ms` where different layers are slow in each pass.
        """
        samples = [layer.samples_ms for layer in self.layers]
        if len({len(each) for each in samples}) != 1 or not samples[0]:
            return self.layers_ms
        return statistics.median(map(sum, zip(*samples, strict=True)))

    @cached_property
    def layers_part(self) -> float:
        """Part of the latency spent in layers, 0 to 1.

        The layer pass may be slower than the timing pass, so that its layers add up to more than the latency.
        """
        return min(1.0, self.pass_layers_ms / self.latency_ms) if self.latency_ms > 0 else 1.0

    @cached_property
    def layers_per_pass(self) -> float:
        """Ratio of all layers' time to the pass in which they were timed, if it is too large for one after the other; 0
        otherwise."""
        passes = self.profile.layer_pass_ms or self.profile.latency_ms
        if not passes or self.times_are_of_the_host or self.profile.layers_wait_for_device:
            return 0.0
        pass_ms = statistics.median(passes)
        return self.pass_layers_ms / pass_ms if self.pass_layers_ms > _TOO_LONG * pass_ms > 0 else 0.0

    @cached_property
    def on_gpu(self) -> bool:
        """True if another device than the CPU is known to have run the model."""
        return bool(self.profile.runtime.on_gpu)

    @cached_property
    def times_are_of_the_host(self) -> bool:
        """True if layer times are launch times, because the runtime's profiler does not wait for the device."""
        return self.on_gpu and self.profile.runtime.times_layers_on_host and not self.profile.layers_wait_for_device

    @cached_property
    def peaks(self) -> LayerPeaks:
        """The device's peaks, and the shares of them that layers reach."""
        least_ms = _MOSTLY_WORK * self.longest_wait_ms
        are_rates = [not self.times_are_of_the_host and median_ms >= least_ms for median_ms in self.medians_ms]
        return LayerPeaks(self.profile, self.medians_ms, are_rates)

    @cached_property
    def longest_wait_ms(self) -> float:
        """Upper bound of the time in each layer that launching it and waiting for the device takes: the time of the
        shortest layer; 0 if layers do not wait.
        """
        timed = [median_ms for median_ms in self.medians_ms if median_ms > 0]
        return min(timed, default=0.0) if self.profile.layers_wait_for_device else 0.0

    @property
    def is_timed(self) -> bool:
        return True

    @cached_property
    def _ranks(self) -> dict[int, int]:
        """Position -> rank by duration, the longest first; rules sort by it repeatedly."""
        ordered = sorted(range(len(self.layers)), key=self.medians_ms.__getitem__, reverse=True)
        return {position: rank for rank, position in enumerate(ordered)}

    def where(self, matches: Callable[[Layer], bool]) -> tuple[int, ...]:
        """Return the positions of the layers that match, the longest first."""
        return self.longest_first(position for position, layer in enumerate(self.layers) if matches(layer))

    @property
    def listed(self) -> tuple[int, ...]:
        """Return the layers to list, the longest first: all, or only those that compute if the step asks for it."""
        if self.profile.options.get("hide_non_compute") is not True:
            return self.longest_first(range(len(self.layers)))
        return self.where(lambda layer: layer.role in ("compute", "control"))

    def longest_first(self, positions: Iterable[int]) -> tuple[int, ...]:
        return tuple(sorted(positions, key=self._ranks.__getitem__))

    def sum_ms(self, positions: Iterable[int]) -> float:
        """Return the sum of the medians of these layers."""
        return sum(self.medians_ms[position] for position in positions)

    @cached_property
    def scattered_part(self) -> float:
        """Part of the latency that is in layers in each pass but not in their medians, 0 to 1.

        Different layers are slow in each pass because passes are interrupted.
        """
        if self.latency_ms <= 0:
            return 0.0
        return max(0.0, min(self.latency_ms, self.pass_layers_ms) - self.layers_ms) / self.latency_ms

    @cached_property
    def whole_ms(self) -> float:
        """The total that shares refer to: the latency, or the medians of all layers if those explain little of it.

        This is the case if layers take longer than the latency because of the profiler, or if passes were interrupted.
        """
        return self.layers_ms if self.scattered_part >= _SCATTERED else max(self.latency_ms, self.layers_ms)

    @property
    def whole(self) -> str:
        """Name of `whole_ms` in a sentence."""
        return "the latency" if math.isclose(self.whole_ms, self.latency_ms) else "the layers' time"

    def share(self, positions: Iterable[int]) -> float:
        """Return the medians of these layers as a part of `whole_ms`, 0 to 1."""
        return self.sum_ms(positions) / self.whole_ms if self.whole_ms else 0.0

    def took(self, positions: Sequence[int]) -> str:
        """Return `8.4 ms of 67 ms in all layers`."""
        return f"{milliseconds(self.sum_ms(positions))} of {milliseconds(self.layers_ms)} in all layers"

    def took_part(self, positions: Sequence[int]) -> str:
        """Return `8.4 ms of 67 ms in all layers (12 % of the latency)`."""
        return f"{self.took(positions)} ({share(self.share(positions))} of {self.whole})"

    @property
    def copies_ms(self) -> float:
        """Time of copies between host and device, in the pass or next to it; 0 if not recorded."""
        return sum(self.lane_ms(lane) or 0.0 for lane in (lambda run: run.h2d_ms, lambda run: run.d2h_ms))

    @property
    def latency_has_copies(self) -> bool:
        """True if the latency includes copies, as trtexec's does; other measurements keep data on the device by
        default.
        """
        return self.profile.runs_engine and self.profile.options.get("transfers") is not False

    @property
    def latency_with_copies_ms(self) -> float:
        return self.latency_ms + (0.0 if self.latency_has_copies else self.copies_ms)

    def lane_ms(self, samples_of: Callable[[ProfileRun], Sequence[float]]) -> float | None:
        """Return the median over process runs of their medians of a lane such as `run.h2d_ms`; None if not recorded."""
        medians = [statistics.median(samples) for run in self.profile.runs if (samples := samples_of(run))]
        return statistics.median(medians) if medians else None


def changes_type(layer: Layer) -> bool:
    """Return True for a layer that reads one element type and writes another."""
    read, written = (side[0].dtype if side else "" for side in (layer.inputs, layer.outputs))
    return bool(read and written) and read != written


BoundWord = Literal[
    "compute",
    "memory bandwidth",
    "dispatch overhead",
    "host enqueue",
    "transfers",
    "reformatting",
    "one layer",
    "unknown",
]


@dataclass(frozen=True)
class Bound:
    """The bottleneck of a profile."""

    word: BoundWord
    evidence: str
    """The numbers behind it, in a sentence."""


@dataclass(frozen=True)
class Insight:
    """One finding, with a suggestion."""

    score: float = field(default=0.0, kw_only=True)
    """Estimated saving as a share, 0 to 1, of the latency, or of the layers' time if that is longer; 0 for a note."""
    title: str
    evidence: str
    """The numbers behind it, in a sentence or two."""
    next_step: str
    """The suggested change, in one or two sentences."""
    layers: tuple[int, ...] = ()
    """Positions in `Profile.layers`, the longest first."""
    name: str = ""
    """Name of its rule, which `ndld-flow apply` takes."""
    change: RecipeChange | None = None
    """The suggestion as a change of the recipe; None if it is not one that a program can write."""


class EngineSubject(LayersSubject):
    """An engine's layers, as a profile without times, and its build if known."""

    def __init__(self, profile: Profile, build: Build | None) -> None:
        super().__init__(profile)
        self.build = build

    @property
    def is_timed(self) -> bool:
        return False

    @property
    def on_gpu(self) -> bool:
        return True

    def longest_first(self, positions: Iterable[int]) -> tuple[int, ...]:
        """Return the positions in execution order, as nothing was timed."""
        return tuple(sorted(positions))

    @property
    def whole(self) -> str:
        return "the layers' time"

    def share(self, positions: Iterable[int]) -> float:
        """Return 0, as nothing was timed."""
        return 0.0

    def took(self, positions: Sequence[int]) -> str:
        """Return `3 of 21 layers`."""
        return f"{count(len(positions))} of {counted(len(self.layers), 'layer')}"

    @cached_property
    def computing(self) -> tuple[int, ...]:
        """Positions of the layers that compute in floating point."""
        return self.where(lambda layer: layer.role == "compute" and "float" in layer.precision)

    @cached_property
    def is_strongly_typed(self) -> bool:
        """True if the build records a strongly typed network."""
        return self.build is not None and self.build.is_strongly_typed

    def option(self, name: str) -> JsonValue:
        """Return a setting of the build; None if there is none."""
        return self.build.options.get(name) if self.build is not None else None

    def ranges(self) -> list[tuple[int, str, ShapeRange]]:
        """Return (profile number, input, shapes) of all inputs of all optimization profiles, without shape tensors."""
        profiles = self.build.profiles if self.build is not None else ()
        return [
            (number, name, shapes)
            for number, profile in enumerate(profiles)
            for name, shapes in profile.inputs.items()
            if not shapes.values
        ]

    def where(self, matches: Callable[[Layer], bool]) -> tuple[int, ...]:
        """Return the positions of the layers that match, in execution order."""
        return tuple(index for index, layer in enumerate(self.layers) if matches(layer))


def missed_precisions(profile: Profile, build: Build | None = None) -> tuple[int, ...]:
    """Return the positions of the layers that certainly compute in another floating-point type than requested.

    The output type of an engine's layer is no proof if the layer has several nodes: engines fuse Casts into layers.
    ONNX Runtime's layers, which name a provider, have no fused Casts.
    """
    ignored = ignored_nodes(build)
    strongly_typed = build is not None and build.is_strongly_typed

    def is_sure(layer: Layer) -> bool:
        if not ignored.isdisjoint(layer.onnx_nodes):
            return True
        return bool(layer.provider) or (len(layer.onnx_nodes) == 1 and not strongly_typed)

    return tuple(
        index
        for index, layer in enumerate(profile.layers)
        if layer.role == "compute" and layer.misses_requested_precision and is_sure(layer)
    )


def ignored_nodes(build: Build | None) -> frozenset[str]:
    """Return the ONNX nodes whose constraints the build ignored."""
    constraints = () if build is None else build.constraints
    return frozenset(constraint.node for constraint in constraints if constraint.is_ignored)


LintSubject: TypeAlias = Subject | EngineSubject
"""A measured profile, or an engine that was not run."""


def is_product(layer: Layer) -> bool:
    """Return True for a convolution or a matrix product of an engine."""
    return not layer.provider and layer.role == "compute" and multiplies_matrices(layer.type, layer.name)


def rules_in(*modules: ModuleType) -> tuple[Callable[..., Iterator[Insight]], ...]:
    """Return the rules of modules, which are their public functions that yield findings, in the order of definition."""
    return tuple(
        member
        for module in modules
        for name, member in vars(module).items()
        if isgeneratorfunction(member) and member.__module__ == module.__name__ and not name.startswith("_")
    )
