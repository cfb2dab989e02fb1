"""Engines in a report: build settings, layers without times, and insights."""

from __future__ import annotations

import csv
import html
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ndld_flow.base.quantities import TIMES
from ndld_flow.engines.build_settings import BuildSettings
from ndld_flow.profiles.diagnose.diagnose import ENGINE_RULES, insights_of_engine
from ndld_flow.profiles.diagnose.lints import LINTS
from ndld_flow.profiles.diagnose.subject import EngineSubject, Insight, missed_precisions
from ndld_flow.profiles.read.read_profile import read_profile
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.records.build import Build, BuildMemory, BuiltProfile, Constraint, ShapeRange, TimingCacheUse
from ndld_flow.records.execution import BuiltFile, Execution
from ndld_flow.records.profile import Layer, TensorInfo
from ndld_flow.records.run_folder import read_run
from ndld_flow.report.collect_layers import collect_reformats
from ndld_flow.report.collect_summary import collect_summary
from ndld_flow.report.exports.spreadsheets import engine_layers_csv
from ndld_flow.report.panels.engines import collect_build, collect_engines, collect_untimed, is_usual
from ndld_flow.report.run_page import draw_build, draw_report
from ndld_flow.report.verdict import summarize_run
from tests.support.a100_exports import a100_exports
from tests.support.engine_samples import build, detector, rtx_build, tensor, write_engine_run
from tests.support.page_data import data_of
from tests.support.run_fixtures import HOSTILE_NAMES, MIB, accuracy
from tests.support.text_facts import numbers_in


def page_of(folder: Path, **builds: Build) -> str:
    return draw_report(write_engine_run(folder, builds)).read_text("utf-8")


def dims(text: str) -> str:
    return text.replace("x", TIMES)


def words_of(page: str) -> str:
    """What a person reads: no tags, no scripts."""
    body = re.sub(r"<(script|style)\b.*?</\1>", "", page, flags=re.DOTALL)
    return " ".join(html.unescape(re.sub(r"<[^>]*>", " ", body)).split())


# --- what is collected ---


def test_an_engine_is_summarized() -> None:
    (view,) = collect_engines({"engine": build()})
    assert view.built is not None
    assert (view.step, view.label, len(view.profile.layers)) == ("engine", "source", 72)
    assert view.built.build.library == "TensorRT 10.16.1.11" and view.built.built_for == ("NVIDIA RTX A4000",)
    assert [(precision.name, precision.count) for precision in view.precisions] == [("float16", 69), ("float32", 3)]
    assert view.multiplying == ()  # its tactics have no names
    assert [(item.name, item.count) for item in view.types[:3]] == [
        ("CaskConvolution", 48),
        ("PointWiseV2", 16),
        ("Reformat", 6),
    ]
    assert view.tactics[0].count == 18 and view.tactic_count == 4
    assert view.node_count == 130


def test_multiply_units_of_an_engine_are_counted(tmp_path: Path) -> None:
    (export,) = (a100_exports() / "qat").glob("*graph.json")
    layers = Path(shutil.copy(export, tmp_path))  # away from its times
    (view,) = collect_untimed({"qat": read_profile(layers)})
    assert [(item.name, item.count) for item in view.multiplying] == [("tensor core INT8", 20), ("INT8 DP4A", 1)]


def test_reformats_name_tensors_and_formats() -> None:
    (view,) = collect_engines({"engine": build()})
    assert view.reformats is not None and view.reformats.count == 6
    assert view.reformats.ways[0] == (
        "float16 hwc8",
        "float16 linear",
        4,
    )
    first, second = view.reformats.rows[:2]
    assert (first.tensor, first.dims, first.before, first.after, first.bound_to) == (
        "x",
        dims("?x3x?x?"),
        "float32 linear",
        "float16 hwc8",
        "input x",
    )
    assert (second.bound_to, second.position) == ("output y", 71)
    assert [row.bound_to for row in view.reformats.rows[2:]] == [""] * 4


