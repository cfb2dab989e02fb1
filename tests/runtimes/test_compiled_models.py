"""Compiled models of every runtime that compiles: they compute what the model does, and are refused elsewhere.

Runtimes are discovered: a new one is tested here without a line being written.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from pydantic import ValidationError

from ndld_flow import api
from ndld_flow.base.errors import BackendError, KilledError, ModelError, NdldFlowError, RequestError
from ndld_flow.machine import hardware
from ndld_flow.machine.reuse import Reuse
from ndld_flow.models.files import load_model
from ndld_flow.records.accuracy import Accuracy
from ndld_flow.records.compiled import Compiled
from ndld_flow.records.profile import Profile
from ndld_flow.runtimes import compiled_models
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings, _session_options, open_model
from ndld_flow.runtimes.registry import find_compilers, settings_of
from ndld_flow.runtimes.session_process import SessionProcess, open_session
from ndld_flow.steps.check_accuracy import CheckAccuracy
from ndld_flow.steps.compile_model import CompileModel
from ndld_flow.steps.find_precision import FindPrecision
from ndld_flow.steps.profile import ProfileModel
from ndld_flow.store.kinds import AccuracyDocument, CompiledModel, Onnx, ProfileDocument
from tests.support import runtime_contract as contract
from tests.support.models import make_cnn
from tests.support.models_run import run_step, write_model
from tests.support.recipes import load_recipe

BACKENDS = [backend for settings in find_compilers() for backend in settings.backends()]
FORMS = [*((backend, {}) for backend in BACKENDS), ("onnxruntime", {"format": "ort"})]
QUICK = {"runs": 1, "stable": 0, "passes": 4, "duration": 0, "warmup": 0, "warmup_passes": 1, "layer_passes": 3}

every_form = pytest.mark.parametrize(("backend", "form"), FORMS, ids=str)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return contract.write_model(tmp_path_factory.mktemp("contract"))


@pytest.fixture(scope="module")
def compiled_of(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Compile the model of the contract for a runtime, once for all tests."""
    known: dict[str, CompiledModel] = {}

    def compile_model(backend: str, form: Mapping[str, Any]) -> CompiledModel:
        settings = {"backend": backend, **form}
        if step_of(CompileModel, **settings).foresee().lacks:
            pytest.skip(f"{backend} is not installed")
        key = json.dumps(settings)
        if key not in known:
            ran = run_step(CompileModel, model, tmp_path_factory.mktemp("compiled"), settings)
            known[key] = CompiledModel(ran.out / CompiledModel.main, "compiled", "digest")
        return known[key]

    yield compile_model


def step_of(kind: type[Any], **settings: Any) -> Any:
    return kind.model_validate_json(json.dumps(settings))


def request_of(backend: str, model: Path, compiled: CompiledModel | None = None, **settings: Any) -> Any:
    given = {"backend": backend, **settings, **({} if compiled is None else {"compiled": "compiled"})}
    chosen = settings_of(backend)
    assert chosen is not None
    read = lambda setting: compiled  # noqa: E731
    return chosen.model_validate_json(json.dumps(given)).request(Onnx(model, "candidate", "digest"), read)  # type: ignore[arg-type]


def copied(compiled: CompiledModel, folder: Path, **changes: Any) -> CompiledModel:
    """Return a copy of a compiled model, whose record has other values."""
    folder.mkdir()
    for file in compiled.folder.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    record = Compiled.model_validate_json((folder / CompiledModel.record).read_bytes())
    (folder / CompiledModel.record).write_text(record.model_copy(update=changes).to_json())
    return replace(compiled, path=folder / CompiledModel.main)


@every_form
def test_it_keeps_the_contract_of_runtimes_and_computes_the_same(
    backend: str, form: Mapping[str, Any], model: Path, compiled_of: Any, tmp_path: Path
) -> None:
    compiled = compiled_of(backend, form)
    request = request_of(backend, model, compiled)
    contract.check_description(request, model)
    contract.check_outputs(request, model)
    contract.check_layers(request, model, tmp_path)
    written = json.loads(json.dumps(request.to_json(), default=str))
    assert replace(request, compiled_origin=None) == settings_runtime(backend).read_request(written)
    given = contract.feeds(3)
    direct, found = (contract.run(each, model, given) for each in (request_of(backend, model), request))
    assert {name: value.tobytes() for name, value in found.items()} == {
        name: value.tobytes() for name, value in direct.items()
    }
    assert request.needs_process
    with pytest.raises(RequestError, match="cannot be changed"):
        request.open_changed(model, model.read_bytes())


def settings_runtime(backend: str) -> Any:
    from ndld_flow.runtimes.registry import find_runtime

    return find_runtime(request_of(backend, Path("m.onnx")).runtime)


