"""Status of a node and its tiers.

`status_report` gathers figures and problems, `status_rows` flattens them for output, `tier_journal` and `tier_history`
record figures over time, `unknown_figures` names the figures that could not be read.
"""
