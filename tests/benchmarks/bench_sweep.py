"""Print how good a search of CPU session settings is: TPE in a quarter of the points against the full grid, and Olive.

Usage: python -m tests.benchmarks.bench_sweep [--models det rec] [--passes 30] [--runs 12] [--olive PYTHON]

On PP-OCR's detector and recognizer, from their pinned wheel: all 32 combinations of threads, optimization level,
execution mode and memory arena, measured as `pipelines/sweep_cpu.yaml` does, and TPE with 8 points, each into outputs
of its own, so that nothing is reused. Then the winners are measured again in turns, `--runs` process runs each: the
ratio and its 95 % interval are what decide, as what each search says of its own winner is the luckiest of many.

Olive tunes the same model by the same number of points (OrtSessionParamsTuning, which has no memory arena) in an
environment of its own: `--olive`, or the variable OLIVE_PYTHON, names its python. It needs `olive-ai onnxruntime psutil
requests` there.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import JsonValue

from ndld_flow import api
from ndld_flow.profiles.compare.intervals import paired_ratio
from ndld_flow.profiles.compare.measured import run_values
from ndld_flow.records.profile import Profile
from ndld_flow.records.run_folder import read_sweep_record
from tests.support.samples import fetch_sample

SHAPES = {"det": [1, 3, 320, 320], "rec": [1, 3, 48, 320]}
LEVELS = {"basic": 1, "extended": 2, "layout": 3, "all": 99}
AXES: dict[str, list[JsonValue]] = {
    "speed.threads": [1, 2],
    "speed.optimization": [*LEVELS],
    "speed.execution": ["sequential", "parallel"],
    "speed.memory_arena": [True, False],
}
POINTS, PART = 32, 8
Settings = Mapping[str, JsonValue]


@dataclass(frozen=True)
class Winner:
    """Result and cost of a search."""

    name: str
    settings: Settings
    """Settings of the step `profile`."""
    points: int
    seconds: float


def recipe(model: str, steps: Settings, **more: JsonValue) -> JsonValue:
    inputs: JsonValue = {"x": {"shape": list(SHAPES[model]), "data": "random"}}
    return {"name": model, "model": str(fetch_sample(model)), "inputs": inputs, "steps": dict(steps), **more}


def measured(settings: Settings, runs: int, passes: int) -> JsonValue:
    fixed: dict[str, JsonValue] = {
        "step": "profile",
        "runs": runs,
        "passes": passes,
        "duration": 0,
        "stable": 0,
        "layer_passes": 0,
    }
    return {**fixed, "budget": "10 min", **settings}


def search(model: str, method: Settings, passes: int, folder: Path) -> Winner:
    """Run a sweep over all settings."""
    name = str(method["method"])
    path = folder / f"{name}.yaml"
    sweep: JsonValue = {"over": dict(AXES), "minimize": "speed.latency.min", **method}
    path.write_text(json.dumps(recipe(model, {"speed": measured({}, 3, passes)}, sweep=sweep)))
    began = time.perf_counter()
    done = api.sweep(path, outputs=folder / name)
    seconds = time.perf_counter() - began
    record = read_sweep_record(Path(done.folder))
    best = next(point for point in record.points if point.number == record.best)
    settings = {key.removeprefix("steps.speed."): value for key, value in best.changes.items()}
    return Winner(name, settings, len(record.points), seconds)


def tune_with_olive(model: str, python: str, folder: Path) -> Winner:
    """Let Olive tune the model. Raises CalledProcessError when it fails; its log is in the folder."""
    folder.mkdir()
    config = folder / "olive.json"
    config.write_text(json.dumps(olive_config(model, folder)))
    quiet = {**os.environ, "OLIVE_DISABLE_TELEMETRY": "1"}
    command = [python, "-m", "olive", "run", "--config", str(config), "--disable_telemetry"]
    began = time.perf_counter()
    with (folder / "log.txt").open("w") as log:
        subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=quiet, cwd=folder, check=True)
    seconds = time.perf_counter() - began
    tried = json.loads((folder / "out/footprint.json").read_text())
    chosen = json.loads((folder / "out/model_config.json").read_text())
    options = chosen["config"]["inference_settings"]["session_options"]
    words = {level: word for word, level in LEVELS.items()}
    settings: dict[str, JsonValue] = {
        "execution": "parallel" if options["execution_mode"] else "sequential",
        "optimization": words[options["graph_optimization_level"]],
        "threads": options.get("intra_op_num_threads", 0),
        "inter_op_threads": options.get("inter_op_num_threads", 0),
    }
    return Winner("olive", settings, len(tried) - 1, seconds)  # the first is the model as it came


def olive_config(model: str, folder: Path) -> JsonValue:
    def any_of(values: Sequence[JsonValue]) -> JsonValue:
        return {"olive_parameter_type": "SearchParameter", "type": "Categorical", "support": list(values)}

    data = {"type": "dummy_dataset", "input_shapes": [SHAPES[model]], "input_names": ["x"], "max_samples": 1}
    latency = {
        "name": "latency",
        "type": "latency",
        "data_config": "data",
        "sub_types": [{"name": "avg", "priority": 1}],
    }
    cpu: JsonValue = [{"device": "cpu", "execution_providers": ["CPUExecutionProvider"]}]
    tuning = {
        "type": "OrtSessionParamsTuning",
        "data_config": "data",
        "io_bind": False,
        "providers_list": "CPUExecutionProvider",
        "execution_mode_list": any_of([0, 1]),
        "opt_level_list": any_of([*LEVELS.values()]),
        "intra_thread_num_list": any_of(AXES["speed.threads"]),
    }
    document: dict[str, object] = {
        "input_model": {"type": "OnnxModel", "model_path": str(fetch_sample(model))},
        "systems": {"here": {"type": "LocalSystem", "accelerators": cpu}},
        "data_configs": [{"name": "data", "type": "DummyDataContainer", "load_dataset_config": data}],
        "evaluators": {"latency": {"type": "OnnxEvaluator", "metrics": [latency]}},
        "passes": {"tuning": tuning},
        "search_strategy": {"execution_order": "joint", "sampler": "tpe", "max_iter": PART},
        "evaluator": "latency",
        "host": "here",
        "target": "here",
        "cache_dir": str(folder / "cache"),
        "output_dir": str(folder / "out"),
    }
    return json.loads(json.dumps(document))  # type: ignore[no-any-return]


def measure_again(model: str, winners: Sequence[Winner], runs: int, folder: Path) -> dict[str, Profile]:
    """All winners, and ONNX Runtime's defaults, in turns."""
    settings: dict[str, Settings] = {"defaults": {}, **{winner.name: winner.settings for winner in winners}}
    steps = {name: measured(setting, runs, 20 * runs) for name, setting in settings.items()}
    path = folder / "again.yaml"
    path.write_text(json.dumps(recipe(model, steps)))
    done = api.run(path, outputs=folder / "again")
    return {name: Profile.model_validate_json(Path(done.folder, name, "profile.json").read_text()) for name in settings}