@every_form
def test_it_is_refused_where_it_does_not_belong(
    backend: str, form: Mapping[str, Any], model: Path, compiled_of: Any, tmp_path: Path
) -> None:
    compiled = compiled_of(backend, form)
    with pytest.raises(RequestError, match=r"from another model \(half, other\) than candidate \(digest\)"):
        request_of(backend, model, copied(compiled, tmp_path / "other", model_digest="other", label="half"))
    with pytest.raises(RequestError, match=r"was compiled for Elsewhere, and .* `backend: elsewhere`"):
        request_of(backend, model, copied(compiled, tmp_path / "f", backend="elsewhere", library="Elsewhere"))
    with pytest.raises(BackendError, match=r"compiled by .* 1\.2\.3, and this is .* run it in that"):
        request_of(backend, model, copied(compiled, tmp_path / "old", version="1.2.3")).open(model)
    with pytest.raises(BackendError, match="this one lacks avx_of_another_cpu"):
        wanted = (*hardware.read_instructions(), "avx_of_another_cpu")
        request_of(backend, model, copied(compiled, tmp_path / "cpu", instructions=wanted)).open(model)
    damaged = copied(compiled, tmp_path / "damaged")
    data = bytearray(damaged.path.read_bytes())
    data[len(data) // 2] ^= 255  # OpenVINO opens such a blob
    damaged.path.write_bytes(data)
    with pytest.raises(RequestError, match="changed or damaged"):
        request_of(backend, model, damaged)
    (damaged.folder / CompiledModel.record).write_text("{}")
    with pytest.raises(RequestError, match="no record of a compiled model"):
        request_of(backend, model, damaged)
    (damaged.folder / CompiledModel.record).unlink()
    with pytest.raises(RequestError, match="has no readable record"):
        request_of(backend, model, damaged)


@pytest.mark.thorough
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_file_of_unknown_source_is_opened_in_a_process_and_refused_with_a_reason(
    backend: str, model: Path, compiled_of: Any, tmp_path: Path
) -> None:
    compiled = compiled_of(backend, {"format": "ort"} if backend == "onnxruntime" else {})
    file = tmp_path / "strange.ort"
    for number, data in enumerate((b"", b"junk" * 99, compiled.path.read_bytes()[:-400])):
        file.write_bytes(data)
        request = request_of(backend, model, compiled_file=str(file))
        assert request.describe_built_file().described == f"{file}, of unknown source"
        with pytest.raises(NdldFlowError) as refused:
            open_session(request, model, tmp_path)
        assert isinstance(refused.value, ModelError | KilledError), number
        assert "strange.ort" in str(refused.value) or isinstance(refused.value, KilledError)
    file.write_bytes(compiled.path.read_bytes())
    other = make_cnn(tmp_path / "cnn.onnx")
    with pytest.raises(RequestError, match=r"compiled from another model than .*cnn\.onnx: its inputs and outputs are"):
        open_session(request_of(backend, other, compiled_file=str(file)), other, tmp_path)
    with pytest.raises(RequestError, match="there is no file"):
        request_of(backend, model, compiled_file="gone.ort")


def test_the_settings_of_the_compiled_model_hold_in_its_sessions(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran = run_step(CompileModel, model, tmp_path, {"optimization": "basic", "free_dimensions": {"batch": 2}})
    compiled = CompiledModel(ran.out / CompiledModel.main, "small", "digest")
    assert ran.result.summary.endswith("for any CPU")
    request = request_of("onnxruntime", model, compiled, threads=1)
    assert (request.optimization, request.free_dimensions, request.threads) == ("basic", {"batch": 2}, 1)
    assert request.declared_inputs(model)[0].shape == (2, 3)
    binding = request.open(model).bind(contract.feeds(2))
    binding.run()
    assert binding.outputs()["y"] is not None
    with pytest.raises(
        RequestError, match="`optimization` is a setting of the compiled model: step small has `optimiz"
    ):
        request_of("onnxruntime", model, compiled, optimization="extended")
    monkeypatch.setattr(compiled_models, "read_instructions", lambda: ("sse",))
    request.open(model)  # it has no layouts for a CPU


def test_layouts_for_the_cpu_are_in_models_of_the_levels_that_are_bound_to_it(tmp_path: Path) -> None:
    cnn = make_cnn(tmp_path / "cnn.onnx")
    for level in ("disabled", "basic", "extended", "layout", "all"):
        step = step_of(CompileModel, optimization=level)
        ran = run_step(CompileModel, cnn, tmp_path / level, {"optimization": level})
        domains = {node.domain for node in load_model(ran.out / CompiledModel.main).graph}
        assert ("com.microsoft.nchwc" in domains) <= step.runtime.needs_same_cpu, level
        assert step.runtime.needs_same_cpu == (level in ("layout", "all"))
        assert (step.reused_where() is Reuse.ANYWHERE) == (level in ("disabled", "basic"))
    assert "com.microsoft.nchwc" in domains
    assert "instruction sets" in step.library_versions()
    assert "instruction sets" not in step_of(CompileModel, optimization="basic").library_versions()


def test_weights_that_are_in_another_file_stay_with_the_compiled_model(tmp_path: Path) -> None:
    cnn = make_cnn(tmp_path / "cnn.onnx")
    proto = onnx.load(cnn)
    proto.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((64, 64), np.float32), "unused"))
    proto.graph.node.append(onnx.helper.make_node("Identity", ["unused"], ["whole"]))
    proto.graph.output.append(onnx.helper.make_tensor_value_info("whole", 1, (64, 64)))
    onnx.save(proto, cnn, save_as_external_data=True, location="weights.bin")
    ran = run_step(CompileModel, cnn, tmp_path / "ran", {})
    names = {path.name for path in ran.out.iterdir()}
    assert names == {CompiledModel.main, CompiledModel.record, CompiledModel.data}
    (tmp_path / "weights.bin").unlink()
    open_model(cnn, SessionSettings(opened_file=str(ran.out / CompiledModel.main)))


