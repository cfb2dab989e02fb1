"""A building process: settings and a model become an engine and the record of its build.

`python -P -m ndld_flow.engines.engine_building FOLDER` reads its job from the folder, writes the engine's files to the
job's output folder and its answer next to the job, and reports progress on standard output. It exits when its standard
input closes, so that no process is left if its parent is killed.
"""

from __future__ import annotations

import re
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.base.text import short_name, shortened
from ndld_flow.engines.build_settings import BuildSettings, TypingPlan, decide_typing
from ndld_flow.engines.building import BuildAnswer, BuildRequest
from ndld_flow.engines.configuration import (
    allow_precisions,
    calibrate_from_cache,
    configure,
    make_up_ranges,
    read_applied,
    read_flags,
    read_network_flags,
    set_layer_precisions,
)
from ndld_flow.engines.engine_lock import (
    describe_request,
    locked_timings,
    make_lock,
    read_lock,
    refuse_other_engine,
    refuse_other_request,
)
from ndld_flow.engines.foresight import refuse_settings
from ndld_flow.engines.network import (
    ParsedNetwork,
    describe_layers,
    doubt_precisions,
    mark_debug_tensors,
    mark_outputs,
    parse_model,
    tensor_info,
)
from ndld_flow.engines.optimization_profiles import NetworkInput, add_profiles, assumed_batch, choose_profiles
from ndld_flow.machine.host import describe_machine
from ndld_flow.models.node_weights import add_evidence
from ndld_flow.precision.constraints.constraints import ignored_notes, requested_precisions, with_requested_precisions
from ndld_flow.processes import worker as process
from ndld_flow.processes.worker import ReportProgress, peak_memory_bytes
from ndld_flow.profiles.read.engine_layers import read_engine_info
from ndld_flow.records.build import Build, BuiltProfile, Constraint, EngineLock, LockedRequest, TimingCacheUse
from ndld_flow.records.measurement import Machine
from ndld_flow.runtimes.tensorrt.build_log import BuildLog, join_reasons, make_monitor
from ndld_flow.runtimes.tensorrt.library import Bindings, Bound, import_bindings, make_logger
from ndld_flow.runtimes.tensorrt.plugin_libraries import load_plugins
from ndld_flow.runtimes.tensorrt.release_names import names_of_bindings
from ndld_flow.store.digest import digest_file
from ndld_flow.store.files import make_folder, write_bytes_atomically
from ndld_flow.store.kinds import Engine
from ndld_flow.store.locks import Locks

_MAX_WARNINGS = 100
_COMPILED_PLUGINS = "PREFER_AOT_PYTHON_PLUGINS"
"""Creation flag that prefers a Python plugin's ahead-of-time kernel, which needs no Python at run time."""


@dataclass
class _Building:
    """A build in progress."""

    trt: Bindings
    request: BuildRequest
    plan: TypingPlan
    log: BuildLog
    progress: ReportProgress
    lock: EngineLock | None
    """The lock of the settings."""
    notes: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class _Ready:
    """The objects of the builder, which must live until it is done."""

    parsed: ParsedNetwork
    config: Bound
    profiles: tuple[BuiltProfile, ...]
    constraints: tuple[Constraint, ...]
    locked: LockedRequest
    timing: TimingCache | None
    calibrator: Bound = None
    marked: tuple[str, ...] = ()
    """Tensors that are outputs for inspection only."""


def build(request: BuildRequest, progress: ReportProgress) -> None:
    """Write the files of an `Engine` artifact into `request.out`. Raises RequestError if that is impossible."""
    progress(0, 0, "loading the library")
    building = _begin(request, progress)
    ready = _prepare(building)
    engine, build_s = _run_builder(building, ready)
    (request.out / Engine.main).write_bytes(memoryview(engine))
    memory = building.log.memory(peak_memory_bytes())
    progress(0, 0, "reading the engine's layers")
    plugins = () if request.settings.version_compatible else request.settings.plugins
    layers, basis = describe_layers(building.trt, engine, building.log, ready.parsed, plugins)
    (request.out / Engine.layers).write_text(layers, encoding="utf-8")
    fields = _record_request(building) | _record_settings(building, ready) | _record_engine(building, ready)
    if basis == "network as parsed":
        fields["layers"] = doubt_precisions(fields["layers"])
    record = Build(**fields, layers_basis=basis, memory=memory, build_s=build_s)
    lock = make_lock(ready.locked, record, None if ready.timing is None else ready.config.get_timing_cache())
    if building.lock is not None and (note := refuse_other_engine(building.lock, lock)):
        record = record.model_copy(update={"notes": (*record.notes, note)})
    lock.write(request.out)
    record.write(request.out)
    building.log.close()


