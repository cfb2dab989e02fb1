"""A variant of a model, and the facts from which families choose theirs."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from ndld_flow.base.quantities import counted, parse_duration_ms
from ndld_flow.optimize.goals import Conditions, Objective
from ndld_flow.optimize.options import OptimizeOptions
from ndld_flow.optimize.presets import Preset
from ndld_flow.recipe.sample_files import Samples
from ndld_flow.runtimes.registry import DEFAULT, settings_of

if TYPE_CHECKING:
    from ndld_flow.measure.trial_pass import InputTrial
    from ndld_flow.runtimes.settings import RuntimeSettings

_BUDGETS = ((20.0, 55.0), (100.0, 170.0))
"""Latency in ms, and the default budget in seconds; in between and above in proportion. With what follows after it, it
ends within 60 and 180 s."""
LONGEST_S = 570.0
"""Longest default budget in seconds."""
CLEAN = "{step: sanitize, from: clean}"
"""A step that changes nothing further."""
QUANTIZED, _WHOLLY = 0.5, 0.95
"""Shares of quantized weights from which a model is one in INT8 already, and has nothing left to quantize."""
MADE = "made"
"""The last step of variants that change more than to clean up."""


@dataclass(frozen=True)
class Variant:
    """A variant of the model."""

    name: str
    runtime: str
    """The value of `runtime:`."""
    steps: Mapping[str, str] = field(default_factory=dict)
    """Step -> the text of its settings, where they are not those of the sweep."""
    is_source: bool = False
    costly: bool = False
    """True if its preparation searches or measures: such variants come last, and only if they may still win."""
    unless: tuple[str, ...] = ()
    """For a costly one: variants that make it superfluous by being right."""
    whole: str = ""
    """For a costly one: a variant that quantizes the same layers, or those too that this leaves out for their errors,
    so that this is no faster."""
    needs: str = ""
    """A variant without which this is not tried, by default the source in a runtime that is not the first: one that
    failed, or that turned out to be the same model as another."""
    extends: str = ""
    """A variant that quantizes a part of what this one does, not coarser: if that is not right, this is not."""
    speed: str = ""
    """Further settings of the measurement, `, hint: throughput`, which are the variant's own."""

    @property
    def result(self) -> str:
        """Return the step whose model is measured."""
        return "source" if self.is_source else MADE if MADE in self.steps else "clean"


