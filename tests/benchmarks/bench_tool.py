"""Print the cost of the tool itself: commands, a reused run beside other tools, installation, and a cold run.

Usage: python -m tests.benchmarks.bench_tool [--runs 5] [--only commands,others,install,cold]

- `commands`: help, schema, plan, steps, ops and a reused run of `quickstart`, over a Python that does nothing, each
  time with another environment variable, so that nothing can answer from memory; a plan with all steps to run; the
  libraries that a reused run needs, alone; and the number of modules that it has at its end. Compiled files are kept,
  as an installation has them.
- `others`: a pipeline of seven commands that is up to date, by ndld-flow, doit, DVC and ninja. These are installed into
  a temporary environment; one that cannot be installed is named.
- `install`: megabytes of the base installation, by package.
- `cold`: `fp16_for_gpu` in fresh stores, against a plain script that calls the steps directly: no recipe, no Hydra, no
  store, no records, no report.

Every cost is that of a whole process with its children, warmed up once; commands take turns (A B A B ...), so that a
machine whose speed drifts affects all alike. Medians are printed with their ranges, and the overhead as the median of
the pairs' ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.support.installation import build_distributions, install_wheel
from tests.support.models import make_cnn
from tests.support.recipes import load_recipe

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "pipelines/fp16_for_gpu.yaml"
QUICKSTART = "pipelines/quickstart.yaml"
TOOL = [sys.executable, "-m", "ndld_flow"]
BARE = [sys.executable, "-c", "pass"]
PARTS = ("commands", "others", "install", "cold")
COMMANDS = 7
"""Commands of the pipeline for other tools: each copies a file."""

PLAIN = """
import importlib, json, logging, sys
from pathlib import Path
from ndld_flow.store.kinds import Onnx
from ndld_flow.inputs import InputSpec
from ndld_flow.step import Context

model, work, calls = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
inputs = {"x": InputSpec(shape=(1, 3, 320, 320))}
made = {"source": Onnx(model, "source", "none")}
for name, module, cls, settings, reads, key in calls:
    out, scratch = work / name, work / f"{name}.scratch"
    out.mkdir(parents=True); scratch.mkdir()
    step = getattr(importlib.import_module(module), cls).model_validate_json(settings)
    read = {key: made[maker] for key, maker in reads.items()}
    log = logging.getLogger("plain")
    step.run(read[key], out, Context(name, inputs, read, scratch, log, lambda *_: None, caches=work / "caches"))
    kind = step.kinds()[1]
    made[name] = kind(out / kind.main, name, name)
"""

LISTING = """
import atexit, sys
atexit.register(lambda: print(*sys.modules, file=sys.stderr))
from ndld_flow.cli import main
main()
"""

LIBRARIES = """
import gc, os
gc.set_threshold(100_000)
os.environ["PYDANTIC_DISABLE_PLUGINS"] = "__all__"
import click, hydra, pydantic
class Settings(pydantic.BaseModel):
    value: int
Settings.model_validate_json('{"value": 1}')
with hydra.initialize_config_dir(os.path.abspath("pipelines"), version_base=None):
    hydra.compose("quickstart", overrides=["hydra.searchpath=[file://" + os.path.abspath("configs") + "]"])
"""
"""The libraries that every run imports and composes its recipe with: a lower limit of its cost."""


def describe_calls() -> str:
    """The recipe's steps as the plain script calls them, in JSON, read beforehand at no cost to it."""
    calls = []
    for step in load_recipe(RECIPE).steps:
        cls = step.type.cls
        settings = step.step.model_dump_json()
        calls.append([step.name, cls.__module__, cls.__name__, settings, step.reads, cls.read_key])
    return json.dumps(calls)


@dataclass(frozen=True)
class Cost:
    """Seconds of a process with its children."""

    wall: float
    cpu: float


@dataclass(frozen=True)
class Command:
    """A command and the folder in which it runs."""

    words: Sequence[object]
    folder: Path = ROOT


def measure(command: Command) -> Cost:
    """Return the cost of a command, which must succeed."""
    with tempfile.TemporaryFile() as printed:
        started = time.perf_counter()
        changed = {**os.environ, "NDLD_FLOW_BENCHMARK": str(time.time_ns()), "PYTHONDONTWRITEBYTECODE": ""}
        words = list(map(str, command.words))
        process = subprocess.Popen(words, cwd=command.folder, env=changed, stdout=printed, stderr=printed)
        _, status, usage = os.wait4(process.pid, 0)
        wall = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            printed.seek(0)
            text = printed.read().decode(errors="replace")[-2000:]
            sys.exit(f"{' '.join(map(str, command.words))} ended with {process.returncode}: {text}")
    return Cost(wall, usage.ru_utime + usage.ru_stime)


