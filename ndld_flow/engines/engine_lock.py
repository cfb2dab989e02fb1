"""Engine locks: write down what a build depended on and chose, build the same engine again, and name every drift.

Builds of TensorRT are not reproducible by themselves, since tactics are chosen by timing them. A lock keeps those
timings, so that no tactic is timed again; and an engine of another model, library, GPU or driver, or with other
settings, is not the locked one.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from pydantic import JsonValue, ValidationError

from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.base.extras import ENGINE_LIBRARIES
from ndld_flow.base.quantities import counted, size
from ndld_flow.base.text import first_of, short_name
from ndld_flow.engines.build_settings import BuildSettings
from ndld_flow.machine.host import describe_machine
from ndld_flow.records.build import (
    Build,
    BuiltProfile,
    EngineComparison,
    EngineLock,
    EngineVerdict,
    LockedLayer,
    LockedRequest,
    stable_names,
)
from ndld_flow.records.document import read_document
from ndld_flow.runtimes.tensorrt.library import Bound, is_of_release
from ndld_flow.store.digest import digest_file

_WITHOUT_INFLUENCE = ("lock", "gpu", "timing_cache", "timing_cache_file", "error_on_timing_cache_miss", "attempt")
"""Settings that choose among engines of equal settings, which the locked timings do instead."""
_RECORDED_ELSEWHERE = ("backend", "release", "library", "profiles", "batch", "calibration_cache", "plugins")
_LIBRARY_FILE = re.compile(r"lib(nvinfer|nvonnxparser|tensorrt)[^/]*\.so[.\d]*$")
_MAX_NAMED = 5
_MAX_CACHE_BYTES = 2**30


def read_lock(path: Path) -> EngineLock:
    """Read a lock. Raises RequestError for a file that is none, or of another version."""
    try:
        return read_document(EngineLock, path)
    except (OSError, ValidationError):
        raise RequestError(
            f"`lock`: {short_name(str(path))} is not the `engine.lock` of a build, which is beside the engine in the "
            "run's folder"
        ) from None


def lock_problems(settings: BuildSettings, path: Path, version: str) -> tuple[str, ...]:
    """Return what is known before the build: how settings and library differ from a lock, or that the file is none.

    The version may be shorter than the locked one, and is empty if it is unknown.
    """
    try:
        locked = read_lock(path).request
    except RequestError as error:
        return (str(error),)
    found = locked.model_copy(
        update={
            "backend": settings.backend or locked.backend,
            "version": version if version and not is_of_release(locked.version, version) else locked.version,
            "options": _options(settings),
        }
    )
    return tuple(f"`lock`: {drift}" for drift in request_drifts(locked, found))


def describe_request(
    settings: BuildSettings, version: str, model_digest: str, profiles: Sequence[BuiltProfile]
) -> LockedRequest:
    """Return everything that decides the engine of these settings; the library's bindings are imported already."""
    machine, times_tactics = describe_machine(), not settings.engine_library.compiles_on_load
    files = {"calibration_cache": settings.calibration_cache}
    files |= {f"plugins[{index}]": path for index, path in enumerate(settings.plugins)}
    return LockedRequest(
        backend=settings.engine_library.backend,
        version=version,
        library_files={path.name: digest_file(path) for path in _loaded_libraries()},
        gpu="".join(machine.gpus[settings.gpu : settings.gpu + 1]) if times_tactics else "",
        driver=machine.driver if times_tactics else "",
        model_digest=model_digest,
        profiles=tuple(profiles),
        options=_options(settings),
        files={setting: digest_file(path) for setting, path in files.items() if path is not None},
    )


def _options(settings: BuildSettings) -> dict[str, JsonValue]:
    return settings.model_dump(mode="json", exclude={*_WITHOUT_INFLUENCE, *_RECORDED_ELSEWHERE})


def _loaded_libraries() -> list[Path]:
    """Return the shared libraries of TensorRT in this process; none where the system does not list them."""
    try:
        lines = Path("/proc/self/maps").read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return []
    files = {line.split(maxsplit=5)[-1] for line in lines}
    return sorted(Path(file) for file in files if _LIBRARY_FILE.search(file) and Path(file).is_file())


def make_lock(request: LockedRequest, build: Build, timings: Bound) -> EngineLock:
    """Return the lock of a built engine; `timings` is the builder's ITimingCache, or None."""
    data = b"" if timings is None else bytes(timings.serialize())
    locked = {}
    for name, layer in zip(stable_names(layer.name for layer in build.layers), build.layers, strict=True):
        locked[name] = LockedLayer(
            type=layer.type, precision=layer.precision, tactic=layer.tactic, formats=layer.formats
        )
    return EngineLock(
        request=request,
        engine_digest=build.engine_digest,
        engine_bytes=build.engine_bytes,
        layers_basis=build.layers_basis,
        layers=locked,
        tactics={} if timings is None else _tactics(timings),
        timing_cache=base64.b64encode(zlib.compress(data, 9)).decode() if data else "",
    )


def _tactics(timings: Bound) -> dict[str, str]:
    """Return the tactic of each key; none if the release does not list them."""
    try:
        return {str(key): f"{timings.query(key).tacticHash:x}" for key in timings.queryKeys()}
    except (AttributeError, RuntimeError):
        return {}


def locked_timings(lock: EngineLock) -> bytes:
    """Return the serialized timing cache; empty if there is none. Raises RequestError if it is damaged."""
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(base64.b64decode(lock.timing_cache, validate=True), _MAX_CACHE_BYTES)
    except (ValueError, zlib.error):
        data, unpacker = b"", zlib.decompressobj()
    if lock.timing_cache and not unpacker.eof:
        raise RequestError("`lock`: its timing cache is damaged; restore the file, or build without `lock`")
    return data


