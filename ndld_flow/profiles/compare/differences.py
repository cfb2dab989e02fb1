"""The conditions of measurements: differences, values that were not recorded, and those that forbid a verdict.

An unrecorded condition is not equal to anything, including another unrecorded one: it forbids a verdict like a
difference, until the user allows it. Exports of other programs never record some conditions: one that two exports both
lack makes their verdict conditional instead.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import JsonValue

from ndld_flow.base.quantities import counted, size
from ndld_flow.base.text import first_of, short_name
from ndld_flow.records.comparison import NOT_APPLICABLE, Difference
from ndld_flow.records.measurement import Allowance, Circumstance
from ndld_flow.records.profile import Profile, TensorInfo

_HARMLESS = ("ndld-flow", "numpy", "onnx", "onnx-ir", "pillow", "protobuf", "python", "polygraphy", "pydantic")
"""Libraries that do not run the model: their versions are listed but do not affect the latency."""
_TRTEXEC_CLOCKS = ("Memory Clock Rate", "Application Compute Clock Rate")
_THREADS = ("threads", "inter_op_threads", "execution")
_PLAN = (
    "runs", "passes", "duration", "stable", "budget", "warmup_passes", "warmup", "layer_passes", "batches",
    "sample_gpu", "hide_non_compute", "engine", "engine_file", "trust_engine", "library",
)  # fmt: skip
"""Options for the duration of the measurement or the location of files, which affect neither the artifact nor its
latency.
"""
_MOST_LISTED = 6
_UNSET = "not set"
"""Text of a setting that was recorded as empty, such as `affinity`: empty text means not recorded."""

_Kind = Literal["different", "unknown", "unrecorded"]
"""The reason why values are not equal: `unrecorded` if all profiles are exports that lack the value."""
_Weight = Literal["forbids", "noted", "plan"]
"""`forbids` a verdict, is `noted` as a choice that may be compared on purpose, or belongs to the measurement `plan`."""


@dataclass(frozen=True)
class _Fact:
    circumstance: Circumstance
    detail: str
    values: tuple[str, ...]
    """One value per profile: empty if not recorded, `NOT_APPLICABLE` if the profile has no such value."""
    weight: _Weight = "noted"
    minor: bool = False
    """True if it is not listed when no profile has it."""


@dataclass(frozen=True)
class PairCircumstances:
    """The conditions of one pair of profiles, as text."""

    forbidden: str = ""
    """Reason why no verdict is possible, and how to force one; empty if one is possible."""
    caveat: str = ""
    """Conditions that the user allowed to differ or to be unknown."""
    same_artifact: str = ""
    """`model` or `engine` if both ran the same one."""
    causes: tuple[str, ...] = ()
    """Conditions and settings that are known to differ and may affect the latency."""
    unrecorded: tuple[str, ...] = ()
    """Conditions that neither of two exports records, and that forbid a verdict where they differ."""

    @property
    def identical(self) -> bool:
        """True if both ran the same artifact and no condition explains a difference."""
        return bool(self.same_artifact) and not self.causes

    @property
    def noise(self) -> str:
        """Clause about a difference between identical artifacts; empty for others."""
        return (
            f"both ran the same {self.same_artifact} under the same conditions: the difference is noise"
            if self.identical
            else ""
        )

    @property
    def remark(self) -> str:
        """Clause to add to the verdict; empty if none is needed."""
        clauses = []
        if self.unrecorded:
            clauses.append(f"if both were measured alike: {counted(len(self.unrecorded), 'condition')} not recorded")
        if self.caveat:
            clauses.append(f"allowed: {self.caveat}")
        if self.same_artifact and self.causes:
            clauses.append(f"both ran the same {self.same_artifact}, with different {' and '.join(self.causes)}")
        return "; ".join(clauses)


def find_differences(profiles: Sequence[Profile], allow: frozenset[Allowance]) -> tuple[Difference, ...]:
    """Return the conditions that differ or were not recorded, those that forbid a verdict first."""
    differences = [
        Difference(
            circumstance=fact.circumstance,
            detail=short_name(fact.detail),
            values=tuple(short_name(value) for value in fact.values),
            forbids=forbids,
            allowed=forbids and all(_allowed(fact, kind, allow) for kind in kinds),
        )
        for fact in _facts(profiles)
        for kinds in [_kinds(profiles, fact.values)]
        for forbids in [fact.weight == "forbids" and kinds not in ([], ["unrecorded"])]
        if kinds or len(set(fact.values)) > 1
        if not (fact.minor and not any(fact.values))
    ]
    return tuple(sorted(differences, key=lambda difference: not difference.forbids))


def circumstances_of(base: Profile, candidate: Profile, allow: frozenset[Allowance]) -> PairCircumstances:
    """Compare the conditions of two profiles."""
    if _are_one(base, candidate):
        return PairCircumstances()
    profiles = (base, candidate)
    facts = [(fact, kind) for fact in _facts(profiles) for kind in _kinds(profiles, fact.values)]
    weighty = [(fact, kind) for fact, kind in facts if fact.weight == "forbids"]
    stopping = [(fact, kind) for fact, kind in weighty if kind != "unrecorded"]
    forbidding = [(fact, kind) for fact, kind in stopping if not _allowed(fact, kind, allow)]
    same_artifact = base.artifact_digest != "" and base.artifact_digest == candidate.artifact_digest
    causes = [fact.detail for fact, kind in facts if kind == "different" and fact.weight != "plan"]
    if "providers" in causes:  # those that ran; the settings that chose them say it again
        causes = [cause for cause in causes if cause not in ("provider", "provider_library")]
    words = {fact.circumstance if kind == "different" else "unknown" for fact, kind in forbidding}
    options = " ".join(f"--allow {word}" for word in sorted(words, key=lambda word: (word == "unknown", word)))
    return PairCircumstances(
        forbidden=f"{'; '.join(_describe(forbidding))}; to compare anyway: {options}" if forbidding else "",
        caveat="; ".join(_describe(stopping)) if stopping else "",
        same_artifact=("engine" if base.runs_engine else "model") if same_artifact else "",
        causes=tuple(dict.fromkeys(map(short_name, causes))),
        unrecorded=tuple(_lacking(fact) for fact, kind in weighty if kind == "unrecorded"),
    )


def _are_one(base: Profile, candidate: Profile) -> bool:
    """Return whether both are the same measurement, so that even unrecorded circumstances are equal."""
    if base.runs != candidate.runs or base.layers != candidate.layers:
        return False
    return base == candidate.model_copy(update={"label": base.label, "notes": base.notes})


def _kinds(profiles: Sequence[Profile], values: Sequence[str]) -> list[_Kind]:
    """Return the reasons why these values are not equal."""
    applying = [value for value in values if value != NOT_APPLICABLE]
    known = set(filter(None, applying))
    kinds: list[_Kind] = []
    if len(known) > 1:
        kinds.append("different")
    if "" in applying and len(applying) > 1:
        kinds.append("unknown" if known or not all(profile.is_export for profile in profiles) else "unrecorded")
    return kinds


def _allowed(fact: _Fact, kind: _Kind, allow: frozenset[Allowance]) -> bool:
    return fact.circumstance in allow or (kind == "unknown" and "unknown" in allow)


def _describe(unequal: Sequence[tuple[_Fact, _Kind]]) -> Iterator[str]:
    """Yield the differing conditions with their values, then the unrecorded ones by profile."""
    different = [fact for fact, kind in unequal if kind == "different"]
    if different:
        names = " and ".join(dict.fromkeys(fact.circumstance for fact in different))
        values = "; ".join(
            f"{short_name(fact.detail)}: {' and '.join(map(short_name, fact.values))}" for fact in different[:3]
        )
        more = f" and {len(different) - 3} more" if len(different) > 3 else ""
        yield f"measured under different {names} ({values}{more})"
    lacking: dict[str, list[str]] = {}
    for fact, kind in unequal:
        if kind == "unknown":
            missing = ["the base", "the candidate"][bool(fact.values[0])] if any(fact.values) else "both"
            lacking.setdefault(missing, []).append(_lacking(fact))
    for owner, details in lacking.items():
        yield f"not recorded for {owner}: {first_of(details, _MOST_LISTED)}"


def _lacking(fact: _Fact) -> str:
    return f"{'version of ' if fact.circumstance == 'versions' else ''}{short_name(fact.detail)}"


def _facts(profiles: Sequence[Profile]) -> Iterator[_Fact]:
    yield from _machines(profiles)
    yield from _versions(profiles)
    yield from _clocks(profiles)
    yield _fact(profiles, "profiler", "profiler", lambda profile: profile.profiler, "forbids")
    yield _fact(profiles, "timing", "copies in the latency", _copies, "forbids")
    yield _fact(profiles, "timing", "inferences in a pass", _streams, "forbids")
    # With a queue, latency is the time between the ends of two passes.
    yield _fact(profiles, "timing", "passes enqueued ahead", lambda each: str(each.options.get("queue", 0)), "forbids")
    yield from _inputs(profiles)
    yield _fact(profiles, "provider", "backend", lambda profile: profile.backend)
    yield _fact(
        profiles,
        "provider",
        "providers",
        lambda profile: NOT_APPLICABLE if profile.runs_engine else ", ".join(profile.providers),
    )
    yield _fact(profiles, "provider", "precision of layers", _precision, minor=True)
    # Settings of other backends do not apply to a profile.
    flat = [dict(_flat(profile.options)) for profile in profiles]
    if not any(flat):
        yield _Fact("options", "settings", ("",) * len(profiles))
    for name in dict.fromkeys(name for options in flat for name in options):
        values = tuple(options.get(name, NOT_APPLICABLE if options else "") for options in flat)
        yield _Fact("threads" if name in _THREADS else "options", name, values, "plan" if name in _PLAN else "noted")
    # An engine is identified by its own digest.
    yield _fact(profiles, "model", "digest", lambda profile: _digest(profile.model_digest), "plan")
    yield _fact(
        profiles,
        "model",
        "engine",
        lambda profile: _digest(profile.engine_digest) if profile.runs_engine else NOT_APPLICABLE,
    )


def _fact(
    profiles: Sequence[Profile],
    circumstance: Circumstance,
    detail: str,
    read: Callable[[Profile], str],
    weight: _Weight = "noted",
    *,
    minor: bool = False,
) -> _Fact:
    return _Fact(circumstance, detail, tuple(map(read, profiles)), weight, minor)


def _machines(profiles: Sequence[Profile]) -> Iterator[_Fact]:
    # If everything ran on the CPU, the GPU and its driver do not matter.
    gpu: _Weight = "forbids" if any(profile.may_use_gpu for profile in profiles) else "noted"
    minor = gpu == "noted"
    yield _fact(profiles, "hardware", "CPU", lambda profile: profile.machine.cpu, "forbids")
    yield _fact(profiles, "hardware", "architecture", lambda profile: profile.machine.architecture, "forbids")
    yield _fact(profiles, "hardware", "CPU count", lambda profile: str(profile.machine.cpu_count or ""), "forbids")
    yield _fact(
        profiles,
        "hardware",
        "GPUs",
        lambda profile: ", ".join(profile.machine.gpus) or ("none" if profile.machine.cpu else ""),
        gpu,
        minor=minor,
    )
    memory = [profile.machine.memory_bytes for profile in profiles]
    yield _Fact("hardware", "memory", tuple(size(each) if each else "" for each in memory), minor=True)
    yield _fact(profiles, "hardware", "CPU limit", lambda profile: _before(profile, "cgroup_cpu_limit"), "forbids")
    yield _fact(profiles, "hardware", "system", lambda profile: profile.machine.system, minor=True)
    yield _fact(profiles, "cpus", "CPU set", _cpu_set, "forbids")
    yield _fact(profiles, "driver", "driver", _driver, gpu, minor=minor)


def _driver(profile: Profile) -> str:
    # A machine known to have no GPU has no driver either.
    return profile.machine.driver or ("none" if profile.machine.cpu and not profile.machine.gpus else "")


def _cpu_set(profile: Profile) -> str:
    process = profile.conditions.get("process")
    affinity = process.get("affinity") if isinstance(process, dict) else None
    return _text(affinity) if affinity else _before(profile, "affinity")


def _versions(profiles: Sequence[Profile]) -> Iterator[_Fact]:
    """Yield the versions of libraries; those of other backends do not apply to a profile."""
    # `onnxruntime-gpu` and `tensorrt_cu12` are packages of `onnxruntime` and `tensorrt`.
    recorded = [
        {
            re.sub(r"[-_](gpu|directml|openvino|rocm|cu\d+)$", "", name): version
            for name, version in profile.versions.items()
        }
        for profile in profiles
    ]
    runtimes = [profile.runtime.library for profile in profiles]  # other programs may not record its version
    for name in dict.fromkeys((*filter(None, runtimes), *(name for versions in recorded for name in versions))):
        backends = {profile.backend for profile, versions in zip(profiles, recorded, strict=True) if name in versions}
        values = tuple(
            versions.get(name, "" if runtime == name or profile.backend in backends else NOT_APPLICABLE)
            for profile, versions, runtime in zip(profiles, recorded, runtimes, strict=True)
        )
        yield _Fact("versions", name, values, *(("noted", True) if name in _HARMLESS else ("forbids", False)))
    yield _fact(profiles, "versions", "python", lambda profile: profile.machine.python, minor=True)


def _clocks(profiles: Sequence[Profile]) -> Iterator[_Fact]:
    """Yield the limits of the clock rates; the rates themselves always vary."""
    yield _fact(profiles, "clocks", "governors", lambda profile: _before(profile, "governors"), "forbids")
    yield _fact(profiles, "clocks", "turbo", lambda profile: _before(profile, "turbo"), "forbids")
    if not any(profile.may_use_gpu for profile in profiles):
        return
    yield _fact(profiles, "clocks", "highest GPU clock", _highest_gpu_clock, "forbids")
    yield _fact(profiles, "clocks", "GPU clocks locked", _on_gpu(_option("lock_clocks")), "forbids")
    yield _fact(profiles, "power", "power limit", _on_gpu(lambda profile: _of_gpus(profile, "power.limit")), "forbids")
    for name in _TRTEXEC_CLOCKS:
        values = tuple(_recorded(profile.conditions, "device_information", name) for profile in profiles)
        if any(values):  # only trtexec reports them, and not every release does
            reports = (profile.conditions.get("device_information") for profile in profiles)
            values = tuple(
                value or ("" if report else NOT_APPLICABLE) for value, report in zip(values, reports, strict=True)
            )
            yield _Fact("clocks", name, values, "forbids")


def _highest_gpu_clock(profile: Profile) -> str:
    """Return MHz from nvidia-smi, or from trtexec, which writes GHz."""
    if not profile.may_use_gpu:
        return NOT_APPLICABLE
    ghz = re.match(r"[\d.]+", _recorded(profile.conditions, "device_information", "Compute Clock Rate"))
    try:
        return f"{float(ghz[0]) * 1000:.0f}" if ghz else _of_gpus(profile, "clocks.max.sm")
    except ValueError:
        return ""


def _on_gpu(read: Callable[[Profile], str]) -> Callable[[Profile], str]:
    return lambda profile: read(profile) if profile.may_use_gpu else NOT_APPLICABLE


def _option(name: str) -> Callable[[Profile], str]:
    return lambda profile: _text(profile.options[name]) if name in profile.options else ""


def _before(profile: Profile, name: str) -> str:
    """Return a condition recorded before the measurement; `none` if the system has none."""
    before = profile.conditions.get("before")
    return _text(before.get(name, "none")) if isinstance(before, dict) and before else ""


def _of_gpus(profile: Profile, name: str) -> str:
    before = profile.conditions.get("before")
    gpus = before.get("gpus") if isinstance(before, dict) else None
    values = [gpu.get(name) for gpu in gpus if isinstance(gpu, dict)] if isinstance(gpus, list) else []
    return ", ".join(_text(value) for value in values if value is not None)


def _recorded(facts: Mapping[str, JsonValue], section: str, name: str) -> str:
    inside = facts.get(section)
    return _text(inside[name]) if isinstance(inside, dict) and name in inside else ""


def _copies(profile: Profile) -> str:
    if not profile.runs_engine:
        apart = profile.runtime.separates_copies or not profile.may_use_gpu or any(run.h2d_ms for run in profile.runs)
        return "no" if apart else f"as {profile.backend} does"
    option = _option("transfers")(profile) or _trtexec(profile, "Data transfers")
    return {"true": "yes", "enabled": "yes", "false": "no", "disabled": "no"}.get(option.lower(), "")


def _streams(profile: Profile) -> str:
    if not profile.runs_engine:
        return str(profile.concurrent_inferences)
    return _option("streams")(profile) or _trtexec(profile, "Streams")


def _precision(profile: Profile) -> str:
    """Return the types in which the layers compute if the runtime chooses them; engines are built for some."""
    chosen = profile.device_fact("inference_precision")
    return NOT_APPLICABLE if profile.runs_engine else "as in the model" if chosen is None else str(chosen)


def _trtexec(profile: Profile, name: str) -> str:
    return _recorded(profile.options, "inference_options", name)


def _inputs(profiles: Sequence[Profile]) -> Iterator[_Fact]:
    """Yield shapes, values and types by input name; by position if the names differ."""
    names = {tuple(sorted(tensor.name for tensor in profile.inputs)) for profile in profiles if profile.inputs}
    if not names:
        nothing = ("",) * len(profiles)
        yield _Fact("batch", "shapes of the inputs", nothing, "forbids")
        yield _Fact("inputs", "values of the inputs", nothing, "forbids")
    longest = max((profile.inputs for profile in profiles), key=len, default=())
    for position, name in enumerate(tensor.name for tensor in longest):

        def values(
            read: Callable[[Profile, TensorInfo], str], name: str = name, position: int = position
        ) -> tuple[str, ...]:
            return tuple(_of_input(profile, name if len(names) == 1 else position, read) for profile in profiles)

        yield _Fact("batch", f"shape of {name}", values(lambda _, tensor: shape_text(tensor)), "forbids")
        yield _Fact("inputs", f"values of {name}", values(_values_of), "forbids")
        yield _Fact("model", f"type of {name}", values(lambda _, tensor: tensor.dtype), minor=True)


def _of_input(profile: Profile, which: str | int, read: Callable[[Profile, TensorInfo], str]) -> str:
    if not profile.inputs:
        return ""
    if isinstance(which, int):
        return read(profile, profile.inputs[which]) if which < len(profile.inputs) else NOT_APPLICABLE
    return next((read(profile, tensor) for tensor in profile.inputs if tensor.name == which), NOT_APPLICABLE)


def shape_text(tensor: TensorInfo) -> str:
    """Return `1x3x224x224`, or `scalar`."""
    return "x".join(map(str, tensor.shape)) or "scalar"


def _values_of(profile: Profile, tensor: TensorInfo) -> str:
    """Return how values were generated, or the digest of those from a file, regardless of its path."""
    digest = profile.input_digests.get(tensor.name)
    return f"file {_digest(digest)}" if digest else tensor.data.removesuffix(f", {tensor.dtype} {shape_text(tensor)}")


def _flat(options: Mapping[str, JsonValue]) -> Iterator[tuple[str, str]]:
    """Yield options by name, those in trtexec's sections as `build_options: Precision`."""
    for name, value in options.items():
        if isinstance(value, dict) and name.endswith("_options") and name != "provider_options":
            yield from ((f"{name}: {inner}", _text(setting) or _UNSET) for inner, setting in value.items())
        else:
            yield name, _text(value) or _UNSET


def _digest(text: str) -> str:
    return text.rpartition(":")[2][:12]


def _text(value: JsonValue) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True, ensure_ascii=False)
