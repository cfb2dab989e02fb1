"""Run models and draw their tensors: files, thumbnails and captions of every image."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import tee
from pathlib import Path

import numpy as np
import onnx_ir as ir
from PIL import Image

from ndld_flow.accuracy.activations.feeding import Fed, Feeding
from ndld_flow.accuracy.activations.inspection import (
    InspectedModel,
    PreparedModel,
    Progress,
    prepare_model,
    report_original_paths,
)
from ndld_flow.accuracy.model_comparison import storable
from ndld_flow.base.errors import RequestError, UnknownNameError
from ndld_flow.base.quantities import counted
from ndld_flow.graph.edit.operations.add_nms import class_names
from ndld_flow.inputs import Data, InputSpec
from ndld_flow.models.files import load_model, model_inputs, model_outputs
from ndld_flow.models.tensors import Array, TensorSpec, numpy_dtype
from ndld_flow.records.images import MOST_ENCODED_TOGETHER, ImageFile, ImageRow, RenderedImage, RenderedImages
from ndld_flow.rendering.overlays import Overlay
from ndld_flow.rendering.pixels import Drawn, Panel, SampleValues, TensorImage, as_bytes, thumbnail_of
from ndld_flow.rendering.settings import ImageSettings, OverlaySettings
from ndld_flow.runtimes.onnxruntime.request import OnnxruntimeRequest
from ndld_flow.samples.feeds import pair_names, shared_inputs
from ndld_flow.samples.file_samples import open_files
from ndld_flow.samples.sample_settings import Noise, SampleSettings
from ndld_flow.samples.wanted_inputs import Feed, WantedInput

_MOST_INPUTS = 3
"""Input images in a row."""
_MOST_OUTPUTS = 8
"""Outputs that are drawn if a recipe names nothing."""


@dataclass(frozen=True)
class Request:
    """The images to draw, and the samples."""

    settings: OnnxruntimeRequest
    given: Mapping[str, InputSpec]
    samples: SampleSettings
    images: Mapping[str, ImageSettings]
    overlays: Mapping[str, OverlaySettings] = field(default_factory=dict)
    targets: Mapping[str, Data] = field(default_factory=dict)
    """Name of an image -> files with the values that its tensor should have."""
    noise: Noise | None = None
    stored: bool = True
    """Round fp16 and bf16 tensors to their type after every node."""
    shown: int = 4
    """Samples with thumbnails."""
    written: int = 100
    """Samples with files."""


@dataclass(frozen=True)
class Rendering:
    """The record of the images, and the metrics of each."""

    record: RenderedImages
    metrics: Mapping[str, float]
    """`denoised.psnr` -> 31.4."""
    nonfinite: int
    """Values of the candidate's tensors that are NaN or infinite."""


def render_images(
    candidate: InspectedModel,
    reference: InspectedModel | None,
    request: Request,
    out: Path,
    scratch: Path,
    progress: Progress,
) -> Rendering:
    """Run on all samples and write the images of each into `out`, a folder for each image.

    Raises `RequestError` for tensors and inputs that the model does not have and for settings that do not fit them;
    `ModelError` and `BackendError` if a model cannot be run.
    """
    progress(0, 0, "reading the model")
    folders = {scratch / "candidate": candidate, scratch / "reference": reference or candidate}
    for folder in folders:
        folder.mkdir()
    with report_original_paths(folders):
        inputs = shared_inputs(model_inputs((reference or candidate).path), model_inputs(candidate.path))
        whole = (reference or candidate).path
        feeding = Feeding(inputs, request.given, request.samples, request.noise, candidate.label, whole)
        shapes = feeding.first_shapes()
        own = {feeding.candidate_name(name): shape for name, shape in shapes.items()}
        mine = prepare_model(candidate, own, request.stored, request.settings, scratch / "candidate")
        sources, notes = {"candidate": TensorSource(mine, {})}, list(mine.notes)
        if reference is not None:
            other = prepare_model(reference, shapes, request.stored, request.settings, scratch / "reference")
            names = names_in_reference(mine, other, inputs.candidate_names)
            sources["reference"] = TensorSource(other, names)
            notes += other.notes
        renderer = _Renderer(request, sources, feeding, out)
        renderer.run(progress)
        notes += [*feeding.notes, *renderer.notes]
        record = RenderedImages(
            model=candidate.label,
            reference="" if reference is None else reference.label,
            noise=request.noise.describe(compared=reference is not None) if request.noise else "",
            sample_count=len(feeding),
            images=renderer.images(),
            notes=tuple(dict.fromkeys(notes)),
        )
        return Rendering(record, renderer.metrics(), sum(image.nonfinite for image in renderer.drawings))


