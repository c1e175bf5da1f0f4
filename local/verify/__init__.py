"""Checks of log directories against themselves.

`directories` walks all partitions; the `*_checks` modules hold batches, indexes and producer snapshots against each
other; a contradiction is a `findings.Finding`.
"""