def test_tensors_without_names_are_no_inputs_or_outputs() -> None:
    unnamed = TensorInfo(name="", dtype="float32", shape=(1, 8))
    reformat = Layer(
        index=0, name="copy", type="Reformat", role="reformat", inputs=(unnamed,), outputs=(unnamed,), samples_ms=()
    )
    view = collect_reformats([reformat], [unnamed], [unnamed])
    assert view is not None
    assert [row.bound_to for row in view.rows] == [""]


def test_shapes_of_optimization_profiles_are_shown(tmp_path: Path) -> None:
    values = ShapeRange(min=(1, 1), opt=(8, 8), max=(64, 64), values=True)
    fixed = ShapeRange(min=(4,), opt=(4,), max=(4,))
    profiles = (
        BuiltProfile(inputs={"x": ShapeRange(min=(1, 3), opt=(2, 3), max=(8, 3)), "size": values}, basis="profiles[0]"),
        BuiltProfile(inputs={"n": fixed}, basis="fixed shapes"),
    )
    text = draw_build(build(profiles=profiles), "det", tmp_path / "det.html").read_text("utf-8")
    table = text.partition('class="dense shapes"')[2].partition("</table>")[0]
    assert [re.sub(r"(<[^>]+>)+", "|", row).strip("|\n") for row in table.split("<tr>")[2:]] == [
        f"0|x|{dims('1x3')}|{dims('2x3')}|{dims('8x3')}|profiles[0]",
        "size| |(values)|[1, 1]|[8, 8]|[64, 64]|profiles[0]",
        "1|n|4 |fixed|fixed shapes",
    ]


def test_ignored_constraints_come_first() -> None:
    rows = collect_build(build()).constraints
    assert [(row.node, row.is_ignored) for row in rows] == [("/head/Resize", True), ("/head/Softmax", False)]


def test_only_non_default_settings_are_shown_first() -> None:
    """Holds for every setting that there is: a new one whose default says something must be listed as usual."""
    plain = BuildSettings().model_dump(mode="json")
    view = collect_build(build(options=plain))
    assert view.chosen == ()
    assert {item.name for item in view.usual} >= {"typing", "tf32", "workspace", "advanced.tiling"}
    changed = BuildSettings(fp16=True, tf32=False, typing="obey").model_dump(mode="json")
    changed["advanced"]["direct_io"] = True
    assert {item.name: item.value for item in collect_build(build(options=changed)).chosen} == {
        "fp16": "true",
        "tf32": "false",
        "typing": "obey",
        "advanced.direct_io": "true",
    }
    assert not is_usual("optimization_level", 5)


@pytest.mark.parametrize(
    ("cache", "numbers"),
    [
        (
            TimingCacheUse(file="a", loaded_bytes=2048, saved_bytes=4096, loaded_entries=3, saved_entries=9),
            [3, 2.0, 9, 4.0],
        ),
        (TimingCacheUse(file="a", saved_bytes=5, note="kept"), [0, 5]),
        (TimingCacheUse(file="", note="nothing to keep"), []),
    ],
)
def test_the_timing_cache_is_described(cache: TimingCacheUse, numbers: list[float]) -> None:
    text = collect_build(build(timing_cache=cache)).cache
    assert numbers_in(text) == numbers
    assert text.startswith("a: " if cache.file else "nothing") and text.endswith(cache.note)


# --- the page ---


