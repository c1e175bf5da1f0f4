"""What the bucket costs.

`prices` is the table, `storage_cost` the arithmetic, `bill` what topics cost a month, `simulation` the life of a
partition under given settings, `scenarios` compares settings. Pure functions.
"""
