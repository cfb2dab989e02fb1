"""Write the project: fixed sources, the description of the model, its files, and a README."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import PIL

from ndld_flow.base.errors import RequestError, UnknownNameError
from ndld_flow.base.extras import ENGINE_LIBRARIES, EngineLibrary
from ndld_flow.base.settings import fields_of
from ndld_flow.base.text import short_name, visible_name
from ndld_flow.graph.model_tool import copy_model
from ndld_flow.inputs import InputSpec
from ndld_flow.models.files import model_inputs, model_outputs
from ndld_flow.models.tensors import TensorSpec
from ndld_flow.records.build import Build
from ndld_flow.records.profile import TensorInfo
from ndld_flow.samples.feeds import Feed, make_feeds
from ndld_flow.samples.images import ImageInput
from ndld_flow.samples.wanted_inputs import WantedInput
from ndld_flow.store.files import copy_file
from ndld_flow.store.found_files import (
    AUDIO_SUFFIXES,
    IMAGE_SUFFIXES,
    TABLE_SUFFIXES,
    TEXT_SUFFIXES,
    VIDEO_SUFFIXES,
    find_files,
)
from ndld_flow.store.kinds import Engine

_INTEGERS = (f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
_DTYPES_OF_CPP = frozenset(("bool", *_INTEGERS, "float16", "bfloat16", "float32", "float64"))
"""Element types in `tensor.h`, where `float32` is `Dtype::kFloat32`."""

_READ_IMAGES = (".png", ".jpg", ".jpeg")
_NOT_IN_CPP = ("rate", "hop", "tokenizer", "max_length", "fed_from", "first_shape", "grow")
"""Settings of an input that the program does not follow, for audio, text and sequences."""
_OF_IMAGES = ("scale", "mean", "std", "resize", "interpolation", "pad", "align", "crop_share", "color")
_KINDS = (
    (AUDIO_SUFFIXES, "audio"),
    (VIDEO_SUFFIXES, "video"),
    (TABLE_SUFFIXES, "tables"),
    (TEXT_SUFFIXES, "text"),
    (IMAGE_SUFFIXES, "images other than PNG and JPEG"),
)


@dataclass(frozen=True)
class DescribedInput:
    """An input of the program."""

    spec: TensorSpec
    feed: Feed
    """Its values in the first sample of the recipe."""
    low: float
    high: float
    """Range of random values."""
    image: ImageInput | None
    """The conversion of images; None for an input that takes only arrays."""
    left_out: str
    """The conversion of the recipe that the program does not have, with the user's consent; else empty."""


def check_tensors(kind: str, specs: Sequence[TensorSpec]) -> None:
    """Raise `RequestError` for an input or output that the program has no type or no name for."""
    for spec in specs:
        name = short_name(spec.name)
        if spec.dtype not in _DTYPES_OF_CPP:
            raise RequestError(
                f'{kind} "{name}" is {spec.dtype}, which the C++ program does not support: it has bool, integers of 8 '
                "to 64 bits, float16, bfloat16, float32 and float64."
            )
        if "\0" in spec.name:
            raise RequestError(f'{kind} "{name}" has a NUL in its name, which C++ runtimes do not accept: rename it.')


def describe_inputs(
    specs: Sequence[TensorSpec], given: Mapping[str, InputSpec], feeds: Mapping[str, Feed], arrays: Collection[str]
) -> list[DescribedInput]:
    """Return the inputs with the conversion that the recipe gives them.

    Raises `RequestError` for a conversion that the program does not have, unless the input is one of `arrays`.
    """
    known = [spec.name for spec in specs]
    for name in arrays:
        if name not in known:
            raise UnknownNameError(f'arrays: "{name}" is not an input of the model', name, known)
    return [_described(spec, given.get(spec.name, InputSpec()), feeds[spec.name], arrays) for spec in specs]


