"""`ndld-flow ops`."""

from __future__ import annotations

from pathlib import Path

import click

from ndld_flow import api
from ndld_flow.cli.options import json_option, print_json

HELP = """Explain an operator of any opset, or list them by family.

ONNX's operators and ONNX Runtime's own are told from the installed libraries; nothing is fetched.

\b
  ndld-flow ops                              all, by family
  ndld-flow ops Clip                         inputs, outputs, attributes, and what each version changed
  ndld-flow ops Clip --opset 10              as a model of opset 10 sees it
  ndld-flow ops com.microsoft::FusedConv
  ndld-flow ops --search "group norm"        by words of the name and the doc
  ndld-flow ops --domain ai.onnx.ml --category normalisation
  ndld-flow ops --model model.onnx           what a model uses, and whether newer versions exist

Families are those of `draw`: convolution, matmul, activation, normalisation, elementwise, shape, reduce, control,
quantisation, other.
"""


@click.command("ops", help=HELP, short_help="Explain an operator of any opset, or list them by family.")
@click.argument("name", required=False, default="", metavar="[OPERATOR]")
@click.option("--opset", type=click.IntRange(min=1), help="As a model of this opset sees them.")
@click.option("--domain", metavar="DOMAIN", help="ai.onnx, ai.onnx.ml, com.microsoft, ...")
@click.option("--category", default="", metavar="FAMILY", help="Only one family.")
@click.option("--search", default="", metavar="WORDS", help="Only what has these words in its name or doc.")
@click.option("--model", type=click.Path(path_type=Path), metavar="MODEL", help="Only what this model uses.")
@json_option
def command(
    name: str,
    opset: int | None,
    domain: str | None,
    category: str,
    search: str,
    model: Path | None,
    as_json: bool,
) -> None:
    found = api.ops(name, opset=opset, domain=domain, category=category, search=search, model=model)
    from ndld_flow.cli.explain_operator import describe_operator, explain_operators, list_operators

    if as_json:
        print_json([describe_operator(one) for one in found])
    elif name:
        click.echo(explain_operators(found))
    else:
        click.echo(list_operators(found))
