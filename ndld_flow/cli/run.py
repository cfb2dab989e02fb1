"""`ndld-flow run`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ndld_flow.cli.options import json_option, outputs_option, recipe_options
from ndld_flow.errors import NdldFlowError

HELP = """Run a recipe; what is done already is not done again.

Settings are changed on the spot in Hydra's grammar:

\b
  ndld-flow run pipelines/quickstart.yaml steps.speed.passes=500
  ndld-flow run pipelines/quickstart.yaml '~steps.lint'
  ndld-flow run my.yaml +steps.check.step=lint

The run's folder (report.html, run.json, each step's files) is written below outputs/runs/, and `latest` points to the
newest. Exit code 1 means that the work was done and a check, gate or step said no.
"""


@click.command("run", help=HELP)
@recipe_options
@outputs_option
@json_option
def command(
    recipe: Path, overrides: tuple[str, ...], force: tuple[str, ...], trust: bool, outputs: Path, as_json: bool
) -> int:
    from ndld_flow.cli.progress import choose_listener
    from ndld_flow.runner.events import RunRefused
    from ndld_flow.runner.run import run_recipe
    from ndld_flow.runner.state import Request

    request = Request(recipe, overrides, outputs, force, trust, ("ndld-flow", *sys.argv[1:]))
    with choose_listener(as_json=as_json) as listener:
        try:
            finished = run_recipe(request, listener)
        except NdldFlowError as error:
            listener(RunRefused(message=str(error), exit_code=error.exit_code))
            raise
    return 0 if finished.passed else 1
