"""Explain an operator of any opset, or list them by family.

Operators of ONNX and of ONNX Runtime are read from the installed libraries; nothing is downloaded.

\b
  ndld-flow ops                              # all, by family
  ndld-flow ops Clip                         # inputs, outputs, attributes, and what each version changed
  ndld-flow ops Clip --opset 10              # its version in a model of opset 10
  ndld-flow ops com.microsoft::FusedConv
  ndld-flow ops --search "group norm"        # by words in names and documentation
  ndld-flow ops --domain ai.onnx.ml --category normalization
  ndld-flow ops --model model.onnx           # the operators of a model, and whether newer versions exist

Families are those of `draw`: convolution, matmul, activation, normalization, elementwise, shape, reduce, control,
quantization, other.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ndld_flow.cli.options import Given, json_option, options_of, print_json, refuse_missing
from ndld_flow.cli.public_functions import VerbOutput, public

if TYPE_CHECKING:
    from ndld_flow.models.op_reference import DescribedOperator, ListedOperator

READS_MODELS = True

OUTPUT: VerbOutput[list[DescribedOperator]] = VerbOutput(__name__, "The operators that match.")


@click.argument("name", required=False, default="", metavar="[OPERATOR]")
@click.option("--opset", type=click.IntRange(min=1), help="Show the versions of this opset.")
@click.option("--domain", metavar="DOMAIN", help="ai.onnx, ai.onnx.ml, com.microsoft, ...")
@click.option("--category", default="", metavar="FAMILY", help="Only one family.")
@click.option("--search", default="", metavar="WORDS", help="Only operators with these words in name or documentation.")
@click.option("--model", type=click.Path(path_type=Path), metavar="MODEL", help="Only operators of this model.")
@public
def ops(
    name: str = "",
    *,
    opset: int | None = None,
    domain: str | None = None,
    category: str = "",
    search: str = "",
    model: str | Path | None = None,
) -> Sequence[ListedOperator]:
    """Return operators with inputs, attributes, types and versions: those of ONNX in every opset, and of ONNX Runtime.

    All conditions must match: `domain` is `ai.onnx` or another, `category` a family as in `draw`, `search` words of the
    name or the documentation, `model` a file with the operators.
    """
    refuse_missing([model] if model is not None else [])
    from ndld_flow.models.op_reference import OpQuery, list_operators

    path = Path(model) if model is not None else None
    return list_operators(OpQuery(name, opset, domain, category, search, path))


@click.command("ops", help=__doc__, params=options_of(ops))
@json_option
def command(name: str, as_json: bool, **options: Given) -> None:
    operators = ops(name, **options)
    from ndld_flow.cli.explain_operator import explain_operators, list_operators
    from ndld_flow.models.op_reference import describe_operator

    if as_json:
        print_json(OUTPUT, [describe_operator(operator) for operator in operators])
    elif name:
        click.echo(explain_operators(operators))
    else:
        click.echo(list_operators(operators))
