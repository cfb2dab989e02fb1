"""Two engines that are compared without running them, on the terminal."""

from __future__ import annotations

import click

from ndld_flow.base.quantities import counted, size
from ndld_flow.base.text import short_name
from ndld_flow.cli.terminal import hanging
from ndld_flow.records.engine_lock import EngineComparison, EngineVerdict

_COLOURS: dict[EngineVerdict, str] = {"identical": "green", "equal": "green", "undecided": "yellow", "different": "red"}


def print_engines(title: str, compared: EngineComparison) -> None:
    """Print the verdict with its differences and their causes."""
    verdict = click.style(compared.verdict, fg=_COLOURS[compared.verdict], bold=True)
    about = counted(compared.layer_count, "layer")
    if compared.after_bytes is not None:
        about += f", {size(compared.after_bytes)}"
    click.echo(f"{short_name(title, 200)}: {verdict}, {about}")
    for difference in compared.differences:
        click.echo(hanging("  ", difference))
    for cause in compared.causes:
        click.echo(hanging("  cause: ", cause))
