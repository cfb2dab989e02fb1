"""Write a commented recipe for a model, or one with a single step, with inputs that were tried on the model."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import JsonValue

from ndld_flow.base.errors import ModelError, OutputsError, RequestError, UnknownNameError
from ndld_flow.base.quantities import percent
from ndld_flow.base.text import shell_word, short_name
from ndld_flow.inputs import refuse_misfit
from ndld_flow.machine.host import has_nvidia_gpu
from ndld_flow.models.external_files import declared_inputs
from ndld_flow.recipe.load import load_sweep
from ndld_flow.recipe.sample_files import (
    FoundData,
    find_data,
    has_images,
    in_turn,
    is_scaled,
    refuse_other_data,
    split_files,
)
from ndld_flow.recipe.step_types import StepType
from ndld_flow.recipe.yaml_file import parse_yaml
from ndld_flow.runtimes.registry import DEFAULT, find_builder, runtime_names
from ndld_flow.step import Reads, Step
from ndld_flow.store.files import write_text_atomically
from ndld_flow.store.kinds import Onnx

if TYPE_CHECKING:
    from ndld_flow.measure.trial_pass import InputTrial
    from ndld_flow.samples.likely_inputs import LikelyInput


Precision = Literal["fp16", "int8"]
AskShape = Callable[[str, str], Sequence[int] | None]
"""Asks the user for the shape of an input; it gets the name and the declared shape, and may return None."""
Progress = Callable[[int, int, str], None]
"""Reports progress as `progress(done, total, what)`."""

HELD_SEED = 1000
"""Seed of random inputs that judge a result; those of a search or a calibration start from 0."""
_GENERATED_SAMPLES = 8
_MOST_FILES = 96
"""Number of files that a recipe lists."""
_MOST_DIMENSIONS = 5
"""Highest number of dimensions that is tried for an input without a declared shape."""
_MOST_VALUES = 2**24
"""Largest size of such an input that is tried: 256 values along each of five dimensions exceed any memory."""
_TEMPLATE = """\
# Recipe for {model_name}. Run it with:
#
#   {command}
#
# `ndld-flow steps` lists the steps, `ndld-flow steps NAME` explains one with all its settings.
name: {name}
model: {model}                # relative to the current directory; also pypi:, package:, https://

inputs:                       # shared by every step that runs the model
{inputs}
{runtime}
steps:                        # in order; a step with a name of its own needs `step:`
{steps}
gates:                        # conditions on metrics; a failed gate makes the run exit with 1
{gates}
"""
_CLEAN = """\
  lint: {fail_on: error}      # stop if the model is broken

  sanitize: {}                # fold constants, fuse operators, remove nodes without effect
"""
_HALF = """
  search:                     # FP16 can break a model silently: find the few nodes that must stay in FP32
    step: find_precision

  half: {step: convert_fp16, found_by: search}
"""
_SMALL = """
  small:                      # 8 bits: ranges are measured on samples; use 50 to 500 real ones
    step: quantize{target}{samples}
"""
_SMALL_LSTM = """
  small:                      # 8 bits: weights ahead of time, activations in each pass
    step: quantize
    mode: dynamic
"""
_OWN_WEIGHTS = """\
  own:                        # the model lists its weights as inputs: as such they cannot be quantized
    step: edit
    operations: [{remove_initializer_inputs: {}}]

"""
_AGREE = """
  agree:                      # the result must agree with the source, channel by channel
    step: check_accuracy
    reference: source
    candidate: {result}{tolerance}{samples}
"""
_ENGINE = """
  engine: {{step: build_engine, backend: {runtime}, from: {result}{typing}}}
"""
_SPEED = """
  base:  {{step: profile, from: source{turns}}}
  speed: {{step: profile, from: {result}{turns}}}{note}
"""
_DECIDE = """
  decide:                     # the two models alternate, pass by pass, until the evidence decides
    step: compare_profiles
    base: base
    gates: [latency.median <= -3 %]      # if it is not faster, the run fails, and there is nothing to ship