def test_the_page_shows_all_facts_of_an_engine(tmp_path: Path) -> None:
    page = page_of(tmp_path, engine=build())
    words = words_of(page)
    for text in (
        "TensorRT 10.16.1.11",
        "weakly typed: FP16, TF32",
        "6.90 MiB",
        "1 min 24 s",
        "parsed in 310 ms",
        "NVIDIA RTX A4000",
        "288 → 72",
        "130 ONNX nodes",
        dims("1x3x320x320 1x3x640x640 4x3x960x960 inputs"),
        "ignored: the layer was fused away",
        "PREFER_PRECISION_CONSTRAINTS",
        "254 MiB",
        "builder's peak on the host 1.76 GiB",
        "812 entries (402 KiB) saved",
        "Detected subnormal FP16 values",
        "from TensorRT's engine inspector",
        "4 float16 hwc8 → float16 linear",
        "1 of 2 precision constraints were ignored",
        "builder_optimization_level",
    ):
        assert text in words, text
    assert '<a href="#engines">Engines</a>' in page
    assert 'id="layers"' not in page and 'id="latency"' not in page


def test_times_are_not_mentioned(tmp_path: Path) -> None:
    page = page_of(tmp_path, engine=build())
    section = page[page.index('id="engines"') : page.index('id="repeat"')]
    heads = re.findall(r"<th scope=\"col\"[^>]*>([^<]*)</th>", section)
    assert not {"%", "Median", "Min ms", "Max ms", "Time"} & set(heads)
    assert "µs" not in words_of(section) and "0.00 ms" not in section
    (layers,) = data_of(page)["layers"]
    assert not layers["is_timed"]


def test_the_source_of_layers_is_named(tmp_path: Path) -> None:
    words = words_of(page_of(tmp_path / "log", engine=rtx_build()))
    assert "builder's log" in words and "8.6 , 8.9 , 12.0" in words
    words = words_of(page_of(tmp_path / "network", engine=build(layers_basis="network as parsed")))
    assert "before optimization" in words and "layers are not known" in words


def test_several_engines_are_side_by_side(tmp_path: Path) -> None:
    page = page_of(tmp_path, engine=build(), rtx=rtx_build())
    table = page[page.index('class="dense engines"') :]
    rows = [
        words_of(row) for row in re.findall(r"<tr><th scope=\"row.*?</tr>", table[: table.index("</table>")], re.DOTALL)
    ]
    assert rows == [
        "engine TensorRT 10.16.1.11 NVIDIA RTX A4000 6.90 MiB 1 min 24 s 72 69 float16 , 3 float32 6",
        "rtx TensorRT-RTX 1.7.1.116 8.6, 8.9, 12.0 9.38 MiB 1.2 s 55 55 float32 5",
    ]
    assert len(data_of(page)["layers"]) == 2
    assert 'data-layers="0" id="engine-0"' in page and 'data-layers="1" id="engine-1"' in page
    assert 'class="dense engines"' not in page_of(tmp_path / "one", engine=build())


def test_absent_parts_have_no_section(tmp_path: Path) -> None:
    bare = build(
        layers=(),
        profiles=(),
        constraints=(),
        timing_cache=None,
        warnings=(),
        notes=(),
        memory=BuildMemory(),
        flags=(),
        inputs=(),
        outputs=(),
        applied={},
    )
    words = words_of(page_of(tmp_path, engine=bare))
    assert "No layers are known." in words and "Not recorded." in words
    for absent in (
        "Warnings",
        "Optimization profiles",
        "Precision constraints",
        "Timing cache",
        "Reformats ·",
        "Graph",
    ):
        assert absent not in words


