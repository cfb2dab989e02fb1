"""Keys of steps: the digest of everything that a result depends on."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import JsonValue

from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import short_name, visible_name
from ndld_flow.base.user_code import UserCode, list_files
from ndld_flow.inputs import Data, InputSpec, names_one_file, patterns_of
from ndld_flow.machine.host import Reuse, computing_variables, describe_place
from ndld_flow.machine.versions import read_module_version
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.records.key_parts import KeyParts
from ndld_flow.step import Foresight
from ndld_flow.store.digest import digest_json
from ndld_flow.store.found_files import IMAGE_SUFFIXES, find_files
from ndld_flow.store.hidden_credentials import hide_all_credentials, hide_in_values
from ndld_flow.store.kinds import Artifact
from ndld_flow.store.store import Store

if TYPE_CHECKING:
    from ndld_flow.records.run_record import StepRecord

_READING = dict.fromkeys(IMAGE_SUFFIXES, 2)
"""Suffix of a file -> version of its values. 2: images are rotated as EXIF declares.

That of PNG files too, and the format is that of the contents, whatever the suffix.
"""
NEXT_TO = "next to"
"""Words in the names of files and folders next to a user's code."""
HIDDEN_VALUES = "values that are not shown"
"""Name of an additional part of the key of settings that contain credentials: a digest of their true values."""


@dataclass(frozen=True)
class Site:
    """The machine that would compute a step, and what the step depends on there."""

    libraries: Mapping[str, str]
    """Name -> version; with the variables of the environment that change results."""
    machine: str
    """Empty for a step whose result is the same on every machine."""
    foresight: Foresight


def describe_key(
    step: RecipeStep,
    read_digests: Mapping[str, str],
    inputs: Mapping[str, InputSpec],
    store: Store,
    machine_of: Callable[[RecipeStep], str] | None = None,
    site: Site | None = None,
) -> KeyParts:
    """Return everything that a step's result depends on, its settings with their true values.

    Credentials are replaced by a digest that only this store can compute. `read_digests`: key of an input (`from`, ...)
    -> digest of its artifact. `machine_of` returns the fingerprint of the machine that would compute the step, if that
    is not this one; `site` describes that machine with its libraries. Raises RequestError for a missing data file.
    """
    used = step.used_inputs(inputs)
    samples = {f"inputs.{name}": spec.data for name, spec in used.items() if spec.data_patterns} | step.sample_data
    samples |= {f"inputs.{name}.tokenizer": spec.tokenizer for name, spec in used.items() if spec.tokenizer is not None}
    settings, specs = step.settings, _describe_inputs(step, inputs)
    shown, shown_specs = describe_settings(step, inputs)
    passed: dict[str, JsonValue] = {name: os.environ.get(name) for name in step.step.passed_variables()}
    true_values: list[JsonValue] = [settings, specs]
    hidden = {}
    if passed or step.hidden or hide_all_credentials(true_values) != true_values:  # passed variables are always hidden
        hidden[HIDDEN_VALUES] = store.digest_hidden([*true_values, passed])
    return KeyParts(
        step=step.type.name,
        version=step.type.version,
        settings=shown,
        inputs=shown_specs,
        reads={
            **read_digests,
            **hidden,
            **{
                name: _digest_file(_place(step, name), path, store)
                for name, path in {**step.data_files, **step.other_files}.items()
            },
            **{
                name: _digest_samples(_place(step, name), data, store, most=step.step.samples_read())
                for name, data in samples.items()
            },
            **_digest_code(step.code(), store),
        },
        libraries=dict(site.libraries) if site is not None else describe_libraries(step, installed_modules(step)),
        machine=site.machine if site is not None else describe_machine_of(step, machine_of),
    )


def installed_modules(step: RecipeStep) -> list[str]:
    """Return the installed modules that a step's code imports."""
    return [module for code in step.code().values() for module in code.installed]


def describe_libraries(step: RecipeStep, modules: Iterable[str]) -> dict[str, str]:
    """Return the versions of the libraries and modules that a step uses here, and the variables that change results."""
    libraries = {**dict(map(read_module_version, modules)), **step.step.library_versions()}
    computes = step.step.reused_where() is Reuse.ANYWHERE and "onnxruntime" in libraries
    variables = computing_variables() if computes else {}
    return libraries | {f"variable {name}": value for name, value in variables.items()}


