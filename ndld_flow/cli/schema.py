"""`ndld-flow schema`."""

from __future__ import annotations

import json
from pathlib import Path

import click

from ndld_flow import api
from ndld_flow.cli.options import NamedPath, files_option, print_json


@click.command("schema", short_help="Write the JSON Schema of recipes, for editors.")
@click.argument("target", required=False, type=NamedPath(dir_okay=False, path_type=Path))
@files_option
def command(target: Path | None, files: tuple[Path, ...]) -> None:
    """Write the JSON Schema of recipes, for editors: to standard output, or to the file TARGET.

    For editors with the YAML language server, put this on the first line of a recipe:

    \b
      # yaml-language-server: $schema=ndld-flow.schema.json
    """
    schema = api.schema(files)
    if target is None:
        print_json(schema)
        return
    from ndld_flow.runner.disk import explaining_file
    from ndld_flow.store.files import write_text_atomically

    with explaining_file(target):
        write_text_atomically(target, json.dumps(schema, indent=1) + "\n")
    click.echo(target)