def _described(spec: TensorSpec, given: InputSpec, feed: Feed, arrays: Collection[str]) -> DescribedInput:
    file = find_files(given.data_patterns)[0].path if given.data_patterns else None
    # Settings and kinds of files that the program does not have.
    settings = [name for name in _NOT_IN_CPP if getattr(given, name) is not None]
    found = [f"`{'from' if name == 'fed_from' else name}: {getattr(given, name)}`" for name in settings]
    suffix = file.suffix.lower() if file else ""
    kind = next((kind for suffixes, kind in _KINDS if suffix in suffixes and suffix not in _READ_IMAGES), "")
    left_out = ", ".join([*([f"{kind} ({suffix})"] if kind else []), *found])
    changed = [name for name in _OF_IMAGES if getattr(given, name) != fields_of(InputSpec)[name].default]
    image = None
    if spec.name not in arrays and not left_out and (changed or (file and _is_image(file))):
        try:
            image = ImageInput.of(WantedInput(spec, given, given.run_shape or spec.shape), file or Path("image.png"))
        except RequestError as error:
            left_out = f"`{changed[0]}`: {error}" if changed else str(error)
        else:
            left_out = _image_not_in_cpp(image)
    if left_out and spec.name not in arrays:
        raise RequestError(
            f'input "{short_name(spec.name)}": the C++ program does not have this conversion of the recipe: '
            f"{left_out.rstrip('.')}. Add the input to `arrays:`, so that the program takes it only as a .npy file."
        )
    if spec.name in arrays and (changed or (file and _is_image(file))):
        left_out = left_out or "the conversion of images"
    low, high = given.range
    if not np.isfinite([low, high]).all():
        raise RequestError(f'input "{short_name(spec.name)}": `range` must be finite.')
    return DescribedInput(spec, feed, low, high, image if not left_out else None, left_out)


def _is_image(file: Path) -> bool:
    return file.suffix.lower() in _READ_IMAGES


def _image_not_in_cpp(image: ImageInput) -> str:
    if image.channels == 4:
        return "images of 4 channels"
    numbers = np.array([image.scale, *image.given.mean, *image.given.std], np.float64)
    with np.errstate(over="ignore"):
        is_finite = np.isfinite(numbers.astype(np.float32)).all()
    return "" if is_finite else "`scale`, `mean` or `std` beyond the range of float32"


_DTYPES = ("bool", "int8", "int32", "int64", "uint8", "float16", "bfloat16", "float32")
"""Types of inputs and outputs that TensorRT and the program have."""


def check_engine(build: Build, model_digest: str, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec]) -> None:
    """Raise `RequestError` for an engine of another model, or with a property that the C++ program does not support."""
    where = f"the engine {short_name(build.label)}"
    if build.model_digest != model_digest:
        raise RequestError(
            f"{where} was built from another model than the one that this step reads: set `from:` to the step that "
            "`build_engine` reads."
        )
    if build.marked_outputs:
        raise RequestError(
            f"{where} has tensors marked as outputs for inspection (`mark_outputs`), and fuses layers differently: "
            "name a step that builds it without them."
        )
    needs = {
        "plugins": bool(build.options.get("plugins")),
        "weights: strip": build.options.get("weights") == "strip",
        "version_compatible: true": bool(build.options.get("version_compatible")),
    }
    if needed := [setting for setting, is_set in needs.items() if is_set]:
        raise RequestError(
            f"{where} was built with `{needed[0]}`, which the C++ program does not support: it loads no plugins, no "
            f"weights and no embedded code. Export the ONNX model for ONNX Runtime, or build an engine without it."
        )
    _check_tensors(where, "input", build.inputs, inputs)
    _check_tensors(where, "output", build.outputs, outputs)


