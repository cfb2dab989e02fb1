"""Panels of a run's report, one module each; files of the same name next to it are its template and its script."""
