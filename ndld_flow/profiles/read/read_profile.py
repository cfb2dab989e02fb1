"""Read a profile or an engine of any supported format: our own, trtexec's exports, TREx's, ONNX Runtime's."""

from __future__ import annotations

from pathlib import Path
from typing import TypeVar

from pydantic import ValidationError

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import visible_name
from ndld_flow.profiles.read.onnxruntime_profile import profile_of_onnxruntime
from ndld_flow.profiles.read.sources import Kind, find_source
from ndld_flow.profiles.read.tensorrt_profile import profile_of_tensorrt
from ndld_flow.records.build import Build
from ndld_flow.records.document import read_document
from ndld_flow.records.profile import Profile

_Own = TypeVar("_Own", Profile, Build)


def read_profile(path: Path) -> Profile:
    """Read a file or a folder; an engine that was not run has layers without times.

    Raises RequestError, which states the problem and the supported formats.
    """
    source = find_source(path)
    if source.kind == "build":
        return read_build(path).as_profile()
    if source.kind == "profile":
        file = source.of("profile")[0]
        profile = _record(Profile, file)
        # Later code assumes one sample of each layer per pass.
        counts = {len(layer.samples_ms) for layer in profile.layers}
        passes = sum(profile.layer_runs)
        if len(counts) > 1 or (profile.layer_runs and counts and passes not in counts):
            raise RequestError(f"{file}: its layers have different numbers of samples; it was changed or is damaged")
        if any(not run.latency_ms for run in profile.runs):
            raise RequestError(f"{file}: a process run has no samples; it was changed or is damaged")
        return profile
    if source.kind == "onnxruntime":
        return profile_of_onnxruntime(source.of("onnxruntime")[0], source.label)
    return profile_of_tensorrt(source)


def recognize(path: Path) -> Kind | None:
    """Return the kind of a file or folder by its contents; None if `read_profile` does not support it."""
    try:
        return find_source(path).kind
    except RequestError:
        return None


def read_build(path: Path) -> Build:
    """Read the record of an engine's build: a `build.json`, or the folder that contains it. Raises like
    `read_profile`."""
    return _record(Build, find_source(path).of("build")[0])


def _record(kind: type[_Own], path: Path) -> _Own:
    try:
        return read_document(kind, path)
    except OSError as error:
        raise RequestError(f"{path} cannot be read: {error.strerror or error}") from error
    except ValidationError as error:
        word = kind.__name__.lower()
        first = error.errors(include_url=False, include_input=False)[0]
        problem = visible_name(f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}".lstrip(": "))[:300]
        raise RequestError(f"{path} is not a {word} that this version reads: {problem}") from error
