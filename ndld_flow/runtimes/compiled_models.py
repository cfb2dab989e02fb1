"""Models that a runtime compiled to a file, which its sessions open instead of the model.

The file is the artifact of the step `compile_model`, or one that another program wrote (`compiled_file`). A runtime
that compiles models has

- settings of its own in `compile_model`: `RuntimeSettings.compiling`
- the settings `compiled` and `compiled_file`, whose values `read_compiled` turns into those of its request
- a request that inherits `RunsCompiled`: `compile` writes the file, and `open_compiled` opens it
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Protocol

from ndld_flow.base.errors import BackendError, RequestError
from ndld_flow.machine.hardware import read_instructions
from ndld_flow.runtimes.protocol import Session, SessionRequest
from ndld_flow.step import DataFile, Reads, RunsCode
from ndld_flow.store.kinds import CompiledModel, Onnx

if TYPE_CHECKING:  # measuring processes import this module
    from pydantic import BaseModel

    from ndld_flow.records.compiled import Compiled
    from ndld_flow.records.execution import BuiltFile
    from ndld_flow.runtimes.settings import CompileSettings, ReadArtifact

CompiledStep = Annotated[str | None, Reads(CompiledModel)]
"""The step whose compiled model runs."""
CompiledFile = Annotated[Path | None, DataFile(), RunsCode()]
"""A compiled model from elsewhere. Libraries read it without the checks that models get, as a program."""


class NamesCompiled(Protocol):
    """Settings of a runtime that runs compiled models too."""

    title: ClassVar[str]
    compiling: ClassVar[type[CompileSettings] | None]

    @property
    def backend(self) -> str: ...

    @property
    def compiled(self) -> str | None: ...

    @property
    def compiled_file(self) -> Path | None: ...


@dataclass(frozen=True, kw_only=True)
class RunsCompiled(SessionRequest):
    """A request that may open a compiled model instead of its source.

    A file of another release, for another CPU or of another model is refused here.
    """

    compiled_path: str = ""
    """Absolute path of the compiled model; empty to open the model itself."""
    compiled_by: str = ""
    """Release of the library that compiled it; empty if it is unknown."""
    compiled_for: tuple[str, ...] = ()
    """Instruction sets that the CPU must have; empty for any."""
    compiled_ports: tuple[str, ...] = ()
    """Names of the model's inputs and outputs, which those of the file must be."""
    compiled_origin: BuiltFile | None = None
    """The record of the file; a measuring process does not get it."""

    def __post_init__(self) -> None:
        for name in ("compiled_for", "compiled_ports"):  # JSON has lists
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def to_json(self) -> dict[str, Any]:
        return asdict(replace(self, compiled_origin=None))

    @property
    def needs_process(self) -> bool:
        # A damaged file may crash the library.
        return bool(self.compiled_path) or super().needs_process

    def built_file(self) -> Path | None:
        return Path(self.compiled_path) if self.compiled_path else None

    def describe_built_file(self) -> BuiltFile | None:
        return self.compiled_origin

    @abstractmethod
    def open_model(self, model: Path) -> Session:
        """Open the model itself, as `SessionRequest.open` does."""

    @abstractmethod
    def open_compiled(self, model: Path, file: Path) -> Session:
        """Open the compiled model in a file. Raises ModelError if the library refuses it.

        The inputs and outputs that the session describes are those of the file, whatever the model has.
        """

    def open(self, model: Path) -> Session:
        if not self.compiled_path:
            return self.open_model(model)
        self._refuse_elsewhere()
        session = self.open_compiled(model, Path(self.compiled_path))
        self._refuse_other_ports(session, model)
        return session

    def _refuse_elsewhere(self) -> None:
        """Raise BackendError if another release compiled the file, or for another CPU."""
        library, [version] = self.names().library, self.library_versions({}).values()
        if self.compiled_by not in ("", version):
            raise BackendError(
                f"{self.compiled_path} was compiled by {library} {self.compiled_by}, and this is {library} {version}: "
                "run it in that release, or compile the model again in this one."
            )
        here = read_instructions()
        if self.compiled_for and self.compiled_for != here:
            lacking = sorted(set(self.compiled_for) - set(here))
            difference = f"lacks {', '.join(lacking)}" if lacking else "has further ones"
            raise BackendError(
                f"{self.compiled_path} was compiled for a CPU with other instruction sets: this one {difference}. "
                "Compile the model on this machine."
            )

    def _refuse_other_ports(self, session: Session, model: Path) -> None:
        """Raise RequestError unless the file has the inputs and outputs of the model, by their names."""
        facts = session.describe()
        found = sorted({spec.name for spec in (*facts.inputs, *facts.outputs)})
        wanted = sorted(set(self.compiled_ports))
        if wanted != found:
            raise RequestError(
                f"{self.compiled_path} was compiled from another model than {model}: its inputs and outputs are "
                f"{', '.join(found)}, and those of the model {', '.join(wanted)}."
            )


