"""Find the fastest variant of a model that stays right.

\b
  ndld-flow optimize model.onnx --data photos/ --keep 'cosine >= 0.999' -o fast.onnx
  ndld-flow optimize model.onnx --data photos/ --for onnxruntime --budget '10 min' -o fast.onnx
  ndld-flow optimize model.onnx --data photos/ --minimize latency --minimize size -o fast.onnx
  ndld-flow optimize model.onnx --data photos/ --for rtx40 -o fast.onnx
  ndld-flow optimize model.onnx --data photos/ --write search.yaml

It builds variants of the model, such as forms of INT8 and other runtimes, judges each on the samples of --data against
the model in ONNX Runtime, and races those that are right with the model itself, in alternating passes. What cannot be
the best is dropped early. A third of the data is held out: the best variant must hold --keep on these samples too, by a
margin that as many others need, and be at least 1.01x as fast at 95 % confidence; else the next best is tried.

\b
It ends in one of three ways:
  faster         the best variant is delivered
  nothing pays   everything was tried, and nothing is right and faster
  not decided    a variant may still be faster: the budget or Ctrl-C ended the
                 search first, or noise or too few samples leave it open

Unless it ends with a faster variant, the model itself is delivered, unchanged.

--budget is a promise: the command ends in that time and 10 %, or 10 s, with the best model that was proved until then,
whatever runs. By default it follows from the model's latency and how long it took to read the model; the first line
states the longest time that the command may take. Ctrl-C ends it in the same way within 2 s.

With several objectives, and for engines and other machines, the variants are the points of a sweep. With several
objectives, the models on the Pareto front are proved, and the best in the first objective is delivered. The latency may
grow by its noise at most, unless throughput is an objective, or --keep 'latency <= 1.1x' allows more.

Without --data, inputs are random: INT8 is not tried, and accuracy is only as good as random inputs.

Exit codes: 0 the delivered model is right, and not slower than the source (`ending` of --json shows whether it is
faster); 2 an option does not fit, or the model does not run.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ndld_flow.base.text import shell_word
from ndld_flow.cli.options import (
    Given,
    Loudness,
    NamedPath,
    data_option,
    json_option,
    loudness_options,
    outputs_option,
    print_json,
    refuse_missing,
    shapes_option,
    tokenizer_option,
)
from ndld_flow.cli.public_functions import DEFAULT_OUTPUTS, VerbOutput, public
from ndld_flow.execution.listener import Listener, ignore
from ndld_flow.optimize.options import OptimizeOptions
from ndld_flow.recipe.write_recipe import parse_shape

if TYPE_CHECKING:
    from ndld_flow.records.optimization import Optimization

OUTPUT: VerbOutput[Optimization] = VerbOutput(__name__, "The document `optimization`.", version=None)


@public
def optimize(
    model: str | Path,
    options: OptimizeOptions | None = None,
    *,
    output: str | Path | None = None,
    write: str | Path | None = None,
    overwrite: bool = False,
    outputs: str | Path = DEFAULT_OUTPUTS,
    trust: bool = False,
    listener: Listener | None = None,
) -> Optimization | None:
    """Find the fastest variant of a model that stays right, prove it on held-out data, and write it to `output`.

    Without a variant that is faster than the source at 95 % confidence, the source is delivered. With `write`, only the
    sweep that would run is written, and the result is None. Raises RequestError for options that do not fit the model,
    before anything runs, and ModelError for a model that does not run.
    """
    options = options or OptimizeOptions()
    refuse_missing([model], options.data)
    from ndld_flow.execution.request import request_recipe
    from ndld_flow.optimize.optimize import optimize_model, write_search

    if write is not None:
        write_search(Path(model), options, Path(write), overwrite=overwrite, listener=listener or ignore)
        return None
    request = request_recipe(model, outputs=outputs, output=output, trust=trust)
    return optimize_model(Path(model), options, request, listener or ignore)


@click.command("optimize", help=__doc__)
@click.argument("model", type=click.Path(path_type=Path), metavar="MODEL.onnx")
@data_option
@tokenizer_option
@click.option(
    "--keep",
    multiple=True,
    metavar="CONDITION",
    help="A condition on a metric of `check_accuracy`, such as 'cosine >= 0.999'. [default: its own bounds]",
)
@click.option(
    "--minimize", multiple=True, metavar="OBJECTIVE", help="latency, size, memory or build_time. [default: latency]"
)
@click.option("--maximize", multiple=True, metavar="OBJECTIVE", help="throughput.")
@click.option(
    "--for",
    "target",
    metavar="TARGET",
    default="any",
    show_default=True,
    help="The target: any (the installed runtimes of this CPU), onnxruntime, openvino, cpu_server, laptop, rtx30, "
    "rtx40, rtx50, jetson, browser, browser_webgpu, or a file of configs/optimize/ without .yaml.",
)
@click.option("--on", default="", metavar="ssh://USER@HOST", help="The machine that measures, for --for jetson.")
@click.option(
    "--budget",
    default="",
    metavar="TIME",
    help="The time after which it ends: '10 min'. [default: by the latency of the model]",
)
@click.option("--threads", default="", metavar="N[,M...]", help="Numbers of threads to try. [default: the runtime's]")
@shapes_option
@click.option("--fix-shapes", is_flag=True, help="Allow a model that accepts only the shapes that are measured.")
@click.option("--metric", type=click.Path(path_type=Path), help="A Python file with your own metric; needs --trust.")
@click.option("--labels", type=click.Path(path_type=Path), help="Labels for --metric, by file: a .csv or .json.")
@click.option("--output", "-o", type=NamedPath(path_type=Path), metavar="FILE.onnx", help="The file to deliver.")
@click.option(
    "--write", type=NamedPath(path_type=Path), metavar="RECIPE.yaml", help="Write the variants as a sweep; run nothing."
)
@click.option("--overwrite", is_flag=True, help="Replace an existing file of --write.")
@click.option("--trust", is_flag=True, help="Allow the code of --metric.")
@outputs_option
@loudness_options
@json_option
def command(
    model: Path,
    threads: str,
    shapes: tuple[str, ...],
    output: Path | None,
    write: Path | None,
    overwrite: bool,
    trust: bool,
    outputs: Path,
    loudness: Loudness | None,
    as_json: bool,
    **options: Given,
) -> int:
    from ndld_flow.cli.progress import choose_listener_beside_result

    wanted = OptimizeOptions(threads=_read_threads(threads), shapes=dict(map(parse_shape, shapes)), **options)
    with choose_listener_beside_result(as_json, loudness) as listener:
        found = optimize(
            model,
            wanted,
            output=output,
            write=write,
            overwrite=overwrite,
            outputs=outputs,
            trust=trust,
            listener=listener,
        )
    if found is None:
        click.echo(f"{write}\nRun it with: ndld-flow run {shell_word(str(write))}")
        return 0
    if as_json:
        print_json(OUTPUT, found)
        return found.exit_code
    for line in (*found.conclude_fully(), f"report {found.report}"):
        click.echo(line)
    return found.exit_code


def _read_threads(text: str) -> tuple[int, ...]:
    try:
        threads = tuple(int(number) for number in text.split(",")) if text else ()
    except ValueError:
        threads = (0,)
    if any(number < 1 for number in threads):
        raise click.UsageError("--threads takes numbers from 1, separated by commas: 1,2,4.")
    return threads
