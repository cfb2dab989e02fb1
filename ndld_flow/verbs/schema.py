"""Write the JSON Schema of recipes, for editors.

It is written to standard output, or to the file TARGET. For editors with the YAML language server, put this on the
first line of a recipe:

\b
  # yaml-language-server: $schema=ndld-flow.schema.json
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from ndld_flow.base.text import escaped_json
from ndld_flow.cli.options import NewFile, files_option
from ndld_flow.cli.public_functions import public
from ndld_flow.verbs.steps import steps


@public
def schema(
    files: Sequence[str | Path] = (), *, verb: str | None = None, to: str | Path | None = None
) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of recipes, including the steps in `files`.

    With `verb`, such as `plan`, it is the schema of what that verb prints with `--json`. The schema is also written to
    the file `to`.
    """
    if verb is not None:
        from ndld_flow.cli.verb_output import describe_output

        described = describe_output(verb)
    else:
        from ndld_flow.recipe.schema import describe_recipes

        described = describe_recipes(steps(files))
    if to is not None:
        from ndld_flow.base.errors import explaining_file
        from ndld_flow.store.files import write_text_atomically

        with explaining_file(Path(to)):
            write_text_atomically(Path(to), json.dumps(described, indent=1) + "\n")
    return described


@click.command("schema", help=__doc__)
@click.argument("target", required=False, type=NewFile(".json"))
@files_option
@click.option("--verb", metavar="VERB", help="The schema of what this verb prints with --json, instead of recipes.")
def command(target: Path | None, files: tuple[Path, ...], verb: str | None) -> None:
    described = schema(files, verb=verb, to=target)
    click.echo(escaped_json(json.dumps(described, indent=1, ensure_ascii=False)) if target is None else target)