def test_nodes_are_compiled_by_providers_that_compile(model: Path, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="`provider: cpu` compiles nothing"):
        step_of(CompileModel, format="ep_context")
    # A provider that loads everywhere and compiles nothing.
    with pytest.raises(BackendError, match=r"AzureExecutionProvider does not compile .*: Unable to compile any nodes"):
        run_step(CompileModel, model, tmp_path, {"format": "ep_context", "provider": "azure"})
    assert step_of(CompileModel, format="ep_context", provider="tensorrt").foresee().lacks


def test_a_recipe_names_it_where_models_run_and_nowhere_else(tmp_path: Path, model: Path) -> None:
    recipe = tmp_path / "r.yaml"

    def mistakes(steps: str) -> str:
        recipe.write_text(f"{{name: r, model: {model}, steps: {{blob: {{step: compile_model}}, {steps}}}}}")
        try:
            load_recipe(recipe)
        except NdldFlowError as error:
            return str(error)
        return ""

    assert mistakes("speed: {step: profile, from: source, compiled: blob}") == ""
    runtime = "runtime: {backend: onnxruntime, compiled: blob}"
    check = "step: check_accuracy, reference: source, candidate: source"
    assert mistakes(f"agree: {{{check}, {runtime}}}") == ""
    assert "cannot be read in a compiled model" in mistakes(f"agree: {{{check}, layers: true, {runtime}}}")
    assert "`compiled: blob`" in mistakes("speed: {step: profile, from: blob}")
    assert "give either `compiled`" in mistakes(
        "s: {step: profile, from: source, compiled: blob, compiled_file: a.ort}"
    )
    assert "produces onnx, but compiled is read" in mistakes("s: {step: profile, from: source, compiled: source}")
    assert "--trust" in mistakes("s: {step: profile, from: source, compiled_file: a.ort}")
    assert "ends in .ort" in mistakes("s: {step: profile, from: source, compiled_file: a.onnx}")
    assert "threads" in mistakes("other: {step: compile_model, from: source, threads: 2}")
    with pytest.raises(ValidationError, match="reads tensors inside"):
        step_of(FindPrecision, runtime={"backend": "openvino", "compiled": "blob"})


@pytest.mark.thorough
@every_form
@pytest.mark.usefixtures("executed_workers")
def test_profiles_and_checks_run_it(
    backend: str, form: Mapping[str, Any], model: Path, compiled_of: Any, tmp_path: Path
) -> None:
    compiled = compiled_of(backend, form)
    given = {"x": {"shape": [2, 3]}}
    named = {"backend": backend, "compiled": "compiled"}
    ran = run_step(ProfileModel, model, tmp_path / "speed", QUICK | named, given, artifacts={"compiled": compiled})
    profile = Profile.model_validate_json((ran.out / ProfileDocument.main).read_text())
    assert any(note.startswith("the compiled model ran: compiled, built by ") for note in profile.notes)
    assert profile.engine_digest == ""
    assert not profile.runs_engine
    assert {name for layer in profile.layers for name in layer.onnx_nodes} == set(contract.NODES)
    settings = {"runtime": named, "reference": "source"}
    artifacts = {"runtime.compiled": compiled, "reference": Onnx(model, "source", "digest")}
    checked = run_step(CheckAccuracy, model, tmp_path / "agree", settings, given, artifacts=artifacts)
    accuracy = Accuracy.model_validate_json((checked.out / AccuracyDocument.main).read_text())
    assert accuracy.passed
    assert "compiled in " in checked.result.summary
    assert any("ran as compiled, built by" in note for note in accuracy.notes)


