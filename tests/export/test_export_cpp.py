"""`export_cpp`: the C++ program converts images, runs models and writes outputs as Python does, bit for bit."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper
from PIL import Image

from ndld_flow.base.errors import RequestError, UnknownNameError
from ndld_flow.export.cpp.write_project import EngineFile, ExportRequest, write_project
from ndld_flow.models.files import model_inputs
from ndld_flow.records.build import Build
from ndld_flow.records.profile import TensorInfo
from ndld_flow.runtimes.tensorrt.library import find_library
from ndld_flow.samples.feeds import make_feeds
from tests.support.backend_models import all_backend_models
from tests.support.cpp_projects import CppBuild, fails, onnxruntime_root, read_arrays, run
from tests.support.custom_libraries import compile_library
from tests.support.engine_samples import build
from tests.support.message_files import CheckMessage
from tests.support.models import make_ext
from tests.support.models_run import Given, specs, write_model
from tests.support.typed_api import run_once

HOSTILE = 'a"); std::abort(); //\\\n??/\t<b>`|*/ #{$HOME} \u202e名=1x2'
"""An input's name that is no C++, CMake, Markdown or shell."""
TYPES = {
    "float32": TensorProto.FLOAT,
    "float16": TensorProto.FLOAT16,
    "bfloat16": TensorProto.BFLOAT16,
    "float64": TensorProto.DOUBLE,
    "uint8": TensorProto.UINT8,
    "int16": TensorProto.INT16,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
}
IMAGENET = {"mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}
IMAGE_INPUTS: dict[str, tuple[str, list[int | str], dict[str, Any]]] = {
    HOSTILE: ("float32", [1, 3, 37, 53], {"resize": "letterbox", **IMAGENET}),
    "stretch": ("float32", [2, 3, 41, 29], {"scale": 0.1, "mean": 117.3, "std": 57.375}),
    "up": ("float16", [1, 3, 201, 103], {"resize": "letterbox", "interpolation": "bicubic", "align": "start"}),
    "crop": ("bfloat16", [1, 3, 64, 64], {"resize": "crop", "crop_share": 0.875, "color": "bgr", **IMAGENET}),
    "free": ("float64", [1, 3, "h", 97], {"resize": "letterbox", "pad": [1, 2, 3]}),
    "own": ("uint8", ["n", "h", "w", 3], {"color": "bgr"}),
    "line": ("float32", [3, 48, "w"], {"resize": "crop", "interpolation": "bicubic"}),
    "linear": ("uint8", [1, 3, 64, 80], {"resize": "letterbox", "interpolation": "linear", "pad": 0}),
    "linear_crop": ("float32", [1, 33, 35, 3], {"resize": "crop", "interpolation": "linear", "align": "start"}),
    "gray": ("int64", [1, 1, 32, 100], {"resize": "stretch"}),
    "gray3": ("float32", [1, 3, 32, 32], {"color": "gray", "resize": "crop", "crop_share": 0.7, **IMAGENET}),
    "tiny": ("int32", [1, 3, 1, 2], {"interpolation": "bicubic"}),
}
"""Name -> element type, shape and settings of an input."""


def image_model(path: Path) -> Path:
    nodes = [helper.make_node("Identity", [name], [f"y{i}"]) for i, name in enumerate(IMAGE_INPUTS)]
    inputs = [
        helper.make_tensor_value_info(name, TYPES[kind], shape) for name, (kind, shape, _) in IMAGE_INPUTS.items()
    ]
    outputs = [helper.make_tensor_value_info(f"y{i}", TYPES[v[0]], None) for i, v in enumerate(IMAGE_INPUTS.values())]
    graph = helper.make_graph(nodes, "g", inputs, outputs)
    onnx.save(helper.make_model(graph, ir_version=8, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def write_images(folder: Path) -> dict[str, Path]:
    """Write one image of each kind that decoders treat differently."""
    random = np.random.default_rng(0)
    pixels = random.integers(0, 256, (117, 83, 4), np.uint8)
    smooth = Image.fromarray(random.integers(0, 256, (9, 7, 3), np.uint8)).resize((95, 71), Image.Resampling.BICUBIC)
    turned = Image.Exif()
    turned[0x0112] = 6
    mirrored = Image.Exif()
    mirrored[0x0112] = 5
    saved: dict[str, tuple[Image.Image, dict[str, Any]]] = {
        "rgb.png": (Image.fromarray(pixels[..., :3]), {}),
        "rgba.png": (Image.fromarray(pixels), {}),
        "gray.png": (Image.fromarray(pixels[..., 0]), {}),
        "la.png": (Image.fromarray(pixels[..., :2], "LA"), {}),
        "bits.png": (Image.fromarray(pixels[..., 0] > 127), {}),
        "palette.png": (smooth.quantize(37), {}),
        "turned.png": (smooth, {"exif": turned}),
        "mirrored.png": (smooth, {"exif": mirrored}),
        "420.jpg": (smooth, {"quality": 80}),
        "444.jpg": (smooth, {"quality": 95, "subsampling": 0}),
        "422.jpg": (smooth, {"quality": 60, "subsampling": 1, "progressive": True}),
        "gray.jpg": (smooth.convert("L"), {}),
        "turned.jpg": (smooth, {"exif": turned}),
    }
    for name, (image, options) in saved.items():
        image.save(folder / name, **options)
    return {name: folder / name for name in saved}


def export(model: Path, given: Given, out: Path, arrays: tuple[str, ...] = ()) -> Path:
    out.mkdir()
    write_project(ExportRequest(model, "source", specs(given), arrays, (), out))
    return out


def python_inputs(model: Path, given: Given) -> dict[str, npt.NDArray[Any]]:
    return {name: feed.values for name, feed in make_feeds(model_inputs(model), specs(given)).items()}


def python_outputs(model: Path, feeds: Mapping[str, npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    return [np.asarray(output) for output in session.run(None, dict(feeds))]


def assert_same(found: list[npt.NDArray[Any]], expected: list[npt.NDArray[Any]]) -> None:
    """Equal shapes, types and bits; numpy reads bfloat16 as two bytes without a type."""
    assert len(found) == len(expected)
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.shape == theirs.shape
        assert mine.dtype == theirs.dtype or (theirs.dtype.name, mine.dtype.str) == ("bfloat16", "|V2")
        assert mine.tobytes() == theirs.tobytes()


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return onnxruntime_root(tmp_path_factory.mktemp("runtime"))


@pytest.fixture(scope="module")
def debug(root: Path, tmp_path_factory: pytest.TempPathFactory) -> CppBuild:
    return CppBuild(tmp_path_factory.mktemp("g++"), root)


@dataclass(frozen=True)
class ImageProgram:
    program: Path
    project: Path
    model: Path
    images: dict[str, Path]


@pytest.fixture(scope="module")
def image_project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose inputs have all settings of images, among them one with a hostile name."""
    folder = tmp_path_factory.mktemp("images")
    images, model = write_images(folder), image_model(folder / "model.onnx")
    return export(model, settings_of(images["rgb.png"]), folder / "project")


@pytest.fixture(scope="module")
def image_program(debug: CppBuild, image_project: Path) -> ImageProgram:
    folder = image_project.parent
    return ImageProgram(debug.build(image_project), image_project, folder / "model.onnx", write_images(folder))


def settings_of(image: Path) -> dict[str, dict[str, Any]]:
    return {name: {**settings, "data": str(image)} for name, (_, _, settings) in IMAGE_INPUTS.items()}


def check_conversion(made: ImageProgram, image: Path, results: Path) -> None:
    given = [argument for name in IMAGE_INPUTS for argument in ("--input", f"{name}={image}")]
    run(made.program, *given, "--write-inputs", results, "--outputs", results)
    expected = list(python_inputs(made.model, settings_of(image)).values())
    assert_same(read_arrays(results, "input"), expected)
    assert_same(read_arrays(results, "output"), expected)


@pytest.mark.thorough
def test_images_are_converted_as_in_python(image_program: ImageProgram, tmp_path: Path) -> None:
    for name, image in image_program.images.items():
        check_conversion(image_program, image, tmp_path / name)


@pytest.mark.thorough
def test_without_arguments_it_runs_on_the_first_sample(image_program: ImageProgram, tmp_path: Path) -> None:
    printed = run(image_program.program, "--outputs", tmp_path / "o", "--iterations", "3", "--warmup", "1")
    expected = python_inputs(image_program.model, settings_of(image_program.images["rgb.png"]))
    assert_same(read_arrays(tmp_path / "o", "output"), list(expected.values()))
    assert "latency of 3 runs: min" in printed


@pytest.mark.thorough
def test_random_values_are_repeatable_and_in_range(image_program: ImageProgram, tmp_path: Path) -> None:
    line = ["--shape", "line=3x48x31", "--write-inputs"]
    run(image_program.program, "--random", "--seed", "7", *line, tmp_path / "a")
    run(image_program.program, "--random", "--seed", "7", *line, tmp_path / "b")
    run(image_program.program, "--random", "--seed", "8", *line, tmp_path / "c")
    a, b, c = (read_arrays(tmp_path / name, "input") for name in "abc")
    assert_same(a, b)
    assert a[6].shape == (3, 48, 31)
    assert (a[0] != c[0]).mean() > 0.99
    assert a[0].min() >= 0 and a[0].max() < 1 and abs(a[0].mean() - 0.5) < 0.05


@pytest.mark.thorough
@pytest.mark.parametrize(
    "arguments",
    [
        ["--input", "tiny=missing.npy"],
        ["--input", "nothing=a.npy"],
        ["--input", "stretch=wrong.npy"],
        ["--input", "stretch=fortran.npy"],
        ["--input", "stretch=cut.npy"],
        ["--input", "stretch=text.npy"],
        ["--input", "stretch=shape.npy"],
        ["--input", "stretch=deep.png"],
        ["--input", "stretch=cmyk.jpg"],
        ["--input", "stretch=xmp.jpg"],
        ["--input", "stretch=cut.png"],
        ["--input", "stretch=cut.jpg"],
        ["--input", "stretch=image.bmp"],
        ["--shape", "gray=1x1x32x100"],
        ["--shape", "line=3xx8"],
        ["--iterations", "0"],
        ["--model", "text.npy"],
        ["--no-such-option", "1"],
        ["--provider", "cuda"],
        ["--provider", "DirectML"],
    ],
)
def test_what_it_cannot_read_is_an_error(
    image_program: ImageProgram, arguments: list[str], in_folder: Path, check_message: CheckMessage
) -> None:
    array = np.zeros((2, 3, 41, 29), np.float32)
    np.save("wrong.npy", array.astype(np.float64))
    np.save("fortran.npy", np.asfortranarray(array))
    np.save("shape.npy", array[:1])
    np.save("whole.npy", array)
    Path("cut.npy").write_bytes(Path("whole.npy").read_bytes()[:-1])
    Path("text.npy").write_text("nothing of the kind")
    Image.fromarray(np.zeros((9, 9), np.uint16)).save("deep.png")
    Image.new("CMYK", (9, 9)).save("cmyk.jpg")
    Image.new("RGB", (9, 9)).save("xmp.jpg", xmp=b'<x tiff:Orientation="6"/>')
    for name in ("rgb.png", "420.jpg"):
        data = image_program.images[name].read_bytes()
        Path("cut" + Path(name).suffix).write_bytes(data[: len(data) // 2])
    Image.new("RGB", (9, 9)).save("image.bmp")
    check_message(fails(image_program.program, *arguments))


def test_the_sources_are_formatted(image_project: Path) -> None:
    """Also the generated ones: the hostile names are in them."""
    if shutil.which("clang-format") is None:
        pytest.skip("there is no clang-format")
    sources = [path for path in image_project.rglob("*") if path.suffix in (".cpp", ".h")]
    assert len(sources) > 12
    assert run("clang-format", "--version")
    done = subprocess.run(
        ["clang-format", "--dry-run", "-Werror", "--style=file", *sources], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
def test_a_line_break_in_a_name_is_escaped(image_program: ImageProgram) -> None:
    described = run(image_program.program, "--describe")
    assert len(described.splitlines()) == 2 * len(IMAGE_INPUTS), "a line break in a name is shown as \\x0a"


def test_no_name_of_a_model_is_more_than_text(image_project: Path) -> None:
    readme = (image_project / "README.md").read_text()
    assert "<b>" not in readme and "`|" not in readme and "\u202e" not in readme
    names = [path.name for path in image_project.rglob("*")]
    assert all(name.isascii() and not set(name) & set('"\\$`<>|\n') for name in names)


SILERO: Given = {
    "input": {"shape": [1, 576], "range": [-1, 1]},
    "state": {"shape": [2, 1, 128], "from": "stateN"},
    "sr": {"data": 16000},
}


def backend_model(name: str, folder: Path) -> tuple[Path, Given]:
    """Write one of onnx's test models and its inputs."""
    case = next(case for case in all_backend_models() if case.name == name)
    onnx.save(case.model, folder / "model.onnx")
    given = {}
    for index, (key, values) in enumerate(case.feeds.items()):
        np.save(folder / f"{index}.npy", values)
        given[key] = {"data": str(folder / f"{index}.npy")}
    return folder / "model.onnx", given


def check_model(builder: CppBuild, model: Path, given: Given, folder: Path, arrays: tuple[str, ...] = ()) -> None:
    program = builder.build(export(model, given, folder / "project", arrays))
    run(program, "--outputs", folder / "results")
    assert_same(read_arrays(folder / "results", "output"), python_outputs(model, python_inputs(model, given)))


@pytest.mark.thorough
def test_a_model_with_several_inputs_matches_python(debug: CppBuild, image_program: Any, tmp_path: Path) -> None:
    """The number of rows of its output depends on the values."""
    model, given = backend_model("test_nonmaxsuppression_two_batches", tmp_path)
    check_model(debug, model, given, tmp_path)


@pytest.mark.thorough
def test_a_model_with_states_matches_python(
    debug: CppBuild, image_program: Any, sample_model: Callable[[str], Path], tmp_path: Path
) -> None:
    check_model(debug, sample_model("silero"), SILERO, tmp_path, ("state",))


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_optimized_programs_match_python(
    compiler: str, root: Path, sample_model: Callable[[str], Path], tmp_path: Path
) -> None:
    builder = CppBuild(tmp_path / "build", root, compiler, "Release")
    images = write_images(tmp_path)
    model = image_model(tmp_path / "model.onnx")
    project = export(model, settings_of(images["rgb.png"]), tmp_path / "project")
    program = ImageProgram(builder.build(project), project, model, images)
    for name, image in images.items():
        check_conversion(program, image, tmp_path / "results" / name)
    receipt = Path(__file__).parents[2] / "pipelines/images/receipt.png"
    given = {
        "silero": (SILERO, ("state",)),
        "det": ({"x": {"shape": [1, 3, 320, 320], "data": str(receipt), "resize": "letterbox", **IMAGENET}}, ()),
        "cls": ({"x": {"shape": [1, 3, 48, 192], "data": str(receipt), "resize": "crop", "color": "bgr"}}, ()),
        "rec": ({"x": {"shape": [2, 3, 48, 320], "range": [-1, 1]}}, ()),
    }
    for name, (inputs, arrays) in given.items():
        folder = tmp_path / f"{name}-model"
        folder.mkdir()
        check_model(builder, sample_model(name), inputs, folder, arrays)


@pytest.mark.thorough
def test_external_data_dynamic_shapes_and_custom_operators(debug: CppBuild, tmp_path: Path) -> None:
    for name in ("external", "custom"):
        (tmp_path / name).mkdir()
    model, given = make_ext(tmp_path / "external/model.onnx"), {"x": {"shape": [2, 256]}}
    check_model(debug, model, given, tmp_path / "external")
    program = debug.folder / "build/run_model"
    run(program, "--shape", "x=5x256", "--write-inputs", tmp_path / "i", "--outputs", tmp_path / "o")
    (values,) = read_arrays(tmp_path / "i", "input")
    assert values.shape == (5, 256)
    assert_same(read_arrays(tmp_path / "o", "output"), python_outputs(model, {"x": values}))

    graph = "g (float[2, 3] x) => (float[2, 3] y) { y = com.acme.Scaled(x) }"
    text = f'<ir_version: 8, opset_import: ["" : 17, "com.acme" : 1]>\n{graph}'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "custom/model.onnx")
    library = compile_library(tmp_path / "custom/libacme.so", factor=3)
    out = tmp_path / "custom/project"
    out.mkdir()
    write_project(ExportRequest(tmp_path / "custom/model.onnx", "source", {}, (), (library,), out))
    program = debug.build(out)
    run(program, "--outputs", tmp_path / "p")
    (scaled,) = read_arrays(tmp_path / "p", "output")
    np.testing.assert_array_equal(scaled, np.load(out / "samples/input_0.npy") * np.float32(3))


@pytest.mark.thorough
def test_cmake_finds_an_installed_runtime_or_fetches_one(root: Path, tmp_path: Path) -> None:
    """By `find_package`, and from an archive with its SHA-256; a wrong digest and a missing runtime are errors."""
    project = export(write_model(tmp_path / "model.onnx", IDENTITY), {}, tmp_path / "project")
    config = tmp_path / "installed/lib/cmake/onnxruntime/onnxruntimeConfig.cmake"
    config.parent.mkdir(parents=True)
    config.write_text(
        "add_library(onnxruntime::onnxruntime SHARED IMPORTED)\nset_target_properties(onnxruntime::onnxruntime "
        f'PROPERTIES IMPORTED_LOCATION "{root}/lib/libonnxruntime.so" INTERFACE_INCLUDE_DIRECTORIES "{root}/include")\n'
    )
    with tarfile.open(tmp_path / "release.tgz", "w:gz", dereference=True, compresslevel=1) as archive:
        archive.add(root, "onnxruntime-linux-x64-1.32.0")
    digest = hashlib.sha256((tmp_path / "release.tgz").read_bytes()).hexdigest()
    url = f"-DONNXRUNTIME_URL=file://{tmp_path}/release.tgz"
    found = run("cmake", "-S", project, "-B", tmp_path / "a", f"-DCMAKE_PREFIX_PATH={tmp_path}/installed")
    assert str(config.parent) in found
    fetched = run("cmake", "-S", project, "-B", tmp_path / "b", url, f"-DONNXRUNTIME_SHA256={digest}")
    assert "ONNX Runtime: " in fetched
    assert "Set ONNXRUNTIME_SHA256" in fails("cmake", "-S", project, "-B", tmp_path / "c", url)
    wrong = fails("cmake", "-S", project, "-B", tmp_path / "d", url, f"-DONNXRUNTIME_SHA256={'0' * 64}")
    assert "hash" in wrong.lower()
    assert "is not installed" in fails("cmake", "-S", project, "-B", tmp_path / "e")


IDENTITY = "g (float[1, 3, 8, 8] x) => (float[1, 3, 8, 8] y) { y = Identity(x) }"


@pytest.mark.representatives("settings2-`from: y`", "settings3-`range` must be finite")
@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"data": "speech.wav", "rate": 8000}, r"audio \(\.wav\), `rate: 8000`"),
        ({"data": "clip.gif"}, r"images other than PNG and JPEG \(\.gif\)"),
        ({"from": "y"}, "`from: y`"),
        ({"data": "image.png", "range": [0.0, float("inf")]}, "`range` must be finite"),
        ({"mean": [1e300]}, "beyond the range of float32"),
    ],
)
def test_a_conversion_that_it_lacks_is_refused_by_name(settings: dict[str, Any], message: str, in_folder: Path) -> None:
    model = write_model(in_folder / "model.onnx", IDENTITY)
    for name in ("clip.gif", "image.png"):
        Image.new("RGB", (8, 8)).save(name)
    given = {"x": settings}
    if "rate" in settings:
        model = write_model(in_folder / "model.onnx", "g (float[1, 100] x) => (float[1, 100] y) { y = Identity(x) }")
        write_wav(in_folder / "speech.wav")
    with pytest.raises(RequestError, match=message):
        export(model, given, in_folder / "refused")
    if message.startswith("`from") or "(" in message:
        readme = (export(model, given, in_folder / "accepted", ("x",)) / "README.md").read_text()
        assert "not have this conversion" in readme


