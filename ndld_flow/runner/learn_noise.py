"""Learn how much repeated measurements of one model differ on this machine."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from pydantic import JsonValue

from ndld_flow.base.errors import RequestError, require_utf8
from ndld_flow.profiles.compare.measured import Rules
from ndld_flow.profiles.compare.noise import learn_thresholds, noise_samples
from ndld_flow.profiles.compare.rounds import spread_of
from ndld_flow.records.noise import Noise
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import read_run
from ndld_flow.runner.events import Listener, ignore
from ndld_flow.runner.outputs import Outputs
from ndld_flow.runner.profile_model import override_profile
from ndld_flow.runner.references import read_noise
from ndld_flow.runner.request import request_recipe
from ndld_flow.runner.run import run_alone
from ndld_flow.store.digest import digest_json
from ndld_flow.store.files import write_text_atomically

MODEL = "package:onnx/backend/test/data/light/light_resnet50.onnx"
"""The default model: a ResNet-50 that comes with onnx."""
PAIRS = 5
"""Process runs per side in one comparison, the default of `profile`."""
FEWEST_COMPARISONS = 3
"""The next comparison exceeds the largest of n with probability 1 / (n + 1): fewer are useless."""
ROUNDS = 12
"""Rounds in which the model alternates with itself; `compare_profiles` can start from their spread."""
RUN_S = 0.5
"""Duration of each process run, the default of `profile`."""


def learn_noise(
    model: str = MODEL,
    settings: Sequence[str] = (),
    *,
    comparisons: int = 8,
    outputs: Path = Path("outputs"),
    listener: Listener = ignore,
) -> Noise:
    """Compare a model with itself repeatedly, and store thresholds for comparisons on this machine.

    `settings` are those of the step `profile` (for both sides) and the recipe's inputs. Raises NdldFlowError as
    `run_alone` does, and RequestError for fewer than `FEWEST_COMPARISONS`, requested or measured.
    """
    _check_request(settings, comparisons)
    list(read_noise(Outputs(outputs)))  # raises before minutes of work
    runs = PAIRS * comparisons
    overrides = [
        each for setting in settings for each in (override_profile(setting, "a"), override_profile(setting, "b"))
    ]
    require_utf8(model)
    recipe = _write_recipe(model, runs)
    request = request_recipe(recipe, tuple(dict.fromkeys(overrides)), outputs=outputs, force=("all",))
    finished = run_alone(request, listener)
    documents = read_run(Path(finished.folder))
    noise = _learn(documents.profiles["a"], documents.profiles["b"], model)
    rounds = documents.comparisons["rounds"].profiles[0].rounds
    if rounds is not None:
        noise = noise.model_copy(update={"rounds_spread": spread_of(rounds)})
    machine = digest_json(noise.machine.model_dump(mode="json"))[:12]
    path = Outputs(outputs).noise / f"{noise.backend}-{noise.provider}-{machine}.json"
    write_text_atomically(path, noise.to_json())
    return noise


def _write_recipe(model: str, runs: int) -> dict[str, JsonValue]:
    side: dict[str, JsonValue] = {
        "step": "profile",
        "from": "source",
        "runs": runs,
        "duration": f"{RUN_S * runs} s",
        "stable": "0 %",
        "budget": "1 h",
        "layer_passes": 0,
    }
    rounds: dict[str, JsonValue] = {
        "step": "compare_profiles",
        "base": "a",
        "from": "b",
        "min_rounds": ROUNDS,
        "rounds": ROUNDS,
        "budget": "1 h",
    }
    return {
        "name": "noise",
        "description": "the same model as two that take turns",
        "model": model,
        "steps": {"a": side, "b": side, "rounds": rounds},
    }


def _check_request(settings: Sequence[str], comparisons: int) -> None:
    if comparisons < FEWEST_COMPARISONS:
        raise RequestError(f"noise: {comparisons} comparisons are too few. Use at least {FEWEST_COMPARISONS}.")
    for setting in settings:
        if setting.partition("=")[0] == "runs":
            raise RequestError(
                f"{setting}: `noise` sets `runs` itself, {PAIRS} per comparison. Set the number of comparisons with "
                "--comparisons instead."
            )


def _learn(a: Profile, b: Profile, model: str) -> Noise:
    samples = noise_samples(a, b, PAIRS)
    if len(samples) < FEWEST_COMPARISONS:
        raise RequestError(
            f"noise of {model}: {min(len(a.runs), len(b.runs))} process runs per side were measured, enough for "
            f"{len(samples)} comparisons of {PAIRS}, and fewer than {FEWEST_COMPARISONS} give no threshold. Nothing "
            "was kept. Raise or leave out `budget`, or lower `duration` and `passes`."
        )
    learned = learn_thresholds(samples)
    return Noise(
        machine=a.machine,
        backend=a.backend,
        provider=a.providers[0],
        model=model,
        measured_at=datetime.now(UTC),
        metric=Rules.metric,
        samples=tuple(samples),
        threshold=learned.threshold,
        run_cov=learned.run_cov,
        single_run_threshold=learned.single_run_threshold,
    )
