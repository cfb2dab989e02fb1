"""Likely sizes and values of a model's inputs: from the model, its metadata, the files next to it, and common names.

Exporters make dimensions dynamic whose usual sizes are known elsewhere: an Ultralytics detector runs at the `imgsz` of
its metadata, a model from Hugging Face at the sizes of its `config.json` and `preprocessor_config.json`, and
`input_ids` are smaller than the embedding table that they index. Nothing here is certain: a trial pass decides
(`measure/trial_pass.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ndld_flow.base.errors import NdldFlowError
from ndld_flow.base.text import shortened
from ndld_flow.inputs import refuse_misfit, shape_override
from ndld_flow.models.files import model_inputs, read_proto
from ndld_flow.models.tensors import TensorSpec

if TYPE_CHECKING:
    import onnx

_CONFIGS = ("config.json", "preprocessor_config.json")
_MOST_CONFIG_BYTES = 2**20
_IMAGE_SIDES = (
    *((224, 224), (640, 640), (320, 320), (48, 320), (32, 320), (256, 256), (512, 512)),
    *((384, 384), (416, 416), (299, 299), (128, 128), (64, 64), (32, 32)),
)
"""Height and width of images to try: of classifiers, detectors, text recognition."""
_TRIED_SIZES = {
    "tokens": (128, 512, 16, 64, 1),
    "samples": (16000, 512, 4096, 48000),
    "frames": (100, 3000, 300, 64, 1),
    "past": (16, 0, 1),
    "batch": (1,),
    "other": (64, 16, 1, 128, 32, 100, 8, 256),
}
"""Role of a dimension -> sizes to try, the most common first: at a size of 1, a latency says little of the others."""
_NAMED_ROLES = (
    ("total", "total"),
    ("past", "past"),
    ("batch", "batch"),
    ("height", "height"),
    ("width", "width"),
    ("sample", "samples"),
    ("frame", "frames"),
    ("time", "frames"),
    ("seq", "tokens"),
    ("token", "tokens"),
    ("length", "tokens"),
)
"""Part of a dimension's name -> its role; the first match counts."""
_WHOLE_NAMES = {"b": "batch", "bs": "batch", "h": "height", "w": "width", "t": "frames"}
_AUDIO = re.compile(r"audio|wav|speech|signal|input_values|pcm")
_RATES = ("sr", "sample_rate", "sampling_rate")
_LENGTHS = re.compile(r"len(gth)?s?$")
_TURNS = frozenset(("in", "input", "past", "old", "prev", "out", "output", "present", "new", "next"))
"""Words by which the names of a state before and after a step differ."""
_FLOATS = (1, 10, 11, 16)
"""ONNX's numbers of float32, float16, float64 and bfloat16."""
_STATE = re.compile(r"^(state|hidden|cache|past|h|c|hn|cn|h0|c0|h_?in|c_?in)\b|state|past_key|hidden")


@dataclass(frozen=True)
class LikelyInput:
    """One input of a model with a size for every dimension and a source of its values."""

    spec: TensorSpec
    shape: tuple[int, ...] | None
    """None if neither the model nor the user gives the number of dimensions."""
    data: str | int = "random"
    """`random`, `zeros`, `ones`, or a number for every element."""
    range: tuple[int, int] | None = None
    """Half-open range of random integers."""
    image_layout: str = ""
    """`NCHW` or `NHWC` for an input that takes images."""
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()
    fitting: Mapping[str, str | float] = field(default_factory=dict)
    """Settings that fit images to the input, as its training did; empty if they are unknown."""
    reason: str = ""
    """The source of sizes that the model does not declare and of values that are not random, for a comment; empty if
    there are none."""
    varies: bool = False
    """The samples have several shapes; `shape` is that of the first."""
    state_after: str = ""
    """The output that seems to be its value at the next step; empty if it is no state."""

    @property
    def free(self) -> tuple[str, ...]:
        """Return the names of the model's dynamic dimensions; `?` for one without a name."""
        return tuple(dim or "?" for dim in self.spec.shape or () if not isinstance(dim, int))


@dataclass(frozen=True)
class _Facts:
    """All that is known about a model's inputs."""

    image_sides: Sequence[tuple[int, int]]
    """Height and width to try, the most likely first."""
    image_source: str
    """The source of the first of these: `imgsz of the metadata`; empty if they are only common ones."""
    is_audio: bool = False
    """A sampling rate is an input."""
    is_stream: bool = False
    """A state is an input: the model takes a signal in short pieces."""
    config: Mapping[str, Any] = field(default_factory=dict)
    fitting: Mapping[str, str | float] = field(default_factory=dict)
    states: Mapping[str, str] = field(default_factory=dict)
    """Input -> the output that seems to be its value at the next step."""


