"""Published peaks apply only to the device that they were published for, and to layers whose multiply unit is known."""

from __future__ import annotations

from typing import Any

import pytest

from ndld_flow.profiles.diagnose.published_peaks import _known_devices, published_peaks
from ndld_flow.profiles.diagnose.subject import Subject
from ndld_flow.profiles.read.read_profile import read_profile
from ndld_flow.records.layer_arithmetic import MultiplyUnit
from ndld_flow.records.measurement import Machine
from ndld_flow.records.profile import Layer, Profile, Roofs, RuntimeTraits
from tests.support.a100_exports import a100_exports
from tests.support.compare_samples import profile_of


def on(*gpus: str, on_gpu: bool | None = True, layer: Layer | None = None, **fields: Any) -> Profile:
    machine = Machine(gpus=gpus)
    runtime = RuntimeTraits(on_gpu=on_gpu, times_layers_on_host=fields.pop("on_host", False))
    return profile_of([[1.0]], [layer] if layer else [], machine=machine, runtime=runtime, **fields)


def product(unit: MultiplyUnit = "", precision: str = "float16", macs: int = 10**9) -> Layer:
    return Layer(
        index=0,
        name="conv",
        type="Conv",
        unit=unit,
        precision=precision,
        macs=macs,
        read_bytes=10**6,
        samples_ms=(1.0,),
    )


def shares(profile: Profile) -> tuple[float | None, float | None]:
    reached = Subject(profile).peaks.shares(0)
    return reached.compute, reached.bandwidth


@pytest.mark.parametrize(
    "gpus",
    [
        ("NVIDIA A10G",),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb",),
        ("NVIDIA GeForce RTX 4090 Laptop GPU",),
        ("NVIDIA A100",),
        ("NVIDIA L4", "Tesla T4"),
        (),
    ],
)
def test_another_device_has_no_peaks(gpus: tuple[str, ...]) -> None:
    """Each name contains that of a known device, or is one of several that may have run the model."""
    assert published_peaks(on(*gpus)) is None
    assert shares(on(*gpus, layer=product("tensor core FP16"))) == (None, None)


def test_a_gpu_that_did_not_run_the_model_has_no_peaks() -> None:
    assert published_peaks(on("NVIDIA L4", on_gpu=False)) is None
    assert published_peaks(on("NVIDIA L4", on_gpu=None)) is None
    assert published_peaks(on("NVIDIA L4", "NVIDIA L4")) is not None, "two equal ones"


def test_a_share_of_the_arithmetic_needs_the_unit() -> None:
    assert shares(on("NVIDIA L4", layer=product("tensor core FP16"))) == pytest.approx((1e12 / 60.5e12, 1e9 / 300e9))
    for unit in ("", "tensor core", "INT8 DP4A", "none"):  # DP4A is not published
        assert shares(on("NVIDIA L4", layer=product(unit)))[0] is None


def test_times_of_the_host_are_no_rates() -> None:
    assert shares(on("NVIDIA L4", layer=product("tensor core FP16"), on_host=True)) == (None, None)


def test_measured_roofs_apply_to_their_precision_only() -> None:
    roofs = Roofs(macs_per_s=4e12, bytes_per_s=1e10, how="measured", dtype="float32")
    assert shares(on(layer=product(precision="float32"), roofs=roofs)) == pytest.approx((0.25, 0.1))
    assert shares(on(layer=product(precision="int8"), roofs=roofs))[0] is None
    untyped = roofs.model_copy(update={"dtype": ""})
    assert shares(on(layer=product(precision=""), roofs=untyped))[0] is None


def test_a_peak_that_a_layer_exceeds_is_no_peak() -> None:
    """Roofs that are measured while the machine is busy are too low: 310 % of a peak is no share."""
    roofs = Roofs(macs_per_s=3e11, bytes_per_s=5e8, how="measured", dtype="float32")
    profile = on(layer=product(precision="float32"), roofs=roofs)
    peaks = Subject(profile).peaks
    assert (peaks.exceeded, peaks.exceeded_bandwidth) == (1, 1)
    assert (peaks.shares(0).compute, peaks.shares(0).bandwidth) == (None, None)


def test_data_in_a_cache_do_not_disprove_a_published_bandwidth() -> None:
    cached = product("tensor core FP16").model_copy(update={"read_bytes": 10**9})
    peaks = Subject(on("NVIDIA L4", layer=cached)).peaks
    assert peaks.doubt == ""
    assert peaks.shares(0).bandwidth == pytest.approx(10 / 3)
    assert peaks.shares(0).nearer is None


def test_real_engines_stay_below_the_peaks_of_their_device() -> None:
    for name, unit in (("fp32", "tensor core TF32"), ("fp16", "tensor core FP16"), ("qat", "tensor core INT8")):
        subject = Subject(read_profile(a100_exports() / name))
        peaks = subject.peaks
        reached = [peaks.shares(index).compute for index, layer in enumerate(subject.layers) if layer.unit == unit]
        assert peaks.exceeded == 0
        assert 0.3 < max(share or 0.0 for share in reached) < 0.7


def test_the_published_figures_are_consistent() -> None:
    for name, peaks in _known_devices().items():
        assert peaks.source.startswith("https://"), name
        fp16, int8 = peaks.macs_per_s["tensor core FP16"], peaks.macs_per_s["tensor core INT8"]
        assert int8 / fp16 == pytest.approx(2, rel=0.03), name
        assert peaks.macs_per_s.get("FP32 FMA", 0.0) < fp16, name