def test_hostile_names_stay_text(tmp_path: Path) -> None:
    bad = HOSTILE_NAMES[0]
    layers = tuple(
        Layer(
            index=index,
            name=name,
            type=name,
            precision=name,
            tactic=name,
            inputs=(tensor(name, 1, dtype=name, layout=name),),
            outputs=(tensor(name, 1, dtype=name),),
            onnx_nodes=(name,),
            samples_ms=(),
            role="reformat",
        )
        for index, name in enumerate(HOSTILE_NAMES)
    )
    hostile = build(
        label=bad,
        version=bad,
        typing=bad,
        layers=layers,
        flags=HOSTILE_NAMES,
        warnings=HOSTILE_NAMES,
        notes=HOSTILE_NAMES,
        applied={bad: list(HOSTILE_NAMES)},
        options={bad: bad},
        constraints=tuple(
            Constraint(node=hostile_name, precision=hostile_name, outcome=f"ignored: {hostile_name}")
            for hostile_name in HOSTILE_NAMES
        ),
        profiles=(BuiltProfile(inputs={bad: ShapeRange(min=(1,), opt=(1,), max=(2,))}, basis=bad),),
        timing_cache=TimingCacheUse(file=bad, note=bad),
        inputs=(tensor(bad, 1),),
    )
    page = page_of(tmp_path, engine=hostile)
    assert "<img src=x" not in page and "<script>alert" not in page
    assert page.count("</script>") == 3 and page.count("<script") == 3
    for name in HOSTILE_NAMES:
        alone = draw_build(hostile, name, tmp_path / "alone.html").read_text("utf-8")
        assert "<img src=x" not in alone and alone.count("<script") == alone.count("</script>") == 3


def test_a_damaged_build_is_reported_and_the_rest_drawn(tmp_path: Path) -> None:
    folder = write_engine_run(tmp_path, {"engine": build()})
    (folder / "engine" / "build.json").write_text('{"label": 3}')
    words = words_of(draw_report(folder).read_text("utf-8"))
    assert "engine/build.json cannot be read" in words and "Engines" not in words


@pytest.mark.thorough
def test_five_thousand_layers_stay_small(tmp_path: Path) -> None:
    page = page_of(tmp_path, engine=build(layers=detector(1180)))
    assert len(page) < 1_000_000
    (layers,) = data_of(page)["layers"]
    assert len(layers["columns"]["name"]) > 5000 and data_of(page)["graph_of"] == [0]


def test_requested_precisions_are_next_to_actual_ones(tmp_path: Path) -> None:
    """In the script's data, and in the table that is printed; an engine of which nothing was asked has neither."""
    layers = asked(Softmax="fp16", Resize="fp32")[60:]
    page = page_of(tmp_path, engine=build(layers=layers), plain=build())
    engine, plain = data_of(page)["layers"]
    assert engine["columns"]["asked"][-3:] == ["fp32", "fp16", ""]
    assert (engine["missed"], plain["missed"], any(plain["columns"]["asked"])) == ([10], [], False)
    assert words_of(page).count("Precision Reads → writes Requested ONNX nodes") == 1
    assert re.search(r'<td class="clip bad"><bdi>≠ fp16</bdi></td>', page)
    assert "≠ fp32" not in page


def test_a_build_without_constraints_of_layers_is_read() -> None:
    old = build().model_dump(mode="json")
    for layer in old["layers"]:
        del layer["asked_precision"]
    assert Build.model_validate_json(json.dumps(old)) == build()


# --- terminal and exports ---


def test_the_verdict_names_engines(tmp_path: Path) -> None:
    folder = write_engine_run(tmp_path, {"engine": build(), "rtx": rtx_build()})
    first, second = summarize_run(read_run(folder))[2:4]
    for line, facts in (
        (first, ("engine engine", "6.90 MiB", "1 min 24 s", "72 layers", "TensorRT 10.16.1.11", "not checked")),
        (second, ("engine rtx", "9.38 MiB", "1.2 s", "55 layers", "TensorRT-RTX 1.7.1.116", "not checked")),
    ):
        assert [fact for fact in facts if fact not in line] == []