def _begin(request: BuildRequest, progress: ReportProgress) -> _Building:
    """Import the library and check the settings against it. Raises BackendError that lists all unsupported settings."""
    backend = request.settings.engine_library.backend
    trt = import_bindings(backend)
    names = names_of_bindings(backend, trt)
    refused = refuse_settings(request.settings, names)
    if refused:
        raise BackendError("\n".join(refused))
    log = BuildLog(request.out / Engine.log)
    lock = None if request.settings.lock is None else read_lock(request.settings.lock)
    return _Building(trt, request, decide_typing(request.settings, names), log, progress, lock)


def _prepare(building: _Building) -> _Ready:
    trt, request, settings = building.trt, building.request, building.request.settings
    logger = make_logger(trt, building.log.take)
    try:
        builder = trt.Builder(logger)
    except TypeError:  # pybind11: factory function returned nullptr, such as without a driver
        raise BackendError(f"{_title(building)} does not start: {_reasons(building)}.") from None
    load_plugins(trt, logger, builder, settings.plugins)
    requested = requested_precisions(request.model)
    model, casts = _typed_model(building, requested)
    building.progress(0, 0, "parsing the model")
    flags, wanted = trt.NetworkDefinitionCreationFlag, [*building.plan.creation_flags]
    if settings.has_python_plugins and hasattr(flags, _COMPILED_PLUGINS):
        wanted.append(_COMPILED_PLUGINS)
    creation_flags = sum(1 << int(getattr(flags, name)) for name in wanted)
    parsed = parse_model(trt, builder, model, settings, creation_flags)
    marked, marking_notes = mark_outputs(parsed, model, settings.mark_outputs)
    marking_notes += mark_debug_tensors(parsed, model, settings.debug_tensors)
    config = configure(trt, parsed, settings, building.plan, make_monitor(trt, building.progress))
    profiles = choose_profiles([NetworkInput.of(tensor) for tensor in parsed.inputs()], settings, request.inputs)
    add_profiles(builder, config, profiles, settings.advanced.extra_memory_target)
    locked = describe_request(settings, trt.__version__, request.digest, profiles)
    if building.lock is not None:
        refuse_other_request(building.lock, locked)
    constraints = casts or _constrain_layers(building, parsed, config, requested)
    calibrator = _calibrate(building, parsed, config, profiles[0])
    timing = _load_timings(building, config)
    building.notes += [*filter(None, [assumed_batch(profiles)]), *marking_notes]
    return _Ready(parsed, config, profiles, constraints, locked, timing, calibrator, marked)


def _typed_model(building: _Building, requested: Mapping[str, str]) -> tuple[Path, tuple[Constraint, ...]]:
    """Return the model to parse, with Casts if these apply the constraints."""
    source = building.request.model
    if not (requested and building.plan.casts):
        return source, ()
    from ndld_flow.precision.constraints.typed_model import write_typed_model

    building.progress(0, 0, "inserting Casts into the model")
    target = building.request.out / Engine.typed_model
    typed = write_typed_model(source, target)
    building.notes += typed.notes
    _refuse_ignored(building, typed.constraints)
    return target, typed.constraints


def _refuse_ignored(building: _Building, constraints: Sequence[Constraint]) -> None:
    """Check constraints that must be obeyed. Raises RequestError if one cannot be."""
    ignored = ignored_notes(constraints)
    if ignored and building.request.settings.typing == "obey":
        raise RequestError(
            f"`typing: obey`, but some precision constraints cannot be applied: {join_reasons(ignored)}. Remove such "
            "constraints (`none` in `constrain_precision`), or set `typing: prefer`."
        )


def _constrain_layers(
    building: _Building, parsed: ParsedNetwork, config: Bound, requested: Mapping[str, str]
) -> tuple[Constraint, ...]:
    if not requested:
        return ()
    if building.plan.layer_precisions:
        building.notes += allow_precisions(building.trt, config, requested.values())
        constraints = set_layer_precisions(building.trt, parsed, requested)
        _refuse_ignored(building, constraints)
        building.notes += ignored_notes(constraints)
        return constraints
    typing = building.request.settings.typing
    building.notes.append(
        f"the model constrains the precision of {len(requested)} node{'' if len(requested) == 1 else 's'}, which "
        f"`typing: {typing}` ignores; set `typing: obey`"
    )
    outcome = f"ignored: typing is {typing}; set `typing: obey`"
    return tuple(Constraint(node=node, precision=precision, outcome=outcome) for node, precision in requested.items())


