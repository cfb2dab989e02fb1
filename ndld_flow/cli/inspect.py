"""`ndld-flow inspect`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ndld_flow.base.errors import RequestError
from ndld_flow.cli.options import Command, json_option, outputs_option, print_json

if TYPE_CHECKING:
    from ndld_flow.graph.inspect.inspect_model import Query

HELP = """Look things up in a model: its summary, nodes, tensors, weights.

\b
  ndld-flow inspect model.onnx                              inputs, outputs, operators, weights, files
  ndld-flow inspect quickstart:half                         the model that a run's step made
  ndld-flow inspect model.onnx --nodes 'conv_*'             nodes with attributes and shapes
  ndld-flow inspect model.onnx --op-type Conv --attribute group=1
  ndld-flow inspect model.onnx --between image logits
  ndld-flow inspect model.onnx --node conv_1                one, with who makes and reads its tensors
  ndld-flow inspect model.onnx --tensors '*scale*'
  ndld-flow inspect model.onnx --initializers --larger-than 1MiB --stats
  ndld-flow inspect model.onnx --tensor w_0 --export w_0.npy
  ndld-flow inspect model.onnx --group-by op_type

Patterns are a name, a glob, or a regular expression between slashes (in RE2's syntax); options of one kind may be
repeated, and what fits one of them fits. They are the words of `select:` in recipes. Weights are read only by --stats,
--tensor and --export, in pieces.
"""

_GROUPS = ("op_type", "domain", "precision", "scope", "dtype")


def _several(name: str, told: str) -> Callable[[Command], Command]:
    return click.option(name, multiple=True, metavar="PATTERN", help=told)


@click.command("inspect", help=HELP, short_help="Look things up in a model: its summary, nodes, tensors, weights.")
@click.argument("model", metavar="MODEL|RUN:STEP")
@click.option("--nodes", is_flag=False, flag_value="*", metavar="[PATTERN]", help="List nodes, by name.")
@click.option("--node", metavar="NAME", help="Tell all about one node.")
@_several("--op-type", "Only nodes of this operator.")
@_several("--domain", "Only nodes whose operator is of this domain.")
@click.option(
    "--attribute", multiple=True, metavar="NAME=VALUE", help="Only nodes with this attribute; `null`: without."
)
@_several("--input", "Only nodes that read such a tensor.")
@_several("--output", "Only nodes that make such a tensor.")
@click.option("--precision", multiple=True, metavar="WORD", help="Only nodes asked to have this precision; or `none`.")
@_several("--scope", "Only what stands in this graph; '' is the main one.")
@click.option("--between", nargs=2, metavar="FROM TO", help="Only nodes on a way between two nodes or tensors.")
@click.option("--before", metavar="NAME", help="Only what this node or tensor depends on.")
@click.option("--after", metavar="NAME", help="Only what depends on this node or tensor.")
@click.option("--near", metavar="NAME", help="Only what is at most --hops edges away from this node or tensor.")
@click.option("--hops", type=click.IntRange(min=1), help="For --near [default: 1].")
@click.option("--tensors", is_flag=False, flag_value="*", metavar="[PATTERN]", help="List tensors, by name.")
@click.option("--tensor", metavar="NAME", help="Tell all about one tensor, of weights their numbers too.")
@click.option(
    "--export", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE.npy", help="Write its numbers."
)
@click.option("--initializers", is_flag=False, flag_value="*", metavar="[PATTERN]", help="List weights, by name.")
@click.option("--dtype", multiple=True, metavar="WORD", help="Only weights of this element type.")
@click.option("--larger-than", metavar="SIZE", help="Only weights of more bytes, such as 64MiB.")
@click.option("--smaller-than", metavar="SIZE", help="Only weights of fewer bytes.")
@click.option("--stored", type=click.Choice(["inline", "external", "sparse"]), help="Only weights stored so.")
@click.option("--constants", is_flag=True, help="List Constant nodes with the weights.")
@click.option(
    "--sort", type=click.Choice(["model", "size"]), default="model", help="Weights as in the model, or by size."
)
@click.option("--stats", is_flag=True, help="Read the weights: their range, mean, zeros, NaN.")
@click.option(
    "--group-by", type=click.Choice(_GROUPS), help="Count nodes, or weights by dtype, instead of listing them."
)
@outputs_option
@json_option
def command(model: str, export: Path | None, outputs: Path, as_json: bool, **said: Any) -> None:  # noqa: ANN401
    from ndld_flow import api

    if export is not None and said["tensor"] is None:
        raise RequestError("--export needs --tensor NAME: which one to write")
    found = api.inspect(model, _query(said), outputs=outputs, export=export)
    if as_json:
        print_json(found.model_dump(mode="json", exclude_none=True))
        return
    from ndld_flow.cli.inspection_tables import print_inspection

    print_inspection(found)
    if export is not None:
        click.echo(f"written to {export}")


_NODE_WORDS = ("op_type", "domain", "input", "output", "precision", "between", "before", "after", "near", "hops")
_WEIGHT_WORDS = ("dtype", "larger_than", "smaller_than", "stored")


def _query(said: Mapping[str, Any]) -> Query:
    """What the options ask. Raises `RequestError` for options that contradict each other."""
    from ndld_flow.graph.edit.selection import NodeSelect
    from ndld_flow.graph.edit.tensor_selection import TensorSelect
    from ndld_flow.graph.inspect.inspect_model import Query

    nodes = _given(said, _NODE_WORDS) | ({"attributes": _attributes(said["attribute"])} if said["attribute"] else {})
    weights = _given(said, _WEIGHT_WORDS) | ({"constants": True} if said["constants"] else {})
    wants_weights = said["initializers"] is not None or bool(weights) or said["stats"] or said["sort"] == "size"
    wants_nodes = said["nodes"] is not None or bool(nodes)
    _check_one(said, wants_nodes, wants_weights)
    if said["hops"] and not said["near"]:
        raise RequestError("--hops needs --near NAME: how far from what")
    scope = {"scope": list(said["scope"])} if said["scope"] else {}
    if scope and not wants_weights:
        wants_nodes = True
    return Query(
        node=said["node"],
        tensor=said["tensor"],
        group_by=said["group_by"],
        nodes=_select(NodeSelect, nodes | scope, said["nodes"]) if wants_nodes else None,
        tensors=(said["tensors"],) if said["tensors"] is not None else (),
        initializers=_select(TensorSelect, weights | scope, said["initializers"]) if wants_weights else None,
        by_size=said["sort"] == "size",
        statistics=said["stats"],
    )


def _given(said: Mapping[str, Any], words: tuple[str, ...]) -> dict[str, Any]:
    return {word: said[word] for word in words if said[word]}


def _check_one(said: Mapping[str, Any], nodes: bool, weights: bool) -> None:
    asked = {
        "--node": said["node"] is not None,
        "--tensor": said["tensor"] is not None,
        "--tensors": said["tensors"] is not None,
        "nodes": nodes,
        "weights": weights,
    }
    several = [word for word, is_asked in asked.items() if is_asked]
    if len(several) > 1:
        raise RequestError(f"ask for one thing at a time: {' and '.join(several)} are lists of their own")
    if said["group_by"] and several and (several != ["nodes"] or said["group_by"] == "dtype"):
        what = "all weights" if said["group_by"] == "dtype" else "nodes"
        raise RequestError(f"--group-by {said['group_by']} counts {what}: leave out what asks for {several[0]}")


def _select(kind: Any, said: Mapping[str, Any], pattern: str | None) -> Any:  # noqa: ANN401 - either selection
    """A selection from options, as a recipe's JSON. Raises `RequestError` for a value that it does not take."""
    from pydantic import ValidationError

    try:
        return kind.model_validate_json(json.dumps({**said, "name": [pattern or "*"]}))
    except ValidationError as error:
        first = error.errors()[0]
        word = str(first["loc"][0]).replace("_", "-")
        option = f"--{word}" if word != "name" else "name pattern"
        raise RequestError(f"{option}: {first['msg'].removeprefix('Value error, ')}") from None


def _attributes(said: tuple[str, ...]) -> dict[str, Any]:
    """`group=1`, `auto_pad=VALID`, `axis=null`."""
    found: dict[str, Any] = {}
    for text in said:
        name, equals, value = text.partition("=")
        if not equals:
            raise RequestError(f"--attribute {text}: write NAME=VALUE, such as group=1")
        try:
            found[name] = json.loads(value)
        except ValueError:
            found[name] = value
    return found
