"""Reports of runs: collect typed page data from records, then render one file.

`run_page.draw_report` writes the page, `verdict.summarize_run` the summary for a terminal. Only records are needed,
so that a report can be redrawn on a laptop without the heavy libraries.
"""
