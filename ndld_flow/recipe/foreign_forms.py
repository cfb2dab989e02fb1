"""Keys and forms of other tools, and what to write instead: GitHub Actions, docker-compose, Hydra, shells."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

_IN_ORDER = "steps run in the order of the recipe; `from: STEP` names the step whose result is read"
_SETTINGS = "write the settings beside `step:`"
_ALWAYS = "a step has no condition; leave it out of one run with '~steps.NAME'"
_RESULT = "write `export: {PATH: STEP}` at the root of the recipe, or run it with `-o PATH`"
_LIMIT = "only steps of a sweep have a time limit: `sweep: {timeout: 10 min}`"
OF_STEP: Mapping[str, str] = {
    **dict.fromkeys(("needs", "dependson", "requires", "after"), _IN_ORDER),
    **dict.fromkeys(("with", "params", "parameters", "args", "config", "settings"), _SETTINGS),
    **dict.fromkeys(("if", "when", "condition", "continueonerror"), _ALWAYS),
    **dict.fromkeys(("output", "out", "save", "saveengine", "artifacts"), _RESULT),
    **dict.fromkeys(("timeout", "timeoutminutes"), _LIMIT),
}
"""Word of another tool in a step, without case and punctuation -> hint."""
OF_RECIPE: Mapping[str, str] = {
    **dict.fromkeys(("matrix", "strategy", "grid"), "write `sweep: {over: {steps.NAME.SETTING: [1, 2]}}`"),
    **dict.fromkeys(("env", "environment", "variables", "vars"), "write `${oc.env:NAME}` where a value is used"),
    **dict.fromkeys(("version", "on", "trigger"), "a recipe needs no such key: leave it out"),
    "output": "write `export: {PATH: STEP}`, or run with `-o PATH`",
}
"""The same at the root of a recipe."""
SHORT_VALUES: Mapping[str, str] = {
    **dict.fromkeys(("trt", "tensorrtexecutionprovider"), "tensorrt"),
    **dict.fromkeys(("ort", "onnx"), "onnxruntime"),
    **dict.fromkeys(("rtx", "trtrtx"), "tensorrt_rtx"),
    **dict.fromkeys(("ov", "openvinoexecutionprovider"), "openvino"),
    **dict.fromkeys(("cudaexecutionprovider", "nvidia"), "cuda"),
}
"""Short names of values, without case and punctuation -> the value."""
_TYPE_KEYS = ("uses", "type", "op", "action", "_target_", "kind")
"""Keys that hold the type of a step elsewhere."""


def plain_word(word: str) -> str:
    """Return a word without case, dashes and underscores, in which tools differ."""
    return re.sub(r"[^a-z0-9]", "", word.lower())


def hint_at_type(entry: Mapping[str, Any], known: Sequence[str]) -> str:
    """Return a hint for a step without a type, whose type may be where another tool has it."""
    for key in _TYPE_KEYS:
        if str(entry.get(key)) in known:
            return f"write `step: {entry[key]}` instead of `{key}: {entry[key]}`"
    joined = next((key for key, value in entry.items() if value is None and ":" in str(key)), None)
    if joined is not None:
        key, _, value = str(joined).partition(":")
        return f"write a space after the colon: `{key}: {value}`"
    return ""


def hint_at_form(kind: str, value: object, setting: str) -> str:
    """Return how to write a value of the wrong form; `kind` is pydantic's name of the error."""
    if kind == "dict_type" and isinstance(value, list):
        return "write `NAME: {...}` for each item, without the dash"
    if kind == "model_type" and isinstance(value, list) and all(isinstance(size, int) for size in value):
        return f"write `{{shape: {value}}}`"
    if kind in ("list_type", "tuple_type") and isinstance(value, str):
        sizes = re.fullmatch(r"\s*\d+(\s*[x,]\s*\d+)+\s*", value)
        return f"write [{', '.join(re.findall(r'[0-9]+', value))}]" if sizes else f"write a list: `{setting}: [...]`"
    if kind in ("int_type", "float_type") and isinstance(value, str) and re.fullmatch(r"-?[\d.]+", value):
        return f"write {value} without quotes"
    if kind == "string_type" and isinstance(value, bool):
        return f"write {'`on` or `yes`' if value else '`off` or `no`'} in quotes, if you mean the word"
    if kind == "bool_type" and str(value).lower() in ("on", "off", "yes", "no", "1", "0", "true", "false"):
        return f"write {'true' if str(value).lower() in ('on', 'yes', '1', 'true') else 'false'}"
    return ""


def hint_at_variable(text: str) -> str:
    """Return how a recipe reads an environment variable, for text in the form of a shell, of GitHub or of old Hydra."""
    match = re.search(
        r"\$\{\{\s*(?:env|secrets|vars)\.(\w+)\s*\}\}|\$\{env:(\w+)[,}]|^\$(\w+)|\$\{([A-Z_0-9]+)\}", text
    )
    if match is None:
        return ""
    name = next(group for group in match.groups() if group)
    return f"an environment variable is written ${{oc.env:{name}}}, and read with --trust"


def hint_at_override(override: str) -> str:
    """Return what is wrong with an override that is none in Hydra's grammar; empty if that is not clear."""
    if re.fullmatch(r"[\w./-]+\.(ya?ml|onnx)", override):
        return "one recipe runs at a time, and its model is in it: `model=PATH` replaces that"
    if re.fullmatch(r"[\w.]+:[^=]+", override):
        return f"write {override.replace(':', '=', 1)}"
    if re.fullmatch(r"[+~]*[\w.]+|=.*", override):
        return "write KEY=VALUE without spaces around `=`, or ~KEY to remove"
    return ""
