"""Placement of tasks on Ray's nodes, and the resources they take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import pytest

from ndld_flow.base.errors import BackendError
from ndld_flow.execution.ray.cluster import (
    Node,
    explain_no_node,
    find_nodes,
    make_demand,
    make_options,
    only_machine,
)
from ndld_flow.execution.ray.messages import NodeAnswer
from ndld_flow.recipe.recipe import RecipeStep
from ndld_flow.recipe.targets import Needs
from ndld_flow.step import Reuse


@dataclass
class _Device:
    device: str

    def reused_where(self) -> Reuse:
        return Reuse.THIS_MACHINE


@dataclass
class _Step:
    name: str
    step: _Device


def step(name: str, device: str = "") -> RecipeStep:
    """All of a step that placing looks at."""
    return cast(RecipeStep, _Step(name, _Device(device)))


def node(name: str, machine: str = "box", complaint: str = "", **resources: float) -> Node:
    return Node(name, name, resources, NodeAnswer(machine=machine, complaint=complaint))


BIG = node("big", CPU=8, GPU=2, A100=2)
FOUND = Node(
    "found", "found", {"CPU": 16, "GPU": 1, "accelerator_type:A100": 1, "node:found": 1}, NodeAnswer(machine="box")
)
SMALL = node("small", CPU=2)
NODES = [BIG, FOUND, SMALL]


@pytest.mark.parametrize(
    ("wanted", "needs", "fitting", "options"),
    [
        (step("clean"), Needs(), NODES, {"num_cpus": 1, "num_gpus": 0}),
        (step("clean#3"), Needs(cpus=4), [BIG, FOUND], {"num_cpus": 4, "num_gpus": 0}),
        # a measurement of the CPU has a node to itself, one of a GPU that GPU
        (step("clean", "cpu"), Needs(), NODES, {"num_cpus": 2, "num_gpus": 0}),
        (step("clean", "cpu"), Needs(cpus=3), [BIG, FOUND], {"num_cpus": 3, "num_gpus": 0}),
        (step("clean", "gpu-0"), Needs(), [BIG, FOUND], {"num_cpus": 1, "num_gpus": 1}),
        (step("clean", "gpu-0"), Needs(gpus=2), [BIG], {"num_cpus": 1, "num_gpus": 2}),
        (
            step("clean"),
            Needs(device="A100"),
            [BIG, FOUND],
            {"num_cpus": 1, "num_gpus": 0, "resources": {"A100": 0.001}},
        ),
    ],
)
def test_a_step_gets_the_resources_it_needs(
    wanted: RecipeStep, needs: Needs, fitting: list[Node], options: dict[str, Any]
) -> None:
    demand = make_demand([wanted], {"clean": needs})
    assert find_nodes(demand, NODES) == fitting
    assert make_options(demand, find_nodes(demand, NODES)) == options


def test_a_measuring_step_takes_a_whole_device() -> None:
    demand = make_demand([step("speed", "gpu-0")], {"speed": Needs(device="A100")})
    assert make_options(demand, [BIG])["resources"] == {"A100": 1.0}
    assert make_options(demand, [FOUND])["resources"] == {"accelerator_type:A100": 0.001}  # its GPU is taken whole


def test_interleaved_steps_get_the_largest_requirement() -> None:
    demand = make_demand([step("a#1", "gpu-0"), step("b#2", "gpu-0")], {"a": Needs(gpus=2), "b": Needs(cpus=4)})
    assert (demand.gpus, demand.cpus) == (2, 4)


def test_unavailable_resources_are_reported_with_those_of_the_nodes() -> None:
    demand = make_demand([step("speed")], {"speed": Needs(gpus=4, device="A10")})
    assert find_nodes(demand, NODES) == []
    assert "CPUs, 2 GPUs, A100); found (16 CPUs" in str(explain_no_node(demand, NODES, "here:1"))


@pytest.mark.parametrize(
    ("needs", "resources"),
    [
        (Needs(gpus=4), "4 GPUs and 1 CPUs."),
        (Needs(cpus=64), "64 CPUs."),
        (Needs(cpus=0, device="A10"), "the device 'A10' (did you mean \"A100\"?)."),
    ],
)
def test_only_requested_resources_are_reported(needs: Needs, resources: str) -> None:
    message = str(explain_no_node(make_demand([step("speed")], {"speed": needs}), NODES, "here:1"))
    assert f"node with {resources} Its nodes:" in message


def test_an_unusable_node_is_reported_only_when_it_is_needed() -> None:
    broken = node("broken", complaint="it does not see the store", CPU=2)
    assert find_nodes(make_demand([step("speed", "gpu-0")], {}), [BIG, broken]) == [BIG]
    with pytest.raises(BackendError, match="not see the store"):
        find_nodes(make_demand([step("clean")], {}), [BIG, broken])


def test_measurements_of_different_machines_are_not_mixed() -> None:
    assert only_machine([BIG, SMALL], step("clean")) == "box"
    with pytest.raises(BackendError, match=r"Ray's node small \(box\)"):
        only_machine([BIG, SMALL, node("other", "chest")], step("clean"))
