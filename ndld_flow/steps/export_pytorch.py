"""Write a model as a PyTorch module."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar

from pydantic import Field

from ndld_flow.base.errors import RequestError
from ndld_flow.base.extras import EXTRAS
from ndld_flow.base.quantities import Milliseconds, counted, number
from ndld_flow.base.text import short_name
from ndld_flow.machine.versions import read_version
from ndld_flow.samples.sample_settings import SampleSettings
from ndld_flow.step import Context, Foresight, Result, Returns, Reuse, Step, metrics
from ndld_flow.store.kinds import Onnx, TorchModule

if TYPE_CHECKING:
    from ndld_flow.export.pytorch.export_model import ExportedModule, OutputDistance


class ExportPytorch(SampleSettings, Step[Onnx, TorchModule]):
    """Write a model as a PyTorch module: readable code in a folder, with weights in safetensors.

    `model.py` has the classes and `load_model`, `onnx_operators.py` the operators that PyTorch defines otherwise, and
    `names.json` the ONNX names. They need PyTorch and safetensors, and nothing of ndld-flow. Modules follow the scopes
    in the nodes' names; equal ones are one class. Operators, attributes and types without an equivalent are refused,
    all at once. The module is compared with ONNX Runtime before it is kept. `import_weights` of `edit`, and `$Weights`
    of `run_tool`, bring trained weights back into the ONNX model.
    """

    also_called: ClassVar[tuple[str, ...]] = ("pytorch", "topytorch", "totorch", "onnx2torch", "onnx2pytorch")

    version: ClassVar[int] = 3
    libraries: ClassVar[tuple[str, ...]] = ("onnx", "onnx-ir", "safetensors")
    uses_inputs: ClassVar[bool] = True
    returns: ClassVar[tuple[Returns, ...]] = (
        *metrics("nodes", "modules", "classes", "parameters"),
        *metrics(
            "cosine",
            "slice_rms",
            "max_abs",
            given=lambda step, *_: step.check,
            when="`check` is true and an output has numbers",
        ),
    )

    check: bool = True
    """Run the module in a process of its own and fail unless every output agrees with ONNX Runtime's: float outputs to
    1 % of the spread of each channel (5 % for fp16 and bf16), others exactly. It needs PyTorch (the extra `torch`)."""
    timeout: Annotated[Milliseconds, Field(gt=0)] = 600_000.0
    """Time limit of the check, such as `10 min`."""

    def foresee(self) -> Foresight:
        lack = EXTRAS["torch"].lack("`check` of export_pytorch") if self.check else ""
        return Foresight(lacks=(f"{lack}, or set `steps.NAME.check: false`",) if lack else ())

    def reused_where(self) -> Reuse:
        # The code is the same everywhere, but agreement holds only where it was checked.
        return Reuse.THIS_MACHINE if self.check else Reuse.ANYWHERE

    def library_versions(self) -> dict[str, str]:
        checked = ("torch", "onnxruntime", "numpy") if self.check else ()
        return super().library_versions() | {name: read_version(name) for name in checked}

    def run(self, source: Onnx, out: Path, context: Context) -> Result:
        from ndld_flow.export.pytorch.export_model import export_module, write_module

        context.progress(0, 2, "writing the module")
        exported = export_module(source.path)
        write_module(exported, out)
        parameters = sum(
            math.prod(value.const_value.shape.numpy())
            for value in exported.weights.values()
            if value is not None and value.const_value is not None
        )
        metrics: dict[str, float] = {
            "nodes": exported.nodes,
            "modules": exported.modules,
            "classes": exported.classes,
            "parameters": parameters,
        }
        distances = self._compare(exported, source, out, context) if self.check else []
        for name, worst in (("cosine", min), ("slice_rms", max), ("max_abs", max)):
            found = [each.metrics[name] for each in distances if name in each.metrics]
            if found:
                metrics[name] = worst(found)
        counts = f"{counted(exported.nodes, 'node')} in {counted(exported.classes, 'class')}"
        verdict = _verdict(distances, metrics) if self.check else "not compared with ONNX Runtime"
        return Result(f"{counts}, {verdict}", metrics=metrics)

    def _compare(self, exported: ExportedModule, source: Onnx, out: Path, context: Context) -> list[OutputDistance]:
        from ndld_flow.export.pytorch.export_model import ModuleCheck, compare_module
        from ndld_flow.models.files import model_inputs
        from ndld_flow.processes.launch import log_to
        from ndld_flow.samples.sample_feeds import make_samples

        context.progress(1, 2, "comparing it with ONNX Runtime")
        samples = make_samples(model_inputs(source.path), context.inputs, self, str(source.path))
        context.log_lines(*samples.described, *samples.notes)
        check = ModuleCheck(source.path, out, context.scratch, self.timeout / 1e3)
        distances = compare_module(exported, check, samples, log_to(context.log, context.progress))
        failures = [f"{short_name(each.name)}: {'; '.join(each.failures)}" for each in distances if each.failures]
        for each in distances:
            values = ", ".join(f"{name} {number(value)}" for name, value in each.metrics.items())
            context.log.info("output %s: %s", short_name(each.name), values)
            if each.is_constant:
                context.log.warning("output %s has one value on these inputs: weak evidence", short_name(each.name))
        if failures:
            raise RequestError(f"the written module does not compute what ONNX Runtime does: {'. '.join(failures)}")
        return distances


def _verdict(distances: list[OutputDistance], metrics: dict[str, float]) -> str:
    """Return how far the module is from ONNX Runtime, and which outputs are weak evidence."""
    constant = sum(each.is_constant for each in distances)
    weak = f" ({counted(constant, 'output')} constant: weak evidence)" if constant else ""
    if "max_abs" not in metrics:
        return f"outputs equal to ONNX Runtime's{weak}"
    return f"within {number(metrics['max_abs'])} of ONNX Runtime{weak}"
