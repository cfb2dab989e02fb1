"""The recipe's `inputs:`: shapes and values of the model's inputs, shared by all steps."""

import os
import re
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Annotated, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    Tag,
    WithJsonSchema,
    model_validator,
)

from ndld_flow.base.errors import RequestError
from ndld_flow.base.settings import Settings, fields_of
from ndld_flow.base.text import shortened
from ndld_flow.store.found_files import is_several

T = TypeVar("T")
Dimension = Annotated[int, Field(ge=0)]
Shape = tuple[Dimension, ...]

GENERATED = ("random", "zeros", "ones", "arange")
_ALWAYS_IN_KEYS = ("shape", "min", "opt", "max", "every", "range", "mean", "std")


def _check_named(data: T) -> T:
    if data in ("", ()):
        raise ValueError("it names no file")
    return data


Data = Annotated[
    Annotated[tuple[Annotated[str, Field(min_length=1)], ...], AfterValidator(_check_named), Tag("several")]
    | Annotated[str | int | float, AfterValidator(_check_named), Tag("one")],
    # A mistake in a list is reported for its item only.
    Discriminator(lambda data: "several" if isinstance(data, list | tuple) else "one"),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "string", "minLength": 1},
                {"type": "number"},
                {"type": "array", "items": {"type": "string", "minLength": 1}, "minItems": 1},
            ]
        }
    ),
]
"""The source of an input's values: one of `GENERATED`, a number for every element, or files."""


_NUMBER_OR_LIST = {"anyOf": [{"type": "number"}, {"type": "array", "items": {"type": "number"}, "minItems": 1}]}
PerChannel = Annotated[
    tuple[T, ...],
    # The strict tuple takes a list only directly from JSON.
    BeforeValidator(lambda given: tuple(given) if isinstance(given, list | tuple) else (given,)),
    Field(min_length=1),
    WithJsonSchema(_NUMBER_OR_LIST),
]
"""One number for all channels, or a list of one for each."""


def patterns_of(data: Data) -> tuple[str, ...]:
    """Return the patterns of files that values come from; none if they are generated."""
    if isinstance(data, tuple):
        return data
    return (data,) if isinstance(data, str) and data not in GENERATED else ()


def names_one_file(data: Data) -> bool:
    """Return True for the path of a single file, existing or not: its contents count, not its name."""
    return isinstance(data, str) and data not in GENERATED and not is_several(data)


def without_names(data: Data) -> str | int | float:
    """Return `data` without file names: the suffix of a single file, or `files`."""
    if isinstance(data, str) and names_one_file(data):
        return PurePath(data).suffix
    return "files" if patterns_of(data) or isinstance(data, tuple) else data


def shape_override(name: str, shape: str) -> str:
    """Return the override that sets an input's shape, quoted for a shell: `'inputs.x.shape=[1,3,64,64]'`.

    Hydra reads a dot in a key as a level and refuses `:` and `/`, so other names become keys of a
    mapping, which it merges.
    """
    if re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]*", name):
        return f"'inputs.{name}.shape={shape}'"
    key = re.sub(r"([\\()\[\]{}:=, \t])", r"\\\1", name)
    return f"'inputs={{{key}:{{shape:{shape}}}}}'"


def refuse_misfit(
    name: str, declared: Sequence[int | str | None] | None, shape: Sequence[int | None], where: str = ""
) -> None:
    """Raise RequestError for a shape that an input does not accept; None are sizes that are not known. `where` begins
    the message.
    """
    if declared is None:
        return
    pairs = [(dim, size) for dim, size in zip(declared, shape, strict=False) if size is not None]
    if len(shape) != len(declared) or any(isinstance(dim, int) and dim != size for dim, size in pairs):
        sizes = ", ".join("?" if dim is None else str(dim) for dim in declared)
        raise RequestError(
            f"{where}input {name!r} has the shape [{shortened(sizes, 100)}]; {list(shape)} does not fit."
        )


