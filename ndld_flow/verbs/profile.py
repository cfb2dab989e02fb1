"""Measure one model, and show where its time goes.

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

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ndld_flow.cli.options import (
    Given,
    Loudness,
    json_option,
    loudness_options,
    options_of,
    outputs_option,
    print_json,
    refuse_missing,
    target_option,
)
from ndld_flow.cli.public_functions import DEFAULT_OUTPUTS, VerbOutput, public
from ndld_flow.execution.listener import Listener, ignore

if TYPE_CHECKING:
    from ndld_flow.compare.measure_model import Profiled
    from ndld_flow.profiles.diagnose.diagnose import ProfileOutput

OUTPUT: VerbOutput[ProfileOutput] = VerbOutput(__name__, "The profile, and its summary.", version=3)


@click.argument("model")
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@target_option
@public
def profile(
    model: str | Path,
    settings: Sequence[str] = (),
    *,
    outputs: str | Path = DEFAULT_OUTPUTS,
    on: str = "",
    command: Sequence[str] = (),
    listener: Listener | None = None,
) -> Profiled:
    """Measure a model without a recipe, with `settings` such as `passes=200` or `inputs.x.shape=[1,3,64,64]`.

    An existing profile, such as an export of trtexec, is read and not measured. `on` and `command` as in `run`.
    """
    refuse_missing([model])
    from ndld_flow.compare.measure_model import profile_model

    return profile_model(
        str(model), settings, outputs=Path(outputs), on=on, command=tuple(command), listener=listener or ignore
    )


@click.command("profile", help=__doc__, params=options_of(profile))
@outputs_option
@loudness_options
@json_option
def command(model: str, loudness: Loudness | None, as_json: bool, **options: Given) -> None:
    from ndld_flow.cli.progress import choose_listener, leave_out_end

    options["command"] = ("ndld-flow", *sys.argv[1:])
    with nullcontext(ignore) if as_json else choose_listener(loudness=loudness) as listener:
        # The triage replaces the verdict of a run with one step.
        profiled = profile(model, **options, listener=leave_out_end(listener))
    if as_json:
        from ndld_flow.profiles.diagnose.diagnose import ProfileOutput

        print_json(OUTPUT, ProfileOutput(profile=profiled.profile, triage=profiled.triage()))
        return
    from ndld_flow.cli.triage_table import print_headline, print_triage

    title, run = Path(model.rpartition(":")[2]).name, profiled.finished
    if loudness == "quiet":
        print_headline(title, profiled.profile)
        click.echo(f"report {run.report}" if run is not None else "", nl=run is not None)
        return
    print_triage(title, profiled.profile, profiled.triage(), run.run.rpartition("/")[2] if run is not None else "")
    click.echo(f"\nrun {run.run}\nreport {run.report}" if run is not None else "")
