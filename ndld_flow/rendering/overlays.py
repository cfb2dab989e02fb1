"""Results of models drawn over their input, and how far two models agree on them."""

from __future__ import annotations

import colorsys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import counted, number, percent
from ndld_flow.base.text import short_name
from ndld_flow.models.tensors import Array, shape_text
from ndld_flow.records.images import Side
from ndld_flow.rendering.detections import Boxes, PredictionDecoder, find_regions, read_detections
from ndld_flow.rendering.pixels import MODELS, NONFINITE, Drawn, Panel, SampleValues, planes_of
from ndld_flow.rendering.settings import HeatMap, Labels, Mask, OverlaySettings

_SMALL = 480
"""Smaller inputs are enlarged by a whole factor to at least this many pixels, so that text is readable on them."""
_LONGEST_LABEL = 28
_MOST_BOXES = 500
"""Boxes that are drawn; all are counted."""
_HEAT = np.array([(40, 60, 200), (0, 170, 220), (80, 200, 80), (250, 210, 40), (230, 40, 30)], np.float64)
"""Colors of a heat map from its lower to its upper end."""
_OPACITY = 0.65
_PRESENT = 0.001
"""Share of the pixels that a class of the reference needs for its overlap to mean something."""


@dataclass
class _Seen:
    """The result of one model on one sample, for captions and for the comparison with the other model's."""

    boxes: Boxes | None = None
    regions: Array | None = None
    """bool [height, width]: pixels of a heat map above its threshold."""
    classes: Array | None = None
    """Class of every pixel; -1 where it is unknown."""
    first: int | None = None
    """The class with the highest score; None if several share it, or scores are not finite."""
    nonfinite: int = 0
    captions: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


