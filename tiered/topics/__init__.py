"""Topics of a node: created, altered, deleted.

`topic_creation` and `topic_deletion` act, `topic_dry_run` reports the effects of a change, `partitioner` chooses the
partition of a record.
"""
