"""`ndld-flow fits`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ndld_flow.cli.options import json_option, print_json
from ndld_flow.cli.terminal import hanging

if TYPE_CHECKING:
    from ndld_flow.records.package import FitCheck, FitState, PackageFit

_COLOURS: dict[FitState, str] = {"fits": "green", "unknown": "yellow", "does not fit": "red"}

HELP = """Name the variant of a package for this machine.

PACKAGE is the .zip or the folder that a step `package` wrote. Every file is compared with its SHA-256, and each
variant's recorded requirements with this machine and this Python environment: runtime, execution provider, compute
capability, driver, CPU features, memory. No model is opened.

Of several variants that fit, the fastest is named only if all were measured on a machine like this one, with the
versions installed here; otherwise the first in the package's order. Exit code 0: a variant fits; 1: none fits; 4: none
is known to fit, because a requirement or a property of this machine is unknown.
"""


@click.command("fits", help=HELP, short_help="Name the variant of a package for this machine.")
@click.argument("package", type=click.Path(path_type=Path))
@json_option
def command(package: Path, as_json: bool) -> int:
    from ndld_flow import api

    fit = api.fits(package)
    if as_json:
        print_json("fits", fit)
    else:
        _print(fit)
    if fit.chosen is not None:
        return 0
    return 4 if any(variant.state == "unknown" for variant in fit.variants) else 1


def _print(fit: PackageFit) -> None:
    from ndld_flow.base.quantities import counted
    from ndld_flow.base.text import short_name

    version = f" {short_name(fit.package_version)}" if fit.package_version else ""
    click.echo(f"{short_name(fit.package)}{version}: {counted(fit.verified_count, 'file')} with their SHA-256")
    if fit.chosen is not None:
        click.echo(f"{click.style(short_name(fit.chosen), bold=True)}: {short_name(fit.basis, 1000)}")
    else:
        click.echo(click.style(short_name(fit.basis, 1000), fg="red"))
    for variant in fit.variants:
        state = click.style(variant.state, fg=_COLOURS[variant.state])
        click.echo(f"\n{short_name(variant.name)}: {state}")
        click.echo(hanging("  latency   ", short_name(variant.latency, 400)))
        click.echo(hanging("  accuracy  ", short_name(variant.accuracy, 400)))
        for check in variant.checks:
            _print_check(check)


def _print_check(check: FitCheck) -> None:
    from ndld_flow.base.text import short_name

    required, found = (short_name(text, 400) or "unknown" for text in (check.required, check.found))
    start = f"  {check.state:<12}  {check.name:<18}  "
    click.echo(hanging(start, f"requires {required}; found {found}", _COLOURS[check.state]))