def likely_inputs(
    path: Path, given: Mapping[str, Sequence[int | None]] | None = None
) -> Iterator[tuple[LikelyInput, ...]]:
    """Yield alternatives for all inputs of a model, the most likely first; `given` are shapes that are known, with None
    for sizes that are not.

    Inputs without a declared shape that are not given have none. Raises ModelError for a file that is not
    a model, RequestError for a shape that does not fit the model's.
    """
    given, facts, seen = given or {}, _gather_facts(path), set()
    declared = model_inputs(path)
    specs = [_with_given(spec, given.get(spec.name)) for spec in declared]
    named = {  # dimensions of given shapes, which other inputs share
        dim: size
        for spec in declared
        for dim, size in zip(spec.shape or (), given.get(spec.name) or (), strict=False)
        if isinstance(dim, str) and size is not None
    }
    for attempt in range(len(facts.image_sides)):
        sizes = dict(named)
        alternative = tuple(_likely(spec, facts, attempt, sizes) for spec in specs)
        alternative = tuple(
            replace(_with_length(likely, alternative), state_after=facts.states.get(likely.spec.name, ""))
            for likely in alternative
        )
        shapes = tuple(likely.shape for likely in alternative)
        if shapes not in seen:
            seen.add(shapes)
            yield alternative


def suggest_shapes(path: Path, used: Mapping[str, Sequence[int]]) -> str:
    """Return the end of a message about inputs that a model did not accept, with overrides to try if dimensions are
    dynamic."""
    general = "check the recipe's `inputs:`"
    try:
        likely = next(likely_inputs(path), ())
    except NdldFlowError:
        return f"{general}."
    free = {each.spec.name: each.shape for each in likely if each.free and each.shape is not None}
    better = {name: shape for name, shape in free.items() if shape != tuple(used.get(name, ()))}
    if not better:
        return f"{general}."
    shapes = {name: f"[{','.join(map(str, shape))}]" for name, shape in better.items()}
    overrides = " ".join(shape_override(name, shape) for name, shape in shapes.items())
    return f"{general} (dynamic dimensions that it does not set are 1), or try: {shortened(overrides, 300)}"


def is_image(spec: TensorSpec) -> str:
    """Return `NCHW` or `NHWC` if an input probably takes images, else an empty string."""
    shape = spec.shape or ()
    if len(shape) != 4 or spec.dtype not in ("float32", "float16", "uint8"):
        return ""
    if shape[1] in (1, 3, 4):
        return "NCHW"
    if shape[3] in (1, 3, 4):
        return "NHWC"
    return "NCHW" if not any(isinstance(dim, int) for dim in shape[1:]) and not _STATE.search(spec.name) else ""


def _with_given(spec: TensorSpec, shape: Sequence[int | None] | None) -> TensorSpec:
    if shape is None:
        return spec
    refuse_misfit(spec.name, spec.shape, shape)
    return replace(spec, shape=tuple(shape))


def _likely(spec: TensorSpec, facts: _Facts, attempt: int, sizes: dict[str, int]) -> LikelyInput:
    """Return one input at the sizes of an attempt; `sizes` has those of named dimensions, and is filled."""
    if spec.shape is None:
        return LikelyInput(spec, None)
    layout = is_image(spec)
    shape, sources = [], []
    for axis, dim in enumerate(spec.shape):
        if isinstance(dim, int):
            shape.append(dim)
            continue
        role = _role(spec, axis, layout)
        if facts.is_audio and role in ("tokens", "other") and len(spec.shape or ()) == 2:
            role = "samples"
        name = dim or f"{spec.name}/{axis}"
        if name not in sizes:
            sizes[name] = _size(role, spec, facts, attempt, sizes)
        shape.append(sizes[name])
        sources.append(facts.image_source if role in ("height", "width") else "")
    likely = LikelyInput(spec, tuple(shape), image_layout=layout, reason=next(filter(None, sources), ""))
    return _with_values(likely, facts, sizes)


