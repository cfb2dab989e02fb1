"""Write a commented recipe for a model."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from pathlib import Path

from ndld_flow.base.errors import OutputsError, RequestError
from ndld_flow.store.files import write_text_atomically

TEMPLATE = """\
# Recipe for {model_name}. Run it with:
#
#   ndld-flow run {target}
#
# `ndld-flow steps` lists the steps, `ndld-flow steps NAME` explains one with all its settings.
name: {name}
model: {model}                # relative to the current directory; also pypi:, package:, https:// (README)

inputs:                       # one place: every step that runs the model reads it{free}
{inputs}

steps:                        # in order; a step with a name of its own needs `step:`
  lint: {{fail_on: error}}      # stop if the model is broken

  sanitize: {{}}                # fold constants, remove nodes without effect

  search:                     # FP16 can break a model silently: find the few nodes that must stay fp32
    step: find_precision

  half: {{step: convert_fp16, found_by: search}}

  agree:                      # the shipped model must agree with the source
    step: check_accuracy
    reference: source
    candidate: half

  base: {{step: profile, from: source}}
  speed: {{step: profile, from: half}}

gates:                        # conditions on metrics; a failed gate makes the run exit with 1
  - agree.slice_rms <= 5 %      # the worst channel of an output, relative to its own spread
  # - speed.latency.median <= 1.05 * base.latency.median
"""

FREE = """
                              # SET THE SIZES YOU RUN AT: dimensions that the model leaves free are 1 below"""


def write_recipe(model: Path, target: Path | None = None, *, overwrite: bool = False) -> Path:
    """Write a recipe that is ready to run; return its path (default: `<model>.yaml` in the current directory).

    Raises ModelError for a model that cannot be read, RequestError if the file exists.
    """

    from ndld_flow.models.declared_inputs import model_inputs

    path = target or Path(f"{model.stem}.yaml")
    inputs = [(spec.name, spec.shape or ()) for spec in model_inputs(model)]
    if path.exists() and not overwrite:
        raise RequestError(f"{path}: the file exists. Choose another, or give --overwrite.")
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", model.stem).strip("-.") or "model"
    text = TEMPLATE.format(
        model_name=model.name,
        model=json.dumps(os.path.relpath(model)),
        target=path,
        name=name,
        free=FREE if any(not isinstance(d, int) for _, shape in inputs for d in shape) else "",
        inputs="\n".join(_write_input(name, shape) for name, shape in inputs) or "  {}",
    )
    try:
        write_text_atomically(path, text)
    except OSError as error:
        raise OutputsError(f"{path}: the recipe cannot be written ({error.strerror}). Choose another place.") from None
    return path


def _write_input(name: str, shape: Sequence[int | str | None]) -> str:
    free = [d or "?" for d in shape if not isinstance(d, int)]
    fixed = [d if isinstance(d, int) else 1 for d in shape]
    note = f"   # free: {', '.join(free)}" if free else ""
    return f"  {json.dumps(name)}: {{shape: {fixed}, data: random}}{note}"
