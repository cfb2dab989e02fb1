"""Write the change that a finding suggests, and measure it.

\b
  ndld-flow apply latest                                 # list the findings that can be applied
  ndld-flow apply latest scaling_not_folded        # write the changed recipe, run it, and compare
  ndld-flow apply detector:speed more_threads_than_cpus --to tuned.yaml
  ndld-flow apply latest many_tiny_layers --show         # only show the difference

RUN is a run with a step `profile`, or RUN:STEP. The changed recipe is a new file, by default next to the recipe with
the name of the finding; comments of the recipe are kept. If the recipe of the run is not in a file, or was changed
since, the recipe as it ran is written in full. Both profiles are then measured again, in turns, as by `ndld-flow
compare --measure`; profiles of engines are compared as they were measured.

Exit codes: 0 improved or unchanged, or nothing was measured; 1 the changed recipe is slower, or its run failed; 2 the
request is invalid, or the profiles cannot be compared; 4 inconclusive.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ndld_flow.base.text import visible_text
from ndld_flow.cli.options import Given, Loudness, json_option, loudness_options, options_of, outputs_option, print_json
from ndld_flow.cli.public_functions import DEFAULT_OUTPUTS, VerbOutput, public
from ndld_flow.execution.listener import Listener, ignore

if TYPE_CHECKING:
    from ndld_flow.compare.compare_runs import AppliedChange, OfferedChange

_EXIT_CODES = {"regressed": 1, "incomparable": 2, "inconclusive": 4}

OUTPUT: VerbOutput[list[OfferedChange] | AppliedChange] = VerbOutput(
    __name__, "The applied change and its effect; without a finding, those that can be applied."
)


@public
def offered_changes(run: str | Path, *, outputs: str | Path = DEFAULT_OUTPUTS) -> Sequence[OfferedChange]:
    """Return the findings on the profiles of a run, or of `RUN:STEP`, whose change `apply` can write."""
    from ndld_flow.compare.compare_runs import offered_changes as find_offered
    from ndld_flow.runs.outputs import Outputs

    return find_offered(str(run), Outputs(Path(outputs)))


@click.argument("run")
@click.argument("finding", default="")
@click.option("--to", type=click.Path(dir_okay=False, path_type=Path), metavar="FILE", help="File to write.")
@click.option("--overwrite", is_flag=True, help="Replace the file if it exists.")
@click.option("--show", "show_only", is_flag=True, help="Show the difference; write and measure nothing.")
@click.option("--trust", is_flag=True, help="Allow the code that the recipe names.")
@public
def apply(
    run: str | Path,
    finding: str,
    *,
    to: str | Path | None = None,
    overwrite: bool = False,
    show_only: bool = False,
    trust: bool = False,
    outputs: str | Path = DEFAULT_OUTPUTS,
    listener: Listener | None = None,
) -> AppliedChange:
    """Write the change that a finding of a run suggests into its recipe, run the changed recipe, and compare both
    profiles.

    `to` is the file to write, by default one next to the recipe; with `show_only`, nothing is written or measured.
    Raises RequestError for a finding that the run does not have, and for a file that exists; and raises as `run` does.
    """
    from ndld_flow.compare.compare_runs import Options, apply_finding
    from ndld_flow.runs.outputs import Outputs

    options = Options(None if to is None else Path(to), overwrite, show_only, trust)
    return apply_finding(str(run), finding, Outputs(Path(outputs)), options, listener or ignore)


@click.command("apply", help=__doc__, params=options_of(apply))
@outputs_option
@loudness_options
@json_option
def command(
    run: str, finding: str, show_only: bool, outputs: Path, loudness: Loudness | None, as_json: bool, **options: Given
) -> int:
    from ndld_flow.cli.progress import choose_listener, leave_out_end

    if not finding:
        offered = offered_changes(run, outputs=outputs)
        print_json(OUTPUT, list(offered)) if as_json else _print_offers(run, offered)
        return 0
    with nullcontext(ignore) if as_json or show_only else choose_listener(loudness=loudness) as listener:
        applied = apply(run, finding, show_only=show_only, outputs=outputs, listener=leave_out_end(listener), **options)
    print_json(OUTPUT, applied) if as_json else _print_applied(applied)
    return _EXIT_CODES.get(applied.verdict, 0)


def _print_offers(run: str, offered: Sequence[OfferedChange]) -> None:
    from ndld_flow.base.quantities import share

    if not offered:
        click.echo(f"{run}: no finding has a change that can be applied. `ndld-flow report {run}` shows all findings.")
    for offer in offered:  # titles name layers of a model that may be a stranger's
        saving = f" (up to {share(offer.saving)})" if offer.saving else ""
        click.echo(f"{click.style(offer.finding, bold=True)}  {visible_text(f'{offer.step}: {offer.title}')}{saving}")
        click.echo(f"  {visible_text(offer.change)}")


def _print_applied(applied: AppliedChange) -> None:
    offer = applied.offer
    click.echo(visible_text(f"{offer.step}: {offer.title}\n{offer.change}\n\n{applied.diff}"), nl=False)
    if applied.note:
        click.echo(visible_text(f"\nnote: {applied.note}, so it was written in full"))
    if not applied.recipe:
        return
    click.echo(f"\nrecipe {applied.recipe}\nrun {applied.run}")
    click.echo(f"{click.style(applied.verdict, bold=True)}: {visible_text(applied.why)}\nreport {applied.report}")
