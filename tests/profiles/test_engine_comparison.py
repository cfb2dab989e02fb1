"""Two engines compared without times: matched layers, what is unknown, the verdict, and the page."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from blake3 import blake3

from ndld_flow import api
from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import ABSENT
from ndld_flow.profiles.compare.engines import EngineSide, compare_sides, match_engines, side_of_lock
from ndld_flow.profiles.read.read_profile import read_profile
from ndld_flow.records.build import Build, EngineComparison, EngineLock, LayerAspect
from ndld_flow.records.document import read_document
from ndld_flow.report.engines_page import EnginesPage, collect_engines_page, draw_engines
from tests.support.a100_exports import a100_exports
from tests.support.command_line import ndld_flow
from tests.support.message_files import CheckMessage
from tests.support.run_fixtures import HOSTILE_NAMES
from tests.support.trtexec_exports import layer_info, small_engine

GRAPH = "resnet.onnx.engine.graph.json"


def export(precision: str) -> str:
    return str(a100_exports() / precision / GRAPH)


@pytest.fixture
def fp16() -> dict[str, Any]:
    tree: dict[str, Any] = json.loads(Path(export("fp16")).read_text())
    return tree


def side(folder: Path, tree: dict[str, Any], label: str = "b") -> EngineSide:
    folder.mkdir(exist_ok=True)
    path = folder / GRAPH
    path.write_text(json.dumps(tree))
    return EngineSide(label, read_profile(path))


def compared(folder: Path, fp16: dict[str, Any], change: Callable[[dict[str, Any]], object]) -> EngineComparison:
    before = side(folder / "a", fp16, "a")
    change(fp16)
    return compare_sides(before, side(folder / "b", fp16))


def convolution(tree: dict[str, Any]) -> dict[str, Any]:
    return next(layer for layer in tree["Layers"] if layer["Name"] == "Conv_3 + Relu_4")


def page_of(before: EngineSide, after: EngineSide) -> EnginesPage:
    return collect_engines_page(compare_sides(before, after), before, after)


def test_two_precisions_of_a_real_network_are_matched(tmp_path: Path) -> None:
    page = tmp_path / "engines.html"
    found = api.diff_engines(export("fp32"), export("fp16"), page=page)
    assert found is not None
    assert found.verdict == "different"
    matched = [row for row in found.rows if row.before and row.after]
    assert len(matched) == 26
    assert all("precision" in row.changed for row in matched)
    assert {len(row.names) for row in found.rows} == {1}
    assert found.causes == ("build_options.Precision is FP32+FP16, and was FP32",)
    assert (found.before_bytes, found.after_bytes) == (None, None), "an export does not have it"
    text = page.read_text()
    assert "26 of 26 matched layers differ" in text
    assert "sizes are not" in text
    assert " ms" not in " ".join(text.split("<main")[1].split("</main>")[0].split()), "no times"


def test_an_export_alone_shows_no_equality(tmp_path: Path, fp16: dict[str, Any]) -> None:
    found = compared(tmp_path, fp16, lambda tree: tree)
    assert found.verdict == "undecided"
    assert "weights and the rest" in found.differences[-1]
    assert {row.changed for row in found.rows} == {()}


CHANGES: list[tuple[LayerAspect, Callable[[dict[str, Any]], object]]] = [
    ("tactic", lambda tree: convolution(tree).update(TacticName="sm80_other_kernel_f16f16")),
    ("type", lambda tree: convolution(tree).update(LayerType="Convolution")),
    (
        "formats",
        lambda tree: convolution(tree)["Inputs"][0].update({"Format/Datatype": "Row major linear FP16 format"}),
    ),
    ("shapes", lambda tree: convolution(tree)["Inputs"][0].update(Dimensions=[16, 64, 56, 56])),
]


@pytest.mark.parametrize(("aspect", "change"), CHANGES, ids=[aspect for aspect, _ in CHANGES])
def test_one_changed_layer_is_found(
    tmp_path: Path, fp16: dict[str, Any], aspect: LayerAspect, change: Callable[[dict[str, Any]], object]
) -> None:
    found = compared(tmp_path, fp16, change)
    assert found.verdict == "different"
    assert [(row.names, row.changed) for row in found.rows if row.changed] == [(("Conv_3 + Relu_4",), (aspect,))]
    assert found.differences[0].startswith("1 layer with another ")


def test_a_layer_of_one_engine_is_named(tmp_path: Path, fp16: dict[str, Any]) -> None:
    found = compared(tmp_path, fp16, lambda tree: tree["Layers"].remove(convolution(tree)))
    assert found.differences[0] == "1 layer missing: Conv_3 + Relu_4"


def test_what_is_not_recorded_is_neither_equal_nor_different(tmp_path: Path, fp16: dict[str, Any]) -> None:
    def hide(tree: dict[str, Any]) -> None:
        for layer in tree["Layers"]:
            layer.pop("TacticName", None)
            layer.pop("TacticValue", None)

    before = side(tmp_path / "a", fp16, "a")
    hide(fp16)
    after = side(tmp_path / "b", fp16)
    found = compare_sides(before, after)
    assert found.verdict == "undecided"
    assert all("tactic" in row.unknown and "tactic" not in row.changed for row in found.rows)
    page = collect_engines_page(found, before, after)
    tactics = next(tile for tile in page.figures if tile.title == "Tactic")
    assert tactics.figure == ABSENT and tactics.note.startswith("not recorded")
    assert (page.tone, page.word) == ("inconclusive", "Undecided")


def test_names_of_layers_alone_decide_nothing(tmp_path: Path) -> None:
    text = json.loads(layer_info(small_engine(), detailed=False))
    before, after = side(tmp_path / "a", text, "a"), side(tmp_path / "b", text)
    found = compare_sides(before, after)
    assert found.verdict == "undecided"
    assert {row.changed for row in found.rows} == {()}
    assert all({"tactic", "formats"} <= set(row.unknown) for row in found.rows)
    assert sum("type" in row.unknown for row in found.rows) == 3, "the type of a reformat shows in its name"


def test_the_numbers_of_the_compiler_are_no_names(tmp_path: Path, fp16: dict[str, Any]) -> None:
    convolution(fp16)["Name"] = "__mye12_Conv_3"
    found = compared(tmp_path, fp16, lambda tree: tree["Layers"][3].update(Name="__mye99_Conv_3"))
    assert not [row for row in found.rows if "name" in row.changed and "__mye" in row.names[0]]


def test_names_with_numbers_of_the_compiler_match_each_other(tmp_path: Path, fp16: dict[str, Any]) -> None:
    """Names of the variables of loops differ from build to build."""
    for number, layer in enumerate(fp16["Layers"][:6]):
        layer |= {"Name": f"init_hvar^{100 + number}i64_myl1_{number}", "LayerType": "kgen"}

    def count_on(tree: dict[str, Any]) -> None:
        for number, layer in enumerate(tree["Layers"][:6]):
            layer["Name"] = f"init_hvar^{103 + number}i64_myl1_{number}"

    found = compared(tmp_path, fp16, count_on)
    assert all(row.before == row.after for row in found.rows)
    assert not [row for row in found.rows if row.changed]


def test_a_lock_without_its_build_has_no_shapes(tmp_path: Path) -> None:
    lock = EngineLock.model_validate(LOCK)
    found = match_engines(side_of_lock("a", lock), side_of_lock("b", lock))
    (row,) = found
    assert (row.changed, row.unknown) == ((), ("precision", "shapes"))


LOCK: dict[str, Any] = {
    "request": {
        "backend": "tensorrt",
        "version": "10.16.1.11",
        "model_digest": "m",
        "profiles": [],
        "options": {"fp16": True, "workspace": None, "advanced": {"max_tactics": 3}},
        "gpu": "NVIDIA H100",
        "driver": "580.1",
    },
    "engine_digest": "first",
    "engine_bytes": 1000,
    "layers_basis": "engine inspector",
    "layers": {"Conv_0": {"type": "conv", "tactic": "sm90_a", "formats": "float16 hwc8 -> float16 hwc8"}},
}


def write_lock(folder: Path, **changes: Any) -> Path:
    folder.mkdir()
    tree = json.loads(json.dumps(LOCK)) | changes
    (folder / "engine.lock").write_text(EngineLock.model_validate(tree).to_json())
    return folder


@pytest.mark.parametrize(
    ("changes", "verdict", "code", "sentence"),
    [
        ({}, "identical", 0, "files have the same"),
        ({"engine_digest": "other"}, "equal", 0, "equal layers, precisions, formats"),
        (
            {"engine_digest": "other", "request": LOCK["request"] | {"driver": "590.2"}},
            "undecided",
            4,
            "weights may differ",
        ),
        (
            {"engine_digest": "other", "layers": {"Conv_0": LOCK["layers"]["Conv_0"] | {"tactic": "sm90_b"}}},
            "different",
            1,
            "1 of 1 matched layer differs: 1",
        ),
    ],
    ids=["identical", "equal", "undecided", "different"],
)
def test_the_first_screen_answers(
    in_folder: Path, changes: dict[str, Any], verdict: str, code: int, sentence: str
) -> None:
    write_lock(in_folder / "a")
    write_lock(in_folder / "b", **changes)
    done = ndld_flow("compare", "a", "b", "--to", "c", cwd=in_folder)
    assert (done.returncode, done.stdout.split(": ")[1].split(",")[0]) == (code, verdict)
    found = read_document(EngineComparison, Path("c/comparison.json"))
    assert found.verdict == verdict
    text = Path("c/comparison.html").read_text()
    assert sentence in text
    assert ("driver is 590.2" in text) == (verdict == "undecided")
    printed = json.loads(ndld_flow("compare", "a", "b", "--json", cwd=in_folder).stdout)
    assert printed["document"] == "engine comparison"
    assert ndld_flow("compare", "a", "b", "--gate", "latency.min <= 1 ms", cwd=in_folder).returncode == 2


def test_settings_that_are_not_set_are_known(in_folder: Path) -> None:
    before, after = (read_document(EngineLock, write_lock(in_folder / name) / "engine.lock") for name in "ab")
    options = after.request.options | {"workspace": 4096}
    after = after.model_copy(update={"request": after.request.model_copy(update={"options": options})})
    page = page_of(side_of_lock("a", before), side_of_lock("b", after))
    settings = next(group for group in page.facts if group.title == "Settings")
    assert [(pair.name, pair.before, pair.after, pair.state) for pair in settings.differing] == [
        ("workspace", "not set", "4096", "differs")
    ]
    assert ("advanced.max_tactics", "3") in [(pair.name, pair.after) for pair in settings.same]


def test_engines_and_other_things_are_not_mixed_up(in_folder: Path, check_message: CheckMessage) -> None:
    shutil.copytree(a100_exports() / "fp32", in_folder / "timed")
    with pytest.raises(RequestError) as caught:
        api.diff_engines(export("fp32"), "model.onnx")
    check_message(caught.value)
    assert api.compare_engines([in_folder / "timed", export("fp16")]) is None, "one was measured"
    assert api.compare_engines([export("fp16")]) is None
    (in_folder / "empty.json").write_text("")
    (in_folder / "list.json").write_text("[]")
    for name in ("empty.json", "list.json", "nowhere.json"):
        assert api.diff_engines(name, name) is None


def test_the_file_of_an_engine_is_that_of_the_lock_beside_it(in_folder: Path, check_message: CheckMessage) -> None:
    engine = write_lock(in_folder / "a", engine_digest=blake3(b"engine").hexdigest()) / "model.engine"
    engine.write_bytes(b"engine")
    found = api.diff_engines(engine, "a")
    assert found is not None
    assert found.verdict == "identical"
    engine.write_bytes(b"another")
    with pytest.raises(RequestError) as caught:
        api.diff_engines(engine, "a")
    check_message(caught.value)


def test_hostile_names_stay_text(tmp_path: Path, fp16: dict[str, Any]) -> None:
    for layer, name in zip(fp16["Layers"], HOSTILE_NAMES, strict=False):
        layer |= {"Name": name, "LayerType": name, "TacticName": name}
    before = side(tmp_path / "a", fp16, HOSTILE_NAMES[0])
    fp16["Layers"][0]["LayerType"] = "</script><script>alert(1)</script>"
    after = side(tmp_path / "b", fp16, "<b>")
    text = draw_engines(compare_sides(before, after), before, after, tmp_path / "page.html").read_text()
    assert "<script>alert" not in text
    assert "<b>" not in text.split("<main")[1].split("</main>")[0].replace("<b><bdi>", "")


def test_a_record_of_another_build_is_not_taken(in_folder: Path) -> None:
    """A lock that was copied into the folder of another engine has its own layers."""
    write_lock(in_folder / "a")
    from tests.support.engine_samples import build

    (in_folder / "a/build.json").write_text(build().to_json())
    assert read_document(Build, in_folder / "a/build.json").engine_digest != LOCK["engine_digest"]
    found = api.diff_engines("a", "a")
    assert found is not None
    assert [row.names for row in found.rows] == [("Conv_0",)]