def write_wav(path: Path) -> None:
    import wave

    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(8000)
        file.writeframes(np.arange(100, dtype=np.int16).tobytes())


@pytest.mark.parametrize(
    "graph",
    [
        "g (string[2] x) => (string[2] y) { y = Identity(x) }",
        "g (float8e4m3fn[2] x) => (float8e4m3fn[2] y) { y = Identity(x) }",
        "g (float[2] x) => (seq(float[2]) y) { y = SequenceConstruct(x) }",
    ],
)
def test_a_type_that_it_lacks_is_refused_by_name(graph: str, in_folder: Path, check_message: CheckMessage) -> None:
    model = write_model(in_folder / "model.onnx", graph, 19)
    with pytest.raises(RequestError) as caught:
        export(model, {}, in_folder / "out")
    check_message(caught.value)


def test_unknown_arrays_are_an_error(in_folder: Path) -> None:
    model = write_model(in_folder / "model.onnx", IDENTITY)
    with pytest.raises(UnknownNameError) as caught:
        export(model, {}, in_folder / "out", ("z",))
    assert caught.value.name == "z"


def engine_build(**changes: Any) -> Build:
    """Return the record of an engine of IDENTITY's model."""
    shape = (1, 3, 8, 8)
    tensors = {
        "inputs": (TensorInfo(name="x", dtype="float32", shape=shape, format="linear"),),
        "outputs": (TensorInfo(name="y", dtype="float32", shape=shape, format="linear"),),
    }
    base = build(model_digest="digest", **tensors)
    return base.model_copy(update={**changes, "options": base.options | changes.get("options", {})})


