"""Images that steps drew from tensors: samples in rows, beside the input, the other model and the target."""

from __future__ import annotations

from dataclasses import dataclass
from urllib.parse import quote

from ndld_flow.base.quantities import counted
from ndld_flow.base.text import short_name
from ndld_flow.records.document import is_inner_path
from ndld_flow.records.images import ImageFile, ImageRow, RenderedImage, RenderedImages
from ndld_flow.records.run_folder import RunDocuments, find_file
from ndld_flow.report.panel import Panel

_LONGEST_CAPTION = 300
_FEW = 2
_SMALL = 160
"""Pixels."""


@dataclass(frozen=True)
class FileView:
    """One image with its captions."""

    file: ImageFile
    is_small: bool
    """Its pixels are to be seen one by one."""
    link: str
    """Path of the PNG file from the report; empty if the run has no folder."""
    alternative: str
    """The image in words."""


@dataclass(frozen=True)
class RowView:
    """The images of one sample."""

    sample: str
    files: tuple[FileView, ...]


@dataclass(frozen=True)
class ImageView:
    """One image of a step, for several samples."""

    step: str
    name: str
    description: str
    is_large: bool
    """Every row has at most two images."""
    rows: tuple[RowView, ...]
    more: str
    """`96 more samples are in half/denoised/`; empty if all are shown."""


def collect_images(documents: RunDocuments) -> tuple[ImageView, ...]:
    """Return all images that the report can show, in recipe order."""
    return tuple(
        _view(documents, step, image)
        for step, record in documents.of(RenderedImages).items()
        for image in record.images
        if image.rows
    )


def _view(documents: RunDocuments, step: str, image: RenderedImage) -> ImageView:
    rows = tuple(view for row in image.rows if (view := _row(documents, step, image, row)).files)
    more = len(image.rows) - len(rows)
    place = f"{short_name(step)}/{short_name(image.name)}/"
    return ImageView(
        step=short_name(step),
        name=short_name(image.name),
        description=short_name(image.description, _LONGEST_CAPTION),
        is_large=max((len(row.files) for row in rows), default=0) <= _FEW,
        rows=rows,
        more=f"{counted(more, 'more sample')} in {place}" if more else "",
    )


def _row(documents: RunDocuments, step: str, image: RenderedImage, row: ImageRow) -> RowView:
    label = short_name(row.sample)
    files = tuple(_file(documents, step, f"{short_name(image.name)} of {label}", file) for file in row.files)
    return RowView(label, tuple(view for view in files if view is not None))


def _file(documents: RunDocuments, step: str, subject: str, file: ImageFile) -> FileView | None:
    if file.thumbnail is None:
        return None
    link = ""
    # A record can be edited, and must not lead out of the folder.
    if documents.folder is not None and is_inner_path(file.file):
        relative = find_file(documents.folder / step, file.file).relative_to(documents.folder)
        link = f"./{quote(relative.as_posix())}"
    notes = (short_name(note, _LONGEST_CAPTION) for note in (*file.captions, *file.warnings))
    return FileView(
        file=file,
        is_small=file.width < _SMALL,
        link=link,
        alternative="; ".join((f"{subject.removesuffix(' of ')}, {short_name(file.title)}", *notes)),
    )


PANEL = Panel("Images", collect_images, after="accuracy")
