"""Consumer groups by the protocol of KIP-848: the coordinator assigns the partitions. Start with `group`.

`group` is the state machine of one group, `reconciliation` that of one member, `assignors` the target assignments, all
without I/O. `records` are their records in ``__consumer_offsets``, `membership` makes the changes durable.
"""
