"""The command line. Each verb is one small file that calls one function of `ndld_flow.api`."""

from ndld_flow.cli.app import main

__all__ = ["main"]
