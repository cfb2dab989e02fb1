"""Reduce a model to the part with which a recipe still fails.

\b
  ndld-flow reduce broken.yaml                     # writes reduced.zip
  ndld-flow reduce broken.yaml steps.half.keep_io=false -o fp16-overflow.zip

The recipe decides: its first check, gate or error that fails must still fail, and for the same reason. A reason is the
criterion of a check, the side of a gate, the class and words of an error, or the signal and function of a crash.

As long as that holds, steps, samples and nodes are left out. If, Loop, Scan and local functions are replaced by their
bodies, a sequence by one of its steps or its shortest beginning. Tensors between removed and remaining nodes become
inputs with the values that they have inside the model. Values that the failure does not need become random.

The zip contains model, values, a short recipe, and a README with the failure's text, versions and the command that
repeats it. Each trial is a process of its own. A reduction that was interrupted continues where it stopped. A failure
that comes and goes is tried more often, and the zip states how often it failed.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ndld_flow.base.quantities import counted
from ndld_flow.cli.options import Given, NewFile, json_option, options_of, outputs_option, print_json
from ndld_flow.cli.public_functions import DEFAULT_OUTPUTS, VerbOutput, public
from ndld_flow.execution.listener import Listener, ignore
from ndld_flow.reduce.part import ReduceOptions

if TYPE_CHECKING:
    from ndld_flow.execution.request import AnyRecipe
    from ndld_flow.reduce.pack import Reduced

OUTPUT: VerbOutput[Reduced] = VerbOutput(__name__, "The reduced model.")


@click.argument("recipe", type=click.Path(path_type=Path), metavar="RECIPE.yaml")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--output",
    "-o",
    "to",
    type=NewFile(".zip"),
    default=Path("reduced.zip"),
    show_default=True,
    metavar="FILE",
    help="The zip to write.",
)
@click.option("--trust", is_flag=True, help="Allow code that the recipe names.")
@public
def reduce(
    recipe: AnyRecipe,
    overrides: Sequence[str] = (),
    *,
    to: str | Path = "reduced.zip",
    options: ReduceOptions | None = None,
    outputs: str | Path = DEFAULT_OUTPUTS,
    trust: bool = False,
    listener: Listener | None = None,
) -> Reduced:
    """Reduce a recipe's model to the smallest part with which the recipe still fails in the same way; write it as zip.

    `options` limits the number of runs and of samples, and sets what must stay the same. Weights and inputs whose
    values the failure does not need become random, unless it keeps them. Raises RequestError if the recipe does not
    fail.
    """
    from ndld_flow.execution.request import request_recipe
    from ndld_flow.reduce.reduce import reduce_recipe

    request = request_recipe(recipe, overrides, outputs=outputs, trust=trust)
    return reduce_recipe(request, Path(to), options or ReduceOptions(), listener or ignore)


@click.command("reduce", help=__doc__, params=options_of(reduce))
@click.option(
    "--trials",
    type=click.IntRange(min=1),
    default=ReduceOptions.trials,
    show_default=True,
    help="Run the recipe at most this often.",
)
@click.option(
    "--samples",
    type=click.IntRange(1, 1000),
    default=ReduceOptions.samples,
    show_default=True,
    help="Samples of the inputs to begin with; those that the failure does not need are left out.",
)
@click.option("--keep-values", is_flag=True, help="Keep the values of all weights and inputs.")
@click.option("--strict", is_flag=True, help="The same outputs must fail the same criteria, by at least half as much.")
@outputs_option
@json_option
def command(trials: int, samples: int, keep_values: bool, strict: bool, as_json: bool, **request: Given) -> int:
    from ndld_flow.cli.progress import choose_listener_beside_result

    with choose_listener_beside_result(as_json) as listener:
        options = ReduceOptions(trials=trials, samples=samples, keep_values=keep_values, strict=strict)
        reduced = reduce(options=options, listener=listener, **request)
    if as_json:
        print_json(OUTPUT, reduced)
        return 0
    minimal = "none can be left out" if reduced.minimal else "not minimal: more --trials may leave out more"
    click.echo(f"{reduced.failure}")
    click.echo(f"  with {counted(reduced.nodes, 'node')} of {reduced.nodes_before}, {minimal}")
    if len(reduced.steps) > 1 or reduced.samples > 1:
        click.echo(f"  with {counted(len(reduced.steps), 'step')} and {counted(reduced.samples, 'sample')}")
    if reduced.failed < reduced.verified:
        click.echo(f"  it comes and goes: {reduced.failed} of {counted(reduced.verified, 'run')} of the result failed")
    click.echo(f"  original values: {', '.join(reduced.original_values) or 'none, all are random'}")
    if not reduced.captured:
        click.echo("  inputs inside the model are generated, since running the whole model crashes")
    for file in reduced.other_files:
        click.echo(f"  not in the zip, but named by the recipe: {file}")
    click.echo(reduced.path)
    if reduced.page:
        click.echo(reduced.page)
    return 0
