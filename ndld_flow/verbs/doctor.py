"""Check what works on this machine, and how to install the rest.

Execution providers are loaded, not only listed, and TensorRT builds and runs an engine if it can. The exit code is
1 if something that every run needs is broken. With --on, ndld-flow is installed on the target if it is missing.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ndld_flow.cli.options import Given, json_option, options_of, outputs_option, print_json, print_notices
from ndld_flow.cli.public_functions import DEFAULT_OUTPUTS, VerbOutput, public
from ndld_flow.cli.terminal import hanging
from ndld_flow.execution.listener import Listener, ignore

if TYPE_CHECKING:
    from ndld_flow.machine.host import Check


SHOWN = {"ok": ("ok     ", "green"), "absent": ("absent ", "yellow"), "broken": ("BROKEN ", "red")}

OUTPUT: VerbOutput[list[Check]] = VerbOutput(__name__, "The result of each check.")


@click.option(
    "--library",
    type=click.Path(path_type=Path),
    metavar="FOLDER",
    help="Examine this TensorRT: a virtual environment or an unpacked archive (its code runs).",
)
@click.option("--on", default="", metavar="TARGET", help="Check this target: a name in the settings, or ssh://HOST.")
@public
def doctor(
    *,
    outputs: str | Path = DEFAULT_OUTPUTS,
    library: str | Path | None = None,
    on: str = "",
    listener: Listener | None = None,
) -> list[Check]:
    """Check what works on this machine, with the TensorRT in `library` if given (its code runs); or `on` a target."""
    from ndld_flow.execution.doctor import examine

    if on:
        from ndld_flow.execution.ssh.targets import examine_target

        return examine_target(on, listener or ignore)
    return examine(Path(outputs), None if library is None else Path(library))


@click.command("doctor", help=__doc__, params=options_of(doctor))
@outputs_option
@json_option
def command(as_json: bool, **options: Given) -> int:
    if options["on"] and options["library"] is not None:
        raise click.UsageError("--library examines a TensorRT on this machine: remove it, or --on.")
    checks = doctor(**options, listener=print_notices)
    if as_json:
        print_json(OUTPUT, checks)
    else:
        width = max(len(check.name) for check in checks)
        for check in checks:
            text, colour = SHOWN[check.state]
            start = f"{text} {check.name:<{width}}  "
            click.echo(click.style(text, fg=colour) + hanging(start, check.found)[len(text) :])
            if check.advice:
                click.echo(hanging(f"{'':<8}{'':<{width}}  ", f"-> {check.advice}"))
    return 1 if any(check.state == "broken" for check in checks) else 0
