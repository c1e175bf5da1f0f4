"""Checks of log directories for internal consistency.

`directories` checks all partitions. The `*_checks` modules compare batches, indexes and producer snapshots. Each
contradiction is a `findings.Finding`.
"""