def export_engine(folder: Path, record: Build) -> Path:
    model = write_model(folder / "model.onnx", IDENTITY)
    (folder / "plan").write_bytes(b"an engine")
    (folder / "out").mkdir()
    engine = EngineFile(folder / "plan", record, "digest")
    write_project(ExportRequest(model, "source", specs({}), (), (), folder / "out", engine))
    return folder / "out"


@pytest.mark.parametrize(
    "changes",
    [
        {"model_digest": "other"},
        {"options": {"plugins": ["libp.so"]}},
        {"options": {"weights": "strip"}},
        {"options": {"version_compatible": True}},
        {"outputs": ()},
        {"inputs": (TensorInfo(name="x", dtype="float16", shape=(1, 3, 8, 8)),)},
        {"inputs": (TensorInfo(name="x", dtype="float32", shape=(1, 3, 8, 8), format="chw32"),)},
    ],
)
def test_an_engine_that_it_cannot_run_is_refused(
    changes: dict[str, Any], tmp_path: Path, check_message: CheckMessage
) -> None:
    with pytest.raises(RequestError) as caught:
        export_engine(tmp_path, engine_build(**changes))
    check_message(caught.value)


@pytest.mark.parametrize(("backend", "library"), [("tensorrt", "NAMES nvinfer "), ("tensorrt_rtx", "tensorrt_rtx")])
def test_a_project_of_an_engine_has_only_the_sources_of_tensorrt(backend: str, library: str, tmp_path: Path) -> None:
    project = export_engine(tmp_path, engine_build(backend=backend, version="10.16.1.11"))
    assert (project / "model/model.engine").read_bytes() == b"an engine"
    assert library in (project / "cmake/runtime.cmake").read_text()
    assert "10.16.1.11" in (project / "README.md").read_text()
    names = {path.name for path in project.rglob("*")}
    assert "model_tensorrt.cpp" in names and not {"model.onnx", "model_onnxruntime.cpp"} & names


