"""Precisions and multiply units in pages, tables and exports: of an INT8 engine as trtexec tells it."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from ndld_flow import api
from ndld_flow.measure.profiler import metrics_of
from ndld_flow.profiles.diagnose.diagnose import triage
from ndld_flow.profiles.read.read_profile import read_profile
from ndld_flow.records.profile import Profile
from ndld_flow.report.collect_layers import channels_text, collect_layers
from ndld_flow.report.exports.ci_formats import chrome_trace
from ndld_flow.report.exports.spreadsheets import layers_csv
from tests.support import trtexec_exports as trt
from tests.support.command_line import ndld_flow
from tests.support.report_browser import Watch
from tests.support.text_facts import numbers_in

CHW32 = "Thirty-two wide channel vectorized row major {} format"
INT8_KERNEL = "sm80_xmma_fprop_implicit_gemm_interleaved_i8f16_i8i32_f32_nchw_vect_c_32_tensor16x8x32_t1r3s3"


def int8_engine() -> list[trt.EngineLayer]:
    """A QuantizeLinear by itself, INT8 convolutions of which one adds an FP16 residual, and a kernel nobody knows."""
    image, wide = (1, 64, 8, 8), (1, 96, 8, 8)

    def one(name: str, dims: tuple[int, ...], dtype: str) -> dict[str, object]:
        return trt.tensor(name, dims, CHW32.format(dtype))

    def conv(name: str, ms: float, inputs: list[object], output: object, tactic: str) -> trt.EngineLayer:
        info = {"LayerType": "CaskConvolution", "Inputs": inputs, "Outputs": [output], "ParameterType": "Convolution",
                "Kernel": [3, 3], "OutMaps": 96, "Groups": 1, "Weights": {"Type": "Int8", "Count": 55296},
                "TacticName": tactic, "StreamId": 0}  # fmt: skip
        return trt.EngineLayer(name, ms, info)

    quantized = {"LayerType": "Reformat", "ParameterType": "Reformat", "Origin": "QDQ",
                 "Inputs": [one("x", image, "FP16")], "Outputs": [one("q", image, "Int8")]}  # fmt: skip
    return [
        trt.EngineLayer("QuantizeLinear_1", 0.1, quantized),
        conv("Conv_2", 0.4, [one("q", image, "Int8")], one("a", wide, "FP16"), INT8_KERNEL),
        conv("Conv_3 + Add_4", 0.3, [one("q", image, "Int8"), one("a", wide, "FP16")], one("y", wide, "FP16"),
             INT8_KERNEL),
        conv("Conv_5", 0.2, [one("q", image, "Int8")], one("z", wide, "FP16"), "0x12"),
    ]  # fmt: skip


@pytest.fixture(scope="module")
def exports(tmp_path_factory: pytest.TempPathFactory) -> Path:
    engine = int8_engine()
    return trt.write_exports(
        tmp_path_factory.mktemp("int8") / "int8",
        times=trt.times(trt.latencies(50)),
        layers=trt.layer_info(engine, bindings=("x", "y", "z")),
        profile=trt.layer_times(engine),
    )


@pytest.fixture(scope="module")
def int8(exports: Path) -> Profile:
    return read_profile(exports)


def test_the_roll_up_is_of_what_layers_compute(int8: Profile) -> None:
    (view,) = collect_layers({"speed": int8})
    assert [(precision.name, round(precision.share, 2)) for precision in view.precisions] == [
        ("int8", 0.9),
        ("float16 to int8", 0.1),
    ]
    assert [(unit.name, round(unit.share, 2)) for unit in view.units] == [
        ("tensor core INT8", 0.7), ("unknown", 0.2), ("none", 0.1),
    ]  # fmt: skip
    titles = [column.title for column in view.slowest.columns]
    rows = {row[1]: dict(zip(titles, row, strict=True)) for row in view.slowest.rows}
    conv = rows["Conv_3 + Add_4"]
    assert (conv["Precision"], conv["Reads → writes"]) == ("int8", "int8 + float16 → float16")
    assert rows["Conv_5"]["Multiply unit"] == "unknown"
    assert [mover.name for mover in view.movers] == ["quantize"]


def test_gates_can_name_the_share_on_tensor_cores(int8: Profile) -> None:
    """Unknown time is no time beside them."""
    known = {"providers": ("CUDA",)}
    metrics = metrics_of(int8.model_copy(update=known))
    shares = [metrics[f"tensor_cores.{name}"].value for name in ("share", "off_share", "unknown_share")]
    assert shares == pytest.approx([0.7, 0.1, 0.2])
    plain = int8.model_copy(update={**known, "layers": int8.layers[:1]})
    assert not any(name.startswith("tensor_cores") for name in metrics_of(plain))


def test_comparisons_have_it_too(exports: Path, tmp_path: Path) -> None:
    ran = ndld_flow(
        "compare", str(exports), str(exports), "--gate", "tensor_cores.share >= 0.65",
        "--gate", "tensor_cores.unknown_share <= 0.1", cwd=tmp_path,
    )  # fmt: skip
    assert ran.returncode == 1, ran.stdout + ran.stderr
    lines = [line for line in ran.stdout.splitlines() if "tensor_cores" in line]
    assert any("tensor_cores.share >= 0.65" in line and "passed" in line for line in lines), ran.stdout
    assert any("tensor_cores.unknown_share <= 0.1" in line and "failed" in line for line in lines), ran.stdout


def test_tables_show_all_three_precisions(int8: Profile) -> None:
    row = list(csv.DictReader(io.StringIO(layers_csv([("int8", int8)]))))[2]
    assert row | {} == row | {
        "precision": "int8", "input_precision": "int8 + float16", "output_precision": "float16",
        "weights_dtype": "int8", "multiply_unit": "tensor core INT8",
        "precision_basis": "tactic: i8f16_i8i32_f32, weights: int8",
    }  # fmt: skip
    (view,) = collect_layers({"int8": int8})
    titles = [column.title for column in view.slowest.columns]
    cells = [dict(zip(titles, row, strict=True)) for row in view.slowest.rows]
    assert "int8 + float16 → float16" in [row["Reads → writes"] for row in cells]
    assert "Multiply unit" in titles
    assert '"reads":"int8 + float16"' in chrome_trace([("int8", int8)])


def test_without_a_known_unit_there_is_no_column_of_units(tmp_path: Path) -> None:
    engine = [trt.EngineLayer("Conv_1", 1.0, {**int8_engine()[1].info, "TacticName": ""})]
    unnamed = read_profile(trt.write_exports(tmp_path / "e", a=trt.layer_info(engine), b=trt.layer_times(engine)))
    (view,) = collect_layers({"speed": unnamed})
    assert view.units == () and view.profile.tensor_cores is None
    assert "Multiply unit" not in [column.title for column in view.slowest.columns]


def test_channels_are_shown(int8: Profile) -> None:
    assert [channels_text(layer) for layer in int8.layers] == ["", "64 → 96", "64 → 96", "64 → 96"]
    odd = int8.layers[1].model_copy(
        update={"outputs": (int8.layers[1].outputs[0].model_copy(update={"shape": (1, 90, 8, 8)}),)}
    )
    channels, _, problem = channels_text(odd).partition("; ")
    assert channels == "64 → 90" and numbers_in(problem) == [90, 32]


def test_a_glance_on_a_terminal(exports: Path, int8: Profile) -> None:
    assert triage(int8).by_precision[0].name == "int8"
    ran = ndld_flow("profile", str(exports), cwd=exports)
    assert ran.returncode == 0, ran.stderr
    assert "tensor cores 10.0 %, unknown 20.0 %" in ran.stdout


@pytest.mark.browser
def test_the_page(browser: Browser, exports: Path, tmp_path: Path) -> None:
    watch = Watch()
    page = watch.open(
        browser, api.report(str(exports), to=tmp_path / "report.html"), viewport={"width": 1600, "height": 900}
    )
    part = page.locator("#layers-0")
    expect(part).to_contain_text("On tensor cores: 70.0 % of that time; not on tensor cores 10.0 %, unknown 20.0 %")
    grid = part.get_by_role("grid")
    heads = grid.get_by_role("columnheader").all_inner_texts()
    assert [head for head in heads if head in ("Precision", "Reads → writes", "Unit")] == [
        "Precision", "Reads → writes", "Unit",
    ]  # fmt: skip
    row = grid.get_by_role("row").filter(has_text=re.compile("Add_4"))
    expect(row).to_contain_text("int8+fp16→fp16")
    expect(row).to_contain_text("TC INT8")
    assert row.locator("[title*='tactic: i8f16_i8i32_f32']").count() == 1
    row.click()
    details = part.locator("dl").filter(has_text="Multiply unit")
    expect(details).to_contain_text("int8: tactic: i8f16_i8i32_f32, weights: int8")
    expect(details).to_contain_text("int8 + float16 → float16")
    # A roll-up leads to its layers.
    part.locator("[data-pick=unit][data-value=unknown]").click()
    expect(grid.get_by_role("row").filter(has_text="Conv_5")).to_be_visible()
    assert grid.get_by_role("row").count() == 2  # with the head
    page.context.close()
    watch.check()
