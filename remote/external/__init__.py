"""Buckets written by other software. Start with `external_layout` and `external_formats`."""
