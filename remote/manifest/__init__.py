"""Manifests: the whole remote tier of a partition at one commit.

`manifest` is the format, `commit_protocol` the writer (acquire, commit, in doubt, fenced), `manifest_lookup` finds
entries, `manifest_page` holds older entries as Parquet. Start with `commit_protocol`.
"""