"""
_RUN_ENGINE = """
{comment}  shipped: {{step: check_accuracy, candidate: {result}, runtime: {{backend: {runtime}, engine: engine}}}}{note}
{comment}  speed: {{step: profile, from: {result}, backend: {runtime}, engine: engine}}{note}
"""
_INT8_LAYERS = ("Conv", "MatMul", "Gemm", "LSTM")
_MOST = 0.5
"""Share of the weights from which advice about INT8 is given."""
_RUNTIME = """
runtime: {runtime}        # of all steps that check and measure: onnxruntime, openvino
"""


@dataclass(frozen=True)
class RecipeOptions:
    """Options of the recipe to write."""

    runtime: str = DEFAULT
    """A value of `backend`."""
    precision: Precision | None = None
    data: Sequence[str] = ()
    """`PATH` or `INPUT=PATH`: a folder, a glob or files for an input."""
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Input -> its shape."""

    @property
    def runs_model(self) -> bool:
        """Return whether the runtime runs the model, and not an engine of it."""
        return find_builder(self.runtime) is None


@dataclass(frozen=True)
class WrittenRecipe:
    """A recipe that was written, and the trial from which its inputs come."""

    path: Path
    trial: InputTrial
    command: str
    """The command that runs it."""
    advice: str = ""
    """A sentence on what INT8 may gain, or that the weights are INT8 already; empty if there is nothing to say."""
    decides: bool = False
    """The run compares the speed of both models in alternating passes."""

    @property
    def first_run_s(self) -> float:
        """Return about how many seconds the first run takes where nothing else runs, by the time of the trial's pass.

        The constants were measured on two CPUs: 29 s, 33 s, 31 s and 98 s for passes of 7 ms, 12 ms, 22 ms and 150 ms.
        Two profiles take most of it, and end with their budget at the latest; the check runs some hundred passes.
        """
        ms = self.trial.pass_ms
        return 26 + 0.4 * ms + (min(60, 6 + 0.2 * ms) if self.decides else 0)


def write_recipe(
    model: Path,
    target: Path | None = None,
    options: RecipeOptions | None = None,
    *,
    overwrite: bool = False,
    ask: AskShape = lambda *_: None,
) -> WrittenRecipe:
    """Write a recipe that is ready to run; by default to `<model>.yaml` in the current directory.

    The model is run once at likely sizes. If it accepts none, `ask` is called for each input with dynamic dimensions.
    Raises ModelError for a model that cannot be read, RequestError if the file exists or an option does not fit the
    model.
    """
    options = options or RecipeOptions()
    if options.runtime not in (known := runtime_names()):
        raise UnknownNameError(f"there is no runtime {short_name(options.runtime)}", options.runtime, known)
    path = target or Path(f"{model.stem}.yaml")
    if path.exists() and not overwrite:
        raise RequestError(f"{path}: the file exists. Choose another, or give --overwrite.")
    trial, data = try_data(model, options, ask)
    advice = _advise(model, options)
    name = name_recipe(path)
    # The result's name says what it is; whether it is faster shows only the run.
    ending = f"{options.precision or 'clean'}.onnx" if options.runs_model else "engine"
    command = f"ndld-flow run {shell_word(path)} -o {shell_word(f'{name}.{ending}')}"
    result = {"fp16": "half", "int8": "small", None: "sanitize"}[options.precision]
    bound = "20 %" if options.precision == "int8" else "5 %"
    text = _TEMPLATE.format(
        model_name=short_name(model.name),
        model=json.dumps(os.path.relpath(model)),
        command=command,
        name=name,
        inputs="\n".join(input_lines(trial, data)) or "  {}",
        runtime=_RUNTIME.format(runtime=options.runtime) if options.runs_model else "",
        steps="".join(_steps(options, result, trial, data, has_weights_as_inputs(model), _weight_shares(model))),
        gates=f"  - agree.slice_rms <= {bound}      # the worst channel of an output, relative to its own spread",
    )
    try:
        write_text_atomically(path, text)
    except OSError as error:
        raise OutputsError(f"{path}: the recipe cannot be written ({error.strerror}). Choose another path.") from None
    return WrittenRecipe(path, trial, command, advice, decides=_DECIDE in text)


