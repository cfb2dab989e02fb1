"""Show the differences between two models or engines.

\b
  ndld-flow diff old.onnx new.onnx
  ndld-flow diff quickstart:source quickstart:int8       # steps of a run; a run alone: the last model that it produced
  ndld-flow diff old.onnx new.onnx --only nodes,weights
  ndld-flow diff old.onnx new.onnx --html diff.html
  ndld-flow diff old.onnx new.onnx --markdown >> "$GITHUB_STEP_SUMMARY"
  ndld-flow diff main:engine latest:engine               # layers, precisions, formats, tactics, bytes
  ndld-flow diff old.trt.json new.trt.json         # what trtexec --exportLayerInfo wrote

Nodes are matched by name, unless names now belong to other nodes, and otherwise by operator, attributes, weights and
neighbours. A model that was exported again, or renamed throughout, shows only its real differences; a node inserted
into an edge is one added node, and its consumer is marked as rewired as a consequence. `+` is added, `-` removed, `~`
changed.

Weights are compared bit by bit, and read in pieces if they are on disk; data at the same offset of the same file is not
read. A weight whose data are missing or were removed has unknown values, and is counted as such.

\b
Parts:       nodes, weights, inputs, outputs, tensors, functions, opsets, texts (versions, names, metadata)

Exit codes: 0 success; 1 with --exit-code if there are differences or weights with unknown values; 2 a model cannot be
found or read.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ndld_flow.base.errors import RequestError, UnknownNameError
from ndld_flow.cli.options import NewFile, json_option, outputs_option, print_json, refuse_missing
from ndld_flow.cli.public_functions import DEFAULT_OUTPUTS, VerbOutput, public

if TYPE_CHECKING:
    from ndld_flow.records.build import EngineComparison
    from ndld_flow.records.model_diff import ModelDiff, Part

READS_MODELS = True

OUTPUT: VerbOutput[ModelDiff | EngineComparison] = VerbOutput(
    __name__, "The document `model diff`, or `engine comparison` for two engines.", version=None
)


@public
def diff(
    before: str | Path,
    after: str | Path,
    *,
    parts: Sequence[Part] | None = None,
    compare_values: bool = True,
    outputs: str | Path = DEFAULT_OUTPUTS,
    page: str | Path | None = None,
) -> ModelDiff:
    """Return the differences between two models: nodes, edges, attributes, weights, interface, functions, versions.

    Each is a model's file, `RUN:STEP`, `RUN:source`, or a run, for its last model. Nodes are matched by operators,
    attributes and neighbours too, so that a renamed node is only a renamed node. `parts` are the parts to compare,
    by default all; `compare_values` includes the values of weights; `page` is the path of an HTML page.
    """
    from ndld_flow.report.model_page import draw_diff
    from ndld_flow.runs.outputs import Outputs
    from ndld_flow.runs.references import diff_subjects

    names = str(before), str(after)
    change, region = diff_subjects(*names, Outputs(Path(outputs)), parts=parts, compare_values=compare_values)
    assert change.diff is not None
    if page is not None:
        draw_diff(change, names, Path(page), region)
    return change.diff


@public
def diff_engines(
    before: str | Path, after: str | Path, *, outputs: str | Path = DEFAULT_OUTPUTS, page: str | Path | None = None
) -> EngineComparison | None:
    """Compare two engines by bytes, layers, precisions, formats and tactics, without running them.

    Each is `RUN:STEP`, an `engine.lock`, its folder, the engine's file beside it, or an export of its layers; `page` is
    the path of an HTML page. Returns None if neither is an engine; raises RequestError if only one is.
    """
    from ndld_flow.runs.diff_engines import diff_engines as compare
    from ndld_flow.runs.outputs import Outputs

    return compare(str(before), str(after), Outputs(Path(outputs)), None if page is None else Path(page))


@click.command("diff", help=__doc__)
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.option("--only", metavar="PARTS", help="Compare only these parts, separated by commas.")
@click.option("--no-weights", is_flag=True, help="Do not compare the values of weights, only names, types and shapes.")
@click.option("--all", "show_all", is_flag=True, help="Print every difference, not only the first of each part.")
@click.option("--html", type=NewFile(".html", ".htm"), metavar="FILE", help="Also write an HTML page.")
@click.option("--markdown", is_flag=True, help="Print Markdown, for pull requests.")
@click.option("--exit-code", is_flag=True, help="Exit with code 1 if there are differences.")
@outputs_option
@json_option
def command(
    before: str,
    after: str,
    only: str | None,
    no_weights: bool,
    show_all: bool,
    html: Path | None,
    markdown: bool,
    exit_code: bool,
    outputs: Path,
    as_json: bool,
) -> int:
    refuse_missing([before, after])
    from ndld_flow.cli.comparison_table import print_diff, print_engines

    if markdown and as_json:
        raise RequestError("--markdown and --json both write to standard output; give one of them.")
    parts = None if only is None else _parts(only)
    if (engines := diff_engines(before, after, outputs=outputs, page=html)) is not None:
        if only or no_weights or markdown:
            raise RequestError("--only, --no-weights and --markdown are for models; two engines have one output.")
        if as_json:
            print_json(OUTPUT, engines)
        else:
            print_engines(f"{before} -> {after}", engines, "" if html is None else f"page {html}")
        return 1 if exit_code and engines.verdict not in ("identical", "equal") else 0
    difference = diff(before, after, parts=parts, compare_values=not no_weights, outputs=outputs, page=html)
    if as_json:
        print_json(OUTPUT, difference)
    elif markdown:
        from ndld_flow.report.exports.pull_requests import diff_markdown

        click.echo(diff_markdown(difference, before, after), nl=False)
    else:
        print_diff(difference, before, after, show_all)
        if html is not None:
            click.echo(f"page {html}")
    return 1 if exit_code and not difference.is_empty else 0


def _parts(only: str) -> list[Part]:
    from ndld_flow.records.model_diff import PARTS

    words = [word.strip() for word in only.split(",") if word.strip()]
    for word in words:
        if word not in PARTS:
            raise UnknownNameError(f"--only {word}: there is no such part", word, PARTS)
    if not words:
        raise RequestError(f"--only: name one or more of {', '.join(PARTS)}.")
    return [part for part in PARTS if part in words]
