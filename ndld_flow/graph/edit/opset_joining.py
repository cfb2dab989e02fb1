"""One version of each operator set for two models that are joined."""

from __future__ import annotations

import onnx_ir as ir

from ndld_flow.base.errors import RequestError
from ndld_flow.graph.edit.edited_model import EditedModel
from ndld_flow.graph.edit.opsets import convert_opset
from ndld_flow.models.files import all_graphs


def join_opsets(edited: EditedModel, guest: EditedModel, name: str) -> None:
    """Convert the model with the older default opset to the newer one, and import the guest's domains.

    Raises `RequestError` where that cannot be, and for two versions of another domain that both models use.
    """
    ours, theirs = edited.model.opset_imports, guest.model.opset_imports
    old, new = sorted([ours.get("", 0), theirs.get("", 0)])
    if old and old != new:
        older = edited if ours[""] == old else guest
        try:
            convert_opset(older, new)
        except RequestError as error:
            raise RequestError(f"model {name!r} has opset {theirs['']}, this one {ours['']}; {error}") from None
        whose = "this model" if older is edited else f"model {name!r}"
        edited.note(f"{whose} was converted from opset {old} to {new}")
    for domain, version in theirs.items():
        _join_domain(edited.model, guest.model, domain, version, name)


def _join_domain(model: ir.Model, guest: ir.Model, domain: str, version: int, name: str) -> None:
    own = model.opset_imports.setdefault(domain, version)
    if own == version or not _uses(guest, domain):
        return
    if _uses(model, domain):
        raise RequestError(
            f"this model uses version {own} of the operators of {domain!r}, model {name!r} version {version}; "
            "export one of them again, so that both use the same version"
        )
    model.opset_imports[domain] = version


def _uses(model: ir.Model, domain: str) -> bool:
    return any(node.domain == domain for graph in all_graphs(model) for node in graph)
