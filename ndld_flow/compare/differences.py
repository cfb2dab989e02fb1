"""In which circumstances profiles were not measured alike, and which of them forbid a verdict."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from pydantic import JsonValue

from ndld_flow.records.comparison import Circumstance, Difference
from ndld_flow.records.profile import Profile, TensorInfo

_HARMLESS = ("ndld-flow", "numpy", "onnx", "onnx-ir", "pillow", "protobuf", "python", "polygraphy", "pydantic")
"""Versions that are told and change no latency: these libraries do not run the model."""
_CLOCKS = ("governors", "turbo")
_TRTEXEC_CLOCKS = ("Compute Clock Rate", "Memory Clock Rate", "Application Compute Clock Rate")
_THREADS = ("threads", "inter_op_threads", "execution", "streams", "infStreams")
_LONGEST = 200
"""Characters of a value that are kept: it is for the eye."""


@dataclass(frozen=True)
class _Fact:
    circumstance: Circumstance
    detail: str
    values: tuple[str, ...]
    forbids: bool


def find_differences(profiles: Sequence[Profile], allow: frozenset[Circumstance]) -> tuple[Difference, ...]:
    """What is not the same for all, those that forbid a verdict first.

    What only some profiles tell (an import says little about its machine) is listed and forbids nothing.
    """
    differing = [fact for fact in _facts(profiles) if len(set(fact.values)) > 1]
    found = [
        Difference(
            circumstance=fact.circumstance,
            detail=_short(fact.detail),
            values=tuple(_short(value) for value in fact.values),
            forbids=forbids,
            allowed=forbids and fact.circumstance in allow,
        )
        for fact in differing
        for forbids in [fact.forbids and len(set(filter(None, fact.values))) > 1]
    ]
    return tuple(sorted(found, key=lambda difference: not difference.forbids))


def forbidding(differences: Sequence[Difference], base: int, candidate: int) -> list[Difference]:
    """Those that forbid a verdict on these two, and were not allowed."""
    return [
        difference
        for difference in differences
        if difference.forbids
        and not difference.allowed
        and "" not in (difference.values[base], difference.values[candidate])
        and difference.values[base] != difference.values[candidate]
    ]


def _facts(profiles: Sequence[Profile]) -> Iterator[_Fact]:
    yield from _machines(profiles)
    yield from _versions(profiles)
    yield from _clocks(profiles)
    yield from _inputs(profiles)
    yield _fact(profiles, "provider", "backend", lambda profile: profile.backend)
    yield _fact(profiles, "provider", "providers", lambda profile: ", ".join(profile.providers))
    yield from _options(profiles)
    yield _fact(profiles, "model", "digest", lambda profile: profile.model_digest.rpartition(":")[2][:12])


def _fact(
    profiles: Sequence[Profile],
    circumstance: Circumstance,
    detail: str,
    read: Callable[[Profile], str],
    *,
    forbids: bool = False,
) -> _Fact:
    return _Fact(circumstance, detail, tuple(read(profile) for profile in profiles), forbids)


def _machines(profiles: Sequence[Profile]) -> Iterator[_Fact]:
    # Where everything ran on the CPU, another GPU or driver changes nothing.
    gpu = any(_uses_gpu(profile) for profile in profiles)
    yield _fact(profiles, "hardware", "CPU", lambda profile: profile.machine.cpu, forbids=True)
    yield _fact(profiles, "hardware", "architecture", lambda profile: profile.machine.architecture, forbids=True)
    yield _fact(profiles, "hardware", "CPUs", lambda profile: _told(profile.machine.cpu_count), forbids=True)
    yield _fact(profiles, "hardware", "GPUs", lambda profile: ", ".join(profile.machine.gpus), forbids=gpu)
    yield _fact(profiles, "hardware", "memory", lambda profile: _told(profile.machine.memory_bytes))
    limit = "cgroup_cpu_limit"
    yield _fact(profiles, "hardware", "CPU limit", lambda profile: _condition(profile, limit), forbids=True)
    yield _fact(profiles, "hardware", "system", lambda profile: profile.machine.system)
    yield _fact(profiles, "driver", "driver", lambda profile: profile.machine.driver, forbids=gpu)


def _uses_gpu(profile: Profile) -> bool:
    return any(provider != "CPUExecutionProvider" for provider in profile.providers) or not profile.providers


def _told(number: int) -> str:
    """An import that does not know says 0."""
    return str(number) if number else ""


def _versions(profiles: Sequence[Profile]) -> Iterator[_Fact]:
    told = [{_runtime(name): version for name, version in profile.versions.items()} for profile in profiles]
    for name in dict.fromkeys(name for versions in told for name in versions):
        values = tuple(versions.get(name, "") for versions in told)
        yield _Fact("versions", name, values, name not in _HARMLESS)
    yield _fact(profiles, "versions", "python", lambda profile: profile.machine.python)


def _runtime(distribution: str) -> str:
    """`onnxruntime-gpu` and `tensorrt_cu12` are `onnxruntime` and `tensorrt`: the same library, packed otherwise."""
    return re.sub(r"[-_](gpu|directml|openvino|rocm|cu\d+)$", "", distribution)


def _clocks(profiles: Sequence[Profile]) -> Iterator[_Fact]:
    """What bounds the clock rates; the rates themselves are never the same twice."""
    for name in _CLOCKS:
        yield _Fact("clocks", name, tuple(_condition(profile, name) for profile in profiles), forbids=True)
    yield _fact(profiles, "clocks", "highest GPU clock", _gpu_clocks, forbids=True)
    for name in _TRTEXEC_CLOCKS:
        values = tuple(_text_at(profile.conditions, "device_information", name) for profile in profiles)
        yield _Fact("clocks", name, values, forbids=True)


def _condition(profile: Profile, name: str) -> str:
    """As it was before the measurement; empty where it is not told."""
    return _text_at(profile.conditions, "before", name)


def _gpu_clocks(profile: Profile) -> str:
    before = profile.conditions.get("before")
    gpus = before.get("gpus") if isinstance(before, dict) else None
    told = [gpu.get("clocks.max.sm") for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    return ", ".join(_text(clock) for clock in told if clock is not None)


def _text_at(conditions: Mapping[str, JsonValue], section: str, name: str) -> str:
    inside = conditions.get(section)
    return _text(inside[name]) if isinstance(inside, dict) and name in inside else ""


def _inputs(profiles: Sequence[Profile]) -> Iterator[_Fact]:
    """Shapes by input name; by position where the names are not the same."""
    names = {tuple(sorted(tensor.name for tensor in profile.inputs)) for profile in profiles if profile.inputs}
    for position, name in enumerate(_input_names(profiles)):
        tensors = [_find(profile, name) if len(names) == 1 else _nth(profile.inputs, position) for profile in profiles]
        shapes = tuple("x".join(map(str, tensor.shape)) if tensor else "" for tensor in tensors)
        yield _Fact("batch", f"shape of {name}", shapes, forbids=True)
        yield _Fact("model", f"type of {name}", tuple(t.dtype if t else "" for t in tensors), forbids=False)
        yield _Fact("options", f"values of {name}", tuple(t.data if t else "" for t in tensors), forbids=False)


def _input_names(profiles: Sequence[Profile]) -> list[str]:
    longest = max((profile.inputs for profile in profiles), key=len, default=())
    return [tensor.name for tensor in longest]


def _find(profile: Profile, name: str) -> TensorInfo | None:
    return next((tensor for tensor in profile.inputs if tensor.name == name), None)


def _nth(tensors: Sequence[TensorInfo], position: int) -> TensorInfo | None:
    return tensors[position] if position < len(tensors) else None


def _options(profiles: Sequence[Profile]) -> Iterator[_Fact]:
    for name in dict.fromkeys(name for profile in profiles for name in profile.options):
        values = tuple(_text(profile.options[name]) if name in profile.options else "" for profile in profiles)
        yield _Fact("threads" if name in _THREADS else "options", name, values, forbids=False)


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
