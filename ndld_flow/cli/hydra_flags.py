"""Hydra's own flags, translated: `-cn`, `-cd`, `--cfg job` and `--info defaults` work as its users know them."""

from __future__ import annotations

from pathlib import Path

import click

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