def check_compiled(settings: NamesCompiled) -> None:
    """Raise ValueError if both a step and a file are named."""
    if settings.compiled is not None and settings.compiled_file is not None:
        raise ValueError("give either `compiled` or `compiled_file`")


def read_compiled(settings: NamesCompiled, model: Onnx, read: ReadArtifact) -> dict[str, Any]:
    """Return the values of a request that opens the compiled model of the settings; none if they name none.

    The settings with which it was compiled are among them. Raises `RequestError` for a compiled model of another
    runtime or model, one that is damaged, and for settings that differ from those with which it was compiled.
    """
    from ndld_flow.models.files import model_inputs, model_outputs
    from ndld_flow.records.execution import BuiltFile
    from ndld_flow.store.digest import digest_file

    if settings.compiled is None and settings.compiled_file is None:
        return {}
    artifact = None if settings.compiled is None else read("compiled")
    file = settings.compiled_file if artifact is None else artifact.path
    assert file is not None
    name = str(file) if artifact is None else artifact.label
    if not file.is_file():
        raise RequestError(f"`compiled_file`: there is no file {file}.")
    record = _read_record(file)
    if record is None and artifact is not None:
        raise RequestError(f"the compiled model of step {name} has no readable record: compile it again.")
    digest = digest_file(file)
    values: dict[str, Any] = {
        "compiled_path": str(file.absolute()),
        "compiled_ports": tuple(spec.name for spec in (*model_inputs(model.path), *model_outputs(model.path))),
        "compiled_origin": BuiltFile(name=name, digest=digest),
    }
    if record is None:
        return values
    _refuse_other(settings, name, record, model, digest)
    built = BuiltFile(name=name, digest=digest, model=record.label, built_with=f"{record.library} {record.version}")
    return {
        **values,
        **_fixed_settings(settings, name, record),
        "compiled_by": record.version,
        "compiled_for": record.instructions,
        "compiled_origin": built,
    }


def record_of(settings: CompileSettings, model: Onnx, version: str, file: Path) -> Compiled:
    """Return the record of a file that was just compiled."""
    from ndld_flow.records.compiled import Compiled
    from ndld_flow.store.digest import digest_file

    return Compiled(
        backend=settings.backend,  # type: ignore[attr-defined]  # every runtime's settings have it
        library=settings.title,
        version=version,
        label=model.label,
        model_digest=model.digest,
        file_digest=digest_file(file),
        settings=settings.model_dump(mode="json", exclude={"backend"}),
        instructions=read_instructions() if settings.needs_same_cpu else (),
    )


def _read_record(file: Path) -> Compiled | None:
    """Return the record next to a file, as a step and an export write it; None without one."""
    from pydantic import ValidationError

    from ndld_flow.records.compiled import Compiled
    from ndld_flow.records.document import read_document

    exported = file.with_name(f"{file.name}.{CompiledModel.record}")
    place = file.with_name(CompiledModel.record) if file.name == CompiledModel.main else exported
    try:
        return read_document(Compiled, place)
    except FileNotFoundError:
        return None
    except (OSError, ValidationError):
        raise RequestError(f"{place} is no record of a compiled model: compile the model again.") from None


def _refuse_other(settings: NamesCompiled, name: str, record: Compiled, model: Onnx, digest: str) -> None:
    if record.backend != settings.backend:
        raise RequestError(
            f"{name} was compiled for {record.library}, and {settings.title} does not run it: set `backend: "
            f"{record.backend}`."
        )
    if record.model_digest != model.digest:
        raise RequestError(
            f"{name} was compiled from another model ({record.label}, {record.model_digest[:12]}) than {model.label} "
            f"({model.digest[:12]}): name the one that was compiled from it."
        )
    if record.file_digest != digest:
        raise RequestError(
            f"{name} was changed or damaged since {record.library} compiled it: compile the model again."
        )


def _fixed_settings(settings: NamesCompiled, name: str, record: Compiled) -> Mapping[str, Any]:
    """Return the settings of `compile_model` that the runtime has too, which no other value may contradict."""
    assert settings.compiling is not None
    compiled = settings.compiling.model_validate({**record.settings, "backend": record.backend}, strict=False)
    own = type(settings).model_fields  # type: ignore[attr-defined]  # they are settings
    shared = [key for key in type(compiled).model_fields if key in own and key != "backend"]
    for key in shared:
        value = getattr(settings, key)
        if value not in (own[key].default, getattr(compiled, key)):
            raise RequestError(
                f"`{key}` is a setting of the compiled model: step {name} has {_shown(compiled, key)}. Remove it here, "
                f"or set it there."
            )
    return {key: getattr(compiled, key) for key in shared}


def _shown(settings: BaseModel, key: str) -> str:
    return f"`{key}: {settings.model_dump(mode='json')[key]}`"
