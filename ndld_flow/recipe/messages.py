"""Say a pydantic mistake as a person would."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, get_args

from pydantic import BaseModel

from ndld_flow.nearest import say_nearest

EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "none_required": "nothing (null)",
}
BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}


def explain_mistake(detail: Mapping[str, Any], model: type[BaseModel]) -> tuple[str, str]:
    """What was found and what is allowed, and a hint, for one entry of `ValidationError.errors()`."""
    kind, found, context = detail["type"], detail["input"], detail.get("ctx", {})
    location = detail["loc"]
    if kind == "extra_forbidden":
        known = _fields_at(model, location[:-1])
        return f"there is no setting `{location[-1]}`", say_nearest(str(location[-1]), known)
    if kind == "missing":
        return f"`{location[-1]}` is missing", ""
    if kind == "literal_error":
        allowed = context["expected"]
        return f"found {_show(found)}, allowed are {allowed}", _near_literal(found, allowed)
    if kind in BOUNDS:
        bound, words = BOUNDS[kind]
        return f"found {_show(found)}, allowed is {words} {context[bound]}", ""
    if kind in EXPECTED:
        return f"expected {EXPECTED[kind]}, found {_show(found)}", ""
    if kind == "value_error":
        return str(context["error"]), ""
    if kind == "string_pattern_mismatch":
        return f"found {_show(found)}, which does not have the form {context['pattern']}", ""
    return f"{detail['msg'][0].lower()}{detail['msg'][1:]}, found {_show(found)}", ""


def _show(value: object) -> str:
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= 80 else f"{text[:77]}..."


def _near_literal(found: object, allowed: str) -> str:
    names = [name.strip().strip("'") for name in allowed.replace(" or ", ", ").split(",")]
    hint = say_nearest(str(found), names)
    return hint if hint.startswith("did you mean") else ""


def _fields_at(model: type[BaseModel], location: Iterable[Any]) -> list[str]:
    """Settings that the model at a location inside another model has."""
    for part in location:
        info = model.model_fields.get(str(part))
        inner = models_in(info.annotation) if info is not None else []  # a mapping's key names no field
        model = inner[0] if inner else model
    return list(model.model_fields)


def models_in(annotation: object) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in models_in(argument)]