class _Renderer:
    """Draws all images, sample by sample."""

    def __init__(self, request: Request, sources: Mapping[str, TensorSource], feeding: Feeding, out: Path) -> None:
        self._request, self._sources, self._feeding = request, sources, feeding
        self._writer = _Writer(out, request.shown, request.written)
        self.notes: list[str] = []
        labels = {side: source.label for side, source in sources.items()}
        images = request.images
        if not images and not request.overlays:  # the first outputs that are tensors of numbers
            numeric = [spec.name for spec in sources["candidate"].outputs if numpy_dtype(spec.dtype) is not None]
            images = {
                f"output{index}": ImageSettings(tensor=name) for index, name in enumerate(numeric[:_MOST_OUTPUTS])
            }
        self.drawings: list[TensorImage | Overlay] = [
            *(self._overlay(name, overlay, labels) for name, overlay in request.overlays.items()),
            *(self._drawing(name, image, labels) for name, image in images.items()),
        ]
        self._rows: dict[str, list[ImageRow]] = {drawing.name: [] for drawing in self.drawings}
        self._targets: dict[str, Iterator[Feed]] = {}

    def _drawing(self, name: str, settings: ImageSettings, labels: Mapping[str, str]) -> TensorImage:
        for operand in settings.operands.values():
            if operand.model == "reference" and "reference" not in self._sources:
                raise RequestError(f"images.{name}: `model: reference` needs the step's `reference`.")
            self._sources[operand.model or "candidate"].require(operand.tensor)
        weights = [
            source.is_weight(operand.tensor)
            for operand in settings.operands.values()
            for source in self._sources.values()
            if source.own_name(operand.tensor) is not None
        ]
        self._require_input(f"images.{name}.target", settings.target)
        drawing = TensorImage(name, settings, labels, of_weights=all(weights))
        self._note_lacking(drawing)
        return drawing

    def _overlay(self, name: str, settings: OverlaySettings, labels: Mapping[str, str]) -> Overlay:
        self._require_input(f"overlays.{name}.over", settings.over)
        source = self._sources["candidate"]
        outputs = [spec.name for spec in source.outputs]
        overlay = Overlay(name, settings, labels, outputs, source.metadata, class_names(source.metadata))
        for tensor in sorted(overlay.names("candidate")):
            source.require(tensor)
        self._note_lacking(overlay)
        return overlay

    def _require_input(self, setting: str, name: str | None) -> None:
        known = [spec.name for spec in self._feeding.inputs]
        if name is not None and name not in known:
            raise UnknownNameError(f'{setting}: the model has no input "{name}"', name, known)

    def _note_lacking(self, drawing: TensorImage | Overlay) -> None:
        """Note the tensors that the reference does not have."""
        for side in drawing.sides:
            source = self._sources[side]
            lacking = sorted(each for each in drawing.names(side) if source.own_name(each) is None)
            self.notes += [
                f"{source.label} has no tensor {each}: {drawing.name} is not drawn for it" for each in lacking
            ]

    def run(self, progress: Progress) -> None:
        """Run all samples, each on both models before the next."""
        weights = {side: self._weights(side) for side in self._sources}
        for drawing in self.drawings:
            if drawing.of_weights:
                panels = [*drawing.draw(SampleValues(weights))]
                self._rows[drawing.name].append(self._writer.write(drawing.name, 0, "", panels))
        live = [drawing for drawing in self.drawings if not drawing.of_weights]
        if not live:
            return
        streams = tee(self._feeding.samples(self._writer.out, 0), 1 + len(self._sources))
        captured = [self._captured(side, fed) for side, fed in zip(self._sources, streams[1:], strict=True)]
        for number, (fed, *values) in enumerate(zip(streams[0], *captured, strict=True)):
            label = self._feeding.shown[number].label
            progress(number, len(self._feeding), f"drawing {label}")
            tensors = {side: {**weights[side], **own} for side, own in zip(self._sources, values, strict=True)}
            for shown, panels_of in self._drawn(live, fed, tensors):
                row = self._writer.write(shown.name, number, label, panels_of)
                if row.files:
                    self._rows[shown.name].append(row)

    def _drawn(
        self, live: Sequence[TensorImage | Overlay], fed: Fed, tensors: Mapping[str, Mapping[str, Array]]
    ) -> Iterator[tuple[TensorImage | Overlay, list[Panel]]]:
        """Yield the images of one sample."""
        shown = {side: self._input_images(side, fed) for side in self._sources}
        inputs: list[Panel] = []
        for name, pixels in list(shown["candidate"].items())[:_MOST_INPUTS]:
            noisy = ", with noise" if fed.feeds[name] is not fed.clean[name] else ""
            inputs.append(Panel("input", f"input {name}{noisy}", Drawn(pixels)))
        for drawing in live:
            if isinstance(drawing, Overlay):
                yield drawing, list(drawing.draw(SampleValues(tensors, shown)))
            else:
                target, title = self._target(drawing, fed, tensors)
                yield drawing, [*inputs, *drawing.draw(SampleValues(tensors, shown, target, title))]

    def _weights(self, side: str) -> dict[str, Array]:
        source = self._sources[side]
        names = {name for drawing in self.drawings for name in drawing.names(side) if source.is_weight(name)}
        return {name: source.weight(name) for name in sorted(names)}

    def _captured(self, side: str, fed: Iterator[Fed]) -> Iterator[dict[str, Array]]:
        source = self._sources[side]
        names = {name for drawing in self.drawings for name in drawing.names(side) if not source.is_weight(name)}
        if side == "reference":
            return source.values(sorted(names), (each.reference for each in fed))
        return source.values(sorted(names), (each.candidate for each in fed))

    def _input_images(self, side: str, fed: Fed) -> dict[str, Array]:
        """Return the images among the inputs, as a model gets them."""
        noise = self._request.noise
        noisy = side == "candidate" or (noise is not None and noise.on_reference)
        feeds = fed.feeds if noisy else fed.clean
        found = ((name, self._feeding.pixels(name, feed)) for name, feed in feeds.items())
        return {
            name: np.asarray(Image.fromarray(pixels[..., 0] if pixels.shape[2] == 1 else pixels).convert("RGB"))
            for name, pixels in found
            if pixels is not None
        }

    def _target(
        self, drawing: TensorImage, fed: Fed, tensors: Mapping[str, Mapping[str, Array]]
    ) -> tuple[Array | None, str]:
        """Return the values that an image should have, and their title."""
        if drawing.settings.target is not None:
            return fed.clean[drawing.settings.target].values, f"target: input {drawing.settings.target} without noise"
        if drawing.name not in self._request.targets:
            return None, ""
        if drawing.name not in self._targets:
            self._targets[drawing.name] = self._open_targets(drawing, tensors)
        feed = next(self._targets[drawing.name])
        return feed.values, "target"

    def _open_targets(self, drawing: TensorImage, tensors: Mapping[str, Mapping[str, Array]]) -> Iterator[Feed]:
        """Open the files of targets: fitted to the tensor as the image input is, with pixels from black to white."""
        settings, name = drawing.settings, f"targets.{drawing.name}"
        assert settings.tensor is not None
        assert settings.range is not None
        values, (low, high) = tensors["candidate"][settings.tensor], settings.range
        image = next((each for each in self._feeding.inputs if self._feeding.given(each.name).data_patterns), None)
        like = InputSpec() if image is None else self._feeding.given(image.name)
        given = InputSpec(
            data=self._request.targets[drawing.name],
            every=like.every,
            resize=like.resize,
            align=like.align,
            pad=like.pad,
            crop_share=like.crop_share,
            interpolation=like.interpolation,
            color="bgr" if settings.color == "bgr" else None,
            layout=settings.layout if settings.layout in ("NCHW", "NHWC") else None,
            mean=(-low / (high - low),),
            std=(1 / (high - low),),
        )
        spec = TensorSpec(name, values.dtype.name, values.shape)
        opened = open_files([WantedInput(spec, given, values.shape)], None)
        if opened.counts[name] < len(self._feeding):
            raise RequestError(
                f"{name}: {counted(opened.counts[name], 'target')} for {counted(len(self._feeding), 'sample')}."
            )
        return (feeds[name] for _, feeds in opened.feeds())

    def images(self) -> tuple[RenderedImage, ...]:
        """Return the records of all images."""
        return tuple(
            RenderedImage(name=each.name, description=each.description, rows=tuple(self._rows[each.name]))
            for each in self.drawings
        )

    def metrics(self) -> dict[str, float]:
        """Return `NAME.METRIC` of all images."""
        return {f"{each.name}.{word}": value for each in self.drawings for word, value in each.metrics().items()}