def _advise(model: Path, options: RecipeOptions) -> str:
    """Return what INT8 may gain. Raises RequestError for `--int8` and weights that are INT8 already."""
    from ndld_flow.models.node_weights import quantized_share

    quantized = quantized_share(model)
    left = f"runtimes, threads and fused operators: ndld-flow optimize {shell_word(model)} --data DIR"
    if quantized >= _MOST:
        already = f"{percent(quantized)} of the weights are quantized already"
        if options.precision == "int8":
            raise RequestError(f"--int8: {already}. What may be left to gain are other {left}")
        return f"{already}: --int8 gains nothing. What may be left are other {left}"
    shares = _weight_shares(model)
    data = " ".join(f"--data {shell_word(each)}" for each in options.data) or "--data DIR"
    optimize = f"ndld-flow optimize {shell_word(model)} {data}"
    if options.precision == "int8" and options.runs_model:
        return f"This is one of several forms of INT8; which is the fastest, {optimize} finds out"
    if options.precision is not None or not options.runs_model:
        return ""
    if not shares:  # such as trees, whose numbers are attributes
        return f"The model has no weights that INT8 could store. What may be left are other {left}"
    share = sum(shares.get(operator, 0.0) for operator in _INT8_LAYERS)
    if share < _MOST:
        return ""
    return (
        f"{percent(share)} of the weights are in layers that INT8 often makes faster: give --int8 with {data}, or find "
        f"out with {optimize}"
    )


def _weight_shares(model: Path) -> Mapping[str, float]:
    """Return operator -> its share of the weights of layers. Embedding tables are read, not multiplied."""
    from ndld_flow.models.node_weights import weight_bytes_by_operator

    weights = weight_bytes_by_operator(model)
    layers = sum(weights.values()) - weights.get("Gather", 0)
    return {operator: held / max(layers, 1) for operator, held in weights.items()}