@pytest.mark.thorough
@pytest.mark.parametrize("compiler", ["g++", "clang++"])
def test_the_sources_of_tensorrt_compile_where_its_headers_are(compiler: str, tmp_path: Path) -> None:
    """NVIDIA's Python packages have no headers. Whether it runs needs a GPU, and is not tested here."""
    if shutil.which(compiler) is None:
        pytest.skip(f"there is no {compiler}")
    source = "#include <NvInfer.h>\n#include <cuda_runtime_api.h>\n"
    check = [compiler, "-fsyntax-only", "-std=c++17", "-x", "c++"]
    found = subprocess.run([*check, "-"], input=source, capture_output=True, text=True, check=False)
    if found.returncode:
        pytest.skip("the headers of TensorRT and CUDA are not installed (CPLUS_INCLUDE_PATH may name their folders)")
    project = export_engine(tmp_path, engine_build())
    warnings = ["-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Wsign-conversion", "-Werror"]
    run(*check, *warnings, "-I", project / "include", project / "src/model_tensorrt.cpp")


@pytest.mark.thorough
def test_an_engine_of_tensorrt_rtx_is_exported(in_folder: Path) -> None:
    if not find_library("tensorrt_rtx").found:
        pytest.skip("builds with TensorRT-RTX")
    write_model(in_folder / "model.onnx", IDENTITY)
    recipe = """
name: engine
model: model.onnx
steps:
  engine: {step: build_engine, backend: tensorrt_rtx, compute_capabilities: ["8.6"]}
  cpp: {step: export_cpp, engine: engine}
"""
    (in_folder / "recipe.yaml").write_text(recipe)
    done = run_once("recipe.yaml")
    assert done.passed
    engine = (Path(done.folder) / "engine/model.engine").read_bytes()
    assert (Path(done.folder) / "cpp/model/model.engine").read_bytes() == engine
