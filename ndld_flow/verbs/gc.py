"""Delete artifacts that no kept run or sweep needs.

Without --keep, all runs and sweeps are kept. Tagged runs and sweeps, and sweeps with a tagged point, are always
kept. Runs may be in progress: the artifacts that they use are kept, and counted at the end.

With --cache, results are deleted from the shared cache, by age and size. Others may push and pull meanwhile:
artifacts of the last day stay. With --libraries, the private environments of runtimes that were not used for a
day are deleted; a recipe that needs one creates it again.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ndld_flow.base.errors import RequestError
from ndld_flow.base.quantities import counted, parse_duration_ms, size
from ndld_flow.cli.options import json_option, outputs_option, print_json
from ndld_flow.cli.public_functions import DEFAULT_OUTPUTS, VerbOutput, public
from ndld_flow.runs.collect_garbage import Freed, LibrariesFreed, collect_garbage, collect_libraries
from ndld_flow.runs.outputs import Outputs

if TYPE_CHECKING:
    from ndld_flow.execution.cache import CacheFreed

OUTPUT: VerbOutput[Freed | LibrariesFreed | CacheFreed] = VerbOutput(
    __name__, "Everything that was deleted, or would be."
)


@public
def gc(
    *,
    outputs: str | Path = DEFAULT_OUTPUTS,
    keep: int | None = None,
    dry_run: bool = False,
    notify: Callable[[str], None] = lambda _: None,
) -> Freed:
    """Delete artifacts that no kept run or sweep needs; `keep` limits the untagged runs kept of each recipe.

    Artifacts in use by runs in progress are left. `notify` is called with the reason of a wait.
    """
    return collect_garbage(Outputs(Path(outputs)), keep, dry_run=dry_run, report=notify)


@public
def gc_libraries(*, max_age: str | None = None, dry_run: bool = False) -> LibrariesFreed:
    """Delete the libraries that runs have created in the user's cache folder, such as the TensorRT of a required
    release: those that were not used for `max_age` (`30 days`), by default and at least for a day."""
    try:
        age_s = 0.0 if max_age is None else parse_duration_ms(max_age) / 1e3
    except ValueError as error:
        raise RequestError(f"gc --libraries: {error}") from None
    return collect_libraries(age_s, dry_run=dry_run)


@public
def gc_cache(
    cache: str | None = None, *, max_size: str | None = None, max_age: str | None = None, dry_run: bool = False
) -> CacheFreed:
    """Delete results from a shared cache: those older than `max_age` (`30 days`), then the oldest beyond `max_size`.

    By default, the cache is the one of the environment and the settings files. Others may push and pull meanwhile.
    """
    from ndld_flow.execution.cache import collect_configured_cache

    return collect_configured_cache(cache, max_size, max_age, dry_run=dry_run)


@click.command("gc", help=__doc__)
@click.option(
    "--keep",
    type=click.IntRange(min=0),
    metavar="N",
    help="Keep only the N newest untagged runs and sweeps of each recipe.",
)
@click.option(
    "--cache",
    is_flag=False,
    flag_value="",
    metavar="[URL]",
    help="Delete from the shared cache instead: the one of the settings, or this one.",
)
@click.option(
    "--libraries", is_flag=True, help="Delete the unused private environments of runtimes in your cache folder instead."
)
@click.option("--max-size", metavar="SIZE", help='With --cache: delete the oldest results beyond this size: "50 GiB".')
@click.option(
    "--max-age",
    metavar="TIME",
    help='With --cache or --libraries: delete what is older, or unused for longer: "30 days".',
)
@click.option("--dry-run", "-n", is_flag=True, help="Only show what would be deleted.")
@outputs_option
@json_option
def command(
    keep: int | None,
    cache: str | None,
    libraries: bool,
    max_size: str | None,
    max_age: str | None,
    dry_run: bool,
    outputs: Path,
    as_json: bool,
) -> None:
    if libraries and (cache is not None or keep is not None or max_size is not None):
        raise click.UsageError("--libraries excludes --cache, --keep and --max-size.")
    if libraries:
        _print_libraries(gc_libraries(max_age=max_age, dry_run=dry_run), as_json=as_json)
        return
    if keep is not None and cache is not None:
        raise click.UsageError("--keep counts runs of this folder; with --cache, give --max-size or --max-age.")
    if max_size is not None and cache is None:
        raise click.UsageError("--max-size is for the shared cache: add --cache.")
    if max_age is not None and cache is None:
        raise click.UsageError("--max-age needs --cache or --libraries.")
    if cache is not None:
        _collect_cache(cache, max_size, max_age, dry_run=dry_run, as_json=as_json)
    else:
        notify = lambda text: click.echo(text, err=True)  # noqa: E731
        _print_freed(gc(outputs=outputs, keep=keep, dry_run=dry_run, notify=notify), as_json=as_json)


def _print_libraries(freed: LibrariesFreed, *, as_json: bool) -> None:
    if as_json:
        print_json(OUTPUT, freed)
        return
    for folder in freed.libraries:
        click.echo(folder)
    verb = "would free" if freed.dry_run else "freed"
    click.echo(f"{verb} {size(freed.freed_bytes)}; {size(freed.kept_bytes)} were used lately and remain")


def _print_freed(freed: Freed, *, as_json: bool) -> None:
    if as_json:
        print_json(OUTPUT, freed)
        return
    for run in freed.runs:
        click.echo(f"run {run}")
    for sweep in freed.sweeps:
        click.echo(f"sweep {sweep}")
    verb = "would free" if freed.dry_run else "freed"
    sweeps = f"{len(freed.sweeps)} sweeps, " if freed.sweeps else ""
    click.echo(
        f"{verb} {freed.freed_bytes / 2**20:,.1f} MiB: {len(freed.runs)} runs, {sweeps}{len(freed.objects)} artifacts"
    )
    if freed.in_use:
        click.echo(
            f"kept {len(freed.in_use)} artifacts, {freed.in_use_bytes / 2**20:,.1f} MiB, in use by runs in progress"
        )
    if freed.keeps_libraries:
        click.echo("your cache has private environments of runtimes: `gc --libraries` deletes unused ones")


def _collect_cache(cache: str, max_size: str | None, max_age: str | None, *, dry_run: bool, as_json: bool) -> None:
    freed = gc_cache(cache or None, max_size=max_size, max_age=max_age, dry_run=dry_run)
    if as_json:
        print_json(OUTPUT, freed)
        return
    verb = "would free" if dry_run else "freed"
    click.echo(
        f"{verb} {size(freed.freed_bytes)} in {freed.cache}: {counted(freed.record_count, 'result')}, "
        f"{counted(freed.object_count, 'artifact')}; {counted(freed.kept_record_count, 'result')} and "
        f"{size(freed.kept_bytes)} remain"
    )
    if freed.other_version_count:
        click.echo(f"skipped {counted(freed.other_version_count, 'result')} of another version of ndld-flow")
