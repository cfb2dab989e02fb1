"""Exports for pull requests, CI systems, spreadsheets, notebooks and trace viewers.

Everything is based on records. `profiles[i][j]` is always the profile that `comparison.profiles[i]` has at
position j of its subjects.
"""
