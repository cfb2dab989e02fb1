"""The page of a comparison: profiles side by side, any of them as the base.

`draw.draw_comparison` draws it; `section.collect_comparisons` offers the part of it that a run's report shows.
"""
