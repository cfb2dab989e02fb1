"""Tries settings on the TensorRT on the path: `python -m tests.support.engine_trials BACKEND MODEL < settings.json`.

Each line of the standard input is a `BuildSettings`; it is carried out without asking whether the release can, and
a line of JSON tells what came of it. In a process of its own: bindings may crash.
"""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

from ndld_flow.engines.build_settings import BuildSettings, decide_typing
from ndld_flow.engines.configuration import configure
from ndld_flow.engines.network import parse_model
from ndld_flow.runtimes.tensorrt.library import import_bindings
from ndld_flow.runtimes.tensorrt.release_names import Names, names_of_bindings


def main() -> None:
    """Answer every line."""
    backend, model = sys.argv[1:]
    warnings.simplefilter("ignore")
    trt = import_bindings(backend)  # type: ignore[arg-type]
    names = names_of_bindings(backend, trt)  # type: ignore[arg-type]
    for line in sys.stdin:
        settings = BuildSettings.model_validate_json(line).model_copy(update={"backend": backend})
        print(json.dumps(_try(trt, names, settings, Path(model))), flush=True)


def _try(trt: Any, names: Names, settings: BuildSettings, model: Path) -> dict[str, Any]:
    result: list[str] = []
    try:
        return _build(trt, names, settings, model, result)
    except Exception as error:
        return {"raised": f"{type(error).__name__}: {error}", "said": result, "size": 0}


def _build(trt: Any, names: Names, settings: BuildSettings, model: Path, texts: list[str]) -> dict[str, Any]:
    builder = trt.Builder(_logger(trt, texts))
    plan = decide_typing(settings, names)
    flags = sum(1 << int(getattr(trt.NetworkDefinitionCreationFlag, flag)) for flag in plan.creation_flags)
    parsed = parse_model(trt, builder, model, settings, flags)
    config = configure(trt, parsed, settings, plan, None)
    profile = builder.create_optimization_profile()
    if settings.advanced.extra_memory_target is not None:
        profile.extra_memory_target = settings.advanced.extra_memory_target
    profile.set_shape("x", (1, 3, 16, 16), (2, 3, 16, 16), (4, 3, 16, 16))
    config.add_optimization_profile(profile)
    cache = config.create_timing_cache(settings.timing_cache_file.read_bytes() if settings.timing_cache_file else b"")
    config.set_timing_cache(cache, False)
    engine = builder.build_serialized_network(parsed.network, config)
    return {
        "raised": "",
        "said": [*texts],  # before reading back, which has its own warnings
        "size": 0 if engine is None else len(memoryview(engine)),
        "layers": [str(layer.type) for layer in parsed.layers()],
        "applied": _read_back(trt, config),
    }


def _read_back(trt: Any, config: Any) -> dict[str, Any]:
    result = {"timings": len(config.get_timing_cache().queryKeys()), "DLA_core": config.DLA_core}
    for pool, kind in trt.MemoryPoolType.__members__.items():
        result[pool] = config.get_memory_pool_limit(kind)
    for name in ("hardware_compatibility_level", "runtime_platform"):
        result[name] = getattr(config, name).name
    return result | {"build_route": getattr(config, "build_route", "")}


def _logger(trt: Any, texts: list[str]) -> Any:
    class Logger(trt.ILogger):  # type: ignore[misc]
        def __init__(self) -> None:
            trt.ILogger.__init__(self)

        def log(self, severity: Any, message: str) -> None:
            if severity.name in ("WARNING", "ERROR", "INTERNAL_ERROR"):
                texts.append(f"{severity.name}: {message}")

    return Logger()


if __name__ == "__main__":
    main()
