"""Plans: decisions with prices, shown, saved and applied later.

`planning` makes a plan from a manager's state and flattens it to rows, `saved_plan` writes it to a file and applies it
if the state is unchanged.
"""