def tell(model: str, winners: Sequence[Winner], again: Mapping[str, Profile]) -> None:
    grid = run_values(again["grid"], "latency.min")
    took = {winner.name: f"{winner.points:3} points {winner.seconds:6.0f} s" for winner in winners}
    result = {
        winner.name: ", ".join(f"{name} {value}" for name, value in winner.settings.items()) for winner in winners
    }
    print(f"\n{model}: latency of each winner measured again in turns, and its ratio to the full grid's")
    for name, profile in again.items():
        ratio = paired_ratio(grid, run_values(profile, "latency.min"))
        latency = f"{profile.latency.min_ms:7.2f} ms (median {profile.latency.median_ms:.2f})"
        interval = f"{ratio.ratio:.3f} [{ratio.low:.3f}, {ratio.high:.3f}]"
        print(f"  {name:9}{took.get(name, ''):20}  {latency}  {interval}  {result.get(name, '')}", flush=True)


def main() -> None:
    options = read_options()
    for model in options.models:
        with tempfile.TemporaryDirectory() as temporary:
            folder = Path(temporary)
            winners = [
                search(model, {"method": "grid"}, options.passes, folder),
                search(model, {"method": "tpe", "points": PART}, options.passes, folder),
            ]
            if options.olive:
                winners.append(tune_with_olive(model, options.olive, folder / "olive"))
            tell(model, winners, measure_again(model, winners, options.runs, folder))
    if not options.olive:
        print("\nOlive was not asked: name the python of its environment by --olive or OLIVE_PYTHON.")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--models", nargs="+", choices=[*SHAPES], default=[*SHAPES])
    parser.add_argument("--passes", type=int, default=30, help="passes of each point, over three process runs")
    parser.add_argument("--runs", type=int, default=12, help="process runs of each winner in the end")
    parser.add_argument("--olive", default=os.environ.get("OLIVE_PYTHON", ""), help="python that has olive-ai")
    return parser.parse_args()


if __name__ == "__main__":
    main()
