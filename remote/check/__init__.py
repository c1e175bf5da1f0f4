"""Checks of what a bucket holds for one partition.

`partition_check` lists, decodes and compares everything below a partition's prefix; `manifest_salvage` reads the
sound entries of a damaged manifest.
"""
