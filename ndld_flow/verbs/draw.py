"""Draw the graph of a model or an engine as a picture or a page.

\b
  ndld-flow draw model.onnx                        # model.svg in the current directory
  ndld-flow draw model.onnx -o graph.png --scale 2
  ndld-flow draw model.onnx -o slide.svg --direction right --background transparent
  ndld-flow draw model.onnx --depth 1              # bodies of If, Loop and functions drawn in place
  ndld-flow draw model.onnx --subgraph If_0/then_branch -o then.svg
  ndld-flow draw model.onnx -o model.html          # a page: opens bodies, searches, shows attributes and tensors
  ndld-flow draw model.trt.json                    # layers of an engine, from its inspector, or of a profile

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

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ndld_flow.base.errors import RequestError, explaining_file
from ndld_flow.base.garbage_collection import paused_garbage_collection
from ndld_flow.cli.options import options_of, refuse_missing
from ndld_flow.cli.public_functions import public

if TYPE_CHECKING:
    from ndld_flow.drawing.graph import DrawnGraph, Look, Reading

READS_MODELS = True


@click.argument("model", type=click.Path(path_type=Path), metavar="MODEL")
@click.option(
    "--output",
    "-o",
    "target",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="File to write; the suffix .svg, .png, .jpg or .html chooses the format.",
)
@public
def draw(
    model: str | Path, target: str | Path | None = None, *, reading: Reading | None = None, look: Look | None = None
) -> Path:
    """Draw a model's graph, or an engine's, as SVG, PNG or JPEG, by the target's suffix; return the file's path.

    `model` is an ONNX file, or any profile with layers, such as the output of TensorRT's engine inspector. The default
    target is `<model>.svg` in the current directory. Weights are not read. A target with the suffix `.html` becomes a
    page that opens bodies, searches, and shows attributes and values; it reads weights below 64 MiB unless
    `reading.values` is False.
    """
    refuse_missing([model])
    from ndld_flow.drawing.draw import check_look, picture_bytes
    from ndld_flow.drawing.graph import Look, Reading
    from ndld_flow.store.files import write_bytes_atomically

    path = Path(target) if target is not None else Path(f"{Path(model).stem}.svg")
    if path.suffix.lower() in (".html", ".htm"):
        return _draw_page(Path(model), path, reading or Reading(), look or Look())
    check_look(path.suffix, look or Look())
    picture = picture_bytes(_read_graph(Path(model), reading or Reading()), path.suffix, look or Look())
    with explaining_file(path):
        write_bytes_atomically(path, picture)
    return path


def _read_graph(path: Path, reading: Reading) -> DrawnGraph:
    """Read the graph of a model, or the layers of an engine or a profile.

    Raises `RequestError` or `ModelError` if the file is none of these, has no layers, or lacks the parts in `reading`.
    """
    from ndld_flow.drawing.engine_graph import engine_graph
    from ndld_flow.profiles.read.read_profile import read_profile, recognize

    if recognize(path) is None:
        from ndld_flow.graph.drawn_graph import read_graph

        return read_graph(path, reading)
    if reading.depth or reading.subgraph or reading.constants:
        raise RequestError(f"{path}: layers have no bodies and no constants: remove depth, subgraph and constants.")
    profile = read_profile(path)
    if not profile.layers:
        raise RequestError(f"{path} has no layers to draw.")
    return engine_graph(profile, reading.title or path.name, reading.shapes)


def _draw_page(model: Path, target: Path, reading: Reading, look: Look) -> Path:
    """Write the page of a model and return its path.

    Raises `RequestError` for options that a page does not have, and for a file that is not a model; `ModelError` and
    `OutputsError` if it cannot be read or written.
    """
    from ndld_flow.profiles.read.read_profile import recognize

    fields = dataclasses.fields(look)
    asked = [field.name for field in fields if getattr(look, field.name) != field.default]
    asked += ["depth"] if reading.depth else []
    if asked:
        raise RequestError(
            f"{' and '.join(asked)}: these options are only for pictures. A page has its own theme, zoom and depth."
        )
    if recognize(model) is not None:
        raise RequestError(
            f"{model} contains layers of an engine or a profile: `ndld-flow report {model}` draws their page."
        )
    from ndld_flow.graph.drawn_graph import read_document

    with paused_garbage_collection():
        document = read_document(model, reading)
    from ndld_flow.report.model_page import write_model_page

    with explaining_file(target, "the page"):
        target.parent.mkdir(parents=True, exist_ok=True)
    return write_model_page(document, target)


@click.command("draw", help=__doc__, params=options_of(draw))
@click.option("--background", default="white", show_default=True, help="white, dark, transparent, or #rrggbb.")
@click.option("--palette", default="tol", show_default=True, help="tol, okabe-ito or grey; all are colour-blind-safe.")
@click.option("--direction", type=click.Choice(["down", "right"]), default="down", help="Where the data flow to.")
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
def command(model: Path, target: Path | None, **choices: Any) -> None:  # noqa: ANN401 - click's options
    from ndld_flow.drawing.graph import Look, Reading

    def chosen(kind: type[Any]) -> dict[str, Any]:
        return {field.name: choices[field.name] for field in dataclasses.fields(kind)}

    click.echo(draw(model, target, reading=Reading(**chosen(Reading)), look=Look(**chosen(Look))))