def name_recipe(model: Path) -> str:
    """Return the name of the recipe for a model."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", model.stem).strip("-.") or "model"


def try_data(
    model: Path, options: RecipeOptions, ask: AskShape = lambda *_: None, progress: Progress = lambda *_: None
) -> tuple[InputTrial, FoundData]:
    """Return inputs that the model accepts, at the size of the first sample if the data are arrays, and the files of
    the data.

    Raises as `try_model` does, and RequestError for shapes or data that do not fit the model.
    """
    declared = declared_inputs(model)
    for name, shape in options.shapes.items():
        if name not in declared:
            raise UnknownNameError(f"--shape: {name!r} is not an input of {model}", name, declared)
        refuse_misfit(name, declared[name].shape, shape)
    refuse_other_data(options.data, declared)
    from ndld_flow.measure.trial_pass import InputTrial
    from ndld_flow.samples.likely_inputs import likely_inputs

    likely = InputTrial(next(likely_inputs(model, options.shapes)))
    found = find_data(options.data, likely)
    shapes = found.shapes(likely)
    for name, each in shapes.items():
        refuse_misfit(name, declared[name].shape, each[0], f"--data: {found.files[name][0]}: ")
    first = {name: each[0] for name, each in shapes.items()}
    trial = try_model(model, replace(options, shapes={**first, **options.shapes}), ask, progress)
    if not options.runs_model:  # an engine is built for the sizes of its recipe
        return trial, found
    varied = {name for name, each in shapes.items() if len(each) > 1} | found.texts(likely)
    varied -= set(options.shapes)
    # Values that are made have the sizes of the sample, by the names of its dimensions.
    names = {dim for each in likely.inputs if each.spec.name in varied for dim in each.free} - {"?"}
    kept = {*found.files, *options.shapes}
    varied |= {each.spec.name for each in likely.inputs if each.spec.name not in kept and names.intersection(each.free)}
    return replace(trial, inputs=tuple(replace(each, varies=each.spec.name in varied) for each in trial.inputs)), found


def try_with_data(
    model: Path, data: Sequence[str], shapes: Mapping[str, Sequence[int]], progress: Progress = lambda *_: None
) -> tuple[InputTrial, FoundData]:
    """Return the same for a model that must run. Raises ModelError for one that does not."""
    trial, found = try_data(model, RecipeOptions(data=data, shapes=shapes), progress=progress)
    if trial.error:
        given = " ".join(f"--shape {short_name(each.spec.name)}=1x3x640x640" for each in trial.inputs[:1])
        raise ModelError(
            f"{model}: it does not run, so that nothing can be compared with it: {trial.error}\n"
            f"If only its sizes are wrong, give them, such as {given or '--shape NAME=SHAPE'}."
        )
    from ndld_flow.models.files import model_inputs  # imports onnx, which a refused option must not wait for

    declared = {spec.name: spec for spec in model_inputs(model)}
    inputs = tuple(replace(each, spec=declared[each.spec.name]) for each in trial.inputs)  # with its free dimensions
    return replace(trial, inputs=inputs), found


def try_model(
    model: Path, options: RecipeOptions, ask: AskShape = lambda *_: None, progress: Progress = lambda *_: None
) -> InputTrial:
    """Return inputs that the model accepts, or likely ones with the error.

    Raises ModelError for a model that cannot be read.
    """
    from ndld_flow.measure.trial_pass import try_inputs
    from ndld_flow.models.files import load_model
    from ndld_flow.samples.likely_inputs import likely_inputs

    load_model(model)  # the steps of the recipe read it so, and refuse what a pass accepts
    given = dict(options.shapes)
    alternatives = list(islice(likely_inputs(model, given), 20))
    unknown = [likely.spec.name for likely in alternatives[0] if likely.shape is None]
    if len(unknown) == 1:
        trial = _try_ranks(model, unknown[0], given, progress)
    else:
        trial = try_inputs(model, alternatives, progress)
    if trial.error:
        free = {each.spec.name: each.spec.shape_text for each in trial.inputs if each.free or each.shape is None}
        answers = {name: ask(name, declared) for name, declared in free.items()}
        if any(answers.values()):
            given |= {name: shape for name, shape in answers.items() if shape}
            trial = try_inputs(model, list(islice(likely_inputs(model, given), 20)), progress)
    return trial


def _try_ranks(model: Path, name: str, given: Mapping[str, Sequence[int]], progress: Progress) -> InputTrial:
    """Return the trial at the only number of dimensions with which the model accepts an input without a declared shape.

    A pass alone proves little: `Relu` accepts any number. If several are accepted, or none, the input has no shape.
    """
    from ndld_flow.measure.trial_pass import InputTrial, try_inputs
    from ndld_flow.samples.likely_inputs import likely_inputs

    accepted: dict[int, InputTrial] = {}
    for rank in range(_MOST_DIMENSIONS + 1):
        likely = islice(likely_inputs(model, {**given, name: (None,) * rank}), 20)
        fitting = [inputs for inputs in likely if all(math.prod(each.shape or ()) <= _MOST_VALUES for each in inputs)]
        trial = try_inputs(model, fitting, progress)
        if not trial.error:
            accepted[rank] = trial
        if len(accepted) > 1:
            break
    if len(accepted) == 1:
        ((rank, trial),) = accepted.items()
        reason = f"not declared: of 0 to {_MOST_DIMENSIONS} dimensions, the model accepted only {rank}"
        inputs = (replace(each, reason=reason) if each.spec.name == name else each for each in trial.inputs)
        return replace(trial, inputs=tuple(inputs))
    several = " and with ".join(map(str, accepted))
    outcome = f"accepts it with {several} dimensions" if accepted else "accepted none of the shapes that were tried"
    error = f"it does not declare the shape of {name}, and {outcome}: only you can know it"
    return InputTrial(next(likely_inputs(model, given)), error)


def input_lines(trial: InputTrial, found: FoundData) -> Iterator[str]:
    """Yield a line for each input, and comments on the origin of its sizes."""
    if trial.error:
        yield "  # The model was not run, or not at the sizes below. Set those you use."
    elif any(likely.free and not likely.varies for likely in trial.inputs):
        yield "  # The model leaves sizes free, and accepted these. Set those you use."
    for likely in trial.inputs:
        files = found.files.get(likely.spec.name, ())
        notes = [f"free: {', '.join(short_name(dim, 30) for dim in likely.free)}"] if likely.free else []
        notes += [likely.reason] if likely.reason else []
        notes += ["each sample has its own sizes"] if likely.varies else []
        notes += [f"in sequences: {{from: {json.dumps(likely.state_after)}}}"] if likely.state_after else []
        notes += ["the model does not declare its shape: add `shape: [...]`"] if likely.shape is None else []
        if is_scaled(likely, files):
            notes.append("pixels are scaled to 0..1; set `mean:` and `std:` if the model expects others")
        if has_images(files) and not likely.fitting:
            notes.append("images are stretched; set `resize:` to letterbox or crop if the model expects that")
        note = f"   # {'; '.join(notes)}" if notes else ""
        yield f"  {json.dumps(likely.spec.name)}: {{{input_entry(likely, found)}}}{note}"


def input_entry(likely: LikelyInput, found: FoundData) -> str:
    """Return the settings of an input, with values from files or generated ones; some are for images alone."""
    entry = [] if likely.shape is None or likely.varies else [f"shape: {list(likely.shape)}"]
    files = found.files.get(likely.spec.name)
    if files is None:
        entry += [f"data: {likely.data}"] + ([f"range: {list(likely.range)}"] if likely.range else [])
        return ", ".join(entry)
    entry.append(f"data: {json.dumps(found.given.get(likely.spec.name, files))}")
    if has_images(files):
        entry += ["layout: NHWC"] if likely.image_layout == "NHWC" else []
        entry += [f"{name}: {value}" for name, value in likely.fitting.items()]
        entry += [f"mean: {list(likely.mean)}", f"std: {list(likely.std)}"] if likely.mean else []
    return ", ".join(entry)


def _steps(
    options: RecipeOptions,
    result: str,
    trial: InputTrial,
    data: FoundData,
    weights_are_inputs: bool,
    shares: Mapping[str, float],
) -> Iterator[str]:
    """Yield the text of the steps; `shares` are those of the weights, by operator."""
    runtime = options.runtime
    if options.precision == "int8" and weights_are_inputs:
        yield _OWN_WEIGHTS
    yield _CLEAN
    if options.precision == "fp16":
        yield _HALF
    loose = samples = ""
    if options.precision == "int8":
        loose = "\n    tolerance: {slices: loose}"
        seen, samples = _split_samples(trial, data)
        target = "" if options.runs_model else "\n    target: tensorrt"
        is_lstm = options.runtime == DEFAULT and shares.get("LSTM", 0.0) >= _MOST
        yield _SMALL_LSTM if is_lstm else _SMALL.format(target=target, samples=seen)
    yield _AGREE.format(result=result, tolerance=loose, samples=samples)
    if options.runs_model:
        slow = options.precision == "fp16" and not has_nvidia_gpu()
        note = "   # a CPU computes FP16 in FP32: faster on a GPU" if slow else ""
        yield _SPEED.format(result=result, turns=in_turn(trial, data.files), note=note)
        if options.precision is not None and not slow:
            yield _DECIDE
        return
    # Some releases choose the types of layers themselves, whatever the conversion chose.
    yield _ENGINE.format(runtime=runtime, result=result, typing=", typing: strong" if options.precision else "")
    here = has_nvidia_gpu()
    yield _RUN_ENGINE.format(
        comment="" if here else "  # ", result=result, runtime=runtime, note="" if here else "   # needs a GPU"
    ).replace("  #   ", "  # ")


def has_weights_as_inputs(path: Path) -> bool:
    """Return whether callers may replace weights; before IR version 4, models had to declare them so."""
    from ndld_flow.models.files import read_proto

    proto = read_proto(path)
    weights = (*proto.graph.initializer, *(sparse.values for sparse in proto.graph.sparse_initializer))
    declared = {value.name for value in proto.graph.input}
    return proto.ir_version >= 4 and not declared.isdisjoint(tensor.name for tensor in weights)


def _split_samples(trial: InputTrial, data: FoundData) -> tuple[str, str]:
    """Return settings of the samples that a model is calibrated on, and of others that judge the result.

    A check on the samples of the calibration passes what fresh ones refuse. A single file cannot be split.
    """
    files = {name: split_files(paths, _MOST_FILES) for name, paths in data.files.items()}
    if any(held for _, held in files.values()):
        seen, held = ({name: parts[i] for name, parts in files.items()} for i in range(2))
        return f"\n    data: {json.dumps(seen)}", f"\n    data: {json.dumps(held)}   # other samples"
    if files or all(likely.data != "random" for likely in trial.inputs):
        return "", ""
    samples = f"\n    samples: {_GENERATED_SAMPLES}"
    return samples, f"{samples}\n    seed: {HELD_SEED}                # other samples"


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Return the name and the shape of `images=1x3x640x640`, or of `threshold=scalar`. Raises RequestError."""
    name, equals, sizes = text.rpartition("=")
    if name and sizes == "scalar":
        return name, ()
    if not equals or not name or not re.fullmatch(r"\d{1,9}([x,]\d{1,9})*", sizes):
        raise RequestError(f"--shape: {text!r} is not NAME=SHAPE, such as images=1x3x640x640 or threshold=scalar.")
    return name, tuple(map(int, re.split("[x,]", sizes)))


