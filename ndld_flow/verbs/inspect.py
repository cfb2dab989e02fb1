"""Look things up in a model: its summary, nodes, tensors, weights.

\b
  ndld-flow inspect model.onnx                              # inputs, outputs, operators, weights, files
  ndld-flow inspect quickstart:int8                         # the model that a step of a run produced
  ndld-flow inspect model.onnx --nodes 'conv_*'             # nodes with attributes and shapes
  ndld-flow inspect model.onnx --op-type Conv --attribute group=1
  ndld-flow inspect model.onnx --between image logits
  ndld-flow inspect model.onnx --node conv_1                # one node, with producers and consumers of its tensors
  ndld-flow inspect model.onnx --tensors '*scale*'
  ndld-flow inspect model.onnx --initializers --larger-than 1MiB --stats
  ndld-flow inspect model.onnx --tensor w_0 --export w_0.npy
  ndld-flow inspect model.onnx --group-by op_type

A pattern is a name, a glob, or a regular expression between slashes (RE2 syntax). An option may be repeated; a match of
any of its patterns counts. The options have the names of the keys of `select:` in recipes. Weights are read, in pieces,
only for --stats, --tensor and --export.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ndld_flow.base.errors import RequestError, UnknownNameError
from ndld_flow.cli.options import Command, NewFile, json_option, outputs_option, print_json, refuse_missing
from ndld_flow.cli.public_functions import DEFAULT_OUTPUTS, VerbOutput, public

if TYPE_CHECKING:
    from ndld_flow.graph.inspect_model import Query
    from ndld_flow.records.inspection import Inspection

READS_MODELS = True


_GROUPS = ("op_type", "domain", "precision", "scope", "dtype")


def _several(name: str, text: str) -> Callable[[Command], Command]:
    return click.option(name, multiple=True, metavar="PATTERN", help=text)


OUTPUT: VerbOutput[Inspection] = VerbOutput(
    __name__, "The summary of the model, or the result of the query; other fields are left out.", leaves_out_null=True
)


@public
def inspect(
    model: str | Path,
    query: Query | None = None,
    *,
    outputs: str | Path = DEFAULT_OUTPUTS,
    export: str | Path | None = None,
) -> Inspection:
    """Return a model's summary, or the results of a query; the model is a file or `RUN:STEP`.

    ``api.inspect("model.onnx", Query(nodes=NodeSelect(op_type=("Conv",))))``. `export` is a `.npy` file for the values
    of the query's tensor.
    """
    from ndld_flow.graph.inspect_model import Query, export_tensor, inspect_model
    from ndld_flow.runs.outputs import Outputs
    from ndld_flow.runs.references import find_model

    path, query = find_model(str(model), Outputs(Path(outputs))), query or Query()
    inspection = inspect_model(path, query)
    if export is not None and query.tensor is not None:
        export_tensor(path, query.tensor, Path(export))
    return inspection


@click.command("inspect", help=__doc__)
@click.argument("model", metavar="MODEL|RUN:STEP")
@click.option("--nodes", is_flag=False, flag_value="*", metavar="[PATTERN]", help="List nodes, by name.")
@click.option("--node", metavar="NAME", help="Show all details of one node.")
@_several("--op-type", "Only nodes of this operator.")
@_several("--domain", "Only nodes whose operator is of this domain.")
@click.option(
    "--attribute", multiple=True, metavar="NAME=VALUE", help="Only nodes with this attribute; NAME=null: without it."
)
@_several("--input", "Only nodes that read a matching tensor.")
@_several("--output", "Only nodes that produce a matching tensor.")
@click.option(
    "--precision", multiple=True, metavar="PRECISION", help="Only nodes constrained to this precision, or `none`."
)
@_several("--scope", "Only the contents of this graph; '' is the main graph.")
@click.option("--between", nargs=2, metavar="FROM TO", help="Only nodes on a path between two nodes or tensors.")
@click.option("--before", multiple=True, metavar="NAME", help="Only nodes that this node or tensor depends on.")
@click.option("--after", multiple=True, metavar="NAME", help="Only nodes that depend on this node or tensor.")
@click.option("--near", multiple=True, metavar="NAME", help="Only nodes at most --hops edges away from this one.")
@click.option("--hops", type=click.IntRange(min=1), help="Distance for --near [default: 1].")
@click.option("--tensors", is_flag=False, flag_value="*", metavar="[PATTERN]", help="List tensors, by name.")
@click.option("--tensor", metavar="NAME", help="Show all details of one tensor, with the values of a weight.")
@click.option("--export", type=NewFile(".npy"), metavar="FILE.npy", help="Write the tensor's values.")
@click.option("--initializers", is_flag=False, flag_value="*", metavar="[PATTERN]", help="List weights, by name.")
@click.option("--dtype", multiple=True, metavar="DTYPE", help="Only weights of this element type.")
@click.option("--larger-than", metavar="SIZE", help="Only weights larger than this, such as 64MiB.")
@click.option("--smaller-than", metavar="SIZE", help="Only weights smaller than this.")
@click.option("--stored", type=click.Choice(["inline", "external", "sparse"]), help="Only weights stored this way.")
@click.option("--constants", is_flag=True, help="List Constant nodes with the weights.")
@click.option(
    "--sort",
    type=click.Choice(["model", "size"]),
    default="model",
    help="Order of weights: as in the model, or by size.",
)
@click.option("--stats", is_flag=True, help="Read the weights, and show their range, mean, zeros and NaN.")
@click.option(
    "--group-by", type=click.Choice(_GROUPS), help="Count nodes, or weights by dtype, instead of listing them."
)
@outputs_option
@json_option
def command(model: str, export: Path | None, outputs: Path, as_json: bool, **choices: Any) -> None:  # noqa: ANN401
    refuse_missing([model])
    if export is not None and choices["tensor"] is None:
        raise RequestError("--export needs --tensor NAME, the tensor to write")
    _refuse_unknown_names(Path(model), choices)
    inspection = inspect(model, _query(choices), outputs=outputs, export=export)
    if as_json:
        print_json(OUTPUT, inspection)
        return
    from ndld_flow.cli.inspection_tables import print_inspection

    print_inspection(inspection)
    if export is not None:
        click.echo(f"written to {export}")


_NODE_WORDS = ("op_type", "domain", "input", "output", "precision", "between", "before", "after", "near", "hops")
_NAMES = ("node", "tensor", "op_type", "input", "output", "between", "before", "after", "near")
_WEIGHT_WORDS = ("dtype", "larger_than", "smaller_than", "stored")


def _query(choices: Mapping[str, Any]) -> Query:
    """Return the query that the options describe. Raises RequestError for options that contradict each other."""
    from ndld_flow.graph.edit.settings import NodeSelect, TensorSelect
    from ndld_flow.graph.inspect_model import Query

    nodes = _given(choices, _NODE_WORDS) | (
        {"attributes": _attributes(choices["attribute"])} if choices["attribute"] else {}
    )
    weights = _given(choices, _WEIGHT_WORDS) | ({"constants": True} if choices["constants"] else {})
    wants_weights = (
        choices["initializers"] is not None or bool(weights) or choices["stats"] or choices["sort"] == "size"
    )
    wants_nodes = choices["nodes"] is not None or bool(nodes)
    _check_one(choices, wants_nodes, wants_weights)
    if choices["hops"] and not choices["near"]:
        raise RequestError("--hops needs --near NAME, from which the distance is counted")
    scope = {"scope": list(choices["scope"])} if choices["scope"] else {}
    if scope and not wants_weights:
        wants_nodes = True
    return Query(
        node=choices["node"],
        tensor=choices["tensor"],
        group_by=choices["group_by"],
        nodes=_select(NodeSelect, nodes | scope, choices["nodes"]) if wants_nodes else None,
        tensors=(choices["tensors"],) if choices["tensors"] is not None else (),
        initializers=_select(TensorSelect, weights | scope, choices["initializers"]) if wants_weights else None,
        by_size=choices["sort"] == "size",
        statistics=choices["stats"],
    )


def _refuse_unknown_names(path: Path, choices: Mapping[str, Any]) -> None:
    """Raise RequestError for a name that the bytes of the file do not contain: the libraries take a second to import.

    Another name may still be none of a node, which the query finds.
    """
    from ndld_flow.base.name_patterns import is_plain
    from ndld_flow.models.external_files import mentions, names_in

    for option in _NAMES if path.is_file() else ():
        given = choices[option] or ()
        for name in (given,) if isinstance(given, str) else given:
            if is_plain(name) and not mentions(path, name.rpartition("::")[2].encode(errors="replace")):
                raise UnknownNameError(f"--{option.replace('_', '-')}: {path} has no {name!r}", name, names_in(path))


def _given(choices: Mapping[str, Any], words: tuple[str, ...]) -> dict[str, Any]:
    return {word: choices[word] for word in words if choices[word]}


def _check_one(choices: Mapping[str, Any], nodes: bool, weights: bool) -> None:
    asked = {
        "--node": choices["node"] is not None,
        "--tensor": choices["tensor"] is not None,
        "--tensors": choices["tensors"] is not None,
        "nodes": nodes,
        "weights": weights,
    }
    several = [word for word, is_asked in asked.items() if is_asked]
    if len(several) > 1:
        raise RequestError(f"ask for one list at a time: {' and '.join(several)} are separate lists")
    if choices["group_by"] and several and (several != ["nodes"] or choices["group_by"] == "dtype"):
        what = "all weights" if choices["group_by"] == "dtype" else "nodes"
        raise RequestError(
            f"--group-by {choices['group_by']} counts {what}: leave out the options that select {several[0]}"
        )


def _select(kind: Any, choices: Mapping[str, Any], pattern: str | None) -> Any:  # noqa: ANN401 - either selection
    """Return a selection from options, checked as a recipe's. Raises RequestError for an invalid value."""
    from pydantic import ValidationError

    try:
        return kind.model_validate_json(json.dumps({**choices, "name": [pattern or "*"]}))
    except ValidationError as error:
        first = error.errors()[0]
        word = str(first["loc"][0]).replace("_", "-")
        option = f"--{word}" if word != "name" else "name pattern"
        raise RequestError(f"{option}: {first['msg'].removeprefix('Value error, ')}") from None


def _attributes(texts: tuple[str, ...]) -> dict[str, Any]:
    """Parse `group=1`, `auto_pad=VALID`, `axis=null`."""
    attributes: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise RequestError(f"--attribute {text}: write NAME=VALUE, such as group=1")
        try:
            attributes[name] = json.loads(value)
        except ValueError:
            attributes[name] = value
    return attributes