def _check_tensors(where: str, kind: str, built: Sequence[TensorInfo], specs: Sequence[TensorSpec]) -> None:
    found = {tensor.name: tensor for tensor in built}
    for spec in specs:
        name = f'{kind} "{short_name(spec.name)}"'
        if spec.name not in found:
            raise RequestError(f"{where} has no {name} of its model, so that the C++ program cannot run it.")
        tensor = found[spec.name]
        if tensor.dtype != spec.dtype or tensor.dtype not in _DTYPES or tensor.format not in ("", "linear"):
            raise RequestError(
                f"{where} has the {name} as {tensor.dtype} {tensor.format or 'linear'}, its model as {spec.dtype}: the "
                f"C++ program needs equal types, of {', '.join(_DTYPES)}, and linear memory."
            )
    if extra := set(found) - {spec.name for spec in specs}:
        raise RequestError(f'{where} has an {kind} "{short_name(min(extra))}" that its model does not have.')


_WIDTH = 100
"""Maximum length of a line, as in the project's `.clang-format`."""


@dataclass(frozen=True)
class ModelFiles:
    """Files of the project, relative to its folder."""

    model: str
    operator_libraries: tuple[str, ...]
    samples: tuple[str, ...]
    """One for each input."""


def string_literal(text: str) -> str:
    """Return a C++ literal of the text's UTF-8 bytes; everything but letters, digits and harmless signs is escaped.

    Octal escapes have exactly three digits, so that the next character cannot become part of one. `?` is escaped
    because of trigraphs.
    """
    plain = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 _./:,;+-*=()[]<>|!#$%&@^~'`{}"
    escaped = "".join(chr(byte) if byte in plain else f"\\{byte:03o}" for byte in text.encode(errors="surrogatepass"))
    return f'"{escaped}"'


def describe_model(inputs: Sequence[DescribedInput], outputs: Sequence[TensorSpec], files: ModelFiles) -> str:
    """Return the source of `model_description.cpp`, formatted as clang-format does."""
    lines = [
        "// Generated by ndld-flow: the inputs and outputs of the model in this project.",
        "",
        '#include "model_runner/description.h"',
        "",
        "namespace model_runner {",
        "namespace {",
        "",
    ]
    for index, described in enumerate(inputs):
        body = [*_tensor(described.spec, "info.tensor"), *_input(described, files.samples[index])]
        lines += _function(f"InputInfo Input{index}()", "InputInfo info;", body)
    for index, spec in enumerate(outputs):
        lines += _function(f"TensorInfo Output{index}()", "TensorInfo info;", _tensor(spec, "info"))
    body = [("description.model", string_literal(files.model))]
    calls = [
        *(f"description.operator_libraries.push_back({string_literal(path)});" for path in files.operator_libraries),
        *(f"description.inputs.push_back(Input{index}());" for index in range(len(inputs))),
        *(f"description.outputs.push_back(Output{index}());" for index in range(len(outputs))),
    ]
    lines += _function("Description MakeDescription()", "Description description;", body, calls, "description")
    return "\n".join(
        [
            *lines,
            "}  // namespace",
            "",
            "const Description& DescribeModel() {",
            "  static const Description kDescription = MakeDescription();",
            "  return kDescription;",
            "}",
            "",
            "}  // namespace model_runner",
            "",
        ]
    )


Assignment = tuple[str, str]
"""A variable or a call, and its value."""


def _function(
    header: str, first: str, body: Iterable[Assignment], calls: Sequence[str] = (), result: str = "info"
) -> list[str]:
    assignments = [f"  {name} = {value};" for name, value in body]
    # The value of a long assignment is on a line of its own.
    assignments = [line if len(line) <= _WIDTH else line.replace(" = ", " =\n      ", 1) for line in assignments]
    return [
        f"{header} {{",
        f"  {first}",
        *assignments,
        *(f"  {call}" for call in calls),
        f"  return {result};",
        "}",
        "",
    ]