def _calibrate(building: _Building, parsed: ParsedNetwork, config: Bound, profile: BuiltProfile) -> Bound:
    settings = building.request.settings
    if settings.placeholder_ranges:
        make_up_ranges(parsed)
        building.notes.append("INT8 ranges are placeholders: the engine is for measuring speed, its outputs are wrong")
    if settings.calibration_cache is None:
        return None
    return calibrate_from_cache(building.trt, parsed, config, settings.calibration_cache, profile)


def _load_timings(building: _Building, config: Bound) -> TimingCache | None:
    request, settings = building.request, building.request.settings
    if settings.engine_library.compiles_on_load or not (settings.timing_cache or settings.timing_cache_file):
        return None
    if building.lock is not None:
        config.set_flag(building.trt.BuilderFlag.ERROR_ON_TIMING_CACHE_MISS)
        return use_timings(config, locked_timings(building.lock), EngineLock.file_name)
    file = timing_cache_path(request.caches, describe_machine(), settings, building.trt.__version__)
    return load_timing_cache(config, file, settings)


def _run_builder(building: _Building, ready: _Ready) -> tuple[Bound, float]:
    """Return the plan, an IHostMemory, and the seconds that its build took. Raises BackendError with the reasons."""
    building.progress(0, 0, "building")
    began = time.perf_counter()
    engine = ready.parsed.builder.build_serialized_network(ready.parsed.network, ready.config)
    if engine is None:
        reasons = f"{_reasons(building)}."
        if any(layer.type.name.startswith(("CONDITION", "LOOP", "TRIP_LIMIT")) for layer in ready.parsed.layers()):
            reasons += (
                " The model has If, Loop or Scan, which it supports in part: `sanitize` removes branches that are "
                "never taken."
            )
        raise BackendError(f"{_title(building)} built no engine of {building.request.label}: {reasons}")
    build_s = time.perf_counter() - began
    if ready.timing is not None and building.request.settings.shares_timings:
        save_timing_cache(ready.config, ready.timing)
    return engine, build_s


def _title(building: _Building) -> str:
    return f"{building.request.settings.engine_library.title} {building.trt.__version__}"


def _reasons(building: _Building) -> str:
    return join_reasons(shortened(reason, 400) for reason in building.log.errors) or "it reports no reason"


def _record_request(building: _Building) -> dict[str, Any]:
    request, version = building.request, building.trt.__version__
    backend = request.settings.engine_library.backend
    return {
        "label": request.label,
        "model_digest": request.digest,
        "backend": backend,
        "version": version,
        "versions": {backend: version},
        "machine": describe_machine(),
        "built_at": datetime.now(UTC),
        "compute_capabilities": request.settings.compute_capabilities,
        "device": request.settings.gpu,
        "options": request.settings.model_dump(mode="json"),
    }


def _record_settings(building: _Building, ready: _Ready) -> dict[str, Any]:
    trt, parsed, settings = building.trt, ready.parsed, building.request.settings
    timing = None if ready.timing is None else ready.timing.record
    if (
        timing is None
        and settings.engine_library.compiles_on_load
        and (settings.timing_cache or settings.timing_cache_file)
    ):
        note = f"{settings.engine_library.title} chooses kernels without timing them, so it has no timings to keep"
        timing = TimingCacheUse(file="", note=note)
    return {
        "typing": building.plan.description,
        "profiles": ready.profiles,
        "flags": read_flags(trt, ready.config),
        "network_flags": read_network_flags(trt, parsed.network),
        "applied": read_applied(trt, parsed.builder, ready.config, parsed.parser),
        "constraints": ready.constraints,
        "timing_cache": timing,
    }


def _record_engine(building: _Building, ready: _Ready) -> dict[str, Any]:
    parsed, out = ready.parsed, building.request.out
    layers = read_engine_info(out / Engine.layers).layers
    return {
        "inputs": tuple(map(tensor_info, parsed.inputs())),
        "outputs": tuple(map(tensor_info, parsed.outputs())),
        "marked_outputs": ready.marked,
        "layers": add_evidence(
            with_requested_precisions(layers, {each.node: each.precision for each in ready.constraints}),
            building.request.model,
        ),
        "network_layer_count": parsed.network.num_layers,
        "engine_bytes": (out / Engine.main).stat().st_size,
        "engine_digest": digest_file(out / Engine.main),
        "parse_s": parsed.parse_s,
        "warnings": building.log.warnings[:_MAX_WARNINGS],
        "notes": tuple(building.notes),
    }


_NO_NAME = re.compile(r"[^A-Za-z0-9.]+")


@dataclass
class TimingCache:
    """The timing cache of one build. Its file outlasts it: one for each GPU and release, shared by all runs here.

    A cache only saves time, so a defective one never fails a build. A file is never read half-written, since it is
    written to a temporary name and renamed; a lock ensures that builds that end at once keep all their timings.
    """

    file: Path
    use: TimingCacheUse
    notes: list[str] = field(default_factory=list)

    @property
    def record(self) -> TimingCacheUse:
        """Return the use of the cache with all notes."""
        return self.use.model_copy(update={"note": "; ".join(self.notes)})


