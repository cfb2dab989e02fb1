"""Engines as candidates and references of `check_accuracy`, in stand-ins of TensorRT and CUDA that compute values."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ndld_flow import api
from ndld_flow.base.errors import BackendError, KilledError, RecipeError, RequestError
from ndld_flow.base.extras import EngineBackend
from ndld_flow.machine import gpu_state
from ndld_flow.machine.gpu_state import Gpu
from ndld_flow.machine.host import has_nvidia_gpu
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.records.activations import Activations
from ndld_flow.records.build import Build
from ndld_flow.records.document import read_document
from ndld_flow.runner.export import plan_exports
from ndld_flow.runtimes.tensorrt import settings as engine_settings
from ndld_flow.steps.check_accuracy import CheckAccuracy
from ndld_flow.steps.find_precision import FindPrecision
from ndld_flow.steps.inspect_activations import InspectActivations
from ndld_flow.steps.quantize import Quantize
from ndld_flow.store.kinds import AccuracyDocument, ActivationsDocument, Artifact, Engine, Onnx
from tests.support.engine_standins import Standins, make_standins
from tests.support.message_files import CheckMessage
from tests.support.models import make_cnn
from tests.support.models_run import Given, Ran, run_step, write_model
from tests.support.recipes import load_recipe

BATCHES = {"x": {"min": [1, 3, 16, 16], "opt": [2, 3, 16, 16], "max": [2, 3, 16, 16]}}
TWO: Given = {"x": {"shape": [2, 3, 16, 16]}}
LARGE = "g (float[n, 2] x) => (float[n, 2] y) { y = Relu(x) }"
FOUND = "g (float[n, 8] x) => (int64[2, m] places, float[n, 8] y) { places = NonZero(x) y = Relu(x) }"


@dataclass(frozen=True)
class Bench:
    """Engines of one model in the stand-in of TensorRT 10.8, and checks of them."""

    standins: Standins
    folder: Path
    library: Path

    def engine(self, model: Path | None = None, **settings: Any) -> Engine:
        given = {"profiles": [BATCHES]} | settings
        folder = self.standins.engine_of(self.library, "tensorrt", model or self.model, given)
        return Engine(folder / Engine.main, "engine", "digest of the engine")

    @property
    def model(self) -> Path:
        path = self.standins.folder / "model.onnx"
        return path if path.exists() else make_cnn(path)

    def check(
        self,
        engine: Engine | Path,
        inputs: Given | None = TWO,
        model: Path | None = None,
        runtime: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> tuple[Ran, Accuracy]:
        """Compare the engine with its model in ONNX Runtime."""
        built = {"runtime.engine": engine} if isinstance(engine, Engine) else {}
        named = {"engine": "engine"} if built else {"engine_file": str(engine)}
        chosen = {"backend": "tensorrt", "library": str(self.library), **named, **(runtime or {})}
        folder = self.folder / f"ran-{len(list(self.folder.glob('ran-*')))}"
        source = Onnx(model or self.model, "source", "digest")
        ran = run_step(
            CheckAccuracy,
            source.path,
            folder,
            {"runtime": chosen} | settings,
            inputs,
            artifacts={"reference": source, **built},
        )
        return ran, Accuracy.model_validate_json((ran.out / AccuracyDocument.main).read_bytes())


@pytest.fixture(scope="module")
def standins(tmp_path_factory: pytest.TempPathFactory) -> Standins:
    return make_standins(tmp_path_factory)


@pytest.fixture
def bench(standins: Standins, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setenv("LD_LIBRARY_PATH", str(standins.cudart), prepend=os.pathsep)
    monkeypatch.setenv("STANDIN_COMPUTES", "1")
    return Bench(standins, tmp_path, standins.library("tensorrt", "10.8"))


def test_an_engine_is_compared_with_its_model(bench: Bench) -> None:
    """It runs in a process of its own, with the library of another environment; the record names what ran."""
    engine = bench.engine(fp16=True)
    ran, accuracy = bench.check(engine)
    assert ran.result.passed
    assert 0 < accuracy.outputs[0].metrics["relative_rms"] < 1e-3  # FP16
    assert accuracy.execution_reference is not None
    assert accuracy.execution_reference.described.startswith("onnxruntime")
    execution = accuracy.execution_candidate
    assert execution is not None
    assert execution.library == "TensorRT 10.8.0.43"
    assert execution.built is not None
    assert "TensorRT 10.8.0.43" in execution.built.described
    assert execution.built.described.endswith("candidate (weakly typed: FP16, TF32)")
    assert execution.built.digest == json.loads((engine.folder / Build.file_name).read_text())["engine_digest"]
    assert any("engine, built by TensorRT" in note for note in accuracy.notes)
    assert "TensorRT 10.8.0.43 on GPU 0" in ran.result.summary
    assert [path.name for path in ran.scratch.iterdir() if path.suffix == ".onnx"] == []


def test_an_engine_ruined_by_int8_fails(bench: Bench) -> None:
    ran, accuracy = bench.check(bench.engine(int8=True, placeholder_ranges=True))
    assert not ran.result.passed
    assert accuracy.outputs[0].failed
    assert "weakly typed: INT8" in accuracy.notes[0]


def test_a_prebuilt_engine_is_of_unknown_source(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "shipped.engine"
    file.write_bytes(bench.engine().path.read_bytes())
    ran, accuracy = bench.check(file)
    assert ran.result.passed
    assert accuracy.execution_candidate is not None
    built = accuracy.execution_candidate.built
    assert built is not None
    assert (built.name, built.model, built.built_with) == (str(file), "", "")
    assert "of unknown source" in ran.result.summary
    assert any("shipped.engine, of unknown source" in note for note in accuracy.notes)


def test_a_users_metric_judges_an_engine(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "metric.py").write_text(
        "def metric(outputs, label):\n    return float(outputs['y'].argmax() == label)\n"
    )
    np.save(tmp_path / "labels.npy", np.array([0]))
    ran, accuracy = bench.check(
        bench.engine(),
        metric=str(tmp_path / "metric.py"),
        labels=str(tmp_path / "labels.npy"),
        metric_tolerance={"metric": {"drop": 0.0}},
    )
    assert ran.result.passed
    assert accuracy.labelled[0].candidate == accuracy.labelled[0].reference
    assert "drop.metric" in ran.result.metrics


def test_an_engine_may_be_the_reference(bench: Bench) -> None:
    engine = replace(bench.engine(), label="shipped")
    chosen = {"backend": "tensorrt", "library": str(bench.library), "engine": "shipped"}
    folder, source = bench.folder / "both", Onnx(bench.model, "source", "digest")
    artifacts = {"reference": source, "reference_runtime.engine": engine, "runtime.engine": bench.engine(fp16=True)}
    settings = {"reference_runtime": chosen, "runtime": {**chosen, "engine": "engine"}}
    ran = run_step(CheckAccuracy, source.path, folder, settings, TWO, artifacts=artifacts)
    accuracy = Accuracy.model_validate_json((ran.out / AccuracyDocument.main).read_bytes())
    assert ran.result.passed
    assert accuracy.execution_reference is not None
    assert accuracy.execution_candidate is not None
    built = [item.built for item in (accuracy.execution_reference, accuracy.execution_candidate)]
    assert [item.name for item in built if item is not None] == ["shipped", "engine"]


def test_a_sample_outside_of_the_profile_is_refused_before_the_reference_runs(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    """By the record of the build; TensorRT itself refuses it for a prebuilt engine."""
    outside: Given = {"x": {"shape": [3, 3, 16, 16]}}
    shape = r'input "x": shape 3x3x16x16 is outside of what the engine allows \(1x3x16x16 to 2x3x16x16, optimization'
    engine = bench.engine()
    with pytest.raises(RequestError, match=shape):
        bench.check(engine.path, outside)
    monkeypatch.setattr(engine_settings, "_refuse_elsewhere", lambda *_: None)
    monkeypatch.setenv("STANDIN_NO_GPU", "1")  # the engine would not open
    with pytest.raises(RequestError) as caught:
        bench.check(engine, outside)
    check_message(caught.value)


def test_inputs_in_another_float_type_are_cast_and_counted(bench: Bench, tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.onnx", LARGE)
    np.save(tmp_path / "x.npy", np.array([[1.5, 70000.0]], np.float32))
    engine = bench.engine(
        model,
        profiles=[{"x": {"min": [1, 2], "opt": [1, 2], "max": [1, 2]}}],
        fp16=True,
        advanced={"io_formats": {"x": {"dtype": "fp16"}, "y": {"dtype": "fp16"}}},
    )
    ran, accuracy = bench.check(engine, {"x": {"data": str(tmp_path / "x.npy")}}, model)
    assert "input x is float16" in str(accuracy.notes)
    assert "input x: 1 value" in str(accuracy.notes)
    assert accuracy.outputs[0].dtype == "float16"
    assert not ran.result.passed
    assert any("NaN or infinite where" in failed for failed in accuracy.outputs[0].failed)


def test_an_output_whose_shape_depends_on_data_is_compared(bench: Bench, tmp_path: Path) -> None:
    model = write_model(tmp_path / "m.onnx", FOUND)
    engine = bench.engine(model, profiles=[{"x": {"min": [1, 8], "opt": [2, 8], "max": [4, 8]}}])
    np.save(tmp_path / "x.npy", np.array([[0, 1, 0, 0, 2, 0, 0, 0]], np.float32))
    ran, accuracy = bench.check(engine, {"x": {"data": str(tmp_path / "x.npy")}}, model)
    assert ran.result.passed
    assert [(output.output, output.shape, output.failed) for output in accuracy.outputs] == [
        ("places", (2, 2), ()),
        ("y", (1, 8), ()),
    ]


def test_engines_that_the_record_shows_not_to_fit_are_refused(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    engine = bench.engine()
    newer = bench.standins.library("tensorrt", "10.9")
    with pytest.raises(BackendError) as unavailable:
        bench.check(engine, runtime={"library": str(newer)})
    check_message(unavailable.value)
    build = read_document(Build, engine.folder / Build.file_name)
    ahead = build.model_copy(update={"compute_capabilities": ("8.6", "8.9")})
    monkeypatch.setattr(engine_settings, "_read_build", lambda _: ahead)
    monkeypatch.setattr(gpu_state, "visible_gpus", lambda: (Gpu("u", "NVIDIA H200", compute_capability="9.0"),))
    with pytest.raises(BackendError) as unavailable:
        bench.check(engine)
    check_message(unavailable.value)
    other = build.model_copy(update={"model_digest": "another", "label": "half"})
    monkeypatch.setattr(engine_settings, "_read_build", lambda _: other)
    with pytest.raises(RequestError) as refused:
        bench.check(engine)
    check_message(refused.value)


def test_a_marked_engine_is_not_the_one_that_is_checked(bench: Bench, check_message: CheckMessage) -> None:
    with pytest.raises(RequestError) as caught:
        bench.check(bench.engine(mark_outputs=["*"]))
    check_message(caught.value)


def test_layers_of_an_engine_are_those_of_a_marked_build(bench: Bench, check_message: CheckMessage) -> None:
    """Outputs are judged on the engine itself; the record and the notes name the build whose layers were compared."""
    settings: dict[str, Any] = {"int8": True, "placeholder_ranges": True}
    engine = bench.engine(**settings)
    marked = replace(bench.engine(**settings, mark_outputs=["Conv_*"]), label="marked")
    chosen = {"backend": "tensorrt", "library": str(bench.library), "engine": "engine"}
    source = Onnx(bench.model, "source", "digest")
    given = {"runtime": chosen, "layers": True, "layers_engine": "marked"}
    artifacts: dict[str, Artifact] = {"reference": source, "runtime.engine": engine, "layers_engine": marked}

    def compare(name: str, **more: Any) -> Accuracy:
        ran = run_step(CheckAccuracy, source.path, bench.folder / name, given | more, TWO, artifacts=artifacts)
        return Accuracy.model_validate_json((ran.out / AccuracyDocument.main).read_bytes())

    accuracy = compare("all")
    assert [layer.node for layer in accuracy.layers] == ["Conv_0", "Conv_4", "Conv_8", "Conv_20"]
    assert all(layer.metrics["relative_rms"] > 0 for layer in accuracy.layers)
    assert accuracy.layers_built is not None
    assert (accuracy.layers_built.name, len(accuracy.layers_built.marked)) == ("marked", 4)
    assert accuracy.execution_candidate is not None
    assert accuracy.execution_candidate.built is not None
    assert accuracy.execution_candidate.built.name == "engine"
    assert any("layers differently from engine" in note for note in accuracy.notes)
    _, alone = bench.check(engine)
    assert accuracy.outputs == alone.outputs
    assert [layer.node for layer in compare("some", layers=["Conv_4"]).layers] == ["Conv_4"]
    with pytest.raises(RequestError) as caught:
        compare("none", layers=["Relu_3"])
    check_message(caught.value)
    artifacts["layers_engine"] = engine
    with pytest.raises(RequestError) as caught:
        compare("unmarked")
    check_message(caught.value)


FUSED = """g (float[2, 2] x) => (float[2, 2] y) <float[2, 2] w = {1, 0.3, 0.7, 1}> {
    c = MatMul(x, w) r = Relu(c) e = Exp(r) y = Neg(e) }"""


def compare_inside(bench: Bench, backend: EngineBackend, release: str, debug_tensors: str | list[str]) -> Accuracy:
    """Compare the layers of an engine with debug tensors, which is also the one whose outputs are judged."""
    library = bench.standins.library(backend, release)
    model = write_model(bench.folder / "fused.onnx", FUSED)
    flags = {"fp16": True} if backend == "tensorrt" else {}
    folder = bench.standins.engine_of(library, backend, model, {"debug_tensors": debug_tensors, **flags})
    engine = Engine(folder / Engine.main, "engine", "digest of the engine")
    runtime = {"backend": backend, "library": str(library), "engine": "engine", "cuda_graph": True, "queue": 1}
    given = {"runtime": runtime, "layers": True, "layers_engine": "engine"}
    read = {"reference": Onnx(model, "source", "digest"), "runtime.engine": engine, "layers_engine": engine}
    ran = run_step(CheckAccuracy, model, bench.folder / "inside", given, artifacts=read)
    accuracy = Accuracy.model_validate_json((ran.out / AccuracyDocument.main).read_bytes())
    assert accuracy.layers_built is None
    return accuracy


def test_layers_are_compared_inside_the_engine_that_ships(bench: Bench) -> None:
    """By its debug tensors: those that remain after fusion, not the one that is fused with its activation."""
    accuracy = compare_inside(bench, "tensorrt", "10.12", "unfused")
    assert [layer.tensor for layer in accuracy.layers] == ["r", "e"]
    errors = [layer.metrics["relative_rms"] for layer in accuracy.layers]
    assert 0 < min(errors) < max(errors) < 1e-2, errors  # FP16
    assert any("2 layers compared inside engine" in note for note in accuracy.notes)


def test_named_debug_tensors_are_compared(bench: Bench) -> None:
    """They prevent fusions, in the engine that ships."""
    accuracy = compare_inside(bench, "tensorrt", "10.8", ["c", "e"])
    assert [layer.tensor for layer in accuracy.layers] == ["c", "e"]


def test_debug_tensors_with_internal_names_are_not_taken_for_the_models(bench: Bench) -> None:
    """As in TensorRT-RTX, whose compiler names them `Conv_20_out.1_7_myl0`."""
    accuracy = compare_inside(bench, "tensorrt_rtx", "1.7", "unfused")
    assert accuracy.layers == ()
    assert any(note.startswith("0 layers compared inside engine") for note in accuracy.notes)


def inspect_engine(bench: Bench, engine: Engine | Path, **settings: Any) -> Activations:
    built = {"runtime.engine": engine} if isinstance(engine, Engine) else {}
    named = {"engine": "engine"} if built else {"engine_file": str(engine)}
    chosen = {"backend": "tensorrt", "library": str(bench.library), **named}
    source = Onnx(bench.model, "source", "digest")
    folder = bench.folder / f"ran-{len(list(bench.folder.glob('ran-*')))}"
    given = {"runtime": chosen, "reference": "source"} | settings
    ran = run_step(InspectActivations, source.path, folder, given, TWO, artifacts={"reference": source, **built})
    return Activations.model_validate_json((ran.out / ActivationsDocument.main).read_bytes())


def test_the_tensors_of_an_engine_are_inspected(bench: Bench, check_message: CheckMessage) -> None:
    """All that it has by default: inputs, marked tensors and outputs, beside those of the model in ONNX Runtime."""
    marked = bench.engine(fp16=True, mark_outputs=["Conv_*"])
    activations = inspect_engine(bench, marked)
    assert [tensor.node for tensor in activations.tensors][:3] == ["", "Conv_0", "Conv_4"]
    assert activations.tensors[-1].tensor == "y"
    assert activations.provider.startswith("TensorRT")
    inner = {layer.node: layer.metrics["relative_rms"] for layer in activations.divergence if layer.node}
    assert 0 < inner["Conv_0"] < 1e-2  # FP16
    [note] = [note for note in activations.notes if " ran as the engine " in note]
    assert "4 marked tensors make" in note
    assert [tensor.node for tensor in inspect_engine(bench, marked, tensors=["Conv_4"]).tensors] == ["Conv_4"]
    with pytest.raises(RequestError) as caught:
        inspect_engine(bench, marked, tensors=["Relu_3"])
    check_message(caught.value)


def test_a_prebuilt_engine_is_inspected_with_the_outputs_that_it_has(bench: Bench, tmp_path: Path) -> None:
    file = tmp_path / "shipped.engine"
    file.write_bytes(bench.engine(mark_outputs=["Conv_8"]).path.read_bytes())
    activations = inspect_engine(bench, file)
    assert [tensor.node for tensor in activations.tensors][1] == "Conv_8"
    assert any("of unknown source" in note for note in activations.notes)
    plain = inspect_engine(bench, bench.engine())
    assert [tensor.tensor for tensor in plain.tensors] == ["x", "y"]
    assert not any("marked" in note for note in plain.notes)


def test_a_crash_of_the_library_ends_its_process_only(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, check_message: CheckMessage
) -> None:
    monkeypatch.setenv("STANDIN_CRASHES", "1")
    with pytest.raises(KilledError) as caught:
        bench.check(bench.engine())
    check_message(caught.value)


@pytest.mark.parametrize(
    "settings",
    [
        {"runtime": {"backend": "tensorrt"}},
        {"runtime": {"backend": "trt"}},
        {"reference_runtime": {"backend": "openvino"}, "reference_provider": "cuda"},
        {"layers": True, "layers_engine": "marked"},
        {"reference_runtime": {"backend": "openvino"}, "layers": True},
    ],
)
def test_settings_that_contradict_each_other(settings: dict[str, Any], check_message: CheckMessage) -> None:
    with pytest.raises(ValueError) as caught:
        CheckAccuracy.model_validate_json(json.dumps(settings))
    check_message(caught.value)


def test_recipes_name_the_model_and_the_engine(in_folder: Path, check_message: CheckMessage) -> None:
    """An engine in place of its model is a mistake with a remedy, as is one that is exported though it is marked."""
    make_cnn(in_folder / "model.onnx")
    engine = {"step": "build_engine", "backend": "tensorrt_rtx"}
    agree: dict[str, Any] = {"step": "check_accuracy", "candidate": "engine"}
    marked = {**engine, "mark_outputs": ["Conv_0"]}
    recipe = {"model": "model.onnx", "steps": {"engine": engine, "agree": agree, "marked": marked}}
    (in_folder / "r.yaml").write_text(json.dumps({**recipe, "export": {"out/model.engine": "marked"}}))
    with pytest.raises(RecipeError) as caught:
        api.plan(in_folder / "r.yaml")
    message = str(caught.value)
    check_message(message)
    agree |= {"candidate": "source", "runtime": {"backend": "tensorrt_rtx", "engine": "engine"}}
    (in_folder / "r.yaml").write_text(json.dumps(recipe))
    checked = load_recipe(in_folder / "r.yaml")
    assert {step.name: step.reads for step in checked.steps}["agree"]["runtime.engine"] == "engine"
    [export] = plan_exports(checked, Path("last.engine"))
    assert export.step == "engine", "not the marked one, although it is the last"


@pytest.mark.skipif(has_nvidia_gpu(), reason="needs a machine without a GPU")
def test_without_a_gpu_the_run_does_not_start(bench: Bench) -> None:
    chosen = {"backend": "tensorrt", "library": str(bench.library), "engine": "engine"}
    step = CheckAccuracy.model_validate_json(json.dumps({"runtime": chosen, "reference_runtime": chosen}))
    [lack] = step.foresee().lacks
    assert "no NVIDIA GPU here" in lack
    assert "`on: TARGET`" in lack
    assert step.library_versions()["tensorrt"] == "10.8.0.43"


TRIALS: dict[str, Any] = {"backend": "tensorrt", "fp16": True}


@pytest.mark.thorough
def test_trials_of_a_search_are_built_and_run_as_engines(bench: Bench) -> None:
    runtime = TRIALS | {"library": str(bench.library), "profiles": [BATCHES]}
    settings = {"precision": "int8", "trials": 2, "tolerance": {"cosine": 0.5}}
    source = bench.model
    ran = run_step(FindPrecision, source, bench.folder / "engines", settings | {"runtime": runtime}, TWO)
    here = run_step(FindPrecision, source, bench.folder / "here", settings, TWO)
    assert ran.result.passed
    assert 0 < abs(ran.result.metrics["cosine"] - here.result.metrics["cosine"]) < 0.05
    assert not list(ran.scratch.glob("engine-*")), "engines of trials are removed"


@pytest.mark.thorough
def test_calibration_runs_in_an_engine_whose_tensors_are_outputs(bench: Bench) -> None:
    runtime = TRIALS | {"library": str(bench.library)}
    there = run_step(Quantize, bench.model, bench.folder / "engines", {"runtime": runtime}, TWO)
    assert there.result.passed
