"""Change a model's graph."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import AfterValidator, BaseModel, Field

from ndld_flow.base.extras import EXTRAS
from ndld_flow.base.user_code import list_files
from ndld_flow.graph.edit.catalogue import AnyOperation, OperationEntry, find_operation, operation_names, origin_of
from ndld_flow.graph.edit.operation import Operation
from ndld_flow.graph.edit.settings import NodeSelect
from ndld_flow.inputs import InputSpec
from ndld_flow.machine.plugins import code_of_plugin
from ndld_flow.machine.versions import read_version
from ndld_flow.runtimes.onnxruntime.settings import LoadsCustomOps
from ndld_flow.step import Context, Foresight, Result, Returns, Step, metrics
from ndld_flow.store.digest import digest_file, digest_json
from ndld_flow.store.kinds import Onnx


def _not_empty(operations: tuple[OperationEntry, ...]) -> tuple[OperationEntry, ...]:
    # Not `min_length`: pydantic counts only the valid items, and would report it in addition to the mistake in an item.
    if not operations:
        raise ValueError("name at least one operation")
    return operations


def _version(word: str, operation: Operation) -> str:
    """Return an operation's own version with that of its package, or a digest of a package without one."""
    origin = origin_of(word)
    code = code_of_plugin(type(operation).__module__) if origin else None
    if code is None:
        return f"{operation.version} {origin}".rstrip()
    files = {name: digest_file(file) for name, file in list_files(code.path).items()}
    return f"{operation.version} {origin} {digest_json({**files})[:12]}"


class Edit(LoadsCustomOps, Step[Onnx, Onnx]):
    """Change the graph with an ordered list of operations.

    Each entry of the list is one operation with its settings; `ndld-flow steps edit.OPERATION` explains one:

        operations:
          - remove_nodes: {select: {op_type: Dropout}, bridge: true}
          - rename_nodes: {select: "conv_*", to: "backbone_{name}"}

    All operations work on one model in memory; weights in external data stay on disk. Afterwards the model is sorted,
    its shapes are inferred, the ONNX checker verifies it, and the changes are recorded. An operation that selects
    nothing is an error.
    """

    also_called: ClassVar[tuple[str, ...]] = ("modify", "surgeon", "graphsurgeon", "patch", "surgery")
    synonyms: ClassVar[Mapping[str, str]] = {"ops": "operations", "edits": "operations"}

    version: ClassVar[int] = 5
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnx-ir", "onnxruntime", "numpy")
    stops_run: ClassVar[bool] = True
    sets_shapes: ClassVar[bool] = True
    returns: ClassVar[tuple[Returns, ...]] = metrics("nodes")

    operations: Annotated[tuple[AnyOperation, ...], AfterValidator(_not_empty)] = Field(
        json_schema_extra={"minItems": 1}
    )
    """The operations, in order."""

    @classmethod
    def parts(cls) -> Mapping[str, type[BaseModel]]:
        operations = {word: find_operation(word) for word in operation_names()}
        return {**{word: operation for word, operation in operations.items() if operation}, "select": NodeSelect}

    @property
    def keeps_values(self) -> bool:
        return all(entry.operation.keeps_values for entry in self.operations)

    def used_input(self, spec: InputSpec) -> InputSpec | None:
        """Return the shapes and generated values that the operations read; they never read files."""
        if not any(entry.operation.uses_inputs for entry in self.operations):
            return None
        return spec.shapes if spec.data_patterns or spec.fed_from else spec

    def foresee(self) -> Foresight:
        needed = {entry.name: entry.operation.extra for entry in self.operations if entry.operation.extra}
        lacks = [EXTRAS[extra].lack(f"the operation `{name}`") for name, extra in needed.items()]
        return Foresight(lacks=tuple(filter(None, lacks)))

    def library_versions(self) -> dict[str, str]:
        used = {entry.name: entry.operation for entry in self.operations}
        libraries = {library for operation in used.values() for library in operation.libraries}
        own = {f"operation {word}": _version(word, operation) for word, operation in sorted(used.items())}
        return super().library_versions() | {name: read_version(name) for name in sorted(libraries)} | own

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        from ndld_flow.graph.edit.edit_file import Entry, edit_file
        from ndld_flow.graph.edit.edited_model import EditedModel
        from ndld_flow.models.files import load_model

        edited = EditedModel(
            model=load_model(source.path),
            path=source.path,
            inputs=context.inputs,
            others={artifact.label: artifact.path for artifact in context.artifacts.values()},
            log=context.log,
        )
        entries = [
            Entry(f"operations[{index}] {entry.name}", entry.operation) for index, entry in enumerate(self.operations)
        ]
        change = edit_file(edited, entries, out / Onnx.main, context.progress)
        diff = change.diff
        return Result(
            summary="; ".join(edited.failures) or (diff.one_line if diff is not None else ""),
            passed=not edited.failures,
            metrics={"nodes": change.after.node_count},
            change=change,
        )
