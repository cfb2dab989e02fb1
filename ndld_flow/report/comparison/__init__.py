"""The page of a comparison: profiles side by side, any of them as the base.

`draw.draw_comparison` writes it; `section.collect_comparisons` collects the part in a run's report.
"""
