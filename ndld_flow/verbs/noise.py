"""Learn how much measurements vary on this machine.

A model is repeatedly compared with itself, measured in turns as in a recipe. The differences are kept in
outputs/noise/, and `ndld-flow compare` ignores smaller differences between profiles of this machine.

\b
  ndld-flow noise
  ndld-flow noise model.onnx threads=1 'inputs.x.shape=[1,3,640,640]'

Use a model like yours, at the time and under the load that are usual for your measurements. It takes a few minutes.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ndld_flow.cli.options import Given, Loudness, json_option, loudness_options, options_of, outputs_option, print_json
from ndld_flow.cli.public_functions import DEFAULT_OUTPUTS, VerbOutput, public
from ndld_flow.execution.listener import Listener, ignore

if TYPE_CHECKING:
    from ndld_flow.records.noise import Noise

OUTPUT: VerbOutput[Noise] = VerbOutput(__name__, "The document `noise`.", version=None)


@click.argument("model", required=False)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--comparisons", "-n", type=click.IntRange(3, 200), default=8, show_default=True,
    help="Number of comparisons, each of five process runs per side. Twelve rounds of alternating passes follow.",
)  # fmt: skip
@public
def noise(
    model: str | Path | None = None,
    settings: Sequence[str] = (),
    *,
    comparisons: int = 8,
    outputs: str | Path = DEFAULT_OUTPUTS,
    listener: Listener | None = None,
) -> Noise:
    """Compare a model with itself `comparisons` times; `compare` uses the result on this machine."""
    from ndld_flow.compare.measure_model import MODEL, learn_noise

    chosen = str(model) if model is not None else MODEL
    return learn_noise(chosen, settings, comparisons=comparisons, outputs=Path(outputs), listener=listener or ignore)


@click.command("noise", help=__doc__, params=options_of(noise))
@outputs_option
@loudness_options
@json_option
def command(
    model: str | None,
    settings: tuple[str, ...],
    outputs: Path,
    loudness: Loudness | None,
    as_json: bool,
    **options: Given,
) -> None:
    from ndld_flow.base.quantities import share
    from ndld_flow.cli.progress import choose_listener, leave_out_end

    if model is not None and "=" in model and not Path(model).exists():
        settings, model = (model, *settings), None
    with nullcontext(ignore) if as_json else choose_listener(loudness=loudness) as listener:
        learned = noise(model, settings, outputs=outputs, listener=leave_out_end(listener), **options)
    if as_json:
        print_json(OUTPUT, learned)
        return
    ratios = sorted(abs(sample.ratio - 1) for sample in learned.samples)
    click.echo(f"{len(learned.samples)} comparisons of {learned.model} with itself: up to {share(ratios[-1])} apart")
    click.echo(
        f"differences of {learned.metric} up to {share(learned.threshold)} are noise on this machine; with one process "
        f"run per side, up to {share(learned.single_run_threshold)}"
    )
    click.echo(f"process runs vary by {share(learned.run_cov)}; kept in {outputs / 'noise'}, `compare` uses it")
    if learned.rounds_spread is not None:
        click.echo(
            f"rounds vary by {share(learned.rounds_spread)} at most (95 % confidence); `compare_profiles` assumes 1 % "
            "or more, and this value if its setting `noise` names the file"
        )
