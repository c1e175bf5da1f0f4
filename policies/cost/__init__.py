"""The cost of the bucket. Pure functions."""
