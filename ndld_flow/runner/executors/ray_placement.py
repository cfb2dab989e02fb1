"""Which of Ray's nodes may do a task, and what it takes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic import JsonValue

from ndld_flow.base.errors import BackendError
from ndld_flow.base.text import shortened, suggest, visible_name
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.recipe.sweep_section import Needs
from ndld_flow.runner.executors.ray_words import NodeAnswer
from ndld_flow.step import Reuse

_A_LITTLE = 0.001
"""Of a resource that only says where: any number of tasks may take so much."""
_OWN_RESOURCES = ("CPU", "GPU", "memory", "object_store_memory")


@dataclass(frozen=True)
class Node:
    """A node of the cluster."""

    id: str
    address: str
    resources: Mapping[str, float]
    """All it has, taken or not."""
    answer: NodeAnswer

    def __str__(self) -> str:
        own = [f"{self.resources.get(name, 0):g} {name}s" for name in ("CPU", "GPU")]
        return f"{self.address} ({', '.join([*own, *map(visible_name, self.devices)])})"

    @property
    def devices(self) -> list[str]:
        """Names of device types that whoever started the node gave it, and of the GPU that Ray found."""
        names = (name.removeprefix("accelerator_type:") for name in self.resources if name not in _OWN_RESOURCES)
        return sorted(name for name in names if not name.startswith("node:"))


@dataclass(frozen=True)
class Demand:
    """What steps that are done together take of a node."""

    gpus: float
    cpus: float | None
    """None: all of the node's, so that nothing runs beside a measurement of the CPU."""
    device: str
    alone: bool
    """Whether it measures, so that it takes a whole device."""


def read_nodes(told: Sequence[Mapping[str, Any]]) -> list[Node]:
    """The cluster's nodes, as the bridge tells them."""
    return [Node(each["id"], each["address"], each["resources"], _read_answer(each)) for each in told]


def _read_answer(told: Mapping[str, Any]) -> NodeAnswer:
    if "answer" in told:
        return NodeAnswer.from_line(told["answer"])
    said = shortened(visible_name(str(told["refusal"])), 300)
    return NodeAnswer(
        machine="",
        complaint=f"Ray's node {told['address']} cannot work: {said}. Install the same ndld-flow and Python there",
    )


def make_demand(steps: Sequence[RecipeStep], needs: Mapping[str, Needs]) -> Demand:
    """What steps need, where `needs` says something by a step's name, or else by what they measure."""
    own = [needs[name] for step in steps if (name := step.name.partition("#")[0]) in needs]
    device = steps[0].step.device
    gpus = max([need.gpus for need in own], default=0.0)
    cpus = [need.cpus for need in own if "cpus" in need.model_fields_set]
    by_default = None if device == "cpu" else 1.0
    return Demand(
        gpus=max(gpus, 1.0) if device.startswith("gpu") else gpus,
        cpus=max(cpus) if cpus else by_default,
        device=next((need.device for need in own if need.device), ""),
        alone=bool(device),
    )


def find_nodes(demand: Demand, nodes: Sequence[Node]) -> list[Node]:
    """The nodes that Ray may give a task to. Raises BackendError when one of them cannot work with this store."""
    fitting = [node for node in nodes if _fits(demand, node)]
    complaint = next((node.answer.complaint for node in fitting if node.answer.complaint), "")
    if complaint:
        raise BackendError(f"{complaint}.")
    return fitting


def only_machine(fitting: Sequence[Node], step: RecipeStep) -> str:
    """Return what keys have of these nodes. Raises BackendError when they are machines of several kinds."""
    kinds = {_describe(node.answer, step): node for node in fitting}
    if len(kinds) > 1:
        first, second = list(kinds.items())[:2]
        raise BackendError(
            f"a measuring step could run on Ray's node {first[1].address} ({first[0]}) or on {second[1].address} "
            f"({second[0]}), and their measurements must not be mixed. Name one kind where its nodes are started, "
            "`ray start --resources='{\"fast\": 1}'`, and in the recipe: `needs: {STEP: {device: fast}}`."
        )
    return next(iter(kinds))


def _describe(answer: NodeAnswer, step: RecipeStep) -> str:
    if step.step.reused_where() not in (Reuse.THIS_HOST, Reuse.SAME_KIND):
        return answer.machine
    return answer.measuring.get("gpu" if step.step.device.startswith("gpu") else "cpu", answer.machine)


def make_options(demand: Demand, fitting: Sequence[Node]) -> dict[str, JsonValue]:
    """What a Ray task is given, so that it goes to one of the nodes that `find_nodes` found."""
    cpus = min(node.resources.get("CPU", 0.0) for node in fitting) if demand.cpus is None else demand.cpus
    options: dict[str, JsonValue] = {"num_cpus": cpus, "num_gpus": demand.gpus}
    named = {_device_of(demand, node) for node in fitting} - {""}
    # Ray takes a name, not a choice: where nodes have the device under both names, the one that was given by people.
    for name in sorted(named, key=len)[:1]:
        options["resources"] = {name: 1.0 if demand.alone and not name.startswith("accelerator_type:") else _A_LITTLE}
    return options


def _fits(demand: Demand, node: Node) -> bool:
    enough = node.resources.get("GPU", 0) >= demand.gpus and node.resources.get("CPU", 0) >= (demand.cpus or 0)
    return enough and (not demand.device or bool(_device_of(demand, node)))


def _device_of(demand: Demand, node: Node) -> str:
    """How Ray calls the wanted device on a node; empty where it has none."""
    names = (demand.device, f"accelerator_type:{demand.device}") if demand.device else ()
    return next((name for name in names if node.resources.get(name, 0) > 0), "")


def explain_lack(demand: Demand, nodes: Sequence[Node], address: str) -> BackendError:
    """Why no node fits, and which there are."""
    known = sorted({name for node in nodes for name in node.devices})
    nearest = f" ({suggest(demand.device, known)})" if known else ""
    wanted = [f"{demand.gpus:g} GPUs"] if demand.gpus else []
    wanted += [f"{demand.cpus:g} CPUs"] if demand.cpus else []
    wanted += [f"the device {demand.device!r}{nearest}"] if demand.device else []
    there = "; ".join(str(node) for node in nodes[:5]) or "none that answers"
    more = f" and {len(nodes) - 5} more" if len(nodes) > 5 else ""
    return BackendError(
        f"Ray at {address} has no node with {' and '.join(wanted) or 'a CPU'}. Its nodes: {there}{more}."
    )
