"""The files of the inputs: those that a result is made with, and those that are held out to judge it."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ndld_flow.base.errors import RequestError, UnknownNameError
from ndld_flow.base.quantities import counted
from ndld_flow.base.text import first_of, short_name
from ndld_flow.store.found_files import (
    IMAGE_SUFFIXES,
    TEXT_SUFFIXES,
    VALUE_SUFFIXES,
    VIDEO_SUFFIXES,
    find_files,
    is_glob,
)

if TYPE_CHECKING:
    from ndld_flow.measure.trial_pass import InputTrial
    from ndld_flow.models.external_files import DeclaredInput
    from ndld_flow.samples.likely_inputs import LikelyInput

MOST_FILES = 48
"""Number of files that are used; of more, these are taken at equal distances."""
FEW_FILES = 12
RANDOM_SAMPLES = 4
_IN_TURN = 8
"""Number of samples of several sizes that passes run in turn."""
_MOST_TOKENS = 512
"""Number of tokens after which a line of text is cut: most encoders take no more."""


@dataclass(frozen=True)
class Samples:
    """The files of the inputs: those of the search, and those held out. One that all samples share is in both."""

    search: Mapping[str, list[str]] = field(default_factory=dict)
    held: Mapping[str, list[str]] = field(default_factory=dict)

    @property
    def counts(self) -> tuple[int, int]:
        """Return the number of samples of both parts."""
        if not self.search:
            return RANDOM_SAMPLES, RANDOM_SAMPLES
        return max(map(len, self.search.values())), max(map(len, self.held.values()))


@dataclass(frozen=True)
class FoundData:
    """The files of `--data`."""

    files: Mapping[str, list[str]] = field(default_factory=dict)
    """By input."""
    given: Mapping[str, str | list[str]] = field(default_factory=dict)
    """Input -> the folder, glob or files as they were given, relative to the current directory; by default its files.
    """

    def shapes(self, trial: InputTrial) -> dict[str, Sequence[tuple[int, ...]]]:
        """Return the shapes of samples by input, for arrays and inputs with dynamic dimensions: each once, that of the
        first sample first."""
        from ndld_flow.samples.file_samples import sample_shapes

        shapes = {}
        for likely in trial.inputs:
            paths = [Path(path) for path in self.files.get(likely.spec.name, ())]
            if paths and likely.free and (found := sample_shapes(paths, likely.spec.name, likely.spec.shape)):
                shapes[likely.spec.name] = found
        return shapes

    def texts(self, trial: InputTrial) -> set[str]:
        """Return the inputs with free sizes that get the tokens of a text, each line as many as it has, and the parts
        that are filled from the same line."""
        from ndld_flow.samples.wanted_inputs import part_of

        free = {likely.spec.name: likely.spec.dtype for likely in trial.inputs if likely.free}
        texts = {
            name
            for name, paths in self.files.items()
            if free.get(name, "string") != "string" and Path(paths[0]).suffix.lower() in TEXT_SUFFIXES
        }
        return texts | {name for name in free if texts and part_of(name) and name not in self.files}


def find_data(data: Sequence[str], trial: InputTrial) -> FoundData:
    """Return the files of each input. Raises RequestError for paths that do not fit the model."""
    patterns: dict[str, list[str]] = {}
    for text in data:
        names, path = _inputs_of(text, trial)
        if Path(path).suffix.lower() in VIDEO_SUFFIXES:
            raise RequestError(
                f"--data {text}: give the frames of a video as images in a folder, such as by `ffmpeg -i "
                f"{short_name(Path(path).name)} frames/%04d.png`."
            )
        for name in names:
            patterns.setdefault(name, []).append(path)
    files = {name: [os.path.relpath(file.path) for file in find_files(paths)] for name, paths in patterns.items()}
    for likely in trial.inputs:
        paths = files.get(likely.spec.name, [])
        if likely.shape is not None and len(likely.shape) < 3 and has_images(paths):
            raise RequestError(
                f"--data: {paths[0]} is an image, but {short_name(likely.spec.name)} has the shape "
                f"{likely.spec.shape_text}."
            )
    _refuse_one_archive(files)
    given = {name: [os.path.relpath(path) for path in paths] for name, paths in patterns.items()}
    return FoundData(files, {name: paths[0] if len(paths) == 1 else paths for name, paths in given.items()})


def _refuse_one_archive(files: Mapping[str, Sequence[str]]) -> None:
    """Raise RequestError for an archive that is one sample: the rows of its arrays, which would be samples, differ."""
    from ndld_flow.samples.value_files import open_array

    for archive in {paths[0] for paths in files.values() if len(paths) == 1 and paths[0].endswith(".npz")}:
        shapes = {
            name: open_array(Path(archive), name).shape for name, paths in files.items() if list(paths) == [archive]
        }
        rows = {name: shape[0] for name, shape in shapes.items() if shape and shape[0] != 1}
        if len({*rows.values()}) > 1:
            listed = first_of([f"{short_name(name)} {count}" for name, count in rows.items()], 3)
            raise RequestError(
                f"--data {archive}: its arrays differ in rows ({listed}), so that it is one sample. Give a folder with "
                f"such a file for each sample, at least two, better {FEW_FILES}."
            )


def has_images(files: Sequence[str]) -> bool:
    """Return whether images are among the files."""
    return any(Path(file).suffix.lower() in IMAGE_SUFFIXES for file in files)


def is_scaled(likely: LikelyInput, files: Sequence[str]) -> bool:
    """Return whether pixels of an input's files become 0 to 1, as the model's files do not give their mean."""
    return has_images(files) and not likely.mean and "float" in likely.spec.dtype


def refuse_other_data(data: Sequence[str], inputs: Mapping[str, DeclaredInput]) -> None:
    """Raise RequestError for `INPUT=PATH` whose input the model does not have, and for an array of another type."""
    for text in data:
        name, equals, path = text.partition("=")
        if not equals or Path(text).exists():
            name, path = next(iter(inputs)) if len(inputs) == 1 else "", text
        elif name not in inputs:
            raise UnknownNameError(f"--data {text}: {name!r} is not an input of the model", name, inputs)
        if name and Path(path).suffix.lower() in VALUE_SUFFIXES and Path(path).is_file():
            from ndld_flow.models.tensors import numpy_dtype
            from ndld_flow.samples.value_files import check_family, open_array

            dtype = numpy_dtype(inputs[name].dtype)
            if dtype is not None:
                check_family(open_array(Path(path), name).dtype, dtype, name, path)


def require_data(text: str, path: str) -> None:
    """Raise RequestError if a path of `--data` is neither a glob nor there; `text` is the whole value."""
    if not is_glob(path) and not Path(path).exists():
        raise RequestError(f"--data {text}: there is no file or folder {path} (current directory: {Path.cwd()}).")


def spread_files(files: Sequence[str], most: int) -> list[str]:
    """Return at most this many of the files, taken at equal distances."""
    return list(files[:: -(-len(files) // most)])


def split_files(files: Sequence[str], most: int) -> tuple[list[str], list[str]]:
    """Return at most this many of the files, in two parts; every third is held out of the first."""
    used = spread_files(files, most)
    held = used[2::3] or used[1:]
    return [file for file in used if file not in held], held


def sample_files(
    data: FoundData, model: Path, trial: InputTrial, folder: Path, tokenizer: Path | None = None
) -> dict[str, list[str]]:
    """Return the files of each input, a sample in each, or one for all samples.

    A single file of many samples, such as the rows of an array or a long recording, is split into files in `folder`. Of
    samples that vary in size, one of median size is the first, and some of other sizes follow. Raises RequestError for
    files that do not fit the model.
    """
    found = dict(data.files)
    single = {name: Path(paths[0]) for name, paths in found.items() if len(paths) == 1}
    if single:
        found |= _split_files(single, model, trial, folder, tokenizer)
    if len({len(files) for files in found.values() if len(files) > 1}) > 1:
        listed = " and ".join(f"{short_name(name)} has {len(files)}" for name, files in found.items())
        raise RequestError(f"--data: {listed} samples. Give the same number to each input, or one that all share.")
    return _typical_first(found, trial)


def measured_trial(trial: InputTrial, files: Mapping[str, list[str]]) -> InputTrial:
    """Return a trial with the shapes of the first of the samples for inputs that vary."""
    shapes = FoundData(files).shapes(trial)
    inputs = (
        replace(each, shape=shapes[each.spec.name][0]) if each.varies and each.spec.name in shapes else each
        for each in trial.inputs
    )
    return replace(trial, inputs=tuple(inputs))


def in_turn(trial: InputTrial, files: Mapping[str, Sequence[str]]) -> str:
    """Return the setting of `profile` by which passes run samples of several sizes in turn; empty for one size."""
    count = min(_IN_TURN, max(map(len, files.values()), default=1))
    return f", samples: {count}" if count > 1 and any(likely.varies for likely in trial.inputs) else ""


def _typical_first(files: dict[str, list[str]], trial: InputTrial, like: int | None = None) -> dict[str, list[str]]:
    """Return samples with one of median size first, or of a size like this, where inputs that vary have arrays.

    Those that passes run in turn follow, at equal distances in the order of sizes.
    """
    sizes = _sizes_of(files, trial)
    if not sizes:
        return files
    wanted = sorted(sizes)[len(sizes) // 2] if like is None else like
    order = sorted(range(len(sizes)), key=sizes.__getitem__)
    first = min(order, key=lambda index: abs(sizes[index] - wanted))
    order.remove(first)
    begin = [first, *order[:: max(1, len(order) // (_IN_TURN - 1))][: _IN_TURN - 1]]
    places = [*begin, *(index for index in range(len(sizes)) if index not in begin)]
    return {name: [each[index] for index in places] if len(each) > 1 else each for name, each in files.items()}


def _sizes_of(files: Mapping[str, list[str]], trial: InputTrial) -> list[int]:
    """Return the number of values of each sample in inputs that vary; empty if these have other files than arrays."""
    from ndld_flow.samples.value_files import open_array

    varied = {likely.spec.name for likely in trial.inputs if likely.varies}
    listed = {name: list(map(Path, each)) for name, each in files.items() if name in varied and len(each) > 1}
    if any(file.suffix.lower() not in VALUE_SUFFIXES for sample in listed.values() for file in sample):
        return []
    sizes = ([math.prod(open_array(file, name).shape) for file in each] for name, each in listed.items())
    return [*map(sum, zip(*sizes, strict=True))]


def split_data(data: FoundData, model: Path, trial: InputTrial, folder: Path, tokenizer: Path | None = None) -> Samples:
    """Return the files of each input: every third is held out of the search.

    Raises RequestError as `sample_files`, and for a single sample.
    """
    found = sample_files(data, model, trial, folder, tokenizer)
    if found and max(map(len, found.values())) < 2:
        (first, *_) = found.values()
        raise RequestError(
            f"--data: {first[0]} is the only sample, and samples of the search must not decide at the end. Give at "
            f"least two, better {FEW_FILES} or more: a third is held out."
        )
    parts = {
        name: split_files(files, MOST_FILES) if len(files) > 1 else (files, files) for name, files in found.items()
    }
    search, held = ({name: both[i] for name, both in parts.items()} for i in range(2))
    return Samples(search, _typical_first(held, trial, next(iter(_sizes_of(search, trial)), None)))


def _split_files(
    files: Mapping[str, Path], model: Path, trial: InputTrial, folder: Path, tokenizer: Path | None
) -> dict[str, list[str]]:
    """Return the samples in one file for each input as files of their own; the files themselves if each is a sample."""
    from ndld_flow.inputs import InputSpec
    from ndld_flow.samples.file_samples import write_samples

    rate = next((likely.data for likely in trial.inputs if likely.reason == "a sampling rate in Hz"), None)
    inputs = {likely.spec.name: likely for likely in trial.inputs}
    shapes = {likely.spec.name: None if likely.varies else likely.shape for likely in trial.inputs}
    given = {name: InputSpec(shape=shape) for name, shape in shapes.items()}
    for name, path in files.items():
        is_text = path.suffix.lower() in TEXT_SUFFIXES and inputs[name].spec.dtype != "string"
        if is_text and tokenizer is None:
            raise RequestError(
                f"--data {name}={path}: the input takes {inputs[name].spec.dtype}: give --tokenizer tokenizer.json."
            )
        given[name] = InputSpec(
            shape=shapes[name],
            data=str(path),
            rate=rate if isinstance(rate, int) else None,
            tokenizer=str(tokenizer) if is_text else None,
            max_length=_MOST_TOKENS if is_text and inputs[name].varies else None,
        )
    written = write_samples(model, given, MOST_FILES, folder)
    return {name: [os.path.relpath(path) for path in paths] for name, paths in written.items()}


def _inputs_of(text: str, trial: InputTrial) -> tuple[Sequence[str], str]:
    """Return the inputs and the path of `PATH` or `INPUT=PATH`: of archives, the inputs that they have arrays of.

    Raises RequestError if there is no such path, or if nothing shows which input it is for.
    """
    from ndld_flow.samples.value_files import archived_names
    from ndld_flow.samples.wanted_inputs import part_of

    names = [likely.spec.name for likely in trial.inputs]
    name, equals, path = text.partition("=")
    is_named = equals and name in names
    require_data(text, path if is_named else text)
    if is_named:
        return [name], path
    files = [str(file.path) for file in find_files([text])]
    archived = archived_names(Path(files[0]))
    if named := [name for name in names if name in archived]:
        return named, text
    pictures = [likely.spec.name for likely in trial.inputs if likely.image_layout]
    drawn = [likely.spec.name for likely in trial.inputs if likely.data == "random"]
    if Path(text).suffix.lower() in TEXT_SUFFIXES and len(drawn) > 1:  # masks and the like are made of the same lines
        drawn = [name for name in drawn if not part_of(name)]
    picture = pictures[:1] if len(pictures) == 1 or has_images(files) else []
    free = names if len(names) == 1 else picture or drawn
    if len(free) == 1:
        return free, text
    listed = " or ".join(f"{short_name(name)}=PATH" for name in names)
    raise RequestError(
        f"--data {text}: the model has {counted(len(names), 'input')}; write {listed}, or give .npz files with an "
        "array for each input."
    )