class _Writer:
    """Writes the images of a step, and bounds what its report embeds."""

    def __init__(self, out: Path, shown: int, written: int) -> None:
        self.out, self._shown, self._written = out, shown, written
        self._room = MOST_ENCODED_TOGETHER

    def write(self, name: str, number: int, label: str, panels: Sequence[Panel]) -> ImageRow:
        """Write the images of one sample as `NAME/NUMBER-SIDE.png`; nothing beyond the limit of samples."""
        if number >= self._written:
            return ImageRow(sample=label, files=())
        (self.out / name).mkdir(exist_ok=True)
        files, counts = [], dict.fromkeys((panel.side for panel in panels), 0)
        for panel in panels:
            counts[panel.side] += 1
            suffix = f"-{counts[panel.side]}" if counts[panel.side] > 1 else ""
            file = f"{name}/{number}-{panel.side}{suffix}.png"
            (self.out / file).write_bytes(as_bytes(panel.drawn.pixels))
            thumbnail = thumbnail_of(panel.drawn.pixels) if number < self._shown else None
            if thumbnail is not None:
                self._room -= len(thumbnail.data)
                thumbnail = thumbnail if self._room >= 0 else None
            height, width = panel.drawn.pixels.shape[:2]
            files.append(
                ImageFile(
                    side=panel.side,
                    title=panel.title,
                    file=file,
                    width=width,
                    height=height,
                    captions=(*panel.captions, *panel.drawn.notes),
                    warnings=panel.drawn.warnings,
                    thumbnail=thumbnail,
                )
            )
        return ImageRow(sample=label, files=tuple(files))


