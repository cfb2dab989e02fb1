"""Export results: write the models and engines of a passed run out of its folder, each with a record next to it."""

from __future__ import annotations

import glob
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ndld_flow.base.errors import RequestError, explaining_file
from ndld_flow.export.triton import VERSION, describe_engine, describe_onnx
from ndld_flow.models.external_files import external_files
from ndld_flow.recipe.recipe import SOURCE, TRITON, Recipe
from ndld_flow.records.document import read_document
from ndld_flow.records.key_parts import ArtifactRecord
from ndld_flow.records.run_folder import find_file
from ndld_flow.records.run_record import ExportRecord, HeldOutCheck, RunRecord, metrics_of
from ndld_flow.store.digest import sha256_of
from ndld_flow.store.files import copy_file, make_folder, place_folder, sync, write_text_atomically, writing_atomically
from ndld_flow.store.kinds import Engine, Onnx

_NOUNS = {Onnx: "a model", Engine: "an engine"}
_MAINS = {kind.kind: kind.main for kind in _NOUNS}
ENGINE_SUFFIXES = (".engine", ".plan", ".trt")


@dataclass(frozen=True)
class Export:
    """A result to export."""

    step: str
    """The step that produced it, or `source`."""
    path: Path
    check: HeldOutCheck | None = None

    @property
    def record_path(self) -> Path:
        """The path of its record."""
        return self.path.with_name(f"{self.path.name}.json")

    def name_of(self, file: Path) -> str:
        """Return the name of one of its files in the record."""
        return file.relative_to(self.path.parent).as_posix()

    def data_path(self, index: int) -> Path:
        """Return the path of one of its files of external data."""
        return self.path.with_name(f"{self.path.name}.data{f'.{index}' if index else ''}")

    def existing(self) -> list[Path]:
        """Return the files that it would replace, if they exist, or remove: its own, and those of earlier results."""
        data, ends = glob.escape(self.data_path(0).name), ("", ".[0-9]*")
        return [self.path, *sorted(file for end in ends for file in self.path.parent.glob(f"{data}{end}"))]


class TritonExport(Export):
    """A result to export to a model repository of Triton: `path` is the folder of its model there."""

    def existing(self) -> list[Path]:
        if self.path.is_symlink() or not self.path.is_dir():
            return [self.path]
        links = (Path(root) / name for root, folders, _ in os.walk(self.path) for name in folders)
        files = (Path(root) / name for root, _, names in os.walk(self.path) for name in names)
        return sorted((*filter(Path.is_symlink, links), *files))


def plan_exports(recipe: Recipe, output: Path | None) -> tuple[Export, ...]:
    """Return the results that a run will export: the recipe's `export:`, and `output`, a file or a folder.

    A file gets the last model, or by its suffix the last engine (`ENGINE_SUFFIXES`); a folder gets both, and a model
    repository the later one. Raises RequestError if no step produces one, and for existing files that no export has
    written.
    """
    exports = [Export(step, Path(path)) for path, step in recipe.file.export.items() if path != TRITON]
    if TRITON in recipe.file.export:
        kinds = {each.name: each.type.cls.kinds()[1] for each in recipe.steps if not each.step.for_inspection}
        last = [name for name, kind in kinds.items() if kind in _NOUNS][-1]
        exports.append(TritonExport(last, Path(recipe.file.export[TRITON]) / recipe.name))
    if output is not None:
        exports += _exports_to(recipe, output)
    for export in exports:
        _refuse_foreign(export)
    return tuple(exports)


def export_results(exports: Sequence[Export], run: RunRecord, folder: Path) -> list[tuple[str, ...]]:
    """Copy results from a run's folder, or its source; return the paths of each, external data last.

    A model's external data get its name: `fast.onnx.data`, `fast.onnx.data.1`, ... Raises OutputsError for files that
    cannot be written.
    """
    written = []
    for export in exports:
        with explaining_file(export.path, "the result"):
            written.append(_export(export, run, folder))
    return written


def check_output(output: Path) -> None:
    """Raise RequestError, before anything runs, for a file that no export could write: a model's ends in `.onnx`."""
    if output.suffix != Path(Onnx.main).suffix:
        raise RequestError(f"--output {output}: a model's file ends in {Path(Onnx.main).suffix}.")
    _refuse_foreign(Export("", output))


def _exports_to(recipe: Recipe, output: Path) -> Iterator[Export]:
    last = {step.type.cls.kinds()[1]: step.name for step in recipe.steps if not step.step.for_inspection}
    of_suffix: dict[str, type[Onnx | Engine]] = {".onnx": Onnx, **dict.fromkeys(ENGINE_SUFFIXES, Engine)}
    kind = of_suffix.get(output.suffix)
    if kind is not None:
        if kind not in last:
            raise RequestError(f"--output {output}: no step of {recipe.path} produces {_NOUNS[kind]}.")
        yield Export(last[kind], output)
        return
    if output.suffix and not output.is_dir():
        known = ", ".join(of_suffix)
        raise RequestError(f"--output {output}: a result ends in {known}; give one of these, or a folder.")
    found = [Export(last[kind], output / f"{recipe.name}{Path(kind.main).suffix}") for kind in _NOUNS if kind in last]
    if not found:
        raise RequestError(f"--output {output}: no step of {recipe.path} produces a model or an engine.")
    yield from found


