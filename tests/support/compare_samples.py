"""Small profiles for comparisons, made by hand."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from ndld_flow.profiles.compare.comparison import compare_profiles
from ndld_flow.profiles.compare.measured import Measured, Rules
from ndld_flow.records.comparison import MetricVerdict, ProfileComparison
from ndld_flow.records.measurement import Machine
from ndld_flow.records.profile import Layer, LayerRole, Profile, ProfileRun, TensorInfo
from tests.support.runtime_traits import with_traits

MACHINE = Machine(system="Linux 6.12", architecture="x86_64", cpu="CPU A", cpu_count=2, memory_bytes=4 << 30)


_DIGESTS = itertools.count()
"""Each profile is of a model of its own: what one model measures twice is noise."""


def profile_of(runs: Sequence[Sequence[float]], layers: Sequence[Layer] = (), **fields: Any) -> Profile:
    """Return a profile of process runs with these samples, by default in one session, with all fields recorded."""
    given: dict[str, Any] = {
        "label": "speed",
        "model_digest": f"blake3:{next(_DIGESTS):012x}",
        "backend": "onnxruntime",
        "providers": ("CPUExecutionProvider",),
        "machine": MACHINE,
        "versions": {"onnxruntime": "1.31.1"},
        "options": {"threads": 0},
        "conditions": {"before": {"affinity": [0, 1]}},
        "profiler": "off",
        "inputs": (tensor("x", 1, 3, 8, 8),),
        "outputs": (),
        "warmup_passes": 1,
        "warmup_ms": 1.0,
        "session": "one",
        "runs": tuple(ProfileRun(latency_ms=tuple(samples)) for samples in runs),
        "layers": tuple(layers),
        "layer_runs": (len(layers[0].samples_ms),) if layers else (),
    }
    return Profile(**with_traits(given | fields))


def steady(*run_ms: float, **fields: Any) -> Profile:
    """One process run for each latency, whose three passes took just that."""
    return profile_of([[latency] * 3 for latency in run_ms], **fields)


def tensor(name: str, *shape: int) -> TensorInfo:
    return TensorInfo(name=name, dtype="float32", shape=shape, data="random uniform [0, 1), seed 0")


def layer(
    name: str,
    type_: str = "Conv",
    nodes: Sequence[str] = (),
    dims: Sequence[int] = (),
    ms: Sequence[float] = (1.0,),
    role: LayerRole = "compute",
) -> Layer:
    outputs = (tensor("", *dims),) if dims else ()
    return Layer(
        index=0, name=name, type=type_, onnx_nodes=tuple(nodes), outputs=outputs, samples_ms=tuple(ms), role=role
    )


def comparison_of(*profiles: Profile, rules: Rules | None = None, **rule: Any) -> ProfileComparison:
    measured = [Measured(index, "", profile) for index, profile in enumerate(profiles)]
    return compare_profiles("speed", measured, rules or Rules(**rule))


def verdict_on(
    comparison: ProfileComparison, metric: str = "latency.min", base: int = 0, candidate: int = 1
) -> MetricVerdict:
    (verdict,) = (
        verdict
        for verdict in comparison.verdicts
        if (verdict.metric, verdict.base, verdict.candidate) == (metric, base, candidate)
    )
    return verdict
