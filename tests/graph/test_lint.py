"""The step lint: findings on faulty models, and none on correct ones."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import onnx
import onnx.parser
import pytest
from onnx import TensorProto, helper, numpy_helper

from ndld_flow.base.errors import BackendError, ModelError
from ndld_flow.graph.lint import check as lint_check
from ndld_flow.graph.lint.check import Check, Subject, all_checks, lint_file
from ndld_flow.graph.lint.settings import CheckName, LintSettings
from ndld_flow.inputs import InputSpec
from ndld_flow.models.changed_model import load_failure
from ndld_flow.models.files import MAX_IR_VERSION, MAX_OPSET
from ndld_flow.records.inspection import Finding, Findings
from ndld_flow.step import Context, Result
from ndld_flow.steps.lint import Lint
from ndld_flow.store.kinds import Onnx
from tests.support import models
from tests.support.message_files import CheckMessage
from tests.support.models_run import specs

CHECKS = (
    "external_data",
    "onnx.checker",
    "shape_inference",
    "versions",
    "missing_import",
    "unknown_op",
    "duplicate_name",
    "missing_name",
    "missing_shape",
    "unused_node",
    "unused_initializer",
    "unused_input",
    "dynamic_output",
    "ambiguous_dim",
    "float64",
    "nan_inf",
    "fp16_range",
    "fp16_squares",
    "training_mode",
    "onnxruntime",
    "polygraphy",
    "channel_scales",
)
"""In the order in which findings of equal severity are listed."""
OWN = tuple(name for name in CHECKS if name not in ("onnxruntime", "polygraphy", "channel_scales"))
X, Y = models.tensor("x", [2, 4]), models.tensor("y", [2, 4])


def lint(path: Path, inputs: Mapping[str, InputSpec] | None = None, **options: Any) -> Findings:
    return lint_file(path, LintSettings(**{"checks": OWN, **options}), inputs or {}, lambda *_: None)


def by_check(findings: Findings, check: str) -> list[Finding]:
    return [finding for finding in findings.findings if finding.check == check]


def save(tmp_path: Path, change: Callable[[onnx.ModelProto], object] | None = None, **graph: Any) -> Path:
    """A model of one Relu, or of the given parts, after a change."""
    nodes = graph.get("nodes", [helper.make_node("Relu", ["x"], ["y"], name="relu")])
    tensors = [numpy_helper.from_array(np.asarray(a), name) for name, a in graph.get("initializers", {}).items()]
    proto = helper.make_model(
        helper.make_graph(nodes, "main", graph.get("inputs", [X]), graph.get("outputs", [Y]), tensors),
        ir_version=8,
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("custom", 1)],
    )
    if change is not None:
        change(proto)
    return models.save(proto, tmp_path / "model.onnx")


def step(path: Path, settings: str = "{}", **inputs: InputSpec) -> tuple[Findings, Result]:
    out = path.parent / "out"
    out.mkdir(exist_ok=True)
    context = Context("lint", inputs, {}, out, logging.getLogger("test"), lambda *_: None, Path())
    result = Lint.model_validate_json(settings).run(Onnx(path, "source", ""), out, context)
    return Findings.model_validate_json((out / "findings.json").read_text()), result


def test_checks_have_names_and_run_in_order() -> None:
    assert tuple(check.name for check in all_checks()) == CHECKS
    assert get_args(CheckName) == tuple(sorted(CHECKS))
    assert all(check.__doc__ for check in all_checks())


@pytest.mark.representatives("cnn", "func")
@pytest.mark.parametrize("name", ["cnn", "tfm", "ctrl", "func", "ext", "sparse"])
def test_working_models_have_no_errors(tmp_path: Path, name: str) -> None:
    findings = lint(getattr(models, f"make_{name}")(tmp_path / "model.onnx"))
    assert [f for f in findings.findings if f.severity == "error"] == []
    assert set(findings.checks_run) == set(OWN)


def add(name: str, *inputs: str) -> onnx.NodeProto:
    return helper.make_node("Add", list(inputs), [f"{name}_out"], name=name)


def test_unused_nodes_and_their_inputs_are_reported(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"], name="relu"), add("dead", "x", "w"), add("deader", "dead_out", "x")]
    inputs = [X, models.tensor("unread", [2])]
    findings = lint(
        save(
            tmp_path,
            nodes=nodes,
            inputs=inputs,
            initializers={"w": np.ones(4, np.float32), "u": np.ones(3, np.float32)},
        )
    )
    assert {f.node for f in by_check(findings, "unused_node")} == {"dead", "deader"}
    assert ["'u'" in f.message for f in by_check(findings, "unused_initializer")] == [True]
    assert ["'unread'" in f.message for f in by_check(findings, "unused_input")] == [True]


def test_tensors_read_only_by_a_subgraph_are_used(tmp_path: Path) -> None:
    findings = lint(models.make_ctrl(tmp_path / "model.onnx"))
    assert by_check(findings, "unused_node") == []
    assert by_check(findings, "unused_input") == []


def test_problems_of_names_are_reported(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="same"), helper.make_node("Relu", ["a"], ["b"], name="same")]
    nodes += [helper.make_node("Relu", ["b"], ["y"])]
    findings = lint(save(tmp_path, nodes=nodes))
    assert [(f.node, f.severity) for f in by_check(findings, "duplicate_name")] == [("same", "warning")]
    assert [f.op_type for f in by_check(findings, "missing_name")] == ["Relu"]


def test_a_tensor_with_two_producers_is_an_error_even_in_a_model_that_cannot_be_loaded(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"], name=name) for name in ("first", "second")]
    findings = lint(save(tmp_path, nodes=nodes))
    assert [(f.node, f.severity) for f in by_check(findings, "duplicate_name")] == [("second", "error")]
    assert by_check(findings, "load")
    assert "shape_inference" in findings.checks_skipped


def test_unknown_and_deprecated_operators_are_reported(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("NoSuch", ["x"], ["a"], name="invented"),
        helper.make_node("Upsample", ["a", "s"], ["b"], name="old"),
        helper.make_node("Plugin", ["b"], ["c"], name="special", domain="custom"),
        helper.make_node("Gelu", ["c"], ["y"], name="contrib", domain="com.microsoft"),
    ]
    findings = by_check(lint(save(tmp_path, nodes=nodes, initializers={"s": np.ones(2, np.float32)})), "unknown_op")
    assert {f.node: f.severity for f in findings} == {"invented": "error", "old": "error", "special": "warning"}
    assert "deprecated" in next(f.message for f in findings if f.node == "old")


def test_operators_that_some_runtime_has_are_warnings(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("SimplifiedLayerNormalization", ["x", "s"], ["a"], name="norm", axis=-1),
        helper.make_node("EfficientNMS_TRT", ["a"], ["b"], name="plugin"),
        helper.make_node("GridSampler", ["b"], ["y"], name="named", plugin_version="1"),
    ]
    path = save(tmp_path, nodes=nodes, initializers={"s": np.ones(4, np.float32)})
    findings = lint(path)
    assert {f.node: f.severity for f in by_check(findings, "unknown_op")} == dict.fromkeys(
        ("norm", "plugin", "named"), "warning"
    )
    assert by_check(findings, "onnx.checker") == []
    assert [f.severity for f in by_check(lint(path, checks=("onnxruntime",)), "onnxruntime")] == ["warning"]


def unshaped(proto: onnx.ModelProto) -> None:
    for value in (*proto.graph.input, *proto.graph.output):
        value.type.tensor_type.ClearField("shape")
    proto.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, None))


def test_tensors_without_a_shape_are_reported_and_do_not_end_the_lint(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["a"], name="first"), helper.make_node("Relu", ["a"], ["y"], name="relu")]
    findings = lint(save(tmp_path, unshaped, nodes=nodes))
    assert [f.message.partition(" is ")[0] for f in by_check(findings, "missing_shape")] == [
        "input 'x'",
        "output 'y'",
        "tensor 'a'",
    ]
    assert {f.severity for f in findings.findings} == {"warning", "info"}


def nameless(proto: onnx.ModelProto) -> None:
    proto.graph.name = ""
    del proto.opset_import[1:]


def test_a_graph_without_a_name_and_a_missing_import_are_reported(tmp_path: Path) -> None:
    nodes = [helper.make_node("Gelu", ["x"], ["y"], name="gelu", domain="com.microsoft")]
    findings = lint(save(tmp_path, nameless, nodes=nodes))
    [finding] = by_check(findings, "missing_import")
    assert finding.severity == "warning"
    assert "'com.microsoft'" in finding.message
    assert [f.severity for f in by_check(findings, "missing_name")] == ["warning"]
    assert {f.severity for f in findings.findings} == {"warning"}


def without_imports(proto: onnx.ModelProto) -> None:
    del proto.opset_import[:]


def test_a_model_that_imports_nothing_is_an_error(tmp_path: Path) -> None:
    findings = lint(save(tmp_path, without_imports))
    assert [(f.check, f.severity) for f in findings.findings if f.severity == "error"] == [("missing_import", "error")]
    assert by_check(findings, "unknown_op") == []


def test_nan_that_separates_the_sets_of_a_tree_is_no_weight(tmp_path: Path) -> None:
    nan = helper.make_tensor("values", TensorProto.FLOAT, [3], [1, 2, float("nan")])
    nodes = [
        helper.make_node("Constant", [], ["c"], value=nan),
        helper.make_node("TreeEnsemble", ["x"], ["y"], domain="ai.onnx.ml", membership_values=nan),
    ]
    path = save(tmp_path, nodes=nodes)
    assert len(lint(path, checks=("nan_inf",)).findings) == 1
    assert lint(save(tmp_path, nodes=nodes[1:]), checks=("nan_inf",)).findings == ()


def test_a_contradiction_is_an_error_only_if_onnx_runtime_does_not_load_the_model(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "y_"], ["y"])]
    inputs = [models.tensor("x", [2, 3]), models.tensor("y_", [4, 5])]
    refused = save(tmp_path, nodes=nodes, inputs=inputs, outputs=[models.tensor("y", [2, 5])])
    assert load_failure(refused) is not None
    assert [f.severity for f in by_check(lint(refused), "shape_inference")] == ["error"]

    def contradict(proto: onnx.ModelProto) -> None:
        proto.graph.output[0].CopyFrom(models.tensor("y", [7, 7]))

    loaded = save(tmp_path, contradict)
    assert load_failure(loaded) is None
    findings = lint(loaded)
    assert [f.severity for f in by_check(findings, "shape_inference")] == ["warning"]
    assert not any(f.severity == "error" for f in findings.findings)


def newer(proto: onnx.ModelProto) -> None:
    proto.ir_version = 14
    proto.opset_import[0].version = 27


def test_new_versions_are_an_error_only_if_the_installed_onnx_runtime_refuses_them(tmp_path: Path) -> None:
    def newer_operators(proto: onnx.ModelProto) -> None:
        proto.opset_import[0].version = MAX_OPSET + 1

    for change, count in ((newer, 2), (newer_operators, 1)):
        path = save(tmp_path, change)
        findings = lint(path)
        assert [f.severity for f in by_check(findings, "versions")] == ["warning"] * count
        assert any(f.severity == "error" for f in findings.findings) == (load_failure(path) is not None)


def test_dynamic_outputs_are_noted(tmp_path: Path) -> None:
    findings = by_check(lint(models.make_cnn(tmp_path / "model.onnx")), "dynamic_output")
    assert [(f.severity, f.message) for f in findings] == [("info", "output 'y' is dynamic: [batch, 10]")]


def test_dimensions_named_with_a_question_mark_are_reported(tmp_path: Path) -> None:
    path = save(tmp_path, inputs=[models.tensor("x", ["?", "?"])], outputs=[models.tensor("y", ["?", "?"])])
    [finding] = by_check(lint(path), "ambiguous_dim")
    assert finding.severity == "warning"
    assert finding.message.startswith("4 dimensions have the name '?'")
    path = save(tmp_path, inputs=[models.tensor("x", [None, "unk__1"])], outputs=[models.tensor("y", ["", "unk__1"])])
    assert not by_check(lint(path), "ambiguous_dim")


def test_problems_of_values_are_reported(tmp_path: Path) -> None:
    values = {
        "nan": np.array([1, np.nan, np.nan, 0], np.float32),
        "inf": np.array([1, -np.inf, 0, 0], np.float32),
        "large": np.array([1e5, 1, 1, 1], np.float32),
        "tiny": np.array([1e-12], np.float32),
        "wide": np.array([1, 2, 3, 4], np.float64),
    }
    findings = lint(save(tmp_path, initializers=values))
    result = {
        (f.check, f.severity, f.message.split("'")[1])
        for f in findings.findings
        if f.check in ("nan_inf", "fp16_range", "float64")
    }
    assert result == {
        ("nan_inf", "error", "nan"),
        ("nan_inf", "warning", "inf"),
        ("fp16_range", "warning", "large"),
        ("fp16_range", "warning", "tiny"),
        ("float64", "warning", "wide"),
    }
    assert any("2 NaNs in 4" in f.message for f in findings.findings)


def test_shape_inference_names_the_node(tmp_path: Path) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"], name="product")]
    findings = by_check(
        lint(save(tmp_path, nodes=nodes, initializers={"w": np.ones((5, 4), np.float32)})), "shape_inference"
    )
    assert [(f.node, f.op_type, f.severity) for f in findings] == [("product", "MatMul", "error")]


def test_the_checker_names_the_node(tmp_path: Path) -> None:
    nodes = [helper.make_node("Relu", ["x"], ["y"], name="relu", invented=1)]
    findings = by_check(lint(save(tmp_path, nodes=nodes)), "onnx.checker")
    assert [(f.node, f.op_type) for f in findings] == [("relu", "Relu")]


def test_external_data_that_is_missing_is_a_finding(tmp_path: Path) -> None:
    path = models.make_ext(tmp_path / "model.onnx")
    (tmp_path / "model.onnx.bin").unlink()
    findings = by_check(lint(path), "external_data")
    assert [f.severity for f in findings] == ["error"]
    assert "missing" in findings[0].message


def test_a_file_that_is_no_model_is_a_request_error(tmp_path: Path, check_message: CheckMessage) -> None:
    for content in (b"", b"not a model at all, whatever it may be"):
        (tmp_path / "model.onnx").write_bytes(content)
        with pytest.raises(ModelError):
            lint(tmp_path / "model.onnx")
    with pytest.raises(ModelError) as caught:
        lint(tmp_path / "none.onnx")
    check_message(caught.value)


def test_models_that_onnx_runtime_cannot_load_are_reported(tmp_path: Path) -> None:
    nodes = [helper.make_node("Plugin", ["x"], ["y"], name="special", domain="custom")]
    findings = by_check(lint(save(tmp_path, nodes=nodes), checks=("onnxruntime",)), "onnxruntime")
    assert [f.severity for f in findings] == ["warning"]
    assert "Plugin" in findings[0].message
    nodes = [helper.make_node("Plug", ["x"], ["y"], name="special")]
    findings = by_check(lint(save(tmp_path, nodes=nodes), checks=("onnxruntime",)), "onnxruntime")
    assert [f.severity for f in findings] == ["error"]
    assert "Plug" in findings[0].message


@pytest.mark.thorough
def test_polygraphy_runs_the_model_at_the_recipe_s_shapes(tmp_path: Path) -> None:
    nodes = [helper.make_node("Reshape", ["x", "shape"], ["y"], name="reshape")]
    inputs, outputs = [models.tensor("x", ["n"])], [models.tensor("y", [2, "m"])]
    path = save(
        tmp_path, nodes=nodes, inputs=inputs, outputs=outputs, initializers={"shape": np.array([2, -1], np.int64)}
    )
    assert lint(path, checks=("polygraphy",), inputs=specs({"x": {"shape": [4]}})).findings == ()
    made_up = lint(path, checks=("polygraphy",)).findings
    certain = lint(path, checks=("polygraphy",), inputs=specs({"x": {"shape": [3]}})).findings
    assert [(f.node, f.severity) for f in made_up] == [("reshape", "warning")]
    assert [(f.node, f.severity) for f in certain] == [("reshape", "error")]


def test_a_missing_or_refused_polygraphy_is_reported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if "surgeon" in name else find_spec(name))
    path = save(tmp_path)
    assert "not installed" in lint(path, checks=()).checks_skipped["polygraphy"]
    with pytest.raises(BackendError) as caught:
        lint(path, checks=("polygraphy",), polygraphy="always")
    check_message(caught.value)


def test_a_check_that_hangs_ends_with_the_time_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lint_check, "_LOAD", "import time; time.sleep(60)")
    start = time.monotonic()
    findings = lint(save(tmp_path), checks=("onnxruntime",), time_limit=500.0)
    assert time.monotonic() - start < 20
    assert findings.undecided.keys() == {"onnxruntime"} and "500 ms" in findings.undecided["onnxruntime"]
    assert findings.findings == ()


def test_without_time_every_check_is_undecided(tmp_path: Path) -> None:
    findings, result = step(save(tmp_path), '{"time_limit": "0 s"}')
    assert (result.passed, result.inconclusive) == (False, True)
    assert findings.checks_run == ()
    assert set(findings.undecided) >= set(OWN)
    assert "polygraphy" not in step(save(tmp_path), '{"time_limit": "0 s", "polygraphy": "never"}')[0].undecided


def test_a_check_that_fails_itself_is_undecided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: Check, subject: Subject) -> Iterator[Finding]:
        raise MemoryError("too large")
        yield

    check = next(check for check in all_checks() if check.name == "nan_inf")
    monkeypatch.setattr(type(check), "find", fail)
    findings, result = step(save(tmp_path), '{"checks": ["nan_inf", "unused_node"], "fail_on": "never"}')
    assert (result.passed, result.inconclusive) == (False, True)
    assert findings.undecided == {"nan_inf": "MemoryError: too large"}
    wrong = save(tmp_path, nodes=[helper.make_node("Relu", ["missing"], ["y"], name="r")])
    _, failed = step(wrong, '{"checks": ["nan_inf", "onnx.checker"]}')
    assert (failed.passed, failed.inconclusive) == (False, False), "another check found the error"


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_check_that_crashes_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lint_check, "_LOAD", "import os; os.kill(os.getpid(), 11)")
    findings = lint(save(tmp_path), checks=("onnxruntime",)).findings
    assert "crashed" in findings[0].message


def test_large_models_are_read_only_on_request(tmp_path: Path) -> None:
    path = models.make_ext(tmp_path / "model.onnx")
    skipped = lint(path, checks=(), skip=("onnxruntime",), large_model=1000).checks_skipped
    assert {name for name, reason in skipped.items() if "large" in reason} == {
        "channel_scales",
        "nan_inf",
        "fp16_range",
        "polygraphy",
    }
    assert "nan_inf" in lint(path, checks=("nan_inf",), large_model=1000).checks_run


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has /proc")
def test_loading_does_not_read_external_data(tmp_path: Path) -> None:
    """Prepacking would copy all weights."""
    data = tmp_path / "model.data"
    with data.open("wb") as file:
        file.truncate(2**28)
    path = save(tmp_path, nodes=[helper.make_node("MatMul", ["x", "w"], ["y"])], inputs=[models.tensor("x", [1, 8192])])
    proto = onnx.load(path)
    weight = onnx.TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[8192, 8192])
    weight.external_data.add(key="location", value=data.name)
    weight.data_location = TensorProto.EXTERNAL
    proto.graph.initializer.append(weight)
    proto.graph.output[0].CopyFrom(models.tensor("y", [1, 8192]))
    models.save(proto, path)
    # Not `ru_maxrss`, which begins with the memory of the parent.
    peak = "import re; print(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1])"
    command = [sys.executable, "-c", lint_check._LOAD + peak, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 200_000  # KiB


def test_repeated_findings_are_limited(tmp_path: Path) -> None:
    nodes = [helper.make_node("NoSuch", ["x"], [f"o{i}"], name=f"n{i}") for i in range(300)]
    findings = by_check(lint(save(tmp_path, nodes=[*nodes, helper.make_node("Relu", ["x"], ["y"])])), "unknown_op")
    assert len(findings) == 51
    assert "250 more" in findings[-1].message


@pytest.mark.parametrize(
    ("fail_on", "problem", "passed"),
    [
        ("error", "warning", True),
        ("warning", "warning", False),
        ("error", "error", False),
        ("never", "error", True),
        ("warning", "", True),
    ],
)
def test_the_chosen_severity_decides(tmp_path: Path, fail_on: str, problem: str, passed: bool) -> None:
    values = {"warning": {"w": np.array([np.inf], np.float32)}, "error": {"w": np.array([np.nan], np.float32)}, "": {}}
    node = (
        helper.make_node("Add", ["x", "w"], ["y"], name="add")
        if problem
        else helper.make_node("Relu", ["x"], ["y"], name="r")
    )
    path = save(tmp_path, nodes=[node], initializers=values[problem])
    findings, result = step(path, f'{{"fail_on": "{fail_on}", "checks": ["nan_inf"]}}')
    assert result.passed is passed
    assert findings.checks_run == ("nan_inf",)
    assert result.metrics["errors"] == (problem == "error")
    assert Lint.stops_run


def test_the_step_passes_on_a_correct_model(tmp_path: Path) -> None:
    findings, result = step(save(tmp_path), '{"time_limit": "60 s", "polygraphy": "always"}', x=InputSpec(shape=(2, 4)))
    assert result.passed
    assert result.summary == "nothing found"
    assert findings.checks_run == CHECKS
    assert TensorProto.FLOAT == 1


def test_values_out_of_fp16_range_are_found_in_a_real_model(sample_model: Callable[[str], Path]) -> None:
    findings = lint(sample_model("det"), checks=())
    assert findings.count("error") == 0
    # The story of the quickstart: a BatchNormalization's variance that fp16 turns into infinity.
    assert any(f.check == "fp16_range" and "batch_norm_0.w_2" in f.message for f in findings.findings)


@pytest.mark.thorough
def test_channels_a_hundredfold_apart_are_reported(tmp_path: Path) -> None:
    builder = models.GraphBuilder(1)
    rows = builder.op("MatMul", "x", builder.weight(3, 40, scale=2.0))
    scores = builder.op("Sigmoid", builder.op("Unsqueeze", rows, builder.ints(1)))
    boxes = builder.op("Mul", scores, builder.floats(300.0))
    models.rename_output(builder, builder.op("Concat", boxes, scores, boxes, scores, axis=1), "y")
    model = builder.model([models.tensor("x", [1, 3])], [models.tensor("y", [1, 4, 40])])
    path = models.save(model, tmp_path / "mixed.onnx")
    (result,) = lint(path, checks=("channel_scales",)).findings
    assert (result.severity, result.check) == ("info", "channel_scales")
    assert "output 'y': " in result.message and "channel 0" in result.message
    alike = models.save(models.cnn_model(), tmp_path / "alike.onnx")
    assert lint(alike, checks=("channel_scales",)).findings == ()


def test_a_model_that_does_not_run_has_no_channel_scales(tmp_path: Path) -> None:
    path = save(tmp_path, nodes=[helper.make_node("Nonsense", ["x"], ["y"])])
    assert lint(path, checks=("channel_scales",)).findings == ()


@pytest.mark.parametrize(
    ("ir_version", "opset", "severities"),
    [
        (MAX_IR_VERSION, MAX_OPSET, []),
        (MAX_IR_VERSION + 1, MAX_OPSET, ["warning"]),
        (MAX_IR_VERSION, MAX_OPSET + 1, ["warning"]),
        (8, 7, []),
        (8, 6, ["warning"]),
    ],
)
def test_the_newest_and_the_oldest_version_are_allowed(
    tmp_path: Path, ir_version: int, opset: int, severities: list[str]
) -> None:
    def change(proto: onnx.ModelProto) -> None:
        proto.ir_version = ir_version
        proto.opset_import[0].version = opset

    findings = lint(save(tmp_path, change), checks=("versions",)).findings
    assert [f.severity for f in findings] == severities


def polygraphy(
    path: Path, patch: pytest.MonkeyPatch, entries: list[dict[str, Any]], **inputs: InputSpec
) -> tuple[Findings, tuple[str, ...]]:
    """Return the findings that Polygraphy's report of these entries gives, and the arguments of its command."""
    commands = []

    def run_python(_: Subject, *arguments: str) -> subprocess.CompletedProcess[str]:
        commands.append(arguments)
        Path(arguments[arguments.index("-o") + 1]).write_text(json.dumps({"lint_entries": entries}))
        return subprocess.CompletedProcess(arguments, 0, "", "")

    patch.setattr(Subject, "run_python", run_python)
    patch.setattr(importlib.util, "find_spec", lambda name: importlib.machinery.ModuleSpec(name, None))
    findings = lint(path, inputs, checks=("polygraphy",), polygraphy="always")
    [command] = commands
    return findings, command


