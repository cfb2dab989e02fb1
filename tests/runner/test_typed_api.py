"""The names and annotations of `ndld_flow.api`; `typed_program.py` holds the types that a program sees."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

import pytest

from ndld_flow import api
from ndld_flow.base.lazy_names import names_for_checkers


def test_the_names_that_checkers_of_types_see_are_there_at_run_time() -> None:
    offered = {name: getattr(api, name) for name in names_for_checkers(api.__name__)}
    assert {*offered, "layers", "frame"} <= {*dir(api)}
    functions = [value for value in offered.values() if inspect.isfunction(value)]
    assert [function for function in functions if not hasattr(function, "__wrapped__")] == [], "not public"
    with pytest.raises(AttributeError, match="no_such_name"):
        getattr(api, "no_such_name")  # noqa: B009 - a checker of types would refuse the attribute


def test_importing_the_api_imports_no_library() -> None:
    code = (
        "import sys; from ndld_flow import api\n"
        "print({'click', 'hydra', 'numpy', 'onnx', 'onnxruntime', 'pandas', 'pydantic', 'yaml'} & set(sys.modules))"
    )
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
