"""Split files of many samples, such as the rows of an array or the windows of a recording, into a file for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from ndld_flow.inputs import InputSpec
from ndld_flow.models.files import model_inputs
from ndld_flow.samples.file_samples import open_files
from ndld_flow.samples.value_files import open_array
from ndld_flow.samples.wanted_inputs import want_inputs
from ndld_flow.store.files import make_folder
from ndld_flow.store.found_files import IMAGE_SUFFIXES, VALUE_SUFFIXES


def sample_shape(
    paths: Sequence[Path], name: str, declared: Sequence[int | str | None] | None
) -> tuple[int, ...] | None:
    """Return the shape of a sample in files of arrays; None for other files, and for arrays of several shapes.

    An array of more than one item along the first dimension, where the model takes any number, has a sample in each.
    """
    if declared is None or any(path.suffix.lower() not in VALUE_SUFFIXES for path in paths):
        return None
    shapes = {open_array(path, name).shape for path in paths}
    shape = shapes.pop()
    if shapes or len(shape) not in (len(declared), len(declared) + 1):
        return None
    if len(shape) > len(declared):
        return shape[1:]
    is_batch = len(paths) == 1 and not isinstance(declared[0], int)
    return (1, *shape[1:]) if is_batch else shape


def write_samples(model: Path, given: Mapping[str, InputSpec], most: int, folder: Path) -> dict[str, list[Path]]:
    """Write the samples in one file for each input as `input0-0000.npy`; return them by input.

    Text with a tokenizer also gives the mask and the positions of its tokens.

    Of more than `most` samples, these are taken at equal distances. A file with one sample is returned itself, and so
    are images, which a step reads with settings of its own. Raises RequestError for a file that does not fit.
    """
    wanted = want_inputs(model_inputs(model), given, model.name)
    files = open_files(wanted, None)
    count = max(files.counts.values(), default=1)
    own = {name: [Path(str(spec.data))] for name, spec in given.items() if spec.data_patterns}
    if count < 2 or any(paths[0].suffix.lower() in IMAGE_SUFFIXES for paths in own.values()):
        return own
    make_folder(folder)
    distance = -(-count // most)
    written: dict[str, list[Path]] = {name: [] for name in files.files}
    for number, (_, feeds) in enumerate(files.feeds()):
        if number % distance:
            continue
        for index, (name, feed) in enumerate(feeds.items()):
            path = folder / f"input{index}-{number:04}.npy"
            np.save(path, feed.values, allow_pickle=False)
            written[name].append(path)
        if number + 1 == count:
            break
    return written