def _role(spec: TensorSpec, axis: int, layout: str) -> str:
    """Return the role of a dynamic dimension: from its name, else from its position."""
    assert spec.shape is not None
    name = str(spec.shape[axis] or "?").lower()
    named = _WHOLE_NAMES.get(name) or next((role for part, role in _NAMED_ROLES if part in name), "")
    if "+" in name and "past" in name:
        return "total"
    if named:
        return named
    if (axis == 0 and len(spec.shape) > 1) or _STATE.search(spec.name.lower()):
        return "batch"
    if layout:
        return {"NCHW": ("batch", "channels", "height", "width"), "NHWC": ("batch", "height", "width", "channels")}[
            layout
        ][axis]
    if len(spec.shape) == 2 and spec.dtype.startswith("int"):
        return "tokens"
    return "samples" if _AUDIO.search(spec.name.lower()) else "other"


def _size(role: str, spec: TensorSpec, facts: _Facts, attempt: int, sizes: Mapping[str, int]) -> int:
    if role == "channels":
        return 3
    if role == "total":
        return sum(size for name, size in sizes.items() if _is_length(name)) or _TRIED_SIZES["tokens"][0]
    if role in ("height", "width"):
        tried: Sequence[int] = [sides[role == "width"] for sides in facts.image_sides]
        fixed = [dim for dim in (spec.shape or ())[1:] if isinstance(dim, int) and dim > 4]
        if fixed and not facts.image_source:  # 48 x ? is an image of a line of text
            tried = [320 if fixed[0] < 100 else fixed[0], *tried]
    else:
        tried = _TRIED_SIZES[role]
        if role == "samples" and facts.is_stream:
            tried = (512, *tried)
    size = tried[min(attempt, len(tried) - 1)]
    limit = facts.config.get("max_position_embeddings")
    return min(size, limit) if role == "tokens" and isinstance(limit, int) and limit > 0 else size


def _is_length(name: str) -> bool:
    lower = name.lower()
    return any(part in lower for part in ("seq", "past", "length")) and "total" not in lower and "+" not in lower


def _with_values(likely: LikelyInput, facts: _Facts, sizes: Mapping[str, int]) -> LikelyInput:
    """Return an input with values that a model of its kind takes."""
    name, dtype = likely.spec.name.lower(), likely.spec.dtype
    rows = likely.spec.table_rows
    if rows and not dtype.startswith("float"):  # random floats are integers where the model looks them up
        return replace(likely, range=(0, rows), reason=likely.reason or f"indices into a table of {rows} rows")
    if "mask" in name:
        return replace(likely, data="ones")
    if dtype.startswith(("int", "uint")) and not likely.image_layout:
        return _with_integers(likely, name, sizes)
    if dtype == "bool" or _STATE.search(name):
        return replace(likely, data="zeros")
    if name in ("scale_factor", "scale_factors"):
        return replace(likely, data="ones")
    if name in ("im_shape", "image_shape", "img_shape"):
        return replace(likely, data=facts.image_sides[0][0])
    if likely.image_layout:
        mean, std = _numbers(facts.config.get("image_mean")), _numbers(facts.config.get("image_std"))
        is_normalized = facts.config.get("do_normalize", True) and mean and std
        likely = replace(likely, mean=mean, std=std) if is_normalized else likely
        return replace(likely, fitting=facts.fitting)
    return likely


def _with_integers(likely: LikelyInput, name: str, sizes: Mapping[str, int]) -> LikelyInput:
    if name in _RATES:
        return replace(likely, data=16000, reason="a sampling rate in Hz")
    if "size" in name or "shape" in name:
        return replace(likely, data=next((size for dim, size in sizes.items() if "/2" in dim), 640))
    return replace(likely, data="zeros")


def _with_length(likely: LikelyInput, alternative: Sequence[LikelyInput]) -> LikelyInput:
    """Return an input such as `audio_lens` with the length of the other inputs: their longest dynamic dimension."""
    spec = likely.spec
    is_length = spec.dtype.startswith("int") and bool(_LENGTHS.search(spec.name.lower()))
    if not is_length or likely.shape is None or len(likely.shape) > 1:
        return likely
    others = [other for other in alternative if other.spec.name != spec.name and other.shape is not None]
    lengths = [
        size
        for other in others
        for size, declared in zip((other.shape or ())[1:], (other.spec.shape or ())[1:], strict=True)
        if not isinstance(declared, int)
    ]
    return replace(likely, data=max(lengths, default=1), reason="the length of the other input")


def _numbers(values: object) -> tuple[float, ...]:
    values = values if isinstance(values, list) and len(values) <= 4 else []
    return tuple(float(value) for value in values if isinstance(value, int | float))


