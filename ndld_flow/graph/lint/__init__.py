"""What a lint looks at: one file for each sort of check, `run_checks.py` runs those that are asked for."""

from ndld_flow.graph.lint.run_checks import CHECKS, LintOptions, lint_file

__all__ = ["CHECKS", "LintOptions", "lint_file"]