class InputSpec(Settings, defer_build=False):
    """Shape and values of one model input, in a recipe's `inputs:` by its name.

        inputs:
          images: {shape: [1, 3, 640, 640], data: photos/*.jpg, resize: letterbox}
          audio: {data: speech.wav, rate: 16000}
          threshold: {data: 0.5}

    Every step that runs a model reads them. One that runs a model with other inputs, such as half of a model or one of
    two, has `inputs:` of its own in the same form, and reads these instead. The log and the report of a run describe
    the values: `image photo.jpg as NCHW, 640x480 -> 320x320 (letterbox), float32 1x3x320x320`.
    """

    # Work orders are written with the names of fields, recipes with `from`.
    model_config = ConfigDict(populate_by_name=True)

    shape: Shape | None = None
    """The shape to use. Give either this or `opt` (with `min` and `max`)."""
    min: Shape | None = None
    """Smallest shape an engine must accept."""
    opt: Shape | None = None
    """Shape to run and to optimize for."""
    max: Shape | None = None
    """Largest shape an engine must accept."""
    data: Data = "random"
    """A word, a number or files. `random` (usual values for masks, positions and lengths, and what the model looks up;
    the log describes them), `zeros`, `ones`, `arange` (0, 1, 2, ... along the last axis; it goes on at each step of a
    sequence, as positions do), a number for every element, or files: a `.npy`, `.npz` or `.pb` (a TensorProto), an
    image, a video, an audio file, a folder of these, or with a `NAME.pb` for each input, a `.txt` (lines for an input
    of strings, or text for a tokenizer), a `.csv` (the column of the input's name, or all), an ONNX test data set, a
    glob (`images/**/*.png`), or a list of these. Steps that run several samples use all files, others the first."""
    values: JsonValue = None
    """The values themselves, instead of `data`: a number, a text, or a list of the input's shape, such as
    `[[red], [blue]]`."""
    every: Annotated[int, Field(ge=1)] = 1
    """Use every N-th frame of a video or an animation, or window of an audio file or of an array of one dimension, as a
    sample."""
    fed_from: Annotated[str, Field(min_length=1)] | None = Field(default=None, alias="from")
    """Name of the output whose value is this input at the next step of a sequence, such as `state: {from: stateN}` of a
    recurrent model or `past: {from: present}` of a decoder. `data` is its value at the first step, by default zeros.
    Other inputs are constants, random values drawn anew at each step, or consecutive items of their files. Each item of
    a file of first values starts a sequence. Each input is listed by its name."""
    apply: Literal["argmax"] | None = None
    """`argmax`: greedy decoding. The input gets the index of the largest element of the output that it is `from`, at
    its last positions, as many as `shape` has: `input_ids: {from: logits, apply: argmax, shape: [1, 1]}`. `data` is the
    prompt."""
    axis: int = -1
    """Axis of the output along which `apply` chooses, such as that of the vocabulary."""
    first_shape: Shape | None = None
    """Shape at the first step of a sequence, such as that of a decoder's prompt; later steps have `shape`."""
    grow: Shape | None = None
    """Sizes added to the shape at each further step of a sequence: `[0, 1]` for a decoder's attention mask."""
    range: tuple[float, float] = (0.0, 1.0)
    """Range of random values: floats are uniform in [low, high), integers are drawn from the same half-open range."""
    layout: Literal["NCHW", "NHWC", "NCT", "NTC", "CT"] | None = None
    """Order of the dimensions of an image (NCHW, NHWC) or of audio (NCT, NTC, CT; T are the samples); by default from
    the shape: channels come first unless their size there is impossible and that at the end is not."""
    tokenizer: Annotated[str, Field(min_length=1)] | None = None
    """A `tokenizer.json` of the package `tokenizers`, through which the lines of a `.txt` become tokens, one sample
    each. Inputs of the model whose names end in `attention_mask`, `token_type_ids` or `position_ids` get the values of
    the same line unless the recipe gives them others. Shorter lines are padded to a fixed length of the input."""
    max_length: Annotated[int, Field(ge=1)] | None = None
    """Number of tokens, special ones included, to which longer lines are truncated; by default only an input's fixed
    length limits them."""
    rate: Annotated[int, Field(ge=1)] | None = None
    """Sample rate of the model's audio, in Hz. Files of another rate are converted; without it they are not, and the
    step warns."""
    hop: Annotated[int, Field(ge=1)] | None = None
    """Distance between the starts of two windows of an audio file, in samples at `rate`, or of an array of one
    dimension; by default the input's length, so that windows do not overlap. Each window is a sample."""
    scale: float | None = None
    """Factor of pixels and of audio, before `mean` is subtracted; by default 1/255 for an image that becomes floats,
    else 1. Audio is in [-1, 1) before it."""
    mean: PerChannel[float] = (0.0,)
    """Subtracted after scaling: one number, or one for each channel of an image in the model's order. Inputs of
    integers get pixels from 0 to 255, whatever `scale`, `mean` and `std` are."""
    std: PerChannel[float] = (1.0,)
    """Divisor after `mean` is subtracted."""
    resize: Literal["stretch", "letterbox", "crop"] | None = None
    """Way to fit an image to the input: `stretch` changes its aspect ratio, `letterbox` keeps it and pads, `crop` keeps
    it and cuts off what is too long. Images are stretched by default, and the step warns."""
    interpolation: Literal["bilinear", "linear", "bicubic"] = "bilinear"
    """`bilinear` and `bicubic` average all pixels that a smaller one covers, as Pillow and torchvision do; `linear`
    uses the four nearest ones, as OpenCV's `INTER_LINEAR` and most detectors do."""
    pad: PerChannel[Annotated[int, Field(ge=0, le=255)]] = (114,)
    """Value of the pixels around a letterboxed image, from 0 to 255: one number, or one for each channel."""
    align: Literal["center", "start"] = "center"
    """Place of a letterboxed or cropped image: in the middle, or at the left and the top."""
    crop_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of an image's shorter side that `crop` keeps: 0.875 resizes it to 256 and takes 224 pixels."""
    color: Literal["rgb", "bgr", "gray"] | None = None
    """Order of an image's channels, or its brightness in all of them; by default RGB, or gray for one channel."""

    @model_validator(mode="after")
    def _check_shapes(self) -> "InputSpec":
        if self.shape is not None and (self.min or self.opt or self.max):
            raise ValueError("give either `shape` or `min`/`opt`/`max`, not both")
        _check_values(self)
        for extent in (self.first_shape, self.grow):
            from_file = bool(self.data_patterns) and self.fed_from is None
            if extent is not None and (from_file or len(extent) != len(self.shape or self.first_shape or ())):
                raise ValueError(
                    "`first_shape` and `grow` need a `shape` of as many dimensions, and values from no file"
                )
        if self.apply is not None and (self.fed_from is None or not self.run_shape):
            raise ValueError("`apply` needs `from` and the `shape` of a step, such as `{from: logits, shape: [1, 1]}`")
        bounds = [shape for shape in (self.min, self.opt, self.max) if shape is not None]
        if len({len(shape) for shape in bounds}) > 1:
            raise ValueError("`min`, `opt` and `max` must have the same number of dimensions")
        for low, high in pairwise(bounds):
            if any(a > b for a, b in zip(low, high, strict=True)):
                raise ValueError("every dimension must satisfy min <= opt <= max")
        return self

    @property
    def run_shape(self) -> Shape | None:
        """Return the shape to run the model with; None leaves it to the model (free dimensions become 1)."""
        if self.values is not None:
            return _shape_of(self.values)
        return self.shape if self.shape is not None else self.opt

    @property
    def shapes(self) -> "InputSpec":
        """Return the shapes alone, for steps that use no values."""
        return InputSpec(shape=self.shape, min=self.min, opt=self.opt, max=self.max)

    @property
    def key_values(self) -> dict[str, JsonValue]:
        """Return the values of a step's key, without names of files.

        Settings that are not set are left out, so that a setting added later changes no key; those that were in keys
        before that rule stay.
        """
        values: dict[str, JsonValue] = self.model_dump(mode="json")
        unset = {name for name, info in fields_of(type(self)).items() if getattr(self, name) == info.default}
        kept = {name: value for name, value in values.items() if name in _ALWAYS_IN_KEYS or name not in unset}
        if self.resize == "stretch":  # as without it, except for the warning
            del kept["resize"]
        if self.tokenizer is not None:  # its contents are in the key
            kept["tokenizer"] = "file"
        return {**kept, "data": without_names(self.data), "layout": self.layout or "NCHW"}

    @property
    def is_random(self) -> bool:
        """Return True if its values are random; the first value of a state is zeros, and a prompt may be random."""
        return self.values is None and self.data == "random" and (self.fed_from is None or self.apply is not None)

    @property
    def data_patterns(self) -> tuple[str, ...]:
        """Return the patterns of files that the values come from; empty if they are generated."""
        return patterns_of(self.data)