def entry(source: str, level: str, *nodes: str) -> dict[str, Any]:
    return {"source": source, "level": level, "message": "it\nfails", "nodes": list(nodes)}


def test_findings_of_polygraphy_have_nodes_and_severities(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        entry("onnxruntime", "exception", "relu"),
        entry("onnxruntime", "warning", "polygraphy_unnamed_node_0"),
        entry("onnx_checker", "exception", "relu"),
        entry("onnx_graphsurgeon", "warning", "relu"),
    ]
    findings, _ = polygraphy(save(tmp_path), monkeypatch, entries)
    assert [(f.severity, f.node, f.op_type) for f in findings.findings] == [
        ("error", "relu", "Relu"),
        ("warning", "", ""),
        ("info", "relu", "Relu"),
    ]
    assert findings.findings[0].message == "it fails"


def test_polygraphy_repeats_no_unused_initializers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime warns of each when it loads the model."""
    message = "Removing initializer 'w'. It is not used by any node and should be removed from the model."
    entries = [entry("onnxruntime", "warning") | {"message": message}, entry("onnxruntime", "warning")]
    findings, _ = polygraphy(save(tmp_path), monkeypatch, entries)
    assert [f.message for f in findings.findings] == ["it fails"]


def test_each_fact_is_reported_once(tmp_path: Path) -> None:
    nodes = [helper.make_node("Upsample", ["x", "scales"], ["y"], name="old")]
    unused = {f"w{index}": np.ones(2, np.float32) for index in range(60)}
    path = save(tmp_path, nodes=nodes, initializers=unused | {"scales": np.ones(2, np.float32)})
    found = lint(path, checks=(*OWN, "polygraphy")).findings
    assert [f.check for f in found if f.node == "old" and f.check != "polygraphy"] == ["unknown_op"]
    assert {f.check for f in found if "w0" in f.message or "w59" in f.message} <= {"unused_initializer"}
    assert len(found) < 60


def test_what_polygraphy_finds_about_plugins_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(tmp_path, nodes=[helper.make_node("Smooth_TRT", ["x"], ["y"], name="plugin")])
    findings, _ = polygraphy(path, monkeypatch, [entry("onnxruntime", "exception", "plugin")])
    assert [(f.severity, f.node) for f in findings.findings] == [("warning", "plugin")]


def test_polygraphy_does_not_check_nodes_with_bodies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = models.make_ctrl(tmp_path / "model.onnx")
    with_body = next(node.name for node in onnx.load(path).graph.node if node.op_type == "If")
    findings, _ = polygraphy(path, monkeypatch, [entry("onnxruntime", "exception", with_body)])
    assert [(f.severity, f.node, f.op_type) for f in findings.findings] == [("info", with_body, "If")]


def test_polygraphy_does_not_check_nodes_that_omit_outputs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It extracts nodes, and an output without a name then has no type."""
    nodes = [helper.make_node("TopK", ["x", "k"], ["y", ""], name="top")]
    path = save(tmp_path, nodes=nodes, outputs=[models.tensor("y", [2, 1])], initializers={"k": np.array([1])})
    findings, _ = polygraphy(path, monkeypatch, [entry("onnxruntime", "exception", "top")])
    assert [(f.severity, f.node) for f in findings.findings] == [("info", "top")]