def timing_cache_path(caches: Path, machine: Machine, settings: BuildSettings, version: str) -> Path:
    """Return the file for this machine's GPU and the library's release."""
    gpu = machine.gpus[settings.gpu] if settings.gpu < len(machine.gpus) else "no gpu"
    name = _NO_NAME.sub("-", f"{gpu} {settings.backend} {version}".lower())
    return caches / "timing" / f"{name}.cache"


def load_timing_cache(config: Bound, file: Path, settings: BuildSettings) -> TimingCache:
    """Load earlier timings, and the user's file, into a builder's configuration."""
    loaded = TimingCache(file, TimingCacheUse(file=file.name))
    own = _read(file) if settings.shares_timings else b""
    cache = _set(config, own)
    if cache is None:
        loaded.notes.append(_set_aside(file, own))
        own, cache = b"", _set(config, b"")
    if settings.attempt > 1:
        loaded.notes.append(
            f"attempt {settings.attempt} timed every tactic again: the timing cache was neither read nor written"
        )
    if settings.timing_cache_file is not None:
        users, name = _create(config, _read(settings.timing_cache_file)), short_name(str(settings.timing_cache_file))
        if users is None or not cache.combine(users, False):
            loaded.notes.append(
                f"timing_cache_file: {name} is not a timing cache of this GPU and release, and was not used"
            )
    loaded.use = loaded.use.model_copy(update={"loaded_bytes": len(own), "loaded_entries": _count(cache)})
    return loaded


def use_timings(config: Bound, data: bytes, name: str) -> TimingCache:
    """Let a build use these timings only. Raises BackendError if they are of another GPU or release."""
    cache = _set(config, data)
    if cache is None:
        raise BackendError(f"{name}: its timing cache is of another GPU or release, or damaged; build without `lock`")
    return TimingCache(Path(name), TimingCacheUse(file=name, loaded_bytes=len(data), loaded_entries=_count(cache)))


def save_timing_cache(config: Bound, timing: TimingCache) -> None:
    """Save the timings of this build together with those that other builds have added meanwhile."""
    try:
        make_folder(timing.file.parent)
        with Locks(timing.file.parent).hold(timing.file.stem):
            cache = config.get_timing_cache()
            newest = _create(config, _read(timing.file))
            if newest is not None:
                cache.combine(newest, False)
            data = bytes(cache.serialize())
            write_bytes_atomically(timing.file, data)
    except OSError as error:
        timing.notes.append(f"timings could not be saved ({error.strerror or error})")
        return
    timing.use = timing.use.model_copy(update={"saved_bytes": len(data), "saved_entries": _count(cache)})


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def _set(config: Bound, data: bytes) -> Bound:
    """Return the cache that the configuration uses; None if these bytes are invalid or from another GPU."""
    cache = _create(config, data)
    return cache if cache is not None and config.set_timing_cache(cache, False) else None


def _create(config: Bound, data: bytes) -> Bound:
    try:
        return config.create_timing_cache(data)
    except (RuntimeError, ValueError, TypeError):  # of an invalid cache, depending on the release
        return None


def _set_aside(file: Path, data: bytes) -> str:
    aside = file.with_suffix(".unusable")
    try:
        with Locks(file.parent).hold(file.stem):
            if _read(file) == data:  # else another build has started a new one
                file.replace(aside)
    except OSError:
        return f"the timing cache {file.name} is damaged or from another GPU, and was not used"
    return (
        f"the timing cache was damaged or from another GPU: it was renamed to {aside.name}, and a new one was started"
    )


def _count(cache: Bound) -> int | None:
    try:
        return len(cache.queryKeys())
    except (AttributeError, RuntimeError):
        return None


def main() -> None:
    """Run the job of the folder on the command line."""
    folder = Path(sys.argv[1])
    progress = process.start_worker()
    warnings.simplefilter("ignore")  # the bindings warn about names that a later release will remove
    try:
        build(BuildRequest.read(folder), progress)
        answer = BuildAnswer()
    except RequestError as error:
        answer = BuildAnswer(type(error).__name__, str(error))
    except MemoryError:
        answer = BuildAnswer(
            "KilledError", "the building process ran out of memory: free some memory, or raise its limit."
        )
    except OSError as error:
        answer = BuildAnswer("OSError", error.strerror or str(error), error.errno or 0)
    answer.write(folder)
    process.exit_worker()


if __name__ == "__main__":
    main()
