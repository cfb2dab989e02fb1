"""`ndld-flow schema`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ndld_flow import api
from ndld_flow.base.text import escaped_json
from ndld_flow.cli.options import NamedPath, files_option


@click.command("schema")
@click.argument("target", required=False, type=NamedPath(dir_okay=False, path_type=Path))
@files_option
@click.option(
    "--verb",
    metavar="VERB",
    help="The schema of what this verb prints with --json, instead of recipes.",
)
def command(target: Path | None, files: tuple[Path, ...], verb: str | None) -> None:
    """Write the JSON Schema of recipes, for editors: to standard output, or to the file TARGET.

    For editors with the YAML language server, put this on the first line of a recipe:

    \b
      # yaml-language-server: $schema=ndld-flow.schema.json
    """
    schema = api.schema(files, verb=verb, to=target)
    click.echo(escaped_json(json.dumps(schema, indent=1, ensure_ascii=False)) if target is None else target)