@pytest.mark.parametrize(
    ("kind", "severity"),
    [(kind, "warning") for kind in ("INT64", "INT32", "INT16", "UINT16")] + [("UINT8", "error"), ("BOOL", "error")],
)
def test_a_failure_with_random_indices_is_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, severity: str
) -> None:
    """Sizes and positions have few valid values, which no program can guess."""
    inputs = [models.tensor("x", [2, 4]), models.tensor("size", [2], onnx.TensorProto.DataType.Value(kind))]
    nodes = [helper.make_node("Relu", ["x"], ["y"], name="relu")]
    path = save(tmp_path, nodes=nodes, inputs=inputs)
    findings, _ = polygraphy(path, monkeypatch, [entry("onnxruntime", "exception", "relu")])
    assert [f.severity for f in findings.findings] == [severity]
    assert ("random values of size" in findings.findings[0].message) == (severity == "warning")


def test_only_inputs_with_a_shape_and_a_plain_name_are_given_to_polygraphy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    inputs = [models.tensor("x", ["n"]), models.tensor("y,z", ["m"])]
    nodes = [helper.make_node("Relu", ["x"], ["y"], name="relu")]
    path = save(tmp_path, nodes=nodes, inputs=inputs, outputs=[models.tensor("y", ["n"])])
    given = {"x": InputSpec(shape=(3,)), "y,z": InputSpec(shape=(4,)), "free": InputSpec()}
    findings, command = polygraphy(path, monkeypatch, [entry("onnxruntime", "exception", "relu")], **given)
    assert command[-2:] == ("--input-shapes", "x:[3]")
    assert [f.severity for f in findings.findings] == ["error"]
    guessed, command = polygraphy(path, monkeypatch, [entry("onnxruntime", "exception", "relu")])
    assert "--input-shapes" not in command
    assert [f.severity for f in guessed.findings] == ["warning"]


