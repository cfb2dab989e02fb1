"""The imports and compiled templates of a run; `tests.support.process_runs` forks a process that imported this."""

from __future__ import annotations

import importlib
import pkgutil

import hydra
import hydra.compose
import hydra.core.override_parser.overrides_parser  # noqa: F401

import ndld_flow.recipe
import ndld_flow.report
from ndld_flow import api  # noqa: F401
from ndld_flow.cli import app, plain, progress  # noqa: F401
from ndld_flow.execution import choose_executor, workers  # noqa: F401
from ndld_flow.models import files  # noqa: F401
from ndld_flow.report.render import environment
from ndld_flow.runner import run as run_recipe  # noqa: F401
from ndld_flow.runner import run_folder  # noqa: F401
from ndld_flow.sweep import run_request  # noqa: F401
from ndld_flow.verbs import run  # noqa: F401
from tests.support.sleeping_threads import let_threads_sleep

let_threads_sleep()

for _package in (ndld_flow.recipe, ndld_flow.report):
    for _module in pkgutil.walk_packages(_package.__path__, f"{_package.__name__}."):
        importlib.import_module(_module.name)
for _name in environment().list_templates(extensions=["j2"]):
    environment().get_template(_name)
