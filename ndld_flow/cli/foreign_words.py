"""Verbs and options of other tools, and what the command line has instead: trtexec, Polygraphy, Hydra, Olive.

Hydra's own flags are translated: `-cn`, `-cd`, `--cfg job` and `--info defaults` work as its users know them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import click

_VERBS: Mapping[str, str] = {
    **dict.fromkeys(("benchmark", "bench", "perf", "measure", "trtexec", "time"), "did you mean `profile`?"),
    "optimise": "did you mean `optimize`?",
    **dict.fromkeys(("convert", "fp16", "half"), "did you mean `convert_fp16`?"),
    **dict.fromkeys(("int8", "quantise"), "did you mean `quantize`?"),
    **dict.fromkeys(("simplify", "onnxsim", "slim", "fold"), "did you mean `sanitize`?"),
    "build": "did you mean `build_engine`?",
    "export": "did you mean `export_cpp` or `export_pytorch`?",
    **dict.fromkeys(("check", "validate"), "did you mean `lint` or `check_accuracy`?"),
    "accuracy": "did you mean `check_accuracy`?",
    **dict.fromkeys(("ls", "list", "log", "status"), "did you mean `runs`?"),
    **dict.fromkeys(("show", "info", "print", "model", "summary"), "did you mean `inspect`?"),
    **dict.fromkeys(("view", "visualize", "plot", "graph", "netron"), "did you mean `draw`?"),
    **dict.fromkeys(("clean", "prune", "delete", "rm"), "did you mean `gc`?"),
    **dict.fromkeys(("new", "create", "start"), "did you mean `init`?"),
    "help": "did you mean `--help`?",
}
_PRECISION = "precision is a step of the recipe; `ndld-flow init model.onnx --fp16` or `--int8` writes such a recipe"
_OPTIONS: Mapping[str, str] = {
    **dict.fromkeys(("fp16", "int8", "fp8", "bf16", "best", "precision"), _PRECISION),
    **dict.fromkeys(
        ("onnx", "model", "path", "input"), "a recipe names its model; `ndld-flow profile model.onnx` has none"
    ),
    **dict.fromkeys(("config", "recipe", "file"), "the recipe is named without an option: `ndld-flow run RECIPE.yaml`"),
    **dict.fromkeys(("multi-run", "sweep", "matrix"), "did you mean `--multirun`?"),
    **dict.fromkeys(("dry-run", "dryrun", "noop", "explain"), "`ndld-flow plan RECIPE.yaml` shows what a run would do"),
    **dict.fromkeys(("rerun", "clean"), "`--force all` computes every step again"),
    **dict.fromkeys(
        ("out", "output-dir", "output-path", "o"), "`-o` takes the result, `--outputs` the folder of the store"
    ),
    **dict.fromkeys(
        ("device", "gpu", "backend", "provider"), "this is a setting of steps, such as `steps.NAME.provider=cuda`"
    ),
    **dict.fromkeys(("log-level", "loglevel"), "`-v` prints the log of each step, `-q` only the verdict"),
}
_WITHOUT_RECIPE = ("profile", "noise")


def hint_at_verb(word: str) -> str:
    """Return the verb to use for a word that is none; empty if there is no clear one."""
    if word.endswith((".yaml", ".yml")):
        return f"did you mean `ndld-flow run {word}`?"
    if word.endswith(".onnx"):
        return f"`ndld-flow init {word}` writes a recipe for a model, `ndld-flow profile {word}` measures it"
    return _VERBS.get(word.lower(), "")


def hint_at_option(option: str, verb: str) -> str:
    """Return what to write instead of an option that a verb does not have; empty if there is nothing clear."""
    name = option.lstrip("-")
    if name == "o" and verb in _WITHOUT_RECIPE:
        return f"`{verb}` writes no model; `--outputs` names the folder of its run and report"
    if hint := _OPTIONS.get(name.lower()):
        return hint
    if verb in _WITHOUT_RECIPE:
        return f"settings are written without dashes: `{name}=VALUE`"
    if verb in ("run", "plan"):
        key = name if "." in name else f"steps.NAME.{name}"
        return f"settings are written without dashes: `{key}=VALUE`"
    return ""


_VALUES = {
    **dict.fromkeys(("--config-name", "-cn"), "name"),
    **dict.fromkeys(("--config-dir", "-cd", "--config-path", "-cp"), "folder"),
    "--cfg": "cfg",
    "-c": "cfg",
    "--info": "info",
    "-i": "info",
}
"""Flag -> what its value is."""
_PRINTS = {("cfg", "job"): "--print", ("info", "defaults"): "--defaults"}


class HydraCommand(click.Command):
    """A command whose first argument is a recipe, which Hydra's flags may name instead."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        return super().parse_args(ctx, translate(args))


def translate(args: list[str]) -> list[str]:
    """Return arguments without Hydra's flags. Raises UsageError for a value that such a flag cannot have here."""
    given, left, waiting = {}, [], list(args)
    while waiting:
        word = waiting.pop(0)
        flag, equals, value = word.partition("=")
        kind = _VALUES.get(flag if equals else word)
        if kind is None:
            left.append(word)
        else:
            given[kind] = value if equals else waiting.pop(0) if waiting else ""
    for kind in ("cfg", "info"):
        if kind in given:
            if (kind, given[kind]) not in _PRINTS:
                known = next(value for each, value in _PRINTS if each == kind)
                asked = f"--{kind} {given[kind]}".rstrip()
                raise click.UsageError(f"{asked}: only `--{kind} {known}` has a meaning here.")
            left.append(_PRINTS[kind, given[kind]])
    if "name" not in given:
        if "folder" in given:
            raise click.UsageError("--config-dir needs --config-name; or name the recipe by its path.")
        return left
    path = Path(given.get("folder", ""), given["name"])
    return [str(path if path.suffix in (".yaml", ".yml") else path.with_name(f"{path.name}.yaml")), *left]
