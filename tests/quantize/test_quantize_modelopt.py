"""`quantize` with `modelopt`: a stand-in program, and the real one where it is installed."""

from __future__ import annotations

import json
import os
import signal
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from pydantic import ValidationError

from ndld_flow import api
from ndld_flow.base.errors import ModelError, RecipeError, RequestError
from ndld_flow.records.precision_search import Evidence, KeptNode, PrecisionSearch
from ndld_flow.steps.quantize import Quantize
from ndld_flow.store.kinds import PrecisionDocument
from tests.quantize.test_quantize import SIGNED, make_convs
from tests.steps.test_run_tool import assert_gone
from tests.support.message_files import CheckMessage
from tests.support.models import GraphBuilder, make_ext, rename_output, save, tensor
from tests.support.models_run import Ran, run_step

REAL = os.environ.get("NDLD_FLOW_MODELOPT_PYTHON", "")
COPY = """
    model = onnx.load(said.onnx_path, load_external_data=False)
    onnx.save(model, said.output_path)
    print("halfway", flush=True)
"""


def stand_in(folder: Path, does: str = COPY, version: str = "0.47.0") -> Path:
    """A program that answers as an interpreter with ModelOpt does, and writes down how it was called."""
    text = f"""\
#!{sys.executable}
import argparse, json, os, pathlib, subprocess, sys, time
here = pathlib.Path(__file__).parent
if sys.argv[1] == "-c":
    with open(here / "asked", "a") as file:
        file.write("x")
    print(json.dumps({{"nvidia-modelopt": "{version}", "onnx": "1.21.0"}} if "{version}" else {{}}))
    sys.exit()
assert sys.argv[1:3] == ["-m", "modelopt.onnx.quantization"], sys.argv
import onnx
parser = argparse.ArgumentParser()
for name in ("onnx_path", "output_path", "quantize_mode", "high_precision_dtype", "calibration_method",
             "calibration_data_path", "calibration_shapes"):
    parser.add_argument("--" + name)
for name in ("calibration_eps", "nodes_to_exclude", "op_types_to_quantize"):
    parser.add_argument("--" + name, nargs="+")
parser.add_argument("--use_external_data_format", action="store_true")
said = parser.parse_args(sys.argv[3:])
(here / "called.json").write_text(json.dumps(vars(said) | {{"environment": sorted(os.environ)}}))
{textwrap.dedent(does)}
"""
    path = folder / "bin" / "python"
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def called(python: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((python.parent / "called.json").read_text())
    return document


def use(folder: Path, python: Path, model: Path | None = None, given: Any = SIGNED, **settings: Any) -> Ran:
    modelopt = {"python": str(python), **settings.pop("modelopt", {})}
    source = model or make_convs(folder / "m.onnx")
    # The stand-in copies the model.
    return run_step(Quantize, source, folder / "step", {"modelopt": modelopt, "allow_empty": True, **settings}, given)


def test_modelopt_gets_the_model_and_the_samples(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    python = stand_in(tmp_path, COPY + "    os.rename(said.calibration_data_path, here / 'calibration.npz')\n")
    ran = use(tmp_path, python, modelopt={"format": "int8"}, samples=3, method="entropy", op_types=["Conv"])
    entries = called(python)
    assert (entries["quantize_mode"], entries["calibration_method"]) == ("int8", "entropy")
    assert (entries["calibration_shapes"], entries["op_types_to_quantize"]) == ("x:1x8x12x12", ["Conv"])
    assert entries["nodes_to_exclude"] is None
    with np.load(tmp_path / "bin/calibration.npz", allow_pickle=False) as rows:
        assert rows.files == ["x"]
        assert rows["x"].shape == (3, 8, 12, 12)
        assert len(np.unique(rows["x"][:, 0, 0, 0])) == 3
    assert "halfway" in caplog.messages
    assert ran.told[-1] == (0, 0, "halfway")
    assert "ModelOpt int8 on 3 samples: 0" in ran.result.summary
    assert {path.name for path in ran.out.iterdir()} == {"model.onnx"}
    graph = onnx.load(ran.out / "model.onnx").graph
    assert not {node.op_type for node in graph.node} & {"Constant"}, "it takes no weights from nodes"
    assert not {name for name in entries["environment"] if name.startswith(("PYTEST", "PYTHON", "VIRTUAL"))}


def test_what_is_excluded_is_named(tmp_path: Path) -> None:
    """Names that regular expressions would read otherwise, and a node that has none."""
    model = onnx.load(make_convs(tmp_path / "m.onnx"))
    convs = [node for node in model.graph.node if node.op_type == "Conv"]
    convs[0].name, convs[1].name, convs[2].name = "a.b", "-x+", ""
    onnx.save(model, tmp_path / "m.onnx")
    python = stand_in(tmp_path)
    why = Evidence(cause="range", sentence="so")
    kept = KeptNode(node="", op_type="Conv", outputs=tuple(convs[2].output), cause="range", evidence=(why,))
    counts: dict[str, Any] = {"sample_count": 1, "node_count": 7, "candidate_count": 4, "wall_s": 1.0}
    result: dict[str, Any] = {"tolerance": {}, "inputs": {}, "metrics_whole": {}, "metrics_found": {}, "trials": ()}
    search = PrecisionSearch(model="source", precision="int8", kept=(kept,), passed=True, **counts, **result)
    (tmp_path / "precision.json").write_text(search.to_json())
    artifact = PrecisionDocument(tmp_path / "precision.json", "search", "digest")
    settings: dict[str, Any] = {"modelopt": {"python": str(python)}, "exclude": {"nodes": ["a.b", "-x+"]}}
    settings |= {"found_by": "search", "allow_empty": True}
    source = tmp_path / "m.onnx"
    ran = run_step(Quantize, source, tmp_path / "step", settings, SIGNED, artifacts={"found_by": artifact})
    named = [node.name for node in onnx.load(ran.out / "model.onnx").graph.node if node.op_type == "Conv"]
    assert named[:2] == ["a.b", "-x+"]
    assert named[2]
    assert called(python)["nodes_to_exclude"] == [r"a\.b$", r"\-x\+$", f"{named[2]}$"]


def test_external_data_is_passed_along(tmp_path: Path) -> None:
    does = """
        model = onnx.load(said.onnx_path)
        onnx.save(model, said.output_path, save_as_external_data=True, location="model.onnx_data", size_threshold=0)
    """
    python = stand_in(tmp_path, does)
    ran = use(tmp_path, python, make_ext(tmp_path / "ext.onnx"), {})
    assert called(python)["use_external_data_format"]
    assert {path.name for path in ran.out.iterdir()} == {"model.onnx", "model.onnx_data"}
    onnx.checker.check_model(str(ran.out / "model.onnx"))


@pytest.mark.parametrize(
    ("does", "kind"),
    [
        ("raise SystemExit('no such format')", RequestError),
        ("", ModelError),
        ("open(said.output_path, 'w').write('x')", ModelError),
    ],
)
def test_failures_are_reported(does: str, kind: type[Exception], tmp_path: Path, check_message: CheckMessage) -> None:
    with pytest.raises(kind) as caught:
        use(tmp_path, stand_in(tmp_path, does))
    check_message(caught.value)


def test_samples_of_several_shapes_are_refused(tmp_path: Path, check_message: CheckMessage) -> None:
    for index, height in enumerate((12, 16)):
        np.save(tmp_path / f"{index}.npy", np.zeros((1, 8, height, 12), np.float32))
    given = {"x": {"data": str(tmp_path / "*.npy")}}
    with pytest.raises(RequestError) as caught:
        use(tmp_path, stand_in(tmp_path), given=given)
    check_message(caught.value)


SLEEPS = """
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    (here / "pids").write_text(f"{os.getpid()} {child.pid}")
    print("sleeping", flush=True)
    time.sleep(600)
"""


@pytest.mark.thorough
def test_a_timeout_ends_all_child_processes(tmp_path: Path, check_message: CheckMessage) -> None:
    python = stand_in(tmp_path, SLEEPS)
    with pytest.raises(RequestError) as caught:
        use(tmp_path, python, modelopt={"timeout": "3 s"})
    check_message(caught.value)
    assert_gone([int(pid) for pid in (tmp_path / "bin/pids").read_text().split()])


def test_an_interrupt_ends_all_child_processes(tmp_path: Path) -> None:
    python = stand_in(tmp_path, SLEEPS)

    def interrupt(done: int, total: int, what: str) -> None:
        if what == "sleeping":
            signal.raise_signal(signal.SIGINT)

    assert threading.current_thread() is threading.main_thread()
    settings = {"modelopt": {"python": str(python)}}
    with pytest.raises(KeyboardInterrupt):
        run_step(Quantize, make_convs(tmp_path / "m.onnx"), tmp_path / "s", settings, SIGNED, progress=interrupt)
    assert_gone([int(pid) for pid in (tmp_path / "bin/pids").read_text().split()])


def quantizing(python: Path) -> Quantize:
    return Quantize.model_validate_json(json.dumps({"modelopt": {"python": str(python)}}))


def test_its_version_is_part_of_the_key_and_queried_once(tmp_path: Path) -> None:
    python = stand_in(tmp_path)
    step = quantizing(python)
    versions = step.library_versions()
    assert (versions["modelopt"], versions["modelopt's onnx"]) == ("0.47.0", "1.21.0")
    assert "weights here" not in versions
    step.library_versions()
    assert step.foresee().notes == ("ModelOpt 0.47.0",)
    assert (tmp_path / "bin/asked").read_text() == "x"
    other = stand_in(tmp_path, version="0.48.0")
    os.utime(other, ns=(1, 1))
    assert step.library_versions()["modelopt"] == "0.48.0"


def test_missing_programs_are_reported_before_the_run(tmp_path: Path) -> None:
    (gone,) = quantizing(tmp_path / "none/python").foresee().lacks
    assert "was found" in gone
    assert "pip install 'nvidia-modelopt[onnx]'" in gone
    (bare,) = quantizing(stand_in(tmp_path, version="")).foresee().lacks
    assert "has no nvidia-modelopt" in bare


def test_it_runs_only_when_trusted(tmp_path: Path) -> None:
    python = stand_in(tmp_path)
    steps = {"q": {"step": "quantize", "modelopt": {"python": str(python)}}}
    (tmp_path / "recipe.yaml").write_text(
        json.dumps({"name": "x", "model": {"source": str(make_convs(tmp_path / "m.onnx"))}, "steps": steps})
    )
    with pytest.raises(RecipeError, match="trust"):
        api.run(tmp_path / "recipe.yaml", outputs=tmp_path / "out")
    assert not (tmp_path / "bin/asked").exists()


@pytest.mark.parametrize(
    "settings",
    [
        {"mode": "dynamic"},
        {"min_intensity": 3},
        {"method": "percentile"},
        {"method": "entropy", "modelopt": {"python": "p", "format": "int4"}},
    ],
)
def test_settings_that_modelopt_decides_are_refused(settings: dict[str, Any], check_message: CheckMessage) -> None:
    with pytest.raises(ValidationError) as caught:
        Quantize.model_validate_json(json.dumps({"modelopt": {"python": "p"}, **settings}))
    check_message(caught.value)


@pytest.mark.skipif(not REAL, reason="NDLD_FLOW_MODELOPT_PYTHON names no interpreter that has nvidia-modelopt")
@pytest.mark.parametrize("kind", ["fp8", "int8"])
def test_the_real_modelopt_quantizes(kind: str, tmp_path: Path) -> None:
    """It leaves convolutions of a few channels."""
    b = GraphBuilder(0)
    h = "x"
    for _ in range(3):
        h = b.op("Relu", b.op("Conv", h, b.weight(32, 32, 3, 3), kernel_shape=[3, 3]))
    rename_output(b, h, "y")
    source = save(b.model([tensor("x", [1, 32, "h", "w"])], [tensor("y", [1, 32, "a", "b"])]), tmp_path / "m.onnx")
    first = next(node for node in onnx.load(source).graph.node if node.op_type == "Conv")
    given = {"x": {"shape": [1, 32, 12, 12], "range": [-1.0, 1.0]}}
    settings = {"samples": 2, "modelopt": {"format": kind}, "exclude": {"nodes": [first.name]}}
    ran = use(tmp_path, Path(REAL), source, given, **settings)
    assert ran.result.metrics["layers"] == 2, ran.result.summary
    graph = onnx.load(ran.out / "model.onnx").graph
    types = {onnx.TensorProto.INT8 if kind == "int8" else onnx.TensorProto.FLOAT8E4M3FN}
    assert types & {initializer.data_type for initializer in graph.initializer}
    assert next(node for node in graph.node if node.op_type == "Conv").input[0] == "x"
