"""The report of a run: collect typed page data from records, then render one file.

`draw.draw_report` draws it, `verdict.summarize_run` says it in five lines. Imports records only, so a report can be
drawn again on a laptop that has none of the heavy libraries.
"""
