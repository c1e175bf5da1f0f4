"""Measurements of this machine, disk and bucket."""