def _refuse_foreign(export: Export) -> None:
    """Refuse to replace a file that was not written by an export, or was changed since."""
    written, files = dict[str, str](), export.existing()
    try:
        written = read_document(ExportRecord, export.record_path).sha256
    except (OSError, ValueError):
        files.append(export.record_path)
    for file in files:
        if file.exists() and not (file.is_file() and written.get(export.name_of(file)) == sha256_of(file)):
            raise RequestError(
                f"{file}: it exists, and is not a file that an earlier run exported there. Move it away, or choose "
                "another name."
            )


def _export(export: Export, run: RunRecord, folder: Path) -> tuple[str, ...]:
    """Write the files of a result, then its record, unless they are there already; return the paths of the files."""
    artifact = run.source.artifact if export.step == SOURCE else run.records[export.step].artifact
    if isinstance(export, TritonExport):
        _export_triton(export, run, artifact, folder / export.step)
        return (str(export.path),)
    main = _MAINS[artifact.kind]
    source = Path(run.source.path) if export.step == SOURCE else find_file(folder / export.step, main)
    names = external_files(source) if artifact.kind == Onnx.kind else ()
    data = {name: export.data_path(index) for index, name in enumerate(names)}
    targets = [export.path, *data.values()]
    _refuse_foreign(export)
    if not _is_exported(export, run, artifact, targets):
        replaced = export.existing()
        with ExitStack() as placing:  # what is opened last is placed first: a model appears after its weights
            asides = [Path(placing.enter_context(writing_atomically(path)).name) for path in targets]
            if data:
                from ndld_flow.models.files import rename_external_data

                rename_external_data(source, asides[0], {name: path.name for name, path in data.items()})
            else:
                copy_file(source, asides[0])
            for name, aside in zip(data, asides[1:], strict=True):
                copy_file(source.parent / name, aside)
                sync(aside)
            digests = {export.name_of(path): sha256_of(aside) for path, aside in zip(targets, asides, strict=True)}
            export.record_path.unlink(missing_ok=True)  # until the end, the files have no record
            if data:  # an earlier model must not be seen with these weights
                export.path.resolve().unlink(missing_ok=True)
        for path in {*replaced}.difference(targets):
            path.unlink()
        write_text_atomically(export.record_path, _describe(run, artifact, export, digests).to_json())
    return tuple(map(str, targets))


def _export_triton(export: TritonExport, run: RunRecord, artifact: ArtifactRecord, folder: Path) -> None:
    """Write the folder of a model with its version, which appears when it is complete.

    Raises RequestError for a model or an engine that Triton cannot serve.
    """
    main = find_file(folder, _MAINS[artifact.kind])
    is_model = artifact.kind == Onnx.kind
    name, config = describe_onnx(main) if is_model else describe_engine(folder)
    data = [file.path for file in artifact.files if is_model and file.path != _MAINS[artifact.kind]]
    copied = {f"{VERSION}/{name}": main, **{f"{VERSION}/{each}": find_file(folder, each) for each in data}}
    config_file, repository = export.path / "config.pbtxt", export.path.parent
    written = [config_file, *(export.path / each for each in copied)]
    _refuse_foreign(export)
    if _is_exported(export, run, artifact, written) and config_file.read_text(encoding="utf-8") == config:
        return
    export.record_path.unlink(missing_ok=True)
    make_folder(repository)
    # Not in the repository: a server that watches it would load what is half copied.
    with tempfile.TemporaryDirectory(prefix=".triton.", dir=repository.resolve().parent) as aside:
        built = Path(aside) / "new"
        for inner, source in copied.items():
            (built / inner).parent.mkdir(parents=True, exist_ok=True)
            copy_file(source, built / inner)
        (built / config_file.name).write_text(config, encoding="utf-8")
        if export.path.exists():
            export.path.rename(Path(aside) / "old")
        place_folder(built, export.path)
    digests = {export.name_of(path): sha256_of(path) for path in written}
    write_text_atomically(export.record_path, _describe(run, artifact, export, digests).to_json())


def _is_exported(export: Export, run: RunRecord, artifact: ArtifactRecord, targets: Sequence[Path]) -> bool:
    """Return whether files, which match their record where they exist, are this run's: their times then stay."""
    try:
        written = read_document(ExportRecord, export.record_path)
    except (OSError, ValueError):
        return False
    complete = {export.name_of(path) for path in targets} == written.sha256.keys()
    complete = complete and all(path.is_file() for path in targets)
    described = _describe(run, artifact, export, written.sha256)
    # The first run that gave it stays: a record that changed with each run would change the key of code next to it.
    return complete and described.model_copy(update={"run": written.run, "started_at": written.started_at}) == written


def _describe(run: RunRecord, artifact: ArtifactRecord, export: Export, digests: Mapping[str, str]) -> ExportRecord:
    return ExportRecord(
        sha256=dict(digests),
        step=export.step,
        artifact=artifact.digest,
        source=run.source.location,
        source_digest=run.source.artifact.digest,
        run=f"{run.recipe_name}/{run.id}",
        started_at=run.started_at,
        metrics=metrics_of(run.steps),
        gates=run.gates,
        versions=run.versions,
        check=export.check,
    )