def _parsed(text: str, folder: Path, **weights: np.ndarray[Any, Any]) -> Path:
    model = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    onnx.save(model, folder / "m.onnx")
    return folder / "m.onnx"


@pytest.mark.parametrize(
    ("node", "found"),
    [
        ("y, m, v = BatchNormalization <training_mode = 1> (x, s, s, s, s)", True),
        ("y = BatchNormalization <training_mode = 0> (x, s, s, s, s)", False),
        ("y = BatchNormalization (x, s, s, s, s)", False),
        ("y = Dropout (x, ratio, yes)", True),
        ("y = Dropout (x, ratio, no)", False),
        ("y = Dropout (x, ratio)", False),
    ],
)
def test_training_mode_is_reported(node: str, found: bool, tmp_path: Path) -> None:
    weights = {"s": np.ones(3, np.float32), "ratio": np.float32(0.5), "yes": np.array(True), "no": np.array(False)}
    arrays = {name: np.asarray(value) for name, value in weights.items()}
    path = _parsed(f"g (float[2, 3, 4, 4] x) => (float[2, 3, 4, 4] y) {{ {node} }}", tmp_path, **arrays)
    assert bool(by_check(lint(path), "training_mode")) == found


@pytest.mark.parametrize(
    ("element", "nodes", "found"),
    [
        ("float16", "q = Mul (x, x) y = ReduceMean <axes = [1]> (q)", True),
        ("float16", "q = Pow (x, two) y = ReduceMean <axes = [1]> (q)", True),
        ("float16", "q = Mul (x, half) y = ReduceMean <axes = [1]> (q)", False),
        ("float", "q = Mul (x, x) y = ReduceMean <axes = [1]> (q)", False),
        (
            "float16",
            "f = Cast <to = 1> (x) q = Mul (f, f) r = ReduceMean (q) y = Cast <to = 10> (r)",
            False,
        ),
    ],
)
def test_squares_that_overflow_fp16_are_reported(element: str, nodes: str, found: bool, tmp_path: Path) -> None:
    numbers = {"two": np.asarray(np.float16(2)), "half": np.asarray(np.float16(0.5))}
    path = _parsed(f"g ({element}[2, 8] x) => ({element}[a, b] y) {{ {nodes} }}", tmp_path, **numbers)
    assert bool(by_check(lint(path), "fp16_squares")) == found
