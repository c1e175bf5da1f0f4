"""Plans: decisions with prices, shown, saved and applied later.

`planning` makes a plan of a manager's state, `plan_rows` flattens it, `saved_plan` writes it to a file and applies it
if the state still holds.
"""