def measure_in_turn(commands: Mapping[str, Command], runs: int) -> dict[str, list[Cost]]:
    """Return the costs of each command: of `runs` rounds after one that is not counted."""
    rounds = [{name: measure(command) for name, command in commands.items()} for _ in range(runs + 1)]
    return {name: [item[name] for item in rounds[1:]] for name in commands}


def show(costs: Mapping[str, Sequence[Cost]], bare: str) -> None:
    """Print wall and CPU seconds, and CPU seconds over those of `bare`."""
    print(f"{'':<44} {'CPU s':>7} {'over Python':>12} {'x Python':>9} {'wall s':>8}")
    least = statistics.median(cost.cpu for cost in costs[bare])
    for name, samples in costs.items():
        cpu = statistics.median(cost.cpu for cost in samples)
        over, times = ("", "") if name == bare else (f"{cpu - least:.3f}", f"{cpu / least:.1f}")
        walls = [cost.wall for cost in samples]
        spread = f"({min(walls):.3f} .. {max(walls):.3f})"
        print(f"{name:<44} {cpu:7.3f} {over:>12} {times:>9} {statistics.median(walls):8.3f}   {spread}")


def bench_commands(runs: int, folder: Path) -> None:
    home = folder / "quickstart"  # which gets its result
    for name in ("configs", "pipelines"):
        shutil.copytree(ROOT / name, home / name)
    reused = Command([*TOOL, "run", QUICKSTART], home)
    measure(reused)
    commands = {
        "a Python that does nothing": Command(BARE),
        "--help": Command([*TOOL, "--help"]),
        "Hydra composes quickstart, pydantic, click": Command([sys.executable, "-c", LIBRARIES], home),
        "quickstart, everything reused": reused,
    }
    plan = [*TOOL, "plan", QUICKSTART]
    commands["plan of quickstart, all reused"] = Command(plan, home)
    commands["plan of quickstart, all to run"] = Command([*plan, "--force", "all"], home)
    for verb in ("schema", "steps", "ops"):
        commands[verb] = Command([*TOOL, verb])
    show(measure_in_turn(commands, runs), "a Python that does nothing")
    modules = imported_modules(reused)
    own = sum(name.partition(".")[0] == "ndld_flow" for name in modules)
    print(f"{'modules of the reused run at its end':<44} {len(modules):7}, {own} of ndld_flow")


def imported_modules(command: Command) -> list[str]:
    """Return all modules that a process has at the end of a command of the tool, those of Python's start included."""
    words = [sys.executable, "-c", LISTING, *map(str, command.words[3:])]
    done = subprocess.run(words, cwd=command.folder, check=True, capture_output=True, text=True)
    return done.stderr.splitlines()[-1].split()


def bench_others(runs: int, folder: Path) -> None:
    """Measure the same up-to-date pipeline: an ONNX file that is copied seven times, each time from the last copy."""
    environment = folder / "others"
    subprocess.run([sys.executable, "-m", "venv", environment], check=True)
    commands = {"a Python that does nothing": Command(BARE)}
    commands[f"ndld-flow run, {COMMANDS} x run_tool"] = write_recipe(folder / "ndld-flow")
    for name, write in (("doit", write_doit), ("dvc", write_dvc), ("ninja", write_ninja)):
        pip = [environment / "bin/python", "-m", "pip", "install", "--quiet", name]
        installed = subprocess.run(list(map(str, pip)), check=False, capture_output=True, text=True)
        if installed.returncode:
            reason = (installed.stderr.strip().splitlines() or ["no reason given"])[-1]
            print(f"{name:<44} not installed: {reason}")
            continue
        (folder / name).mkdir()
        make_cnn(folder / name / "0.onnx")
        version = subprocess.run(
            [environment / "bin/python", "-m", "pip", "show", name], check=True, capture_output=True, text=True
        ).stdout.split("Version: ")[1].split()[0]  # fmt: skip
        words = write(folder / name, environment / "bin")
        command = Command(words, folder / name)
        measure(command)
        check_nothing_to_do(command, folder / name)
        commands[f"{name} {version}"] = command
    show(measure_in_turn(commands, runs), "a Python that does nothing")


def check_nothing_to_do(command: Command, folder: Path) -> None:
    """Exit if the command computes again what is up to date, or would not notice a change."""
    last = folder / f"{COMMANDS}.onnx"
    before = last.stat().st_mtime_ns
    measure(command)
    if last.stat().st_mtime_ns != before:
        sys.exit(f"{command.words[0]} computed again what was up to date")
    (folder / "0.onnx").write_bytes((folder / "0.onnx").read_bytes() + b"\x72\x00")  # an empty metadata entry
    measure(command)
    if last.stat().st_mtime_ns == before:
        sys.exit(f"{command.words[0]} did not notice a change")


