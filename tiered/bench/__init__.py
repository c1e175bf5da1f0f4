"""Measurements of this machine, disk and bucket.

`benchmark` runs the parts and makes the report, `measurements` has the parts of the disk and of the bucket.
"""