Arrays = Mapping[str, Array]


class TensorSource:
    """One of the models, as a source of tensors by the names in the candidate."""

    def __init__(self, prepared: PreparedModel, names: Mapping[str, str]) -> None:
        """`names`: name in the candidate -> name here, where they differ."""
        self._prepared, self._names = prepared, names
        model = load_model(prepared.view_path)
        constants = (node for node in model.graph if node.op_type == "Constant" and node.domain == "")
        self._weights = {
            **model.graph.initializers,
            **{node.outputs[0].name or "": node.outputs[0] for node in constants},
        }
        self.metadata = dict(model.metadata_props)
        self.outputs = model_outputs(prepared.view_path)
        self.label = prepared.label

    def own_name(self, name: str) -> str | None:
        """Return the name here of a tensor, an input or a weight; None if there is none."""
        own = self._names.get(name, name)
        return own if own in self._prepared.view or own in self._weights else None

    def is_weight(self, name: str) -> bool:
        """Return True for a weight: it has one value for all samples."""
        own = self._names.get(name, name)
        return own in self._weights and own not in self._prepared.view.inputs

    def weight(self, name: str) -> Array:
        """Return the values of a weight. Raises `RequestError` if they are not stored."""
        value = ir.convenience.get_const_tensor(self._weights[self._names.get(name, name)])
        if value is None:
            raise RequestError(f"images: the weight {name} has no values in {self.label}.")
        return storable(value.numpy())

    def require(self, name: str) -> None:
        """Raise `RequestError` with the nearest name if there is no such tensor."""
        if self.own_name(name) is None:
            known = [*self._prepared.view.inputs, *self._prepared.view.places, *filter(None, self._weights)]
            raise UnknownNameError(f'images: {self.label} has no tensor "{name}"', name, known)

    def values(self, names: Sequence[str], samples: Iterator[Arrays]) -> Iterator[dict[str, Array]]:
        """Yield name in the candidate -> values for each sample; `names` are no weights."""
        own = {name: mine for name in names if (mine := self.own_name(name)) is not None}
        for captured in self._prepared.captured(list(dict.fromkeys(own.values())), samples):
            yield {name: storable(captured[mine]) for name, mine in own.items() if mine in captured}


def names_in_reference(candidate: PreparedModel, reference: PreparedModel, inputs: Mapping[str, str]) -> dict[str, str]:
    """Return name in the candidate -> name in the reference, of inputs and outputs that are called differently.

    `inputs`: input of the reference -> input of the candidate. Outputs are matched by name, then by order.
    """
    names = {theirs: mine for mine, theirs in inputs.items()}
    mine, theirs = ([spec.name for spec in model_outputs(each.view_path)] for each in (reference, candidate))
    return names | {right: left for left, right in pair_names(mine, theirs) if left is not None and right is not None}
