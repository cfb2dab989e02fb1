"""Tries a model once at likely input sizes, in a separate process: some sizes crash native code or exhaust memory.

The parent writes `job.json`, and the worker `python -m ndld_flow.measure.trial_pass FOLDER` writes `answer.json`.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.base.text import joined, short_name
from ndld_flow.inputs import InputSpec
from ndld_flow.models.tensors import shape_text
from ndld_flow.processes.launch import run_worker_module
from ndld_flow.processes.worker import exit_worker, start_worker
from ndld_flow.samples.likely_inputs import LikelyInput

_JOB, _ANSWER = "job.json", "answer.json"
_PASSES, _PASSES_MS = 5, 300.0
"""Most passes that are timed, and the ms after which none starts."""
_TIME_S = 60.0
"""The process is killed after this time; after half of it, no further sizes are tried."""


@dataclass(frozen=True)
class InputTrial:
    """The outcome of a trial."""

    inputs: tuple[LikelyInput, ...]
    """The first inputs that the model accepted, or the most likely ones if it accepted none."""
    error: str = ""
    """The error at the most likely inputs, if the model accepted none."""
    pass_ms: float = 0.0
    """Duration of the accepted pass, the first of its session."""

    @property
    def free_sizes(self) -> str:
        """Return `x 1x3x224x224`: the shapes of the inputs whose sizes the model leaves free; empty without any."""
        free = [each for each in self.inputs if each.free and each.shape is not None]
        return joined([f"{short_name(each.spec.name)} {shape_text(each.shape or ())}" for each in free])


def try_inputs(
    model: Path,
    alternatives: Sequence[tuple[LikelyInput, ...]],
    progress: Callable[[int, int, str], None] = lambda *_: None,
) -> InputTrial:
    """Run a model once on the CPU with each alternative until one is accepted; at most a minute."""
    job = [{likely.spec.name: given_input(likely).model_dump_json() for likely in inputs} for inputs in alternatives]
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ndld-flow-trial-") as name:
        folder = Path(name)
        (folder / _JOB).write_text(json.dumps({"model": str(model.absolute()), "alternatives": job}), encoding="utf-8")
        ended = run_worker_module(__name__, folder, progress, timeout_s=_TIME_S)
        if not (folder / _ANSWER).exists():
            if time.monotonic() - started >= _TIME_S:
                return InputTrial(alternatives[0], f"{ended.doing} took longer than {_TIME_S:.0f} s")
            cause = ended.signal_name or ended.output[-300:]
            return InputTrial(alternatives[0], f"ONNX Runtime ended with {cause} while {ended.doing}")
        answer = json.loads((folder / _ANSWER).read_text(encoding="utf-8"))
    if answer["accepted"] is None:
        return InputTrial(alternatives[0], answer["error"])
    return InputTrial(alternatives[answer["accepted"]], pass_ms=answer["pass_ms"])


def given_input(likely: LikelyInput) -> InputSpec:
    """Return the entry of a recipe's `inputs:` for a likely input with generated values."""
    settings = InputSpec(shape=likely.shape, data=likely.data)
    return settings if likely.range is None else settings.model_copy(update={"range": tuple(map(float, likely.range))})


def main(folder: Path) -> None:
    """Run the job in the folder."""
    progress = start_worker()
    job = json.loads((folder / _JOB).read_text(encoding="utf-8"))
    answer = _try_all(Path(job["model"]), job["alternatives"], progress)
    (folder / _ANSWER).write_text(json.dumps(answer), encoding="utf-8")
    exit_worker()


def _try_all(
    model: Path, alternatives: Sequence[dict[str, str]], progress: Callable[[int, int, str], None]
) -> dict[str, object]:
    from ndld_flow.base.errors import NdldFlowError
    from ndld_flow.models.files import model_inputs
    from ndld_flow.runtimes.onnxruntime.onnxruntime_session import SessionSettings, open_model
    from ndld_flow.samples.feeds import make_feeds

    started, first_error = time.monotonic(), ""
    try:
        progress(0, len(alternatives), "opening the model")
        opened, specs = open_model(model, SessionSettings()), model_inputs(model)
    except NdldFlowError as error:
        return {"accepted": None, "error": str(error)}
    for index, alternative in enumerate(alternatives):
        progress(index, len(alternatives), "trying input sizes")
        try:
            given = {name: InputSpec.model_validate_json(values) for name, values in alternative.items()}
            bound = opened.bind({name: feed.values for name, feed in make_feeds(specs, given).items()})
            return {"accepted": index, "pass_ms": _time_pass(bound.run)}
        except NdldFlowError as error:
            first_error = first_error or str(error)
        if time.monotonic() - started > _TIME_S / 2:
            break
    return {"accepted": None, "error": first_error}


def _time_pass(run: Callable[[], object]) -> float:
    """Return the ms of the quickest of some passes: the first ones allocate memory, and others may disturb them."""
    passes: list[float] = []
    while not passes or (len(passes) < _PASSES and sum(passes) < _PASSES_MS):
        before = time.perf_counter()
        run()
        passes.append((time.perf_counter() - before) * 1e3)
    return min(passes)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
