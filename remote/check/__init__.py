"""Checks of a bucket's content for one partition.

`partition_check` lists, decodes and compares everything below a partition's prefix. `manifest_salvage` reads the sound
entries of a damaged manifest.
"""