class Overlay:
    """One entry of `overlays`, drawn for one sample after the other."""

    of_weights = False

    def __init__(
        self,
        name: str,
        settings: OverlaySettings,
        labels: Mapping[str, str],
        outputs: Sequence[str],
        metadata: Mapping[str, str],
        class_names: Mapping[int, str],
    ) -> None:
        """`outputs` and `metadata` are those of the candidate."""
        self.name, self.settings, self._labels, self._outputs = name, settings, labels, outputs
        self._names = dict(enumerate(settings.names)) or dict(class_names)
        where = f"overlays.{name}"
        predictions = settings.predictions
        self._decoder = (
            None if predictions is None else PredictionDecoder(predictions, metadata, f"{where}.predictions")
        )
        self._reference_count = self._candidate_count = self._matched = 0
        self._overlaps: list[float] = []
        self._first: list[bool] = []
        self.nonfinite = 0

    @property
    def sides(self) -> tuple[Side, ...]:
        return tuple(side for side in MODELS if side in self._labels)

    def names(self, side: str) -> set[str]:
        """Return the tensors of a model that it needs."""
        settings = self.settings
        parts = (settings.heat_map, settings.mask, settings.labels)
        return {part.tensor for part in parts if part is not None} | set(self._box_tensors()) if side else set()

    def _box_tensors(self) -> list[str]:
        predictions, detections = self.settings.predictions, self.settings.detections
        if predictions is not None:
            named = [each for each in (predictions.boxes, predictions.scores, predictions.output) if each is not None]
            return named or list(self._outputs)
        if detections is None:
            return []
        tensors = (detections.tensor, detections.boxes, detections.scores, detections.classes, detections.count)
        return [tensor for tensor in tensors if tensor is not None]

    @property
    def description(self) -> str:
        """Return `heat map of maps; boxes of output0`."""
        settings = self.settings
        parts = [f"heat map of {settings.heat_map.tensor}"] if settings.heat_map else []
        parts += [f"classes of {settings.mask.tensor}"] if settings.mask else []
        parts += [f"boxes of {', '.join(self._box_tensors())}"] if settings.predictions or settings.detections else []
        parts += [f"labels of {settings.labels.tensor}"] if settings.labels else []
        return "; ".join(parts)

    def draw(self, sample: SampleValues) -> Iterator[Panel]:
        """Yield the input with the results of each model."""
        seen: dict[str, _Seen] = {}
        for side in self.sides:
            tensors, pixels = sample.tensors[side], self._input(sample.inputs.get(side, {}))
            if any(name not in tensors for name in self.names(side)):
                continue
            seen[side] = found = self._decode(tensors, (pixels.shape[1], pixels.shape[0]))
            self.nonfinite += found.nonfinite if side == "candidate" else 0
            if side == "candidate" and "reference" in seen:
                found.captions += self._compare(seen["reference"], found)
            if side == "candidate" and found.boxes is not None:
                self._candidate_count += len(found.boxes)
            drawn = Drawn(self._drawn(pixels, tensors, found), tuple(found.warnings))
            yield Panel(side, self._labels[side], drawn, tuple(found.captions))
        if not seen:
            raise RequestError(
                f"overlays.{self.name}: the model computed none of {', '.join(self.names('candidate'))}."
            )

    def metrics(self) -> dict[str, float]:
        """Return `detections`, and how far the candidate agrees with the reference, where that is known."""
        found: dict[str, float] = {}
        if self._box_tensors():
            found["detections"] = self._candidate_count
            if self._reference_count:
                found["recall"] = self._matched / self._reference_count
            if self._candidate_count and "reference" in self._labels:
                found["precision"] = self._matched / self._candidate_count
        if self._overlaps:
            found["overlap"] = min(self._overlaps)
        if self._first:
            found["same_class"] = sum(self._first) / len(self._first)
        return found

    def _input(self, images: Mapping[str, Array]) -> Array:
        name = self.settings.over
        if name is None and images:
            return next(iter(images.values()))
        if name is None or name not in images:
            which = f"input {name} is no image" if name else "no input is an image"
            raise RequestError(f"overlays.{self.name}: {which}; give image files as its `data:` in `inputs:`.")
        return images[name]

    # --- results ---

    def _decode(self, tensors: Mapping[str, Array], size: tuple[int, int]) -> _Seen:
        """Return the results of a model, by the width and height of its input."""
        seen, settings = _Seen(), self.settings
        if settings.heat_map is not None:
            self._see_heat_map(settings.heat_map, tensors, size, seen)
        if settings.mask is not None:
            self._see_mask(settings.mask, tensors, size, seen)
        raw = {name: tensors[name] for name in self._box_tensors()}
        if self._decoder is not None:
            seen.boxes = self._decoder.decode(raw, size)
        elif settings.detections is not None:
            seen.boxes = read_detections(settings.detections, raw, size, f"overlays.{self.name}.detections")
        if seen.boxes is not None:
            best = f", best score {number(float(seen.boxes.scores.max()))}" if len(seen.boxes) else ""
            seen.captions.append(f"{counted(len(seen.boxes), 'detection')}{best}")
            seen.warnings += seen.boxes.warnings
            if len(seen.boxes) > _MOST_BOXES:
                seen.warnings.append(f"{_MOST_BOXES} of {len(seen.boxes):,} boxes are drawn")
        if settings.labels is not None:
            self._see_labels(settings.labels, tensors, seen)
        used = (tensors[name] for name in self.names("candidate"))
        seen.nonfinite = sum(int((~np.isfinite(values)).sum()) for values in used if values.dtype.kind == "f")
        return seen

    def _see_heat_map(self, given: HeatMap, tensors: Mapping[str, Array], size: tuple[int, int], seen: _Seen) -> None:
        plane = self._heat(given, tensors)
        lost = int((~np.isfinite(plane)).sum())
        if lost:
            seen.warnings.append(f"{lost:,} of {plane.size:,} scores NaN or infinite (magenta)")
        finite = plane[np.isfinite(plane)]
        if finite.size:
            seen.captions.append(f"scores {number(float(finite.min()))} to {number(float(finite.max()))}")
        if given.threshold is not None:
            seen.regions = _fitted(plane, size) > given.threshold
            regions, share = find_regions(seen.regions), float(seen.regions.mean())
            above = f", {percent(share)} of the image" if regions else ""
            seen.captions.append(f"{counted(len(regions), 'region')} above {number(given.threshold)}{above}")

    def _heat(self, given: HeatMap, tensors: Mapping[str, Array]) -> Array:
        planes = planes_of(tensors[given.tensor], given.layout, given.tensor)
        if given.channel >= len(planes):
            raise RequestError(
                f"overlays.{self.name}.heat_map: there is no channel {given.channel}; {given.tensor} is "
                f"{shape_text(tensors[given.tensor].shape)}."
            )
        return np.asarray(planes[given.channel])

    def _see_mask(self, given: Mask, tensors: Mapping[str, Array], size: tuple[int, int], seen: _Seen) -> None:
        values = tensors[given.tensor]
        planes = planes_of(values, given.layout, given.tensor)
        if not planes.size:
            raise RequestError(f"overlays.{self.name}.mask: {given.tensor} is empty.")
        finite = np.isfinite(planes).all(axis=0)
        if len(planes) > 1:
            classes = np.nan_to_num(planes, nan=-np.inf).argmax(axis=0)
        elif values.dtype.kind == "f":
            classes = (planes[0] > given.threshold).astype(np.int64)
        else:
            classes = planes[0].astype(np.int64)
        classes = np.where(finite, classes, -1)
        if not finite.all():
            seen.warnings.append(f"{percent(float((~finite).mean()))} of the pixels NaN or infinite (magenta)")
        seen.classes = _nearest(classes, size)
        numbers, counts = np.unique(classes[classes >= 0], return_counts=True)
        largest = sorted(zip(counts.tolist(), numbers.tolist(), strict=True), reverse=True)[:4]
        shares = [f"{self._name(place)} {percent(count / classes.size)}" for count, place in largest]
        more = f" and {len(numbers) - 4} more classes" if len(numbers) > 4 else ""
        seen.captions.append(f"{', '.join(shares)}{more}" if shares else "no class")

    def _see_labels(self, given: Labels, tensors: Mapping[str, Array], seen: _Seen) -> None:
        scores = self._scores(given, tensors)
        if not np.isfinite(scores).all():
            seen.warnings.append(
                f"{int((~np.isfinite(scores)).sum())} of {counted(scores.size, 'score')} NaN or infinite"
            )
            seen.captions.append("no class")
            return
        best = np.flatnonzero(scores == scores.max())
        if len(best) > 1:
            seen.warnings.append(f"{len(best)} classes share the highest score, {number(float(scores.max()))}")
            return
        seen.first = int(best[0])
        seen.captions.append(f"{self._name(seen.first)} {number(float(scores[seen.first]))}")

    def _scores(self, given: Labels, tensors: Mapping[str, Array]) -> Array:
        values = tensors[given.tensor]
        scores = values.reshape(len(values), -1)[0] if values.ndim > 1 and len(values) else values.reshape(-1)
        scores = scores.astype(np.float64)
        if not scores.size:
            raise RequestError(f"overlays.{self.name}.labels: {given.tensor} is empty.")
        with np.errstate(all="ignore"):
            if given.activation == "softmax":
                powers = np.exp(scores - scores.max())
                scores = powers / powers.sum()
            elif given.activation == "sigmoid":
                scores = 1 / (1 + np.exp(-scores))
        return scores

    # --- agreement ---

    def _compare(self, reference: _Seen, candidate: _Seen) -> list[str]:
        """Return sentences on the agreement with the reference; unknown where it shows nothing."""
        label, sentences = self._labels["reference"], []
        if reference.boxes is not None and candidate.boxes is not None:
            matched, total = reference.boxes.matched(candidate.boxes), len(reference.boxes)
            self._matched += matched
            self._reference_count += total
            sentences.append(
                f"{matched} of {total} in {label} found, {len(candidate.boxes) - matched} others"
                if total
                else f"{label} detects nothing to compare with"
            )
        if reference.regions is not None and candidate.regions is not None:
            either = reference.regions | candidate.regions
            if either.any():
                self._overlaps.append(float((reference.regions & candidate.regions).sum() / either.sum()))
                sentences.append(f"overlap with {label} {number(round(self._overlaps[-1], 4))}")
            else:
                sentences.append(f"nothing above the threshold in {label} either: no evidence")
        if reference.classes is not None and candidate.classes is not None:
            worst = _worst_overlap(reference.classes, candidate.classes, self._background)
            if worst is None:
                sentences.append(f"{label} has no class to compare with")
            else:
                self._overlaps.append(worst[1])
                sentences.append(f"worst overlap with {label}: {number(round(worst[1], 4))}, {self._name(worst[0])}")
        if self.settings.labels is not None:
            if reference.first is None:
                sentences.append(f"{label} has no best class to compare with")
            else:
                self._first.append(candidate.first == reference.first)
                own = "the same class as" if self._first[-1] else f"{self._name(reference.first)} in"
                sentences.append(f"{own} {label}")
        return sentences

    @property
    def _background(self) -> int | None:
        return None if self.settings.mask is None else self.settings.mask.background

    def _name(self, place: int) -> str:
        return short_name(self._names.get(place, f"class {place}"), _LONGEST_LABEL)

    # --- drawing ---

    def _drawn(self, pixels: Array, tensors: Mapping[str, Array], seen: _Seen) -> Array:
        settings, size = self.settings, (pixels.shape[1], pixels.shape[0])
        canvas = pixels
        if settings.heat_map is not None:
            canvas = _with_heat(canvas, _fitted(self._heat(settings.heat_map, tensors), size), settings.heat_map.range)
        if seen.classes is not None:
            canvas = _with_classes(canvas, seen.classes, self._background)
        factor = max(1, ceil(_SMALL / max(size)))
        picture = Image.fromarray(np.ascontiguousarray(canvas.repeat(factor, axis=0).repeat(factor, axis=1)))
        pen = ImageDraw.Draw(picture)
        width = max(2, max(picture.size) // 240)
        if seen.regions is not None:
            for box in find_regions(seen.regions)[:_MOST_BOXES]:
                left, top, right, bottom = (factor * edge for edge in box)
                pen.rectangle((left, top, right - 1, bottom - 1), outline=(230, 40, 30), width=width)
        if seen.boxes is not None:
            self._draw_boxes(pen, seen.boxes, factor, width, picture.size)
        if settings.labels is not None:
            self._draw_labels(pen, self._scores(settings.labels, tensors), picture.size)
        return np.asarray(picture)

    def _draw_boxes(
        self, pen: ImageDraw.ImageDraw, boxes: Boxes, factor: int, width: int, size: tuple[int, int]
    ) -> None:
        height = max(12, max(size) // 42)
        font = ImageFont.load_default(height)
        limit = (size[0] * 2, size[1] * 2)
        order = range(min(len(boxes), _MOST_BOXES) - 1, -1, -1)  # the best on top
        for index in order:
            corners = boxes.corners[index] * factor
            x1, y1 = np.clip(corners[:2], -limit[0], limit)
            x2, y2 = np.clip(corners[2:], -limit[0], limit)
            color = _color(int(boxes.classes[index]))
            (left, right), (top, bottom) = sorted((x1, x2)), sorted((y1, y2))
            pen.rectangle((left, top, right, bottom), outline=color, width=width)
            text = f"{self._name(int(boxes.classes[index]))} {boxes.scores[index]:.2f}"
            _write(pen, (left, max(0.0, top - height - 4)), text, font, color)

    def _draw_labels(self, pen: ImageDraw.ImageDraw, scores: Array, size: tuple[int, int]) -> None:
        assert self.settings.labels is not None
        height = max(13, max(size) // 30)
        font = ImageFont.load_default(height)
        if not np.isfinite(scores).all():
            _write(pen, (4, 4), "NaN or infinite scores", font, NONFINITE)
            return
        for row, index in enumerate(np.argsort(-scores, kind="stable")[: self.settings.labels.top].tolist()):
            text = f"{self._name(index)} {number(float(scores[index]))}"
            _write(pen, (4, 4 + row * (height + 6)), text, font, (255, 255, 255))


def _write(
    pen: ImageDraw.ImageDraw,
    place: tuple[float, float],
    text: str,
    font: ImageFont.FreeTypeFont | ImageFont.ImageFont,
    color: tuple[int, int, int],
) -> None:
    """Write text on a dark ground."""
    left, top, right, bottom = pen.textbbox(place, text, font)
    pen.rectangle((left - 2, top - 2, right + 2, bottom + 2), fill=(20, 20, 20))
    pen.text(place, text, fill=color, font=font)


def _color(class_: int) -> tuple[int, int, int]:
    """Return a bright color; neighbouring classes differ most."""
    red, green, blue = colorsys.hsv_to_rgb((0.33 + class_ * 0.618034) % 1, 0.75, 1.0)
    return int(red * 255), int(green * 255), int(blue * 255)


def _fitted(plane: Array, size: tuple[int, int]) -> Array:
    """Return a plane of scores resized to width and height; what is not finite stays so."""
    if plane.shape == (size[1], size[0]):
        return plane
    finite = np.isfinite(plane)
    smooth = Image.fromarray(np.where(finite, plane, 0).astype(np.float32)).resize(size, Image.Resampling.BILINEAR)
    return np.where(_nearest(finite.astype(np.int64), size) > 0, np.asarray(smooth, np.float64), np.nan)


def _nearest(values: Array, size: tuple[int, int]) -> Array:
    """Return a plane resized to width and height by repeating its elements."""
    rows = np.arange(size[1]) * values.shape[0] // size[1]
    columns = np.arange(size[0]) * values.shape[1] // size[0]
    return np.asarray(values[rows[:, np.newaxis], columns])


def _with_heat(pixels: Array, plane: Array, span: tuple[float, float]) -> Array:
    """Return an image in gray under the colors of a heat map, the more opaque the higher."""
    finite = np.isfinite(plane)
    shares = np.clip((np.where(finite, plane, span[0]) - span[0]) / (span[1] - span[0]), 0, 1)
    places = shares * (len(_HEAT) - 1)
    low = np.minimum(places.astype(int), len(_HEAT) - 2)
    colors = _HEAT[low] + (_HEAT[low + 1] - _HEAT[low]) * (places - low)[..., np.newaxis]
    gray = pixels.astype(np.float64).mean(axis=-1, keepdims=True)
    opacity = (shares * _OPACITY)[..., np.newaxis]
    blended: Array = np.rint(gray * (1 - opacity) + colors * opacity).astype(np.uint8)
    blended[~finite] = NONFINITE
    return blended


def _with_classes(pixels: Array, classes: Array, background: int | None) -> Array:
    """Return an image in gray under the colors of the classes."""
    gray = np.repeat(pixels.astype(np.float64).mean(axis=-1, keepdims=True), 3, axis=-1)
    colored: Array = np.rint(gray).astype(np.uint8)
    for class_ in np.unique(classes).tolist():
        here = classes == class_
        if class_ == -1:
            colored[here] = NONFINITE
        elif class_ != background:
            colored[here] = np.rint(gray[here] * 0.5 + np.array(_color(class_)) * 0.5).astype(np.uint8)
    return colored


def _worst_overlap(reference: Array, candidate: Array, background: int | None) -> tuple[int, float] | None:
    """Return the class of the reference with the smallest overlap (IoU), and that; None without such a class.

    Classes of less than 0.1 % of the pixels are left out, since a single pixel would decide.
    """
    overlaps = []
    for class_ in np.unique(reference[reference >= 0]).tolist():
        mine, theirs = reference == class_, candidate == class_
        if class_ != background and mine.mean() >= _PRESENT:
            overlaps.append((float((mine & theirs).sum() / (mine | theirs).sum()), class_))
    return (min(overlaps)[1], min(overlaps)[0]) if overlaps else None
