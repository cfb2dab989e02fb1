"""`ndld-flow rebuild`."""

from __future__ import annotations

from pathlib import Path

import click

from ndld_flow.cli.completers import complete_runs
from ndld_flow.cli.options import json_option, outputs_option, print_json

HELP = """Build the engines of a run again, and show how they differ.

\b
  ndld-flow rebuild latest
  ndld-flow rebuild detector --step engine --times 3
  ndld-flow rebuild latest --check        # in CI: exit code 1 if an engine is not reproduced

Each engine is built from the stored model with the recorded settings and shapes. No timing cache is used, so that
TensorRT times every tactic again, unless the settings name a lock. The engines are compared by their bytes, layers,
precisions, formats and tactics; they are not run, and the new ones are removed again.

\b
Exit codes:  0 success; with --check: 1 if an engine differs, 4 if its bytes differ and its tactics are not known;
             2 the run has no such engine, or it cannot be built here
"""


@click.command("rebuild", help=HELP, short_help="Build the engines of a run again, and show how they differ.")
@click.argument("run", shell_complete=complete_runs)
@click.option("--step", default="", metavar="NAME", help="Build only the engine of this step.")
@click.option("--times", type=click.IntRange(1, 100), default=1, show_default=True, help="Number of builds of each.")
@click.option("--check", is_flag=True, help="Exit with code 1 if an engine differs.")
@click.option("--trust", is_flag=True, help="Allow the plugins and the library that the run's settings name.")
@outputs_option
@json_option
def command(run: str, step: str, times: int, check: bool, trust: bool, outputs: Path, as_json: bool) -> int:
    from ndld_flow import api

    def progress(engine: str, what: str) -> None:
        if not as_json:
            click.echo(f"{engine}: {what}", err=True)

    rebuilt = api.rebuild(run, step=step, times=times, outputs=outputs, trust=trust, progress=progress)
    if as_json:
        print_json("rebuild", rebuilt)
    else:
        from ndld_flow.cli.engine_comparison import print_engines

        for engine in rebuilt.engines:
            attempt = f" (build {engine.attempt} of {times})" if times > 1 else ""
            print_engines(f"{engine.step}{attempt}", engine.comparison)
    if not check:
        return 0
    return {True: 0, False: 1, None: 4}[rebuilt.is_reproduced]