def describe_settings(
    step: RecipeStep, inputs: Mapping[str, InputSpec]
) -> tuple[dict[str, JsonValue], dict[str, JsonValue]]:
    """Return a step's settings and the recipe's inputs as far as the step reads them, without credentials."""
    settings = step.settings
    settings |= {name: shown for name, shown in step.hidden.items() if name in settings}
    return hide_in_values(settings), hide_in_values(_describe_inputs(step, inputs))


def _describe_inputs(step: RecipeStep, inputs: Mapping[str, InputSpec]) -> dict[str, JsonValue]:
    return {name: spec.key_values for name, spec in step.used_inputs(inputs).items()}


def join_keys(unit: Sequence[KeyParts]) -> list[KeyParts]:
    """Join the keys of steps that are measured in turns: each depends on all, so none is reused without the others.

    The position of a step distinguishes equal steps, as when noise is measured.
    """
    if len(unit) == 1:
        return list(unit)
    alone = [make_key(parts) for parts in unit]
    return [
        parts.model_copy(update={"together": (*alone[:index], "", *alone[index + 1 :])})
        for index, parts in enumerate(unit)
    ]


def make_key(parts: KeyParts) -> str:
    """Return the digest of a key's parts."""
    return digest_json(parts.model_dump(mode="json"))


def find_misfit(record: StepRecord, output: type[Artifact]) -> str:
    """Return why a record cannot be the result of a step with this output, in a few words; empty if it can."""
    artifact = record.artifact
    if artifact.kind != output.kind:
        return f"its artifact is of the kind {short_name(artifact.kind, 40)} instead of {output.kind}"
    has_main = any(file.path == output.main for file in artifact.files)
    return "" if has_main else f"its artifact has no {output.main}"


def describe_machine_of(step: RecipeStep, machine_of: Callable[[RecipeStep], str] | None = None) -> str:
    """Return the properties of the machine that computes a step that are part of its key; by default, of this one."""
    where = step.step.reused_where()
    if where is Reuse.ANYWHERE:
        return ""
    return machine_of(step) if machine_of is not None else describe_place(where, step.step.device)


def _place(step: RecipeStep, setting: str) -> str:
    """Return the dotted path of a setting in the recipe, for messages."""
    return setting if setting.startswith("inputs.") else f"steps.{step.name}.{setting}"


def _digest_code(codes: Mapping[str, UserCode], store: Store) -> dict[str, str]:
    """Return the digests of the files that may decide what a step's code computes: each file and folder next to it, and
    the modules that it imports from elsewhere.
    """
    digests: dict[str, str] = {}
    for owner, code in codes.items():
        below: dict[str, list[JsonValue]] = {}
        for name, path in list_files(code.path).items():
            digest = _digest_file(owner, str(path), store)
            first, _, rest = name.partition("/")
            if rest:
                below.setdefault(first, []).append([rest, digest])
            else:
                digests[f"file {name} ({NEXT_TO} {owner})"] = digest
        digests |= {f"folder {name} ({NEXT_TO} {owner})": digest_json(files) for name, files in below.items()}
        for name, path in code.elsewhere.items():
            digests[f"module {name} (imported by {owner})"] = _digest_file(owner, str(path), store)
    return digests


def _digest_samples(name: str, data: Data, store: Store, *, most: int | None) -> str:
    """Return the digest of a file; of several, with their order and names, which are the samples' labels.

    `most`: only so many are read, the first ones.
    """
    if isinstance(data, str) and names_one_file(data):
        return _digest_sample(name, data, store)
    try:
        found = find_files(patterns_of(data))
    except RequestError as error:
        raise RequestError(f"{name}: {error}") from None
    return digest_json(
        [
            [file.label, *(_digest_sample(name, str(path), store) for path in file.contents.values())]
            for file in found[:most]
        ]
    )


def _digest_sample(name: str, path: str, store: Store) -> str:
    """Return the digest of a file and, if its values were once read differently, of the way in which they are read."""
    digest = _digest_file(name, path, store)
    version = _READING.get(Path(path).suffix.lower())
    return digest if version is None else digest_json([digest, version])


def _digest_file(name: str, path: str, store: Store) -> str:
    try:
        return store.digests.digest(Path(path))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise RequestError(
            f"{name}: the file {visible_name(path)} cannot be read: {reason}. Paths are relative to the current "
            f"directory ({Path.cwd()})."
        ) from None