@pytest.mark.thorough
def test_an_export_has_its_record_and_runs_elsewhere(model: Path, in_folder: Path) -> None:
    recipe = "{{name: r, model: {}, steps: {{o: {{step: compile_model}}}}, export: {{shipped/small.ort: o}}}}"
    Path("r.yaml").write_text(recipe.format(model).replace("compile_model", "compile_model, format: ort"))
    assert api.run("r.yaml").passed
    exported = Path("shipped/small.ort")
    assert {path.name for path in exported.parent.iterdir()} == {
        "small.ort",
        "small.ort.json",
        f"small.ort.{CompiledModel.record}",
    }
    record = Compiled.model_validate_json(exported.with_name(f"small.ort.{CompiledModel.record}").read_bytes())
    settings = settings_of("onnxruntime")
    assert settings is not None
    chosen = settings.model_validate_json('{"backend": "onnxruntime", "compiled_file": "shipped/small.ort"}')

    def request(digest: str) -> Any:
        return chosen.request(Onnx(model, "candidate", digest), lambda setting: Onnx(model, "", ""))

    assert request(record.model_digest).describe_built_file().model == "source"
    with pytest.raises(RequestError, match="compiled from another model"):
        request("other")
    assert api.run("r.yaml").passed  # and the export stays


class TestSettingsOfOnnxRuntime:
    """Settings of its sessions reach ONNX Runtime, and do there what they say."""

    @pytest.mark.parametrize(
        ("settings", "entry", "value"),
        [
            ({"prepacking": False}, "session.disable_prepacking", "1"),
            ({"flush_denormals": True}, "session.set_denormal_as_zero", "1"),
            ({"block_base": 4}, "session.dynamic_block_base", "4"),
            ({"gelu_approximation": True}, "optimization.enable_gelu_approximation", "1"),
            ({"spin_duration": 50}, "session.intra_op.spin_duration_us", "50"),
            ({"spinning": False}, "session.inter_op.allow_spinning", "0"),
            ({"affinity": "2", "threads": 2}, "session.intra_op_thread_affinities", "2"),
        ],
    )
    def test_they_arrive_and_outputs_stay_right(
        self, settings: dict[str, Any], entry: str, value: str, model: Path
    ) -> None:
        request = request_of("onnxruntime", model, **settings)
        assert _session_options(request).get_session_config_entry(entry) == value
        with pytest.raises(RuntimeError):
            _session_options(SessionSettings()).get_session_config_entry(entry)
        if request.needs_process:
            return  # it would hold for all other tests in this process
        given = contract.feeds(3)
        np.testing.assert_allclose(contract.run(request, model, given)["y"], contract.expected(given)["y"], atol=1e-6)

    @pytest.mark.thorough
    def test_denormal_numbers_are_flushed_in_a_process_of_their_own(self, tmp_path: Path) -> None:
        path = write_model(tmp_path / "m.onnx", "g (float[1, 3] x) => (float[1, 3] y) { y = Add(x, x) }")
        for flush in (False, True):  # only the first session of a process decides
            request = request_of("onnxruntime", path, threads=1, flush_denormals=flush)
            session = open_session(request, path, tmp_path)
            binding = session.bind({"x": np.full((1, 3), 1e-39, np.float32)})
            binding.run()
            assert isinstance(session, SessionProcess) == flush
            assert [value.max() > 0 for value in binding.outputs().values() if value is not None] == [not flush]
            session.close()

    def test_gelu_is_approximated(self, tmp_path: Path) -> None:
        path = tmp_path / "gelu.onnx"
        graph = onnx.parser.parse_graph("g (float[4, 8] x) => (float[4, 8] y) { y = com.microsoft.Gelu(x) }")
        opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
        onnx.save(onnx.helper.make_model(graph, ir_version=8, opset_imports=opsets), path)
        for approximated in (False, True):
            written = tmp_path / f"{approximated}.onnx"
            open_model(path, SessionSettings(gelu_approximation=approximated, optimized_model=written))
            [node] = load_model(written).graph
            assert node.op_type == ("FastGelu" if approximated else "Gelu")

    def test_wrong_values_are_refused_before_the_run(self) -> None:
        for wrong in ({"block_base": -1}, {"spin_duration": 0}, {"prepacking": "no"}, {"spin_duration": 10**9}):
            with pytest.raises(ValidationError):
                step_of(ProfileModel, **wrong)
        with pytest.raises(ValidationError, match="needs `spinning: true`"):
            step_of(ProfileModel, spin_duration=5, spinning=False)

    def test_a_release_that_would_ignore_a_setting_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from ndld_flow.runtimes.onnxruntime import onnxruntime_session

        monkeypatch.setattr(onnxruntime_session, "version", lambda: "1.25.1")
        with pytest.raises(BackendError, match=r"1\.25\.1 ignores it; it needs 1\.26"):
            _session_options(SessionSettings(spin_duration=5))
