"""The variant of a package for a machine, from records alone.

A variant fits if every requirement is known and met. Several that fit are ranked by speed only where all of them were
measured on a machine like this one, with the versions and under the conditions found here; a difference must exceed the
noise. Otherwise the package's order of preference decides, and the basis states why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import permutations
from pathlib import Path

from packaging.version import InvalidVersion, Version

from ndld_flow.base.quantities import milliseconds, size
from ndld_flow.packages.archive import PackageFiles, open_package
from ndld_flow.packages.host_facts import read_host_facts
from ndld_flow.profiles.compare.comparison import compare_profiles
from ndld_flow.profiles.compare.differences import circumstances_of
from ndld_flow.profiles.compare.measured import Measured, Rules
from ndld_flow.records.package import (
    FitCheck,
    FitState,
    HostFacts,
    Package,
    PackageFit,
    PackageVariant,
    VariantFit,
)
from ndld_flow.records.profile import Profile, without_impossible_values
from ndld_flow.store.kinds import Package as PackageArtifact

_CPU = "CPUExecutionProvider"
_ON_NVIDIA = ("CUDAExecutionProvider", "TensorrtExecutionProvider", "NvTensorRTRTXExecutionProvider")
_TITLES = {"onnxruntime": "ONNX Runtime", "tensorrt": "TensorRT", "tensorrt_rtx": "TensorRT-RTX"}
_DISTRIBUTIONS = ("tensorrt", "tensorrt-rtx")
_AMPERE = (8, 0)
_WORST: tuple[FitState, ...] = ("does not fit", "unknown", "fits")


def fit_package(path: Path) -> PackageFit:
    """Verify a package, and return the variant for this machine.

    Raises RequestError if it is not a package, is unsafe to read, or has a file without its listed SHA-256.
    """
    with open_package(path) as files:
        package = files.read_record(Package, PackageArtifact.main)
        verified = files.verify(package)
        profiles = {variant.name: _read_profile(files, variant) for variant in package.variants}
    return judge_package(package, profiles, read_host_facts(), verified)


def _read_profile(files: PackageFiles, variant: PackageVariant) -> Profile | None:
    if variant.latency is None:
        return None
    return without_impossible_values(files.read_record(Profile, variant.latency.record))


def judge_package(
    package: Package, profiles: Mapping[str, Profile | None], host: HostFacts, verified_count: int
) -> PackageFit:
    """Return the variant for a machine; `profiles` are the measurements by the names of the variants."""
    variants = tuple(_judge(variant, host) for variant in package.variants)
    fitting = [variant.name for variant in variants if variant.state == "fits"]
    chosen, basis = _choose(fitting, profiles, host) if fitting else (None, _explain_none(variants))
    return PackageFit(
        package=package.name,
        package_version=package.package_version,
        verified_count=verified_count,
        host=host,
        chosen=chosen,
        basis=basis,
        variants=variants,
    )


def _judge(variant: PackageVariant, host: HostFacts) -> VariantFit:
    checks = tuple(check for find in _CHECKS for check in find(variant, host))
    latency = "not measured"
    if variant.latency is not None:
        latency = f"{milliseconds(variant.latency.median_ms)} on {variant.measured_on}"
    return VariantFit(
        name=variant.name,
        state=min((check.state for check in checks), key=_WORST.index, default="unknown"),
        checks=checks,
        latency=latency,
        accuracy=variant.accuracy_text,
    )


def _explain_none(variants: Sequence[VariantFit]) -> str:
    unknown = [variant.name for variant in variants if variant.state == "unknown"]
    if unknown:
        return f"no variant is known to fit; unknown for {', '.join(unknown)}"
    return "no variant fits this machine" if variants else "the package has no variants"


# --- Requirements ----------------------------------------------------------------------------------------------------


def _known(is_met: bool | None) -> FitState:
    return "unknown" if is_met is None else "fits" if is_met else "does not fit"


def _check_accuracy(variant: PackageVariant, host: HostFacts) -> Iterator[FitCheck]:
    if variant.accuracy is not None and not variant.accuracy.passed:
        yield FitCheck(
            name="accuracy", state="does not fit", required="within tolerance", found="its accuracy check failed"
        )


def _check_runtime(variant: PackageVariant, host: HostFacts) -> Iterator[FitCheck]:
    found, title = host.versions.get(variant.runtime, ""), _TITLES[variant.runtime]
    if variant.kind == "onnx":
        required = f"{title} {variant.version} or later, as measured" if variant.version else ""
        is_met = _is_at_least(found, variant.version)
        # An earlier release may load it too, which no record shows.
        state = _known(False if not found else True if is_met else None)
    elif variant.version_compatible:
        required = f"{title} {variant.version} or later, of the same major version"
        state = _known(_is_later_of_same_major(found, variant.version) if found else False)
    else:
        required = f"{title} {variant.version}, exactly"
        state = _known(found == variant.version if variant.version else None)
    shown = f"{title} {found}" if found else f"no {title} in this Python environment"
    yield FitCheck(name="runtime", state=state, required=required if variant.version else "", found=shown)


def _is_at_least(found: str, required: str) -> bool | None:
    """Return None if a version is unknown."""
    try:
        return Version(found) >= Version(required)
    except InvalidVersion:
        return None


def _is_later_of_same_major(found: str, required: str) -> bool | None:
    is_later = _is_at_least(found, required)
    return None if is_later is None else is_later and Version(found).major == Version(required).major


def _check_provider(variant: PackageVariant, host: HostFacts) -> Iterator[FitCheck]:
    if variant.kind == "engine":
        return
    found = ", ".join(host.providers) or "none"
    is_met = variant.provider in host.providers if variant.provider else None
    yield FitCheck(name="execution provider", state=_known(is_met), required=variant.provider, found=found)
    if variant.provider in _ON_NVIDIA:
        gpus = ", ".join(host.machine.gpus)
        yield FitCheck(name="GPU", state=_known(bool(gpus)), required="an NVIDIA GPU", found=gpus or "none")


def _check_platform(variant: PackageVariant, host: HostFacts) -> Iterator[FitCheck]:
    """Engines contain machine code for one operating system and architecture; ONNX models run on all."""
    if variant.kind == "onnx":
        return
    system = host.machine.system.partition(" ")[0]
    pairs = (("system", variant.system, system), ("architecture", variant.architecture, host.machine.architecture))
    for name, required, found in pairs:
        is_met = required == found if required and found else None
        yield FitCheck(name=name, state=_known(is_met), required=required, found=found)


def _check_capability(variant: PackageVariant, host: HostFacts) -> Iterator[FitCheck]:
    if variant.kind == "onnx":
        return
    found = host.compute_capabilities
    shown = ", ".join(found) if found else "" if found is None and host.machine.gpus else "no GPU"
    if not host.machine.gpus and not found:
        listed = ", ".join(variant.compute_capabilities)
        yield FitCheck(name="compute capability", state="does not fit", required=listed or "a GPU", found="no GPU")
    elif variant.hardware_compatibility == "ampere_plus":
        is_met = None if found is None else any(_parts(each) >= _AMPERE for each in found)
        yield FitCheck(name="compute capability", state=_known(is_met), required="8.0 or later", found=shown)
    elif variant.compute_capabilities:
        is_met = None if found is None else bool(set(found) & set(variant.compute_capabilities))
        required = " or ".join(variant.compute_capabilities)
        yield FitCheck(name="compute capability", state=_known(is_met), required=required, found=shown)
    else:
        # Another GPU may have the same capability, which the record of the build does not contain.
        same = bool(variant.gpus) and set(host.machine.gpus) <= set(variant.gpus)
        gpus = ", ".join(host.machine.gpus)
        required = " or ".join(variant.gpus)
        yield FitCheck(name="GPU", state="fits" if same else "unknown", required=required, found=gpus)


def _parts(capability: str) -> tuple[int, ...]:
    return tuple(int(part) for part in capability.split(".") if part.isdecimal())


def _check_driver(variant: PackageVariant, host: HostFacts) -> Iterator[FitCheck]:
    """An older driver than that of the measurement or the build may lack what the runtime needs."""
    if not variant.driver:
        return
    is_met = _is_at_least(host.machine.driver, variant.driver)
    state = _known(False if not host.machine.driver else True if is_met else None)
    found = host.machine.driver or "no driver"
    yield FitCheck(name="driver", state=state, required=f"{variant.driver} or later", found=found)


def _check_operators(variant: PackageVariant, host: HostFacts) -> Iterator[FitCheck]:
    """A package has no libraries of custom operators, and no record shows that this machine has them."""
    if variant.custom_operators:
        required = f"a library with {', '.join(variant.custom_operators)}"
        yield FitCheck(name="operators", state="unknown", required=required, found="")


def _check_features(variant: PackageVariant, host: HostFacts) -> Iterator[FitCheck]:
    for feature in variant.cpu_features:
        is_met = feature in host.cpu_features if host.cpu_features is not None else None
        found = "" if is_met is None else "yes" if is_met else "no"
        yield FitCheck(name="CPU feature", state=_known(is_met), required=feature, found=found)


def _check_memory(variant: PackageVariant, host: HostFacts) -> Iterator[FitCheck]:
    needs = (
        ("memory", variant.memory_bytes, host.memory_bytes),
        ("GPU memory", variant.device_memory_bytes, host.device_memory_bytes if host.machine.gpus else 0),
    )
    for name, required, found in needs:
        if required:
            is_met = found >= required if found is not None else None
            shown = (size(found) if found else "none") if found is not None else ""
            yield FitCheck(name=name, state=_known(is_met), required=size(required), found=shown)


_CHECKS: Sequence[Callable[[PackageVariant, HostFacts], Iterator[FitCheck]]] = (
    _check_accuracy,
    _check_runtime,
    _check_provider,
    _check_operators,
    _check_platform,
    _check_capability,
    _check_driver,
    _check_features,
    _check_memory,
)


# --- Choice ----------------------------------------------------------------------------------------------------------


def _choose(fitting: Sequence[str], profiles: Mapping[str, Profile | None], host: HostFacts) -> tuple[str, str]:
    """Return the variant among those that fit, and the reason."""
    if len(fitting) == 1:
        return fitting[0], "the only variant that is known to fit"
    measured = {name: profile for name in fitting if (profile := profiles.get(name)) is not None}
    trouble = _find_trouble(fitting, measured, host)
    if trouble:
        return fitting[0], f"first in the order of preference; latencies do not decide: {trouble}"
    # Layers do not decide here, and matching them takes time.
    sides = [
        Measured(place, name, measured[name].model_copy(update={"layers": (), "layer_runs": ()}))
        for place, name in enumerate(fitting)
    ]
    compared = compare_profiles("latency", sides, Rules(metric="latency.median"))
    slower = {
        fitting[verdict.candidate]
        for verdict in compared.verdicts
        if verdict.metric == "latency.median" and verdict.verdict == "regressed"
    }
    rest = [name for name in fitting if name not in slower]
    if len(rest) == 1:
        return rest[0], f"the fastest of {', '.join(fitting)}, as measured on a machine like this one"
    if not rest:  # each is slower than another, which noise can cause
        return fitting[0], "first in the order of preference; latencies do not decide: they contradict each other"
    return rest[0], f"first in the order of preference of {', '.join(rest)}, whose latencies are not known to differ"


def _find_trouble(fitting: Sequence[str], measured: Mapping[str, Profile], host: HostFacts) -> str:
    """Return why the latencies of variants cannot be compared, or are not valid here; empty if they are."""
    for name in fitting:
        if name not in measured:
            return f"{name} was not measured"
        if not measured[name].runs:
            return f"the measurement of {name} has no process runs"
    for name in fitting:
        other = _find_difference(measured[name], _as_if_here(measured[name], host))
        if other:
            return f"{name} was measured on another machine or under other conditions ({other})"
    for base, candidate in permutations(fitting, 2):
        other = _find_difference(measured[base], measured[candidate])
        if other:
            return f"{base} and {candidate} were measured under different conditions ({other})"
    return ""


def _find_difference(base: Profile, candidate: Profile) -> str:
    """Return the conditions that forbid a comparison, without the options of the verb `compare`."""
    return circumstances_of(base, candidate, frozenset()).forbidden.partition("; to compare anyway")[0]


def _as_if_here(profile: Profile, host: HostFacts) -> Profile:
    """Return the profile as if it had been recorded on this machine now."""
    here: Mapping[str, str] = {runtime.replace("_", "-"): version for runtime, version in host.versions.items()}
    versions = {
        name: here.get("onnxruntime" if name.startswith("onnxruntime") else name, "")
        if name.startswith("onnxruntime") or name in _DISTRIBUTIONS
        else version
        for name, version in profile.versions.items()
    }
    conditions = {**profile.conditions, "before": host.conditions, "process": {}}
    return profile.model_copy(update={"machine": host.machine, "versions": versions, "conditions": conditions})
