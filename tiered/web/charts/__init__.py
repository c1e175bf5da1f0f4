"""Charts as SVG.

`charts` draws bars and lines for tables, `time_charts` draws figures over time.
"""
