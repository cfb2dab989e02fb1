"""The page of a comparison: profiles side by side, any of them as the base.

`page.draw_comparison` writes it; `report.panels.comparisons` collects the part in a run's report.
"""
