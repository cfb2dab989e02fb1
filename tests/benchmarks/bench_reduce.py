"""`reduce` on faults planted in models of others, and Polygraphy's `debug reduce` on the same: trials, nodes, seconds.

    python -m tests.benchmarks.bench_reduce [--count 30] [--only KIND] [--tool ours|rival] [--outcomes FILE.jsonl]

Each of the kinds (FP16 overflow, crash, refusal, two runtimes that differ, NaN, a gate on a metric, slowdown) is
planted in models of onnx's backend tests and of pinned wheels. Both tools ask the same oracle: the recipe must fail
with the same evidence. Polygraphy's check is answered by a warm process, as our own trials are, so that only trials and
nodes are compared; what its part reads from removed nodes is random, as Polygraphy has no values for it. The last lines
are for the goals: a median of at most 5 nodes, no larger result than Polygraphy's, a quarter of its trials; and the
time of a trial, and the CPU seconds of the reduced recipe in a new process.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import onnx
import yaml

from ndld_flow import api
from ndld_flow.base.errors import NdldFlowError
from ndld_flow.execution.events import Event, Notice
from ndld_flow.inputs import InputSpec
from ndld_flow.processes.fork_server import ForkServer
from ndld_flow.reduce.part import ReduceOptions, Whole
from ndld_flow.reduce.search import measure_quickly
from ndld_flow.reduce.trials import Stage, Trials
from tests.support.planted_faults import KINDS, STEP, Planted, count_nodes, models_to_plant_in, plant

_RIVAL_TIME_S = 100.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--only", choices=KINDS)
    parser.add_argument("--tool", choices=("ours", "rival"), help="measure only this one; by default both")
    parser.add_argument("--outcomes", type=Path, help="write a line for each model and tool, and skip those it has")
    options = parser.parse_args()
    lines = _read(options.outcomes)
    outcomes = options.outcomes.absolute() if options.outcomes else None
    _print_row("model", "fault", "nodes", "left", "trials", "s", "rival left", "rival trials", "rival s")
    tools = (options.tool,) if options.tool else ("ours", "rival")
    with tempfile.TemporaryDirectory() as scratch:
        os.environ["NDLD_FLOW_DEVICE_LOCKS"] = str(Path(scratch, "locks"))  # trials are counted: others may measure too
        Path(scratch, "locks").mkdir()
        for number, planted in enumerate(_planted(Path(scratch), options.only)):
            if sum("unsuitable" not in line for line in lines.values()) >= options.count and planted.name not in lines:
                break
            folder = Path(scratch, f"case-{number}")
            folder.mkdir()
            line = lines.setdefault(planted.name, {"name": planted.name, "kind": planted.kind})
            for tool in tools:
                if _MEASURED[tool] & line.keys():
                    continue
                found = _write(planted, folder) | (_ours() if tool == "ours" else _rival(planted))
                line |= found
                if outcomes:
                    with outcomes.open("a") as file:
                        file.write(json.dumps({"name": planted.name, "kind": planted.kind, **found}) + "\n")
            _print_line(line)
            os.chdir(scratch)
            shutil.rmtree(folder)
    _conclude([line for line in lines.values() if "unsuitable" not in line])


_MEASURED = {
    "ours": {"left", "error", "unsuitable"},
    "rival": {"rival_trials", "rival_error", "unsuitable"},
}
"""Tool -> keys; a line has one of them once that tool was measured."""


def _read(path: Path | None) -> dict[str, dict[str, Any]]:
    """Return the lines of earlier runs, those of both tools together."""
    lines: dict[str, dict[str, Any]] = {}
    for text in path.read_text().splitlines() if path is not None and path.exists() else ():
        line = json.loads(text)
        lines.setdefault(line["name"], {}).update(line)
    return lines


def _planted(folder: Path, only: str | None) -> Iterator[Planted]:
    """Yield models with faults, the kinds in turn; a model in which a kind cannot be planted gets the next one."""
    kinds = [only] if only else list(KINDS)
    count = 0
    for name, model, inputs in models_to_plant_in():
        for offset in range(len(kinds)):
            kind = kinds[(count + offset) % len(kinds)]
            if kind == "slowdown" and len(model.graph.node) > 120:
                continue  # its own latency is above the gate
            with suppress(ValueError, NdldFlowError, StopIteration):
                yield plant(name, kind, model, inputs, folder)
                count += 1
                break


def _write(planted: Planted, folder: Path) -> dict[str, Any]:
    """Write the model and its recipe to a folder, and enter it."""
    os.chdir(folder)
    onnx.save(planted.model, "model.onnx")
    Path("planted.py").write_text(STEP)
    recipe = {"model": "model.onnx", "inputs": planted.inputs, "steps_from": ["planted.py"], **planted.recipe}
    Path("recipe.yaml").write_text(yaml.safe_dump(recipe, sort_keys=False))
    return {"nodes": count_nodes(planted.model)}


def _ours() -> dict[str, Any]:
    times, trials = list[float](), list[str]()

    def listen(event: Event) -> None:
        if isinstance(event, Notice):
            trials.append(event.text)
            times.append(time.perf_counter())

    started = time.perf_counter()
    try:
        reduced = api.reduce("recipe.yaml", trust=True, to="small.zip", listener=listen, options=ReduceOptions())
    except NdldFlowError as error:
        # Values that the rest of the model hides, or a machine that is too fast: nothing to reduce.
        return {"unsuitable" if "does not fail" in str(error) else "error": str(error)}
    line: dict[str, Any] = {"left": reduced.nodes, "trials": reduced.trials, "s": time.perf_counter() - started}
    line["trial_s"] = statistics.median(after - before for before, after in pairwise(times)) if times[1:] else None
    line["log"] = trials
    subprocess.run([sys.executable, "-m", "zipfile", "-e", "small.zip", "."], check=True)
    line["cold"] = _cold_cpu_s()
    return line


def _cold_cpu_s() -> float:
    """Return the CPU seconds of the reduced recipe in a new process, as each trial was before."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [str(Path(sys.executable).with_name("ndld-flow")), "run", "recipe.yaml", "--trust"]
    subprocess.run(
        command, cwd="small", capture_output=True, check=False, env={**os.environ, "NDLD_FLOW_IN_PROCESS": "1"}
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _rival(planted: Planted) -> dict[str, Any]:
    """Reduce by Polygraphy, whose check asks this process through two named pipes."""
    recipe = measure_quickly({"gates": [], **planted.recipe})
    for pipe in ("ask", "answer"):
        os.mkfifo(pipe)
    short = {"name": "reduced", "gates": recipe.get("gates", []), "steps": recipe["steps"]}
    short["steps_from"] = [str(Path("planted.py").absolute())]
    checks: list[bool] = []
    with tempfile.TemporaryDirectory() as scratch, ForkServer(Path(scratch)) as server:
        whole = Path("model.onnx").absolute()
        trials = Trials(server, Path(scratch), Path(scratch, "journal"), True, False, 10**6, lambda *_: None)
        first = trials.run(_stage(whole, planted, short, Path(scratch, "v")), _all_nodes(whole))
        trials.reference = first.failures[0] if first.failures else None
        if trials.reference is None:
            return {"rival_error": f"its random inputs do not fail {first.error}"}
        threading.Thread(target=_answer, args=(trials, planted, short, checks), daemon=True).start()
        script = Path("check.sh")
        script.write_text("echo go > ask\nread code < answer\nexit $code\n")
        command = [
            sys.executable,
            "-c",
            "from polygraphy.tools import main; main()",
            "debug",
            "reduce",
            "model.onnx",
            "-o",
            "rival.onnx",
        ]
        shapes = [
            f"{name}:{spec['shape']}".replace(" ", "") for name, spec in planted.inputs.items() if "shape" in spec
        ]
        command += ["--model-input-shapes", *shapes] if shapes else []
        started = time.perf_counter()
        with suppress(subprocess.TimeoutExpired):
            subprocess.run(
                [*command, "--check", "sh", "check.sh"], capture_output=True, timeout=_RIVAL_TIME_S, check=False
            )
        took = time.perf_counter() - started
    path = Path("rival.onnx")
    left = count_nodes(onnx.load(path)) if path.exists() else None
    return {"rival_left": left, "rival_trials": len(checks), "rival_s": took}


def _all_nodes(path: Path) -> frozenset[int]:
    return frozenset(index for index, node in enumerate(onnx.load(path).graph.node) if node.op_type != "Constant")


def _stage(path: Path, planted: Planted, short: dict[str, Any], values: Path) -> Stage:
    inputs = {name: InputSpec.model_validate_json(json.dumps(spec)) for name, spec in planted.inputs.items()}
    own = {value.name for value in onnx.load(path).graph.input}
    whole = Whole(path=path, inputs={key: spec for key, spec in inputs.items() if key in own}, samples=1, values=values)
    return Stage("rival", whole, short)


def _answer(trials: Trials, planted: Planted, short: dict[str, Any], checks: list[bool]) -> None:
    """Answer each check: 1 if the recipe fails in the same way on the part."""
    path = Path("polygraphy_debug.onnx").absolute()
    while True:
        Path("ask").read_text()
        try:
            outcome = trials.run(
                _stage(path, planted, short, trials.scratch / f"values-{len(checks)}"), _all_nodes(path)
            )
            fails = trials.is_same(outcome)
        except Exception as error:
            print(f"  {planted.name}: {error}", file=sys.stderr)
            fails = False
        checks.append(fails)
        Path("answer").write_text(f"{int(fails)}\n")


def _print_line(line: dict[str, Any]) -> None:
    if reason := line.get("error") or line.get("unsuitable"):
        print(f"{line['name']:<44} {line['kind']:<10} {line['nodes']:>6}   {reason[:150]}", flush=True)
        return
    rival = [line.get("rival_left"), line.get("rival_trials"), line.get("rival_s")]
    _print_row(*(line.get(key) for key in ("name", "kind", "nodes", "left", "trials", "s")), *rival)


def _print_row(*cells: Any) -> None:
    shown = [f"{cell:.1f}" if isinstance(cell, float) else "-" if cell is None else str(cell) for cell in cells]
    widths = (44, 10, 6, 6, 6, 7, 10, 12, 8)
    print(
        " ".join(
            f"{cell:<{w}}" if w > 8 and i < 2 else f"{cell:>{w}}"
            for i, (cell, w) in enumerate(zip(shown, widths, strict=True))
        ),
        flush=True,
    )


def _conclude(lines: list[dict[str, Any]]) -> None:
    measured = [line for line in lines if "left" in line]
    if not measured:
        return

    def median(key: str, among: list[dict[str, Any]]) -> float:
        found = [line[key] for line in among if line.get(key) is not None]
        return statistics.median(found) if found else float("nan")

    most = max(line["left"] for line in measured)
    print(f"{len(measured)} of {len(lines)} reduced: median {median('left', measured):g} nodes, most {most}")
    print(f"of {median('nodes', measured):g}, in {median('trials', measured):g} trials")
    print(f"a trial: median {median('trial_s', measured):.2f} s of wall time")
    print(f"the reduced recipe in a new process: median {median('cold', measured):.2f} s of CPU")
    both = [line for line in measured if line.get("rival_left") is not None]
    if both:
        larger = [line["name"] for line in both if line["left"] > line["rival_left"]]
        share = sum(line["trials"] for line in both) / sum(line["rival_trials"] for line in both)
        print(f"Polygraphy returned a model for {len(both)}: median {median('rival_left', both):g} nodes")
        print(
            f"in {median('rival_trials', both):g} trials; ours: {median('left', both):g} in {median('trials', both):g}"
        )
        print(f"ours are larger on {len(larger)}; all our trials are {share:.2f} of all of its: {', '.join(larger)}")


if __name__ == "__main__":
    main()