def test_an_unchecked_engine_is_shown_as_such(tmp_path: Path) -> None:
    """One that chooses its precisions itself is a warning, and one with marked outputs ships nowhere."""
    weak = build().model_copy(update={"typing": "weakly typed: FP16, TF32", "engine_digest": "d1"})
    marked = weak.model_copy(update={"marked_outputs": ("Conv_0",)})
    folder = write_engine_run(tmp_path, {"engine": weak, "inside": marked})
    documents = read_run(folder)
    summary = collect_summary(documents)
    assert [engine.checked for engine in summary.engines] == ["not checked", "for inspection"]
    [warning] = [text for text in summary.warnings if "no step compares" in text]
    assert "FP16, TF32, and no" in warning
    built = BuiltFile(name="engine", digest="d1", model="half")
    ran = Execution(library="TensorRT 10.16.1.11", device="NVIDIA H200", built=built)
    agree = accuracy().model_copy(update={"execution_candidate": ran})
    checked = collect_summary(replace(documents, known={**documents.known, Accuracy: {"agree": agree}}))
    assert checked.engines[0].checked == "checked by agree"
    assert not any("no step compares" in text for text in checked.warnings)


def test_layers_are_written_as_csv_without_times() -> None:
    rows = list(csv.DictReader(engine_layers_csv("half", detector()).splitlines()))
    assert len(rows) == 72
    assert rows[0] | {"read_bytes": "", "written_bytes": "", "weight_bytes": ""} == {
        "engine": "half",
        "index": "0",
        "name": "Reformatting CopyNode for Input Tensor 0 to /stem/Conv + /stem/Relu",
        "type": "Reformat",
        "role": "reformat",
        "precision": "float16",
        "input_precision": "float32",
        "output_precision": "float16",
        "weights_dtype": "",
        "multiply_unit": "unknown",
        "precision_basis": "",
        "asked_precision": "",
        "output_dims": "?x3x?x?",
        "macs": "",
        "read_bytes": "",
        "written_bytes": "",
        "weight_bytes": "",
        "tactic": "",
        "stream": "0",
        "onnx_nodes": "",
        "output_format": "hwc8",
    }
    assert not [name for name in rows[0] if "ms" in name.split("_") or name == "share"]


# --- what it shows ---


def shown_of(engine: Build) -> tuple[Insight, ...]:
    return insights_of_engine(EngineSubject(engine.as_profile(), engine))


def rules(engine: Build) -> list[str]:
    return [insight.name for insight in shown_of(engine)]


def insight_of(engine: Build, rule: str) -> Insight:
    (insight,) = (insight for insight in shown_of(engine) if insight.name == rule)
    return insight


def test_every_insight_has_evidence_and_advice_and_no_score() -> None:
    found = shown_of(build())
    assert len(found) == 8
    assert all(item.evidence and item.next_step and item.score == 0 for item in found)
    assert all(0 <= layer < 72 for item in found for layer in item.layers)


def test_a_good_engine_has_no_insights() -> None:
    """Each rule needs a reason."""
    layers = tuple(layer for layer in detector() if layer.role == "compute" and layer.precision == "float16")
    shapes = ShapeRange(min=(1, 3), opt=(1, 3), max=(1, 3))
    quiet = build(
        layers=layers,
        warnings=(),
        constraints=(Constraint(node="a", precision="fp32", outcome="set on 1 layer"),),
        profiles=(BuiltProfile(inputs={"x": shapes}, basis="fixed shapes"),),
        options=BuildSettings().model_dump(mode="json"),
        build_s=3.0,
    )
    assert rules(quiet) == []
    assert len(ENGINE_RULES) == 15 + len(LINTS)


def test_engines_in_fp32_are_reported() -> None:
    assert "single_precision_only" in rules(rtx_build())
    assert "single_precision_only" not in rules(rtx_build(typing="weakly typed: TF32"))
    insight = insight_of(build(), "single_precision_among_half")
    assert insight.layers == (69, 70) and numbers_in(insight.title) == [2, 72]


def asked(**precisions: str) -> tuple[Layer, ...]:
    """The detector, with what was asked for layers by their ends; those of several nodes end in Relu or Mul."""
    return tuple(
        layer.model_copy(update={"asked_precision": precision})
        if (precision := precisions.get(layer.name.rpartition("/")[2])) and layer.role == "compute"
        else layer
        for layer in detector()
    )