def name_input_files(given: dict[str, Data]) -> dict[str, Data]:
    """Return input name -> its data: of a folder with a `NAME.pb` for each input, that file."""
    named = dict(given)
    for name, data in given.items():
        if isinstance(data, str) and data not in GENERATED:
            file = Path(data, f"{name}.pb")
            if file.parent == Path(data) and os.path.isfile(file):  # noqa: PTH113 - pathlib's raises for long names
                named[name] = str(file)
    return named


def _name_files_of_specs(specs: dict[str, InputSpec]) -> dict[str, InputSpec]:
    files = name_input_files({name: spec.data for name, spec in specs.items()})
    return {name: spec.model_copy(update={"data": files[name]}) for name, spec in specs.items()}


InputSpecs = Annotated[dict[str, InputSpec], AfterValidator(_name_files_of_specs)]


def _check_values(spec: InputSpec) -> None:
    """Raise `ValueError` for values next to other settings of them, and for lists of unequal lengths."""
    if spec.values is None:
        return
    if spec.data != "random" or spec.shape or spec.opt or spec.first_shape:
        raise ValueError("give either `values`, whose shape is the input's, or `data` and shapes, not both")
    if _shape_of(spec.values) is None:
        raise ValueError("`values` must be numbers, bools or texts, in lists of equal lengths")


def _shape_of(values: JsonValue) -> tuple[int, ...] | None:
    """Return the shape of nested lists; None if their lengths differ or an item is no number, bool or text."""
    if isinstance(values, list):
        shapes = {_shape_of(item) for item in values}
        (shape,) = shapes if len(shapes) == 1 else (None if shapes else (),)
        return None if shape is None else (len(values), *shape)
    return () if isinstance(values, str | int | float) else None
