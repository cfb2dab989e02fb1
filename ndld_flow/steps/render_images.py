"""Draw tensors of a model as images."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Self

from pydantic import Field, model_validator

from ndld_flow.base.quantities import counted, number
from ndld_flow.base.text import suggest, visible_name
from ndld_flow.inputs import Data
from ndld_flow.rendering.settings import ImageName, ImageSettings, OverlaySettings
from ndld_flow.runtimes.onnxruntime.settings import RunsInOnnxruntime
from ndld_flow.samples.sample_settings import Noise, SampleSettings
from ndld_flow.step import Context, Reads, Result, Returns, Reuse, SampleData, Step, metrics
from ndld_flow.store.kinds import ImagesDocument, Onnx

if TYPE_CHECKING:
    from ndld_flow.rendering.render import Rendering, Request


def _has_target(step: RenderImages, image: str) -> bool:
    return image in step.images and (step.images[image].target is not None or image in step.targets)


def _is_compared(step: RenderImages, image: str) -> bool:
    given = step.images.get(image)
    drawn = given.tensor is not None if given is not None else not step.images and not step.overlays
    return step.reference is not None and drawn


def _has_boxes(step: RenderImages, overlay: str) -> bool:
    given = step.overlays.get(overlay)
    return given is not None and (given.predictions is not None or given.detections is not None)


def _has_regions(step: RenderImages, overlay: str) -> bool:
    given = step.overlays.get(overlay)
    if given is None or step.reference is None:
        return False
    return given.mask is not None or (given.heat_map is not None and given.heat_map.threshold is not None)


def _has_labels(step: RenderImages, overlay: str) -> bool:
    given = step.overlays.get(overlay)
    return step.reference is not None and given is not None and given.labels is not None


class RenderImages(RunsInOnnxruntime, SampleSettings, Step[Onnx, ImagesDocument]):
    """Draw tensors of a model as images, beside the input, another model and a target.

    Every image is a folder of PNG files in the folder of the step, and the report shows the first samples. Both models
    are drawn with the same black and white; values that no pixel can show (NaN, infinity, values beyond the range) are
    counted beside the image. Only the nodes that the images need are run.
    """

    also_called: ClassVar[tuple[str, ...]] = ("images", "pictures", "visualize", "draw", "show")

    # Not `anywhere`: kernels differ between CPUs and between execution providers.
    reuse: ClassVar[Reuse] = Reuse.THIS_MACHINE
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnx-ir", "onnxruntime", "numpy", "pillow")
    uses_inputs: ClassVar[bool] = True
    runs_sequences: ClassVar[bool] = True
    returns: ClassVar[tuple[Returns, ...]] = (
        *metrics("samples", "nonfinite"),
        *metrics("{image}.psnr", unit="dB", given=_has_target, when="the image has a target"),
        *metrics(
            "{image}.reference_psnr",
            unit="dB",
            given=lambda step, image: _has_target(step, image) and step.reference is not None,
            when="the image has a target, and `reference:` names a model",
        ),
        *metrics("{image}.max_abs", given=_is_compared, when="`reference:` names a model that has the tensor too"),
        *metrics("{overlay}.detections", given=_has_boxes, when="the overlay has `predictions` or `detections`"),
        *metrics(
            "{overlay}.recall",
            "{overlay}.precision",
            given=lambda step, overlay: _has_boxes(step, overlay) and step.reference is not None,
            when="the overlay has boxes, `reference:` names a model, and it, or this model, detects something",
        ),
        *metrics(
            "{overlay}.overlap",
            given=_has_regions,
            when="the overlay has a `mask`, or a `heat_map` with a threshold, and `reference:` names a model",
        ),
        *metrics(
            "{overlay}.same_class",
            given=_has_labels,
            when="the overlay has `labels`, and `reference:` names a model with a best class",
        ),
    )

    images: dict[ImageName, ImageSettings] = Field(default={})
    """Name -> an image: of a tensor, of an input, of a weight, or of a formula over several. The name is that of the
    folder with its files: `NAME/SAMPLE-SIDE.png`. Without `images` and `overlays`, at most eight outputs of the
    model are drawn, as `output0`, `output1`, ..."""
    overlays: dict[ImageName, OverlaySettings] = Field(default={})
    """Name -> results drawn over the input: boxes of a detector, a mask, a heat map, labels. With a `reference` the
    two models' results are drawn side by side and compared."""
    reference: Annotated[str | None, Reads(Onnx)] = None
    """A step whose model runs on the same inputs and is drawn beside this one, or `source`."""
    targets: Annotated[dict[str, Data], SampleData(replaces_inputs=False)] = Field(default={})
    """Name of an image -> files of what its tensor should be, such as the clean photos of a denoiser: the i-th for the
    i-th sample, fitted as the image input is, with pixels from black to white of its `range`. Arrays (`.npy`) are taken
    as they are."""
    noise: Noise | None = None
    """Noise on inputs: on those of this model, or of both."""
    shown: Annotated[int, Field(ge=0, le=100)] = 4
    """Number of samples that the report shows."""
    written: Annotated[int, Field(ge=0)] = 100
    """Number of samples whose images are written as files; all samples are measured."""

    @model_validator(mode="after")
    def _check_targets(self) -> Self:
        for name in self.targets:
            image = self.images.get(name)
            if image is None:
                raise ValueError(f"`targets` has `{name}`, which is not in `images`; {suggest(name, self.images)}")
            if image.tensor is None or image.range is None:
                raise ValueError(f"`targets.{name}` needs an image with `tensor` and `range`: its black and white")
            if image.target is not None:
                raise ValueError(f"`{name}` has a `target` and files in `targets`: give one of them")
        return self

    @model_validator(mode="after")
    def _check_names(self) -> Self:
        folded: dict[str, str] = {}
        for name in (*self.images, *self.overlays):
            if name in self.images and name in self.overlays:
                raise ValueError(f"`{name}` is in `images` and in `overlays`: both would be the folder {name}")
            if folded.setdefault(name.casefold(), name) != name:
                raise ValueError(f"`{name}` and `{folded[name.casefold()]}` differ in case only, as folders cannot")
        for name, image in self.images.items():
            if self.reference is None and any(each.model == "reference" for each in image.operands.values()):
                raise ValueError(f"`images.{name}` draws a tensor of the reference: give `reference`")
        return self

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        from ndld_flow.accuracy.activations.inspection import InspectedModel
        from ndld_flow.rendering.render import render_images

        other = context.read("reference") if self.reference is not None else None
        rendering = render_images(
            InspectedModel(source.path, source.label),
            InspectedModel(other.path, other.label) if other is not None else None,
            self._request(context),
            out,
            context.scratch,
            context.progress,
        )
        rendering.record.write(out)
        for note in rendering.record.notes:
            context.log.info("%s", visible_name(note))
        for image in rendering.record.images:
            context.log.info("%s: %s", image.name, visible_name(image.description))
        counts = {"samples": rendering.record.sample_count, "nonfinite": rendering.nonfinite}
        return Result(_summary(rendering), metrics={**counts, **rendering.metrics})

    def _request(self, context: Context) -> Request:
        from ndld_flow.rendering.render import Request

        return Request(
            settings=self.session,
            given=context.inputs,
            samples=self,
            images=self.images,
            overlays=self.overlays,
            targets=self.targets,
            noise=self.noise,
            stored=self.arithmetic == "stored",
            shown=self.shown,
            written=self.written,
        )


def _summary(rendering: Rendering) -> str:
    record = rendering.record
    parts = [f"{counted(len(record.images), 'image')} of {counted(record.sample_count, 'sample')}"]
    if rendering.nonfinite:
        parts.append(f"{counted(rendering.nonfinite, 'value')} NaN or infinite")
    parts += [
        f"{name.removesuffix('.psnr')} {value:.2f} dB from the target"
        if name.endswith(".psnr")
        else f"{name.replace('.', ' ')} {number(value)}"
        for name, value in rendering.metrics.items()
        if name.rpartition(".")[2] in ("psnr", "recall", "overlap", "same_class")
    ]
    return ", ".join(parts)
