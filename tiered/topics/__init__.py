"""Topics of a node: created, altered, deleted.

`topic_creation` and `topic_deletion` act, `topic_dry_run` says what a change would do, `partitioner` chooses the
partition of a record.
"""
