"""What leaves the report: for pull requests, CI systems, spreadsheets, notebooks and trace viewers.

One small file a format, drawn from records. `profiles[i][j]` is always the profile that `comparison.profiles[i]` has at
position j of its subjects.
"""