def _tensor(spec: TensorSpec, name: str) -> Iterator[Assignment]:
    yield f"{name}.name", string_literal(spec.name)
    yield f"{name}.dtype", f"Dtype::k{spec.dtype.capitalize()}"
    if spec.shape is None:
        yield f"{name}.has_shape", "false"
        return
    if spec.shape:
        yield f"{name}.dimensions", f"std::vector<Dimension>({len(spec.shape)})"
    for axis, dim in enumerate(spec.shape):
        if isinstance(dim, int):
            yield f"{name}.dimensions[{axis}].size", str(dim)
        elif dim:
            yield f"{name}.dimensions[{axis}].name", string_literal(dim)


def _input(described: DescribedInput, sample: str) -> Iterator[Assignment]:
    yield "info.sample", string_literal(sample)
    yield "info.low", repr(float(described.low))
    yield "info.high", repr(float(described.high))
    if described.image is not None:
        yield "info.image", "ImageSettings()"
        yield from ((f"info.image->{name}", value) for name, value in _image(described.image))


def _image(image: ImageInput) -> Iterator[Assignment]:
    """Yield the settings of an image, defaults included."""
    given = image.given
    color = given.color or ("gray" if image.channels == 1 else "rgb")
    yield "channels", str(image.channels)
    yield "width", str(image.width or 0)
    yield "height", str(image.height or 0)
    yield "batch", str(image.batch or 0)
    yield "channels_last", "true" if image.layout == "NHWC" else "false"
    yield "color", f"Color::k{color.capitalize()}"
    yield "resize", f"Resize::k{(given.resize or 'stretch').capitalize()}"
    yield "interpolation", f"Interpolation::k{given.interpolation.capitalize()}"
    yield "has_pass_order_of_pillow_13", "true" if int(PIL.__version__.split(".")[0]) >= 13 else "false"
    yield "is_centered", "true" if given.align == "center" else "false"
    yield "crop_share", repr(float(given.crop_share))
    yield "pad", f"{{{', '.join(map(str, given.pad))}}}"
    if given.scale is not None:
        yield "scale", _float(given.scale)
    yield "mean", f"{{{', '.join(map(_float, given.mean))}}}"
    yield "std", f"{{{', '.join(map(_float, given.std))}}}"


def _float(value: float) -> str:
    """Return a literal of exactly the nearest float32: nine digits suffice."""
    digits = f"{float(np.float32(value)):.9g}"
    return f"{digits if set(digits) & set('.e') else f'{digits}.0'}F"


_TEMPLATE = Path(__file__).parent / "project"
_RENAMED = {"clang-format": ".clang-format"}
_RUNTIME_CMAKE = "cmake/runtime.cmake"


@dataclass(frozen=True)
class EngineFile:
    """An engine and the record of its build."""

    path: Path
    build: Build
    model_digest: str
    """Digest of the model that the step reads, from which the engine must be built."""


@dataclass(frozen=True)
class ExportRequest:
    """The model or engine to export, and the options of the project."""

    model: Path
    label: str
    """Name of the step that wrote the model, or `source`."""
    inputs: Mapping[str, InputSpec]
    arrays: tuple[str, ...]
    """Inputs that the program takes only as arrays."""
    custom_ops: tuple[Path, ...]
    out: Path
    engine: EngineFile | None = None
    """Run this engine of the model in TensorRT; None runs the model in ONNX Runtime."""