def _gather_facts(path: Path) -> _Facts:
    proto = read_proto(path)
    metadata = {entry.key: entry.value for entry in proto.metadata_props}
    config = _read_configs(path)
    names = {value.name.lower() for value in proto.graph.input}
    sides: Sequence[int] = _ultralytics_sides(metadata)
    source = "`imgsz` of the model's metadata" if sides else ""
    if not sides:
        sides = _configured_sides(config)
        source = "the size in the model's configuration file" if sides else ""
    usual = ((640, 640), *_IMAGE_SIDES) if "images" in names else _IMAGE_SIDES
    image_sides = tuple(dict.fromkeys(((sides[0], sides[-1]), *usual) if sides else usual))
    is_stream = any(_STATE.search(name) for name in names)
    fitting = _fitting(metadata, config)
    states = find_states(proto.graph)
    return _Facts(image_sides, source, not names.isdisjoint(_RATES), is_stream, config, fitting, states)


def find_states(graph: onnx.GraphProto) -> dict[str, str]:
    """Return input -> the output that seems to be its value at the next step: floats of its type and rank, and of its
    name but for words such as `in` and `out` and a last `n`. Only one of several inputs can be a state.
    """
    keyed = {_key_of_state(value): value.name for value in graph.output}
    return {
        value.name: keyed[key]
        for value in graph.input
        if (key := _key_of_state(value)) in keyed and key[0] and key[1] in _FLOATS and len(graph.input) > 1
    }


def _key_of_state(value: onnx.ValueInfoProto) -> tuple[str, int, int]:
    words = re.split(r"[^a-z0-9]+", value.name.lower())
    stem = " ".join(word for word in words if word not in _TURNS).removesuffix("n")
    return stem, value.type.tensor_type.elem_type, len(value.type.tensor_type.shape.dim)


def _fitting(metadata: Mapping[str, str], config: Mapping[str, Any]) -> dict[str, str | float]:
    """Return how images are fitted: from Ultralytics' metadata, or a Hugging Face preprocessor; empty if unknown."""
    if _ultralytics_sides(metadata):
        cropped = metadata.get("task") == "classify"
        return {"resize": "crop"} if cropped else {"resize": "letterbox", "interpolation": "linear"}
    smooth = {"interpolation": "bicubic"} if config.get("resample") == 3 else {}
    size, crop = config.get("size"), config.get("crop_size")
    edge = size.get("shortest_edge") if isinstance(size, dict) else size
    side = crop.get("height") if isinstance(crop, dict) else crop
    if config.get("do_center_crop") and isinstance(edge, int) and isinstance(side, int) and 0 < side <= edge:
        share: dict[str, str | float] = {"crop_share": round(side / edge, 6)} if side < edge else {}
        return {"resize": "crop", **share, **smooth}
    return {"resize": "stretch", **smooth} if isinstance(size, dict) and {"height", "width"} <= set(size) else {}


def _ultralytics_sides(metadata: Mapping[str, str]) -> list[int]:
    """Return height and width from `imgsz`, such as `[640, 640]`, which Ultralytics' exporter writes."""
    numbers = [int(digits) for digits in re.findall(r"\d{1,5}", metadata.get("imgsz", "")[:100])]
    return [number for number in numbers if number > 0][:2]


def _configured_sides(config: Mapping[str, Any]) -> list[int]:
    """Return height and width from Hugging Face's `crop_size`, `size` or `image_size`."""
    for key in ("crop_size", "size", "image_size"):
        value = config.get(key)
        if isinstance(value, dict):
            value = [value.get("height", value.get("shortest_edge")), value.get("width", value.get("shortest_edge"))]
        sides = [side for side in (value if isinstance(value, list) else [value]) if isinstance(side, int)]
        if sides and all(0 < side < 2**14 for side in sides):
            return [sides[0], sides[-1]]
    return []


def _read_configs(path: Path) -> dict[str, Any]:
    """Return the contents of Hugging Face's files in the model's folder, or in its parent if it is named `onnx`."""
    folders = [path.parent, path.parent.parent] if path.absolute().parent.name == "onnx" else [path.parent]
    config: dict[str, Any] = {}
    for file in (folder / name for folder in folders for name in _CONFIGS):
        try:
            if file.stat().st_size <= _MOST_CONFIG_BYTES:
                values = json.loads(file.read_bytes())
                config = {**values, **config} if isinstance(values, dict) else config
        except (OSError, ValueError, RecursionError):
            continue  # absent, or another kind of file
    return config
