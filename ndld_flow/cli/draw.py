"""`ndld-flow draw`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from ndld_flow import api

HELP = """Draw the graph of a model or an engine as SVG, PNG, JPEG or a page.

\b
  ndld-flow draw model.onnx                        model.svg, here
  ndld-flow draw model.onnx -o graph.png --scale 2
  ndld-flow draw model.onnx -o slide.svg --direction right --background transparent
  ndld-flow draw model.onnx --depth 1              bodies of If, Loop and functions in their places
  ndld-flow draw model.onnx --subgraph If_0/then_branch -o then.svg
  ndld-flow draw model.onnx -o model.html          a page: opens bodies, searches, shows attributes and tensors
  ndld-flow draw model.trt.json                    layers of an engine, as its inspector tells them, or of a profile

Operators are coloured by family. Beside an edge stands its shape, as far as shape inference finds it; dimensions keep
their names, long names become d1, d2, ... and are explained below the title. Nodes say what matters about them: kernel
and stride, the axis, the constant they add. A stack of two sheets has a body inside. A graph of hundreds of layers is
set in columns, as a newspaper sets its text; lines carry its tensors from one column to the next.

In a browser an SVG shows a node's full name beside the pointer. Weights are not read: a model of many gigabytes is
drawn as quickly as a small one.

A page is one file that makes no request. A click tells all of a node or a tensor: attributes, shapes, who makes and
reads it, statistics and the first values; weights over 64 MiB are told by shape only, and --no-values leaves out what
any tensor holds. Enter or a double click opens a body, Backspace leaves it, / searches, and the address is a link to
what is chosen.
"""


@click.command("draw", help=HELP, short_help="Draw the graph of a model or an engine as SVG, PNG, JPEG or a page.")
@click.argument("model", type=click.Path(path_type=Path), metavar="MODEL")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Where to; .svg, .png, .jpg, .html say the format.",
)
@click.option("--background", default="white", show_default=True, help="white, dark, transparent, or #rrggbb.")
@click.option("--palette", default="tol", show_default=True, help="tol, okabe-ito or grey; all are colour-blind-safe.")
@click.option("--direction", type=click.Choice(["down", "right"]), default="down", show_default=True)
@click.option("--columns/--strip", default=True, help="Set a long graph in columns, or leave it one strip.")
@click.option("--grid/--no-grid", default=False, help="A faint grid behind it.")
@click.option("--legend/--no-legend", default=True, help="Title, figures and colours above it.")
@click.option("--title", default="", help="In place of the file's name.")
@click.option("--constants/--no-constants", default=False, help="Draw constants and initializers too.")
@click.option("--shapes/--no-shapes", default=True, help="Shapes and dtypes beside the edges.")
@click.option("--values/--no-values", default=True, help="What constants and weights hold.")
@click.option("--depth", type=click.IntRange(0, 32), default=0, help="Draw bodies in place, so many levels deep.")
@click.option("--subgraph", default="", metavar="NAME", help="Draw only this body: NODE/ATTRIBUTE or a function.")
@click.option("--scale", type=float, default=1.0, show_default=True, help="Pixels for each unit; 2 is 192 dpi.")
def command(model: Path, output: Path | None, **choices: Any) -> None:  # noqa: ANN401 - what click hands over
    from ndld_flow.drawing.choices import Look, Reading

    def chosen(kind: type[Any]) -> dict[str, Any]:
        return {field.name: choices[field.name] for field in dataclasses.fields(kind)}

    click.echo(api.draw(model, output, reading=Reading(**chosen(Reading)), look=Look(**chosen(Look))))
