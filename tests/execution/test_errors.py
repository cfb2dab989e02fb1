"""Errors that are raised again: in another process, or with the place where they happened."""

from __future__ import annotations

import pytest

from ndld_flow.base import errors
from ndld_flow.base.errors import NdldFlowError, RecipeError, UnknownNameError

CLASSES = [
    kind
    for kind in vars(errors).values()
    if isinstance(kind, type) and issubclass(kind, NdldFlowError) and kind is not RecipeError
]


@pytest.mark.parametrize("kind", CLASSES)
def test_an_error_is_rebuilt_from_its_class_and_its_text(kind: type[NdldFlowError]) -> None:
    """Programs that build engines and measure report only these to the process that started them."""
    assert kind("no node 'conv'; did you mean \"conv1\"?").message == "no node 'conv'; did you mean \"conv1\"?"


def test_another_text_keeps_the_fields_of_an_error() -> None:
    error = UnknownNameError("no node 'conv'", "conv", ["conv1", "add"])
    assert 'did you mean "conv1"' in str(error)
    located = error.with_text(f"operations[0]: {error}", "edit")
    assert isinstance(located, UnknownNameError)
    assert (located.name, located.nearest, located.step) == ("conv", "conv1", "edit")
    assert located.message == f"operations[0]: {error.message}" and error.step == ""


def test_a_name_without_a_near_one_lists_the_known_ones_or_none() -> None:
    far = UnknownNameError("no node 'x'", "x", ["conv1", ""])
    assert far.nearest == "" and far.message.endswith("known: conv1")
    assert UnknownNameError("no node 'x'", "x", [], "the graph is empty").message.endswith("; the graph is empty")
