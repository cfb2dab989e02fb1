"""`ndld-flow noise`."""

from __future__ import annotations

from pathlib import Path

import click

from ndld_flow.cli.options import (
    Loudness,
    device_timeout_option,
    json_option,
    loudness_options,
    outputs_option,
    print_json,
)

HELP = """Learn how much measurements vary on this machine.

A model is repeatedly compared with itself, measured in turns as in a recipe. The differences are kept in
outputs/noise/, and `ndld-flow compare` ignores smaller differences between profiles of this machine.

\b
  ndld-flow noise
  ndld-flow noise model.onnx threads=1 'inputs.x.shape=[1,3,640,640]'

Use a model like yours, at the time and under the load that are usual for your measurements. It takes a few minutes.
"""


@click.command("noise", help=HELP)
@click.argument("model", required=False)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option(
    "--comparisons", "-n", type=click.IntRange(3, 200), default=8, show_default=True,
    help="Number of comparisons, each of five process runs per side. Twelve rounds of alternating passes follow.",
)  # fmt: skip
@device_timeout_option
@outputs_option
@loudness_options
@json_option
def command(
    model: str | None,
    settings: tuple[str, ...],
    comparisons: int,
    outputs: Path,
    loudness: Loudness | None,
    as_json: bool,
) -> None:
    from ndld_flow import api
    from ndld_flow.base.quantities import share
    from ndld_flow.cli.progress import choose_listener, leave_out_end
    from ndld_flow.runner.listener import ignore

    if model is not None and "=" in model and not Path(model).exists():
        settings, model = (model, *settings), None
    if as_json:
        noise = api.noise(model, settings, comparisons=comparisons, outputs=outputs, listener=ignore)
        print_json("noise", noise)
        return
    with choose_listener(loudness=loudness) as listener:
        noise = api.noise(model, settings, comparisons=comparisons, outputs=outputs, listener=leave_out_end(listener))
    ratios = sorted(abs(sample.ratio - 1) for sample in noise.samples)
    click.echo(f"{len(noise.samples)} comparisons of {noise.model} with itself: up to {share(ratios[-1])} apart")
    click.echo(
        f"differences of {noise.metric} up to {share(noise.threshold)} are noise on this machine; with one process run "
        f"per side, up to {share(noise.single_run_threshold)}"
    )
    click.echo(f"process runs vary by {share(noise.run_cov)}; kept in {outputs / 'noise'}, `compare` uses it")
    if noise.rounds_spread is not None:
        click.echo(
            f"rounds vary by {share(noise.rounds_spread)} at most (95 % confidence); `compare_profiles` assumes 1 % or "
            "more, and this value if its setting `noise` names the file"
        )