@dataclass(frozen=True)
class CppProject:
    """The written project."""

    inputs: tuple[DescribedInput, ...]
    outputs: tuple[TensorSpec, ...]
    library: EngineLibrary | None = None
    """The library that runs the engine; None for a model in ONNX Runtime."""
    runtime_version: str = ""
    """The release that built the engine, and must run it; empty for ONNX Runtime, which needs no certain one."""
    compute_capabilities: tuple[str, ...] = ()
    """GPUs of the engine; empty for ONNX Runtime, and for an engine of the kind of GPU that built it."""

    @property
    def runtime(self) -> str:
        return "ONNX Runtime" if self.library is None else self.library.title

    @property
    def reads_images(self) -> bool:
        return any(described.image is not None for described in self.inputs)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Return a line for each input whose conversion the program does not have."""
        return tuple(
            f"input {visible_name(each.spec.name)}: {visible_name(each.left_out)}"
            for each in self.inputs
            if each.left_out
        )


def write_project(request: ExportRequest) -> CppProject:
    """Write a CMake project that runs the model.

    Raises `RequestError` for types and conversions that the program does not have.
    """
    specs, outputs = model_inputs(request.model), model_outputs(request.model)
    check_tensors("input", specs)
    check_tensors("output", outputs)
    feeds = make_feeds(specs, request.inputs, model=request.label)
    inputs = describe_inputs(specs, request.inputs, feeds, request.arrays)
    engine = request.engine
    project = CppProject(tuple(inputs), outputs)
    if engine is not None:
        check_engine(engine.build, engine.model_digest, specs, outputs)
        build = engine.build
        project = replace(
            project,
            library=ENGINE_LIBRARIES[build.backend],
            runtime_version=build.version,
            compute_capabilities=build.compute_capabilities,
        )
    files = ModelFiles(
        model="model/model.onnx" if engine is None else f"model/{Engine.main}",
        operator_libraries=tuple(_copy_libraries(request.custom_ops, request.out)),
        samples=tuple(f"samples/input_{index}.npy" for index in range(len(inputs))),
    )
    if engine is None:
        copy_model(request.model, request.out / "model")
    else:
        copy_file(engine.path, request.out / files.model)
    (request.out / "samples").mkdir()
    for described, path in zip(inputs, files.samples, strict=True):
        values = described.feed.values
        # numpy does not have bfloat16: it is written as its two bytes.
        stored = values.view("V2") if values.dtype.name == "bfloat16" else values
        np.save(request.out / path, np.ascontiguousarray(stored).reshape(values.shape), allow_pickle=False)
    _write_sources(request, project)
    code = describe_model(inputs, outputs, files)
    (request.out / "src" / "model_description.cpp").write_text(code, encoding="utf-8")
    return project


def _copy_libraries(libraries: Sequence[Path], out: Path) -> list[str]:
    """Copy libraries of custom operators under names of our own: theirs come from the recipe."""
    paths = []
    for index, library in enumerate(libraries):
        if not library.is_file():
            raise RequestError(f"custom_ops: there is no file {library} (looked in {Path.cwd()}).")
        suffix = library.suffix if re.fullmatch(r"\.\w{1,8}", library.suffix, re.ASCII) else ""
        paths.append(f"operators/custom_ops_{index}{suffix}")
        copy_file(library, out / paths[-1])
    return paths


def _write_sources(request: ExportRequest, project: CppProject) -> None:
    """Write the files of the template that the project has."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader(_TEMPLATE),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701 - Markdown and CMake: names pass through `code`
    )
    environment.filters["code"] = markdown_code
    unused = "onnxruntime" if project.library else "tensorrt"
    for path in sorted(_TEMPLATE.rglob("*")):
        if not path.is_file() or unused in path.name:
            continue
        source = path.relative_to(_TEMPLATE).as_posix()
        target = _RUNTIME_CMAKE if source.startswith("cmake/") else source.removesuffix(".j2")
        out = request.out / _RENAMED.get(target, target)
        if path.suffix == ".j2":
            out.parent.mkdir(exist_ok=True)
            out.write_text(environment.get_template(source).render(project=project), encoding="utf-8")
        else:
            copy_file(path, out)


def markdown_code(text: str) -> str:
    """Return text as code in Markdown.

    A name in which Markdown might find the end of the code, or of a table's cell, has entities instead of signs.
    """
    shown = visible_name(text)
    if shown.strip() == shown != "" and not set(shown) & set("`|\\"):
        return f"`{shown}`"
    entities = (letter if letter.isalnum() or letter == " " else f"&#{ord(letter)};" for letter in shown)
    return f"<code>{''.join(entities)}</code>"