def write_recipe(folder: Path) -> Command:
    """Write the pipeline as a recipe, run it once, and return the command that runs it again."""
    folder.mkdir()
    make_cnn(folder / "0.onnx")
    steps = "".join(f"  copy{n}: {{step: run_tool, command: [cp, $Model, $Output]}}\n" for n in range(COMMANDS))
    (folder / "copies.yaml").write_text(f"name: copies\nmodel: 0.onnx\nsteps:\n{steps}")
    command = Command([*TOOL, "run", "copies.yaml", "--trust"], folder)
    measure(command)
    return command


def write_doit(folder: Path, programs: Path) -> list[object]:
    (folder / "dodo.py").write_text(
        "def task_copy():\n"
        f"    for n in range({COMMANDS}):\n"
        "        source, target = f'{n}.onnx', f'{n + 1}.onnx'\n"
        "        copy = {'actions': [['cp', source, target]], 'file_dep': [source], 'targets': [target]}\n"
        "        yield {'name': str(n), **copy}\n"
    )
    return [programs / "doit"]


def write_dvc(folder: Path, programs: Path) -> list[object]:
    subprocess.run([programs / "dvc", "init", "--no-scm", "--quiet"], cwd=folder, check=True, capture_output=True)
    subprocess.run([programs / "dvc", "config", "core.analytics", "false"], cwd=folder, check=True)
    stages = {
        f"copy{n}": {"cmd": f"cp {n}.onnx {n + 1}.onnx", "deps": [f"{n}.onnx"], "outs": [f"{n + 1}.onnx"]}
        for n in range(COMMANDS)
    }
    (folder / "dvc.yaml").write_text(json.dumps({"stages": stages}))
    return [programs / "dvc", "repro"]


def write_ninja(folder: Path, programs: Path) -> list[object]:
    copies = "".join(f"build {n + 1}.onnx: copy {n}.onnx\n" for n in range(COMMANDS))
    (folder / "build.ninja").write_text(f"rule copy\n  command = cp $in $out\n{copies}")
    return [programs / "ninja"]


def bench_install(folder: Path) -> None:
    wheel = next(build_distributions(folder / "dist").glob("*.whl"))
    sizes = install_wheel(folder / "base", wheel).sizes()
    print(f"{'base installation':<44} {sum(sizes.values()) / 1e6:7.1f} MB, without pip and setuptools")
    for name, size in sorted(sizes.items(), key=lambda item: -item[1]):
        print(f"  {name:<42} {size / 1e6:7.1f} MB")


def bench_cold(runs: int, folder: Path) -> None:
    """Measure cold runs of `fp16_for_gpu` in fresh stores (the fetched model kept), against the plain script."""
    outputs = folder / "outputs"
    if not outputs.exists():
        measure(Command([*TOOL, "run", RECIPE, "--outputs", outputs]))
    model = fetched_model(outputs)
    recipe = folder / "fp16_for_gpu.yaml"
    text = RECIPE.read_text()
    source = next(line for line in text.splitlines() if "source: pypi:" in line)
    recipe.write_text(text.replace(source, f"  source: {model}"))
    shutil.copytree(ROOT / "configs", folder / "configs")
    calls = describe_calls()
    tool, plain = [], []
    for index in range(runs + 1):
        tool.append(measure(Command([*TOOL, "run", recipe, "--outputs", folder / f"cold-{index}"])))
        plain.append(measure(Command([sys.executable, "-c", PLAIN, model, folder / f"plain-{index}", calls])))
    bare = [measure(Command(BARE)) for _ in range(runs)]
    costs = {
        "a Python that does nothing": bare,
        "fp16_for_gpu, cold": tool[1:],
        "the same calls in a script": plain[1:],
    }
    show(costs, "a Python that does nothing")
    ratios = [a.wall / b.wall for a, b in zip(tool[1:], plain[1:], strict=True)]
    print(f"{'own overhead':<44} {statistics.median(ratios) - 1:7.1%} of the wall time")


def fetched_model(outputs: Path) -> Path:
    """The recipe's model, as an earlier run left it in the store."""
    return max((outputs / "store/objects").glob("*/*/model.onnx"), key=lambda path: path.stat().st_size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5, help="counted runs of each command")
    parser.add_argument("--only", default=",".join(PARTS), help="parts to print, separated by commas")
    options = parser.parse_args()
    runs, chosen = options.runs, options.only.split(",")
    if unknown := sorted(set(chosen) - set(PARTS)):
        parser.error(f"--only: there is no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory(prefix="ndld_flow-bench-") as name:
        folder = Path(name)
        parts = {
            "commands": lambda: bench_commands(runs, folder),
            "others": lambda: bench_others(runs, folder),
            "install": lambda: bench_install(folder),
            "cold": lambda: bench_cold(runs, folder),
        }
        for part in chosen:
            print(f"\n{part}")
            parts[part]()


if __name__ == "__main__":
    main()
