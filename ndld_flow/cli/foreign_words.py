"""Verbs and options of other tools, and what the command line has instead: trtexec, Polygraphy, Hydra, Olive."""

from __future__ import annotations

from collections.abc import Mapping

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
    **dict.fromkeys(
        ("config", "config-name", "cn", "recipe", "file"),
        "the recipe is named without an option: `ndld-flow run RECIPE.yaml`",
    ),
    **dict.fromkeys(("cfg", "info"), "`--print` prints the composed recipe, `--defaults` the files that it is made of"),
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
    if name == "o" and verb == "init":
        return "`init MODEL.onnx RECIPE.yaml` names the recipe, and `run RECIPE.yaml -o RESULT.onnx` the result"
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
