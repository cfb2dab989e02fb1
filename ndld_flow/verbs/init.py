"""Write a commented recipe for a model.

It is ready to run: sizes of dynamic dimensions are taken from the model's metadata, from files next to it, or from
common sizes, and the model is run once to check that it accepts them.

\b
  ndld-flow init model.onnx
  ndld-flow init model.onnx --int8 --data photos/
  ndld-flow init model.onnx --fp16 --for tensorrt_rtx
  ndld-flow init --example quickstart        # a real model, downloaded by the first run
"""

from __future__ import annotations

import sys
from pathlib import Path

import click

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import milliseconds, rounded_seconds
from ndld_flow.cli.options import data_option, refuse_missing, shapes_option
from ndld_flow.cli.public_functions import public
from ndld_flow.models.tensors import shape_text
from ndld_flow.recipe.config_files import write_example
from ndld_flow.recipe.write_recipe import AskShape, Precision, RecipeOptions, WrittenRecipe, parse_shape, write_recipe
from ndld_flow.runtimes.registry import DEFAULT

READS_MODELS = True


@public
def init(
    model: str | Path,
    target: str | Path | None = None,
    options: RecipeOptions | None = None,
    *,
    overwrite: bool = False,
    ask: AskShape | None = None,
) -> WrittenRecipe:
    """Write a commented recipe for a model, which is run once to find input sizes that it accepts.

    ``api.init("model.onnx", options=RecipeOptions(precision="int8", data=("photos/",)))``. The result has the
    recipe's path and the trial; `ask` is called for the shape of an input where no likely size is accepted.
    """
    refuse_missing([model], options.data if options else ())
    path = Path(target) if target is not None else None
    return write_recipe(Path(model), path, options, overwrite=overwrite, ask=ask or (lambda *_: None))


@public
def init_example(name: str, *, overwrite: bool = False) -> Path:
    """Write an example recipe, such as `quickstart`, and its images to `pipelines/`; return the recipe's path."""
    return write_example(name, overwrite=overwrite)


@click.command("init", help=__doc__)
@click.argument("model", required=False, type=click.Path(path_type=Path), metavar="MODEL.onnx")
@click.argument("target", required=False, type=click.Path(dir_okay=False, path_type=Path), metavar="[RECIPE.yaml]")
@data_option
@click.option(
    "--for",
    "runtime",
    default=DEFAULT,
    metavar="RUNTIME",
    help="The runtime that the model is for: onnxruntime, openvino, tensorrt_rtx, tensorrt, or that of a package.",
)
@click.option("--fp16", "precision", flag_value="fp16", help="Convert to FP16, except for what FP16 breaks.")
@click.option("--int8", "precision", flag_value="int8", help="Quantize to INT8.")
@shapes_option
@click.option("--example", metavar="NAME", help="Write an example recipe instead, such as `quickstart`, to pipelines/.")
@click.option("--overwrite", is_flag=True, help="Replace an existing RECIPE.yaml.")
def command(
    model: Path | None,
    target: Path | None,
    data: tuple[str, ...],
    runtime: str,
    precision: Precision | None,
    shapes: tuple[str, ...],
    example: str | None,
    overwrite: bool,
) -> None:
    if example is not None and model is None:
        run = f"ndld-flow run {init_example(example, overwrite=overwrite)}"
    elif model is not None and example is None:
        options = RecipeOptions(runtime, precision, data, dict(map(parse_shape, shapes)))
        run = _init(model, target, options, overwrite)
    else:
        raise click.UsageError("Give a model or --example NAME.")
    click.echo(f"Run it with: {run}")


def _init(model: Path, target: Path | None, options: RecipeOptions, overwrite: bool) -> str:
    """Write the recipe, print what is known of the model, and return the command that runs it."""
    written = init(
        model, target, options, overwrite=overwrite, ask=_ask if sys.stdin.isatty() and sys.stderr.isatty() else None
    )
    trial = written.trial
    click.echo(f"{written.path}")
    known = {likely.spec.name: likely.shape for likely in trial.inputs if likely.shape is not None}
    unknown = [likely.spec.name for likely in trial.inputs if likely.shape is None]
    shapes = [f"{name}={shape_text(shape)}" for name, shape in known.items()]
    if not trial.error:
        takes = f"; the first run takes about {rounded_seconds(written.first_run_s)}" if options.runs_model else ""
        passed = f"(one pass, {milliseconds(trial.pass_ms)}{takes})"
        click.echo(f"The model accepted {', '.join(shapes) or 'no inputs'} {passed}.")
        if written.advice:
            click.echo(f"{written.advice}.")
        return written.command
    problem = f"the shape of {', '.join(unknown)} is unknown" if unknown else f"it did not run at {', '.join(shapes)}"
    examples = [f"{name}=1x3x640x640" for name in unknown] or shapes[:1]
    click.echo(
        f"warning: the model was not run: {problem}: {trial.error}\nSet the sizes in {written.path}, or "
        f"give them, such as: ndld-flow init {model} --overwrite {' '.join(f'--shape {each}' for each in examples)}",
        err=True,
    )
    return written.command


def _ask(name: str, declared: str) -> tuple[int, ...] | None:
    """Ask for the shape of an input; an empty answer leaves it open."""
    while True:
        answer = click.prompt(
            f"Shape of {name} ({declared}), such as 1x3x640x640 or scalar", default="", show_default=False, err=True
        )
        if not answer:
            return None
        try:
            return parse_shape(f"{name}={answer}")[1]
        except RequestError as error:
            click.echo(str(error), err=True)
