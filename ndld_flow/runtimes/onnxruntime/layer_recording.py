"""Recording of ONNX Runtime's profile of a model: passes in a session of their own, with its profiler on.

Recording reads no model, so that it can run in a worker process whose only heavy import is ONNX Runtime. `layer_pass`
reads the recordings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from ndld_flow.base.errors import BackendError, ModelError
from ndld_flow.models.tensors import Array
from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings, open_model
from ndld_flow.runtimes.protocol import RecordingPlan

WARMUP_PASSES = 2
"""Number of warm-up passes at the beginning of every recording, which do not count."""
OPTIMIZED = "optimized.onnx"
"""The model as ONNX Runtime ran it, in the folder of a recording; missing if the provider cannot write it."""
_EVENT_BUDGET = 250_000
"""Maximum number of events: a quarter of what ONNX Runtime keeps, about 200 MB of its JSON."""


def record_layers(
    path: Path,
    settings: SessionSettings,
    feeds: Mapping[str, Array],
    plan: RecordingPlan,
    folder: Path,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Path:
    """Run the model with the profiler on, and return the profile written to `folder`.

    Raises `ModelError` or `BackendError` as `open_model` does.
    """
    profiled = replace(settings, profile_prefix=folder / "passes", optimized_model=None)
    events = plan.events_per_pass
    if events is None:
        # The few events of loading the model are included.
        profile = _record(path, replace(profiled, profile_prefix=folder / "trial"), feeds, 1, lambda done, total: None)
        with profile.open("rb") as lines:
            events = sum(1 for _ in lines)
        profile.unlink()
    passes = max(1, min(plan.passes, _EVENT_BUDGET // max(1, events) - WARMUP_PASSES))
    if plan.keep_optimized:
        profiled = replace(profiled, optimized_model=folder / OPTIMIZED)
    return _record(path, profiled, feeds, WARMUP_PASSES + passes, progress)


def _record(
    path: Path, settings: SessionSettings, feeds: Mapping[str, Array], passes: int, progress: Callable[[int, int], None]
) -> Path:
    try:
        model = open_model(path, settings)
    except (ModelError, BackendError):
        # A provider that compiles nodes (TensorRT) cannot write the optimized model.
        if settings.optimized_model is None:
            raise
        model = open_model(path, replace(settings, optimized_model=None))
    try:
        binding = model.bind(feeds, on_device=True)
        for done in range(passes):
            binding.run()
            progress(done + 1, passes)
    finally:
        profile = Path(model.session.end_profiling())
    return profile
