"""Graphs laid out and drawn without a GUI."""