_ONE_STEP = """\
# One step, written by `ndld-flow {step}`. Add others, and run it with:
#
#   ndld-flow run {target}
#
# `ndld-flow init` writes a recipe that also checks and measures the result.
name: {name}
model: {model}                # relative to the current directory
{models}{inputs}
steps:
  {step}:{settings}
"""


@dataclass(frozen=True)
class StepRecipe:
    """A step with the model and the settings that it is used with."""

    kind: StepType
    model: str
    settings: Mapping[str, JsonValue] = field(default_factory=dict)
    """Setting -> value; a setting that names a step has the path of a model instead."""
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Input -> its shape."""
    data: Sequence[str] = ()
    """`PATH` or `INPUT=PATH`: the values of inputs."""

    @property
    def name(self) -> str:
        """The recipe's name: that of the step and of the model."""
        return f"{self.kind.name}-{name_recipe(Path(self.model.rpartition(':')[2]))}"[:100]

    def write(self, target: Path) -> None:
        """Write the recipe. A model that the step will run is run once, to find the sizes of its inputs.

        Raises RecipeError for wrong settings, ModelError for a model that cannot be read, RequestError for shapes and
        files that do not fit it.
        """
        read = {name for name in self.kind.cls.marked(Reads) if name in self.settings}
        models = {name: _locate(str(self.settings[name])) for name in read}
        settings = {name: name if name in read else value for name, value in self.settings.items()}
        compose = partial(
            _ONE_STEP.format,
            step=self.kind.name,
            target=shell_word(target),
            name=self.name,
            model=json.dumps(_locate(self.model)),
            models=f"models: {json.dumps(models)}\n" if models else "",
            settings="".join(f"\n    {name}: {json.dumps(value)}" for name, value in settings.items()) or " {}",
        )
        load_sweep(parse_yaml(target, compose(inputs="")), trust=True)  # a wrong setting must not wait for a pass
        text = compose(inputs=self._inputs())
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            write_text_atomically(target, text)
        except OSError as error:
            raise OutputsError(f"{target}: the recipe cannot be written ({error.strerror}).") from None

    def _inputs(self) -> str:
        """Return the recipe's `inputs:`; empty if the step reads none."""
        if self.kind.cls.sets_shapes:  # of the result, so that no trial can know them
            given = [f"  {json.dumps(name)}: {{shape: {list(shape)}}}" for name, shape in self.shapes.items()]
            return "\n".join(["\ninputs:", *given, ""]) if given else ""
        if not self.kind.cls.may_read_inputs() or not Path(self.model).is_file():
            return ""
        trial, found = try_data(Path(self.model), RecipeOptions(data=self.data, shapes=self.shapes))
        lines = list(input_lines(trial, found))
        return "\n".join(["\ninputs:", *lines, ""]) if lines else ""


def settings_as_options(cls: type[Step[Any, Any]]) -> dict[str, dict[str, Any]]:
    """Return setting -> its JSON Schema, of the settings that a single step can have: none that names another step,
    except for one that names a model.
    """
    reads = cls.marked(Reads)
    properties: dict[str, dict[str, Any]] = cls.model_json_schema().get("properties", {})
    return {name: schema for name, schema in properties.items() if name not in reads or reads[name].kind is Onnx}


def _locate(model: str) -> str:
    """Return the path of a file relative to the current directory; other sources, such as `package:`, as they are."""
    return os.path.relpath(model) if Path(model).exists() else model
