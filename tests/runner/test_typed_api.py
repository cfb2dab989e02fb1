"""The names and annotations of `ndld_flow.api`; `typed_program.py` holds the types that a program sees."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys

from ndld_flow import api
from ndld_flow.base.lazy_names import names_for_checkers


def test_the_names_of_the_module_are_those_that_checkers_of_types_see() -> None:
    own = {
        name
        for name, value in vars(api).items()
        if getattr(value, "__module__", "") == api.__name__ and name != "__getattr__"
    }
    assert sorted(api.__all__) == sorted({*names_for_checkers(api.__name__), *own})
    functions = [value for name in api.__all__ if inspect.isfunction(value := getattr(api, name))]
    assert [function for function in functions if not hasattr(function, "__wrapped__")] == [], "not public"


def test_importing_the_api_imports_no_library() -> None:
    code = (
        "import sys; from ndld_flow import api\n"
        "print({'click', 'hydra', 'numpy', 'onnx', 'onnxruntime', 'pandas', 'pydantic', 'yaml'} & set(sys.modules))"
    )
    environment = {**os.environ, "PYTHONSAFEPATH": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