def test_unmet_precision_requests_are_reported() -> None:
    """Resize has a finding of its own: its constraint was ignored. Relu may well compute in fp32 within its layer."""
    weak = build(layers=asked(Softmax="fp16", Resize="fp16", Relu="fp32"))
    insight = insight_of(weak, "requested_precision_missed")
    assert insight.layers == (70,)
    assert re.findall("/head/Softmax|fp16|float32", insight.evidence) == ["/head/Softmax", "fp16", "float32"]
    assert missed_precisions(weak.as_profile(), weak) == (69, 70)


def test_met_and_uncertain_precision_requests_are_not_reported() -> None:
    met = build(layers=asked(Softmax="fp32", Conv="fp16", Resize="int8"))
    strong = build(layers=asked(Softmax="fp16"), typing="strongly typed, constraints as Casts")  # a Cast was fused
    both = build(layers=asked(Softmax="fp16, fp32"))
    assert all("requested_precision_missed" not in rules(engine) for engine in (met, strong, both))


def test_reformats_of_inputs_and_outputs_name_them() -> None:
    insight = insight_of(build(), "reformats_at_the_ends")
    assert insight.layers == (0, 71)
    assert "float16 hwc8), output y (float32" in insight.evidence


@pytest.mark.parametrize(
    ("opt", "said"),
    [((4, 3, 960, 960), "largest"), ((1, 3, 320, 320), "smallest"), ((1, 3, 640, 640), None)],
)
def test_an_opt_shape_at_one_end_of_a_wide_range_is_reported(opt: tuple[int, ...], said: str | None) -> None:
    shapes = ShapeRange(min=(1, 3, 320, 320), opt=opt, max=(4, 3, 960, 960))
    engine = build(profiles=(BuiltProfile(inputs={"x": shapes}, basis=""),))
    assert ("opt_at_one_end" in rules(engine)) == bool(said)
    assert not said or said in insight_of(engine, "opt_at_one_end").title


def test_important_settings_are_reported() -> None:
    def with_options(**options: Any) -> Build:
        return build(options=BuildSettings(**options).model_dump(mode="json"))

    assert "placeholder_ranges_used" in rules(with_options(int8=True, placeholder_ranges=True))
    assert "weights_are_missing" in rules(with_options(weights="strip"))
    assert "costs_of_compatibility" in rules(with_options(version_compatible=True))
    assert not {"placeholder_ranges_used", "weights_are_missing", "costs_of_compatibility"} & {*rules(with_options())}
    rtx = rtx_build(options=BuildSettings(hardware_compatibility="ampere_plus").model_dump(mode="json"))
    assert "costs_of_compatibility" not in rules(rtx)  # TensorRT-RTX knows no such level


def test_timing_caches_are_reported() -> None:
    empty, without = build(), build(timing_cache=None)
    assert "`timing_cache_file`" in insight_of(empty, "timing_cache").next_step
    assert "`timing_cache`" in insight_of(without, "timing_cache").next_step
    used = build(timing_cache=TimingCacheUse(file="a", loaded_bytes=9, loaded_entries=1))
    attempt = build(options=BuildSettings(attempt=2).model_dump(mode="json"))  # it reads none on purpose
    for engine in (used, attempt, build(build_s=5.0), rtx_build(build_s=500.0)):  # TensorRT-RTX times nothing
        assert "timing_cache" not in rules(engine)


def test_memory_for_the_largest_shapes_is_reported() -> None:
    assert "memory_for_the_largest" in rules(build())
    assert "memory_for_the_largest" not in rules(build(memory=BuildMemory(weights_bytes=MIB)))


def test_engines_without_layer_information_are_reported() -> None:
    assert "layers_unknown" in rules(build(layers=()))
    names = tuple(layer.model_copy(update={"type": "unknown"}) for layer in detector())
    assert "layers_unknown" in rules(build(layers=names))
    assert "layers_unknown" not in rules(build())
