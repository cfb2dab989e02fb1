"""The imports and compiled templates of a run; `tests.support.process_runs` forks a process that imported this."""

from __future__ import annotations

import hydra  # noqa: F401

from ndld_flow.cli import progress, run  # noqa: F401
from ndld_flow.models import files  # noqa: F401
from ndld_flow.report.render import environment
from ndld_flow.runner import run_folder  # noqa: F401

for _name in environment().list_templates(extensions=["j2"]):
    environment().get_template(_name)