@dataclass(frozen=True)
class Subject:
    """The model and what is asked of it, for one runtime."""

    model: Path
    options: OptimizeOptions
    conditions: Conditions
    objectives: tuple[Objective, ...]
    preset: Preset
    samples: Samples
    runtime: str
    """The runtime that runs or builds the model: `onnxruntime`, `openvino`, or that of engines."""
    trial: InputTrial
    """The inputs with the shapes that are measured, and the time of one of the first passes."""
    shares: Mapping[str, float] = field(default_factory=dict)
    """Operator of ONNX -> its share of the time that the source's kernels take; empty where that is unknown."""
    threads: int = 0
    """The number of threads on which the model runs; 0 leaves it to the target and the runtime."""

    @property
    def label(self) -> str:
        """Return the end of the name of variants: ` in OpenVINO on 2 threads`, as far as several are tried."""
        runtime = f" in {self.traits.title}" if self.runtime != DEFAULT and len(self.preset.runtimes) > 1 else ""
        several = self.threads and len(self.options.threads) > 1
        return f"{runtime} on {counted(self.threads, 'thread')}" if several else runtime

    def runtime_with(self, *own: str) -> str:
        """Return the value of `runtime:` for the target, the number of threads, and further settings."""
        given = {**self.preset.speed, **({"threads": self.threads} if self.threads else {})}
        settings = [f"backend: {self.runtime}", *(f"{key}: {json.dumps(value)}" for key, value in given.items()), *own]
        return f"{{{', '.join(settings)}}}" if len(settings) > 1 else self.runtime

    @cached_property
    def traits(self) -> type[RuntimeSettings]:
        """Return the settings class of what runs the model, an engine's if one is built: its constants are traits."""
        found = settings_of(str(self.preset.engine.get("backend", self.runtime)))
        assert found is not None  # the preset was checked
        return found

    @property
    def own_precision(self) -> str:
        """Return the value of `runtime:` with the precision that the runtime chooses; empty if it chooses none."""
        return self.runtime_with(self.traits.own_precision) if self.traits.own_precision else ""

    def quantize(self, read: str = "clean") -> str:
        """Return the beginning of a `quantize` step. A race finds out that a model stayed as it was."""
        return f"step: quantize, from: {read}{', allow_empty: true' if self.races else ''}"

    @property
    def quantize_target(self) -> str:
        """Return the setting `target` of `quantize` for what runs the model, with a comma before it, or nothing."""
        name = self.traits.quantize_target
        return f", target: {name}" if name else ""

    def limit_ms(self, share: float, usual_ms: float) -> float:
        """Return the time that one variant's preparation may take: a share of the budget; `usual_ms` without one."""
        return self.budget_s * 1e3 * share if self.budget_s is not None else usual_ms

    @property
    def races(self) -> bool:
        """Return whether variants race in one process: for the latency on this machine's CPU."""
        preset = self.preset
        limited = preset.limits.operators or preset.limits.model is not None
        latency = [each.name for each in self.objectives] == ["latency"]
        return latency and not preset.engine and not preset.remote and not limited

    @property
    def budget_s(self) -> float | None:
        """Return the time for everything in seconds: as given, or by the latency of the model; None for no limit."""
        if self.options.budget:
            return parse_duration_ms(self.options.budget) / 1e3
        if not self.races:
            return None
        (quick_ms, quick_s), (slow_ms, slow_s) = _BUDGETS
        share = max(0.0, self.trial.pass_ms - quick_ms) / (slow_ms - quick_ms)
        return min(quick_s + share * (slow_s - quick_s), LONGEST_S)

    @property
    def batched(self) -> bool:
        """Return whether the first dimension of every input is dynamic."""
        return all(likely.spec.shape and not isinstance(likely.spec.shape[0], int) for likely in self.trial.inputs)

    def aims_at(self, objective: str) -> bool:
        """Return whether an objective is one of those that are asked for."""
        return any(each.name == objective for each in self.objectives)

    def allows(self, *operators: str) -> bool:
        """Return whether the target runs all of these operators."""
        known = self.preset.limits.operators
        return not known or set(operators) <= set(known)

    def time_in(self, *operators: str) -> float | None:
        """Return these operators' share of the source's time; None where it is unknown."""
        return sum(self.shares.get(name, 0.0) for name in operators) if self.shares else None

    def pays_in(self, time: float, *operators: str, weights: float = 0.5) -> bool:
        """Return whether these operators take more than this share of the time; where that is unknown, and for the
        size, whether they have this share of the weights.
        """
        share = self.time_in(*operators)
        by_weights = share is None or self.aims_at("size")
        return (share is not None and share > time) or (by_weights and self.share_of(*operators) >= weights)

    @property
    def runs_in_onnxruntime(self) -> bool:
        """Return whether ONNX Runtime runs the model, and no engine is built of it."""
        return self.runtime == DEFAULT and not self.preset.engine

    @cached_property
    def operators(self) -> frozenset[str]:
        """Return the operators of the model, those in bodies and functions too."""
        from ndld_flow.models.node_weights import operators_of

        return operators_of(self.model)

    @cached_property
    def has_groups(self) -> bool:
        """Return whether the model has convolutions in groups, such as depthwise ones."""
        from ndld_flow.models.node_weights import has_grouped_convolutions

        return has_grouped_convolutions(self.model)

    @cached_property
    def has_weights_as_inputs(self) -> bool:
        """Return whether the model lists weights as inputs, as old exporters do: as such they are no constants."""
        from ndld_flow.recipe.write_recipe import has_weights_as_inputs

        return has_weights_as_inputs(self.model)

    @cached_property
    def quantized_share(self) -> float:
        """Return the share of the weights that are quantized already."""
        from ndld_flow.models.node_weights import quantized_share

        return quantized_share(self.model)

    @property
    def is_quantized(self) -> bool:
        """Return whether nothing is left to quantize: layers take time, and are in INT8 already."""
        return self.quantized_share >= _WHOLLY

    @cached_property
    def weights(self) -> Mapping[str, int]:
        """Return the bytes of the weights of each operator."""
        from ndld_flow.models.node_weights import weight_bytes_by_operator

        return weight_bytes_by_operator(self.model)

    def share_of(self, *operators: str) -> float:
        """Return these operators' share of the weights. Embedding tables, which Gather reads, do not count."""
        layers = sum(self.weights.values()) - self.weights.get("Gather", 0)
        return sum(self.weights.get(name, 0) for name in operators) / max(layers, 1)