def refuse_other_request(lock: EngineLock, request: LockedRequest) -> None:
    """Raise RequestError if a build would not be the locked one: another model, library, GPU, driver or setting."""
    drifts = [*request_drifts(lock.request, request)]
    if drifts:
        raise RequestError(
            f"`lock`: this build is not the locked one: {'; '.join(drifts)}. Restore what is locked, or remove `lock` "
            "and keep the `engine.lock` of the new engine"
        )


def request_drifts(locked: LockedRequest, request: LockedRequest) -> Iterator[str]:
    """Yield how two requests differ: `the model is 5e6f7a8b, and was 1a2b3c4d`."""
    if request.library != locked.library:
        yield f"the library is {request.library}, and was {locked.library}"
    elif request.library_files and locked.library_files:
        for name in _changed(locked.library_files, request.library_files):
            yield f"{name} of {request.library} has other contents"
    for noun, now, then in (
        ("the GPU", request.gpu, locked.gpu),
        ("the driver", request.driver, locked.driver),
        ("the model", request.model_digest[:16], locked.model_digest[:16]),
    ):
        if now != then:
            yield f"{noun} is {short_name(now) or 'unknown'}, and was {short_name(then) or 'unknown'}"
    yield from _setting_drifts(locked, request)


def _setting_drifts(locked: LockedRequest, request: LockedRequest) -> Iterator[str]:
    options, locked_options = _flat(request.options), _flat(locked.options)
    for name in _changed(locked_options, options):
        values = (options.get(name), locked_options.get(name))
        now, then = ("not set" if value is None else short_name(str(value)) for value in values)
        yield f"`{name}` is {now}, and was {then}"
    if [each.inputs for each in request.profiles] != [each.inputs for each in locked.profiles]:
        yield "the inputs have other shapes"
    for name in _changed(locked.files, request.files):
        yield f"the file of `{name}` has other contents"


def _flat(options: Mapping[str, JsonValue]) -> dict[str, JsonValue]:
    """Return the settings with those of `advanced` as dotted names."""
    advanced = options.get("advanced")
    inner = advanced if isinstance(advanced, dict) else {}
    outer = {name: value for name, value in options.items() if name != "advanced"}
    return outer | {f"advanced.{name}": value for name, value in inner.items()}


def _changed(before: Mapping[str, object], after: Mapping[str, object]) -> list[str]:
    """Return the names whose values differ, or that only one has."""
    return [name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]


def refuse_other_engine(lock: EngineLock, built: EngineLock) -> str:
    """Return a note if an engine has other bytes than the locked one, but equal layers, formats and tactics.

    Raises BackendError if it differs, or if the builder reveals too little to decide.
    """
    compared = compare_engines(lock, built)
    if compared.verdict == "identical":
        return ""
    if compared.verdict != "equal":
        raise BackendError(f"`lock`: the engine is not the locked one: {'; '.join(compared.differences)}")
    return f"not the bytes of the locked engine: {compared.differences[0]}"


def compare_engines(before: EngineLock, after: EngineLock) -> EngineComparison:
    """Compare two engines without running them: by bytes, and by what the builder reveals of their layers."""
    sizes = f"{size(before.engine_bytes)} and {size(after.engine_bytes)}"
    causes = tuple(request_drifts(before.request, after.request))
    differences = [*_engine_differences(before.layers, after.layers)]
    verdict: EngineVerdict
    if before.engine_digest == after.engine_digest:
        verdict, differences = "identical", []
    elif differences:
        verdict = "different"
        differences.append(f"the bytes differ ({sizes})")
    elif causes:
        verdict = "undecided"
        differences = [f"the bytes differ ({sizes}); the layers are equal, but weights may differ"]
    elif not (_reveals_choices(before) and _reveals_choices(after)):
        verdict = "undecided"
        differences = [
            f"the bytes differ ({sizes}), and the builder does not reveal the layers with their tactics: nothing shows "
            "that the engines are equal"
        ]
    else:
        verdict = "equal"
        library = ENGINE_LIBRARIES[after.request.backend]
        later = f"; {library.title} chooses the other kernels when the engine is first run"
        differences = [
            f"the bytes differ ({sizes}); layers, precisions, formats and tactics are equal"
            f"{later if library.compiles_on_load else ''}"
        ]
    return EngineComparison(
        verdict=verdict,
        differences=tuple(differences),
        causes=causes,
        layer_count=len(after.layers),
        before_bytes=before.engine_bytes,
        after_bytes=after.engine_bytes,
    )


def _reveals_choices(lock: EngineLock) -> bool:
    """Return whether the layers are the compiled ones, with the tactics that the builder chose."""
    return lock.layers_basis != "network as parsed" and any(layer.tactic for layer in lock.layers.values())


def _engine_differences(locked: Mapping[str, LockedLayer], built: Mapping[str, LockedLayer]) -> Iterator[str]:
    if missing := [name for name in locked if name not in built]:
        yield f"{counted(len(missing), 'layer')} missing: {_first(missing)}"
    if added := [name for name in built if name not in locked]:
        yield f"{counted(len(added), 'layer')} added: {_first(added)}"
    for noun in ("type", "precision", "formats", "tactic"):
        values = {name: (getattr(locked[name], noun), getattr(built[name], noun)) for name in built if name in locked}
        if changed := [f"{name} ({then} -> {now})" for name, (then, now) in values.items() if then != now]:
            yield f"{counted(len(changed), 'layer')} with another {noun}: {_first(changed)}"


def _first(names: Sequence[str]) -> str:
    return first_of([short_name(name, 120) for name in names], _MAX_NAMED)
