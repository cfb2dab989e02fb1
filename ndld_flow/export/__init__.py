"""Exports of models as code."""
