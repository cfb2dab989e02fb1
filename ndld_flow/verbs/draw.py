"""`ndld-flow draw`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click

from ndld_flow import api

HELP = """Draw the graph of a model or an engine as a picture or a page.

\b
  ndld-flow draw model.onnx                        model.svg in the current directory
  ndld-flow draw model.onnx -o graph.png --scale 2
  ndld-flow draw model.onnx -o slide.svg --direction right --background transparent
  ndld-flow draw model.onnx --depth 1              bodies of If, Loop and functions drawn in place
  ndld-flow draw model.onnx --subgraph If_0/then_branch -o then.svg
  ndld-flow draw model.onnx -o model.html          a page: opens bodies, searches, shows attributes and tensors
  ndld-flow draw model.trt.json                    layers of an engine, from its inspector, or of a profile

Operators are coloured by family. Edges are labelled with the shapes that shape inference finds; dimensions keep their
names, and long names become d1, d2, ... with a key below the title. Nodes show their most important attributes: kernel
and stride, the axis, the constant that they add. A stack of two sheets marks a node with a body. A graph of hundreds of
layers is laid out in columns, and lines carry its tensors from one column to the next.

In a browser, an SVG shows the full name of the node under the pointer. Weights are not read, so that a model of many
gigabytes is drawn as quickly as a small one.

A page is one file that makes no requests. A click shows the details of a node or a tensor: attributes, shapes,
producers and consumers, statistics and the first values. Weights over 64 MiB show only their shape, and --no-values
omits all values. Enter or a double click opens a body, Backspace leaves it, / searches, and the address links to the
selection.
"""


@click.command("draw", help=HELP)
@click.argument("model", type=click.Path(path_type=Path), metavar="MODEL")
@click.option(
    "--output",
    "-o",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File to write; the suffix .svg, .png, .jpg or .html chooses the format.",
)
@click.option("--background", default="white", show_default=True, help="white, dark, transparent, or #rrggbb.")
@click.option("--palette", default="tol", show_default=True, help="tol, okabe-ito or grey; all are colour-blind-safe.")
@click.option("--direction", type=click.Choice(["down", "right"]), default="down", show_default=True)
@click.option("--columns/--strip", default=True, help="Lay out a long graph in columns, or in one strip.")
@click.option("--grid/--no-grid", default=False, help="Draw a faint grid behind the graph.")
@click.option("--legend/--no-legend", default=True, help="Draw the title, counts and colour key above the graph.")
@click.option("--title", default="", help="Title [default: the file's name].")
@click.option("--constants/--no-constants", default=False, help="Draw constants and initializers too.")
@click.option("--shapes/--no-shapes", default=True, help="Label edges with shapes and dtypes.")
@click.option("--values/--no-values", default=True, help="Include the values of constants and weights.")
@click.option("--depth", type=click.IntRange(0, 32), default=0, help="Draw bodies in place, down to this many levels.")
@click.option("--subgraph", default="", metavar="NAME", help="Draw only this body: NODE/ATTRIBUTE or a function.")
@click.option("--scale", type=float, default=1.0, show_default=True, help="Resolution of .png and .jpg; 1 is 96 dpi.")
def command(model: Path, output: Path | None, **choices: Any) -> None:  # noqa: ANN401 - click's options
    from ndld_flow.drawing.graph import Look, Reading

    def chosen(kind: type[Any]) -> dict[str, Any]:
        return {field.name: choices[field.name] for field in dataclasses.fields(kind)}

    click.echo(api.draw(model, output, reading=Reading(**chosen(Reading)), look=Look(**chosen(Look))))
