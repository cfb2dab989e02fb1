"""A step's key: the digest of everything its result depends on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path

from pydantic import JsonValue

from ndld_flow.artifacts.digest import digest_json
from ndld_flow.artifacts.store import Store
from ndld_flow.errors import RequestError
from ndld_flow.inputs import InputSpec
from ndld_flow.machine import describe_machine
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.records.step_record import KeyParts
from ndld_flow.step import Reuse


def describe_key(
    step: RecipeStep,
    read_digests: Mapping[str, str],
    inputs: Mapping[str, InputSpec],
    store: Store,
    machine_of: Callable[[RecipeStep], str] | None = None,
) -> KeyParts:
    """Everything a step's result depends on.

    `read_digests`: what it reads (`from`, ...) -> digest of that artifact. `machine_of` tells the fingerprint of the
    machine that would do the step, where that is not this one. Raises RequestError for a data file that is not there.
    """
    somewhere = step.step.reused_where() is Reuse.ANYWHERE
    files = step.data_files
    used = {name: spec for name, spec in inputs.items() if step.step.needs_inputs()}
    files |= {f"inputs.{name}": spec.data_file for name, spec in used.items() if spec.data_file is not None}
    return KeyParts(
        step=step.type.name,
        version=step.type.version,
        settings=step.settings,
        inputs={name: _without_path(spec) for name, spec in used.items()},
        reads={**read_digests, **{name: _digest_data(name, path, store) for name, path in files.items()}},
        libraries=step.step.library_versions(),
        machine="" if somewhere else (machine_of(step) if machine_of is not None else fingerprint_machine()),
    )


def join_keys(unit: Sequence[KeyParts]) -> list[KeyParts]:
    """The keys of steps that are measured in turns: each depends on all, so that none is reused without the others.

    The own place tells apart two that are equal, as when noise is measured.
    """
    if len(unit) == 1:
        return list(unit)
    alone = [make_key(parts) for parts in unit]
    return [
        parts.model_copy(update={"together": (*alone[:place], "", *alone[place + 1 :])})
        for place, parts in enumerate(unit)
    ]


def make_key(parts: KeyParts) -> str:
    """The digest of a key's parts."""
    return digest_json(parts.model_dump(mode="json"))


@cache
def fingerprint_machine() -> str:
    """What tells this machine from another where measurements and engines are concerned."""
    machine = describe_machine()
    gpus = ", ".join(machine.gpus) or "no GPU"
    driver = f", driver {machine.driver}" if machine.driver else ""
    return f"{machine.system} {machine.architecture}, {machine.cpu} x {machine.cpu_count}, {gpus}{driver}"


def _without_path(spec: InputSpec) -> JsonValue:
    """An input's description in which a data file counts by its contents, not by its name."""
    values: dict[str, JsonValue] = spec.model_dump(mode="json")
    return values if spec.data_file is None else {**values, "data": Path(spec.data_file).suffix}


def _digest_data(name: str, path: str, store: Store) -> str:
    try:
        return store.digests.digest(Path(path))
    except OSError as error:
        raise RequestError(
            f"{name}: the file {path} cannot be read: {error.strerror}. Paths are relative to where you stand "
            f"({Path.cwd()})."
        ) from None
