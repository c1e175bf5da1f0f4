"""Buckets written by other software.

Aiven's plugin, Kafka's LocalTieredStorage, Pinterest's uploader and plain log directories, read through one interface.
Start with `external_layout` and `external_formats`.
"""
