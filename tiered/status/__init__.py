"""How a node and its tiers stand.

`status_report` gathers figures and problems, `status_rows` flattens them for output, `tier_journal` and
`tier_history` keep figures over time, `unknown_figures` marks what could not be read.
"""
