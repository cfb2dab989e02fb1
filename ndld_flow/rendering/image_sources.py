"""Values of named tensors, inputs and weights of a model, for one sample after the other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import onnx_ir as ir

from ndld_flow.accuracy.activations.inspection import PreparedModel, plain_values
from ndld_flow.base.errors import RequestError
from ndld_flow.base.text import suggest
from ndld_flow.models.files import load_model, model_outputs
from ndld_flow.models.tensors import Array
from ndld_flow.samples.model_matching import pair_names

Arrays = Mapping[str, Array]


class TensorSource:
    """One of the models, as a source of tensors by the names in the candidate."""

    def __init__(self, prepared: PreparedModel, names: Mapping[str, str]) -> None:
        """`names`: name in the candidate -> name here, where they differ."""
        self._prepared, self._names = prepared, names
        model = load_model(prepared.view_path)
        constants = (node for node in model.graph if node.op_type == "Constant" and node.domain == "")
        self._weights = {
            **model.graph.initializers,
            **{node.outputs[0].name or "": node.outputs[0] for node in constants},
        }
        self.metadata = dict(model.metadata_props)
        self.outputs = model_outputs(prepared.view_path)
        self.label = prepared.label

    def own_name(self, name: str) -> str | None:
        """Return the name here of a tensor, an input or a weight; None if there is none."""
        own = self._names.get(name, name)
        return own if own in self._prepared.view or own in self._weights else None

    def is_weight(self, name: str) -> bool:
        """Return True for a weight: it has one value for all samples."""
        own = self._names.get(name, name)
        return own in self._weights and own not in self._prepared.view.inputs

    def weight(self, name: str) -> Array:
        """Return the values of a weight. Raises `RequestError` if they are not stored."""
        value = ir.convenience.get_const_tensor(self._weights[self._names.get(name, name)])
        if value is None:
            raise RequestError(f"images: the weight {name} has no values in {self.label}.")
        return plain_values(value.numpy())

    def require(self, name: str) -> None:
        """Raise `RequestError` with the nearest name if there is no such tensor."""
        if self.own_name(name) is None:
            known = [*self._prepared.view.inputs, *self._prepared.view.places, *filter(None, self._weights)]
            raise RequestError(f'images: {self.label} has no tensor "{name}"; {suggest(name, known)}')

    def values(self, names: Sequence[str], samples: Iterator[Arrays]) -> Iterator[dict[str, Array]]:
        """Yield name in the candidate -> values for each sample; `names` are no weights."""
        own = {name: mine for name in names if (mine := self.own_name(name)) is not None}
        for captured in self._prepared.captured(list(dict.fromkeys(own.values())), samples):
            yield {name: plain_values(captured[mine]) for name, mine in own.items() if mine in captured}


def names_in_reference(candidate: PreparedModel, reference: PreparedModel, inputs: Mapping[str, str]) -> dict[str, str]:
    """Return name in the candidate -> name in the reference, of inputs and outputs that are called differently.

    `inputs`: input of the reference -> input of the candidate. Outputs are matched by name, then by order.
    """
    names = {theirs: mine for mine, theirs in inputs.items()}
    mine, theirs = ([spec.name for spec in model_outputs(each.view_path)] for each in (reference, candidate))
    return names | {right: left for left, right in pair_names(mine, theirs) if left is not None and right is not None}
