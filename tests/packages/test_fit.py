"""`fits`: requirements that are met, missed and unknown, and measurements that must not decide."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from ndld_flow.packages.fit import judge_package
from ndld_flow.records.measurement import Machine
from ndld_flow.records.package import (
    HostFacts,
    Package,
    PackagedAccuracy,
    PackagedLatency,
    PackageFit,
    PackageVariant,
    VariantFit,
)
from ndld_flow.records.profile import Profile
from tests.support.compare_samples import MACHINE, steady

CONDITIONS = {"affinity": [0, 1]}
OTHER = MACHINE.model_copy(update={"cpu": "CPU B", "cpu_count": 64})
GPU_MACHINE = MACHINE.model_copy(update={"gpus": ("NVIDIA L4",), "driver": "570.10"})


def host(**changes: Any) -> HostFacts:
    facts: dict[str, Any] = {
        "machine": MACHINE,
        "cpu_features": ("avx2",),
        "memory_bytes": 4 << 30,
        "compute_capabilities": (),
        "device_memory_bytes": None,
        "providers": ("CPUExecutionProvider",),
        "versions": {"onnxruntime": "1.31.1"},
        "conditions": CONDITIONS,
    }
    return HostFacts(**facts | changes)


def with_gpu(**changes: Any) -> HostFacts:
    facts = {"machine": GPU_MACHINE, "compute_capabilities": ("8.9",), "device_memory_bytes": 24 << 30}
    return host(**facts | {"versions": {"onnxruntime": "1.31.1", "tensorrt": "10.16.1.11"}} | changes)


def variant(name: str, **changes: Any) -> PackageVariant:
    fields: dict[str, Any] = {
        "name": name,
        "kind": "onnx",
        "folder": f"models/toy.{name}/1",
        "file": "model.onnx",
        "digest": name,
        "size_bytes": 100,
        "runtime": "onnxruntime",
        "version": "1.31.1",
        "provider": "CPUExecutionProvider",
        "inputs": (),
        "outputs": (),
    }
    return PackageVariant(**fields | changes)


def engine(name: str, **changes: Any) -> PackageVariant:
    fields: dict[str, Any] = {
        "kind": "engine",
        "file": "model.engine",
        "runtime": "tensorrt",
        "version": "10.16.1.11",
        "provider": "",
        "system": "Linux",
        "architecture": "x86_64",
        "compute_capabilities": ("8.9",),
    }
    return variant(name, **fields | changes)


def judged(variants: list[PackageVariant], here: HostFacts, **profiles: Profile | None) -> PackageFit:
    package = Package(name="toy", licenses=(), variants=tuple(variants), files=())
    return judge_package(package, profiles, here, 0)


def only(made: PackageVariant, here: HostFacts) -> VariantFit:
    return judged([made], here).variants[0]


@pytest.mark.parametrize(
    ("made", "here", "state", "check"),
    [
        (variant("a"), host(), "fits", ""),
        (variant("a"), host(versions={"onnxruntime": "1.32.0"}), "fits", ""),
        (variant("a"), host(versions={"onnxruntime": "1.22.0"}), "unknown", "runtime"),
        (variant("a"), host(versions={}), "does not fit", "runtime"),
        (variant("a", version=""), host(), "unknown", "runtime"),
        (variant("a", provider=""), host(), "unknown", "execution provider"),
        (variant("a", provider="CUDAExecutionProvider"), host(), "does not fit", "execution provider"),
        (
            variant("a", provider="CUDAExecutionProvider"),
            host(providers=("CUDAExecutionProvider",)),
            "does not fit",
            "GPU",
        ),
        (variant("a", cpu_features=("avx2",)), host(), "fits", ""),
        (variant("a", cpu_features=("avx512_vnni",)), host(), "does not fit", "CPU feature"),
        (variant("a", cpu_features=("avx2",)), host(cpu_features=None), "unknown", "CPU feature"),
        (variant("a", memory_bytes=5 << 30), host(), "does not fit", "memory"),
        (variant("a", memory_bytes=1 << 30), host(memory_bytes=None), "unknown", "memory"),
        (engine("e"), with_gpu(), "fits", ""),
        (
            engine("e"),
            host(versions={"tensorrt": "10.16.1.11"}),
            "does not fit",
            "compute capability",
        ),
        (engine("e", compute_capabilities=("9.0",)), with_gpu(), "does not fit", "compute capability"),
        (engine("e"), with_gpu(compute_capabilities=None), "unknown", "compute capability"),
        (engine("e", version="10.16.1.10"), with_gpu(), "does not fit", "runtime"),
        (engine("e", version="10.8.0.43", version_compatible=True), with_gpu(), "fits", ""),
        (engine("e", version="10.20.0.1", version_compatible=True), with_gpu(), "does not fit", "runtime"),
        (engine("e", version="9.3.0", version_compatible=True), with_gpu(), "does not fit", "runtime"),
        (engine("e", architecture="aarch64"), with_gpu(), "does not fit", "architecture"),
        (engine("e", system=""), with_gpu(), "unknown", "system"),
        (engine("e", driver="580.1"), with_gpu(), "unknown", "driver"),
        (engine("e", device_memory_bytes=25 << 30), with_gpu(), "does not fit", "GPU memory"),
        (engine("e", compute_capabilities=(), gpus=("NVIDIA L4",)), with_gpu(), "fits", ""),
        (engine("e", compute_capabilities=(), gpus=("NVIDIA L40",)), with_gpu(), "unknown", "GPU"),
        (engine("e", compute_capabilities=(), gpus=()), with_gpu(), "unknown", "GPU"),
        (engine("e", hardware_compatibility="ampere_plus"), with_gpu(), "fits", ""),
        (
            engine("e", hardware_compatibility="ampere_plus"),
            with_gpu(compute_capabilities=("7.5",)),
            "does not fit",
            "compute capability",
        ),
    ],
)
def test_requirements_decide_and_unknown_stays_unknown(
    made: PackageVariant, here: HostFacts, state: str, check: str
) -> None:
    fit = only(made, here)
    assert fit.state == state
    assert [each.name for each in fit.checks if each.state == state][:1] == ([check] if check else ["runtime"])


def test_a_variant_whose_accuracy_failed_is_never_chosen() -> None:
    failed = PackagedAccuracy(
        record="a", passed=False, subject="model", reference="source", provider="cpu", sample_count=1, worst={}
    )
    fit = judged([variant("bad", accuracy=failed), variant("good")], host())
    assert fit.chosen == "good"
    assert fit.variants[0].state == "does not fit"


def test_nothing_is_chosen_where_only_the_unknown_remains() -> None:
    fit = judged([variant("a", provider=""), variant("b", cpu_features=("sve",))], host())
    assert fit.chosen is None
    assert fit.basis == "no variant is known to fit; unknown for a"


def measured(**latencies: Mapping[str, Any]) -> PackageFit:
    """Judge variants, in order of preference, measured with these fields; `ms` is the latency of five runs."""
    profiles: dict[str, Profile | None] = {}
    for name, given in latencies.items():
        fields = dict(given)
        ms = fields.pop("ms")
        profiles[name] = steady(*[ms] * 5, **{"conditions": {"before": CONDITIONS}} | fields)
    return judged([variant(name) for name in latencies], host(), **profiles)


def test_the_fastest_is_chosen_where_all_were_measured_like_here() -> None:
    fit = measured(slow={"ms": 9.0}, fast={"ms": 3.0})
    assert fit.chosen == "fast"
    assert "the fastest of slow, fast, as measured on a machine like this one" in fit.basis


@pytest.mark.parametrize(
    "other",
    [
        {"machine": OTHER},
        {"versions": {"onnxruntime": "1.30.0"}},
        {"conditions": {"before": {"affinity": [0]}}},
        {"machine": Machine(system="", architecture="", cpu="", cpu_count=None, memory_bytes=None)},
        {"versions": {}},
    ],
    ids=["machine", "version", "CPU set", "unknown machine", "unknown version"],
)
def test_measurements_of_different_machines_never_name_a_fastest(other: Mapping[str, Any]) -> None:
    for latencies in (
        {"first": {"ms": 9.0}, "second": {"ms": 3.0, **other}},
        {"first": {"ms": 9.0, **other}, "second": {"ms": 3.0}},
        {"first": {"ms": 9.0, **other}, "second": {"ms": 3.0, **other}},
    ):
        fit = measured(**latencies)
        assert fit.chosen == "first"
        assert "fastest" not in fit.basis
        assert "latencies do not decide" in fit.basis


def test_a_difference_within_the_noise_leaves_the_order_of_preference() -> None:
    fit = measured(first={"ms": 3.01}, second={"ms": 3.0}, third={"ms": 9.0})
    assert fit.chosen == "first"
    assert fit.basis == "first in the order of preference of first, second, whose latencies are not known to differ"


def test_a_variant_without_a_measurement_leaves_the_order_of_preference() -> None:
    fit = judged([variant("a"), variant("b")], host(), a=None, b=steady(1.0, 1.0))
    assert fit.chosen == "a"
    assert "a was not measured" in fit.basis


def test_a_latency_is_shown_with_its_machine() -> None:
    latency = PackagedLatency(
        record="p", median_ms=2.5, run_count=5, machine=OTHER, version="1", providers=(), inputs="x", measured_at=None
    )
    assert only(variant("a", latency=latency), host()).latency == "2.50 ms on CPU B x 64, x"
