"""Measurements of this machine, disk and bucket; `benchmark` runs `measurements` and makes the report."""
