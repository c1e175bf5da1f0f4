"""Commands for cost.

cost, cost advise, cost simulate.
"""
