"""Pydantic's errors in plain words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from ndld_flow.base.settings import describe_settings
from ndld_flow.base.text import suggest

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


Location = tuple[str | int, ...]


def explain_mistakes(error: ValidationError, model: type[BaseModel], data: object) -> Iterator[tuple[str, str, str]]:
    """Yield for each error in `data`: its dotted path, the value found and the values allowed, and a hint.

    Pydantic reports a value that matches none of several types once for each type; here that is one error.
    """
    by_place: dict[Location, list[Mapping[str, Any]]] = {}
    for detail in error.errors(include_url=False):
        by_place.setdefault(_real_location(detail, data), []).append(detail)
    for location, details in by_place.items():
        what, hint = _explain(details[0], location, model) if len(details) == 1 else (_explain_choice(details), "")
        yield ".".join(map(str, location)), what, hint or _say_meaning(model, location)


def _real_location(detail: Mapping[str, Any], data: object) -> Location:
    """Return an error's location without the type names that pydantic inserts."""
    kept: list[str | int] = []
    for part in detail["loc"]:
        inside = part in data if isinstance(data, dict) else isinstance(data, list) and part in range(len(data))
        if inside:
            data = data[part]  # type: ignore[index]
        if inside:
            kept.append(part)
    return (*kept, detail["loc"][-1]) if detail["type"] == "missing" else tuple(kept)


def _explain_choice(details: Sequence[Mapping[str, Any]]) -> str:
    """Describe a value that matches none of several types."""
    words = [
        detail["ctx"]["expected"] if detail["type"] == "literal_error" else EXPECTED.get(detail["type"], detail["msg"])
        for detail in details
    ]
    *most, last = dict.fromkeys(words)
    return f"expected {', '.join(most)}{' or ' if most else ''}{last}, found {_show(details[0]['input'])}"


def _explain(detail: Mapping[str, Any], location: Location, model: type[BaseModel]) -> tuple[str, str]:
    kind, found, context = detail["type"], detail["input"], detail.get("ctx", {})
    if kind == "extra_forbidden":
        fields = _model_at(model, location[:-1]).model_fields
        known = [info.alias or name for name, info in fields.items()]
        return f"there is no setting `{location[-1]}`", suggest(str(location[-1]), known)
    if kind == "missing":
        is_item = isinstance(location[-1], int)
        return (f"needs {location[-1] + 1} values or more" if is_item else f"`{location[-1]}` is missing"), ""  # type: ignore[operator]
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


def _say_meaning(model: type[BaseModel], location: Location) -> str:
    """Return the first sentence of the docstring of the setting at (or around) a location."""
    for depth in range(len(location), 0, -1):
        name = str(location[depth - 1])
        at = _model_at(model, location[: depth - 1])
        if name in at.model_fields:
            text = " ".join(describe_settings(at).get(name, "").split()).partition(". ")[0].rstrip(".")
            return f"{name}: {text}" if text else ""
    return ""


def _show(value: object) -> str:
    text = repr(value) if not isinstance(value, bool) else str(value).lower()
    return text if len(text) <= 80 else f"{text[:77]}..."


def _near_literal(found: object, allowed: str) -> str:
    names = [name.strip().strip("'") for name in allowed.replace(" or ", ", ").split(",")]
    hint = suggest(str(found), names)
    return hint if hint.startswith("did you mean") else ""


def _model_at(model: type[BaseModel], location: Location) -> type[BaseModel]:
    """Return the model at a location inside another model."""
    for part in location:
        choose = getattr(model, "model_at_key", None)  # an entry whose one key says which settings it has
        model = (choose and choose(str(part))) or model
        info = model.model_fields.get(str(part))
        inner = models_in(info.annotation) if info is not None else []  # a mapping's key names no field
        model = inner[0] if inner else model
    return model


def models_in(annotation: object) -> list[type[BaseModel]]:
    """Yield the models in a type annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in get_args(annotation) for model in models_in(argument)]
